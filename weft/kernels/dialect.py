"""A kernel language: how the few things that differ between OpenCL C and GLSL (and CUDA C) are written.

A dialect is data and a few short methods. Kernel bodies use the prelude's names (f32, f32x4, F4, the
ids and barriers) and the `load`/`store` methods of their arguments; they never see the language.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from weft.core.graph.dtypes import DType
from weft.kernels.source import Arg, ConstantKind


@dataclass(frozen=True, slots=True)
class Shared:
    """An array that a work-group shares; `size` is an expression of constants, `align` bytes (0: of its type)."""

    type: str
    name: str
    size: str
    align: int = 0


@dataclass(frozen=True, slots=True)
class View:
    """An argument seen as an array of another type, under another name, by a template of one language."""

    arg: str
    type: str
    name: str


@dataclass(frozen=True, slots=True)
class KernelParts:
    """What a dialect puts together: `body` is the rendered template, `prelude` the language's definitions."""

    entry: str
    prelude: str
    args: Sequence[Arg]
    constants: Sequence[tuple[str, ConstantKind]]
    shared: Sequence[Shared]
    body: str
    extensions: Sequence[str] = ()
    """What a template written for one language asks of its compiler."""
    views: Sequence[View] = ()
    """For languages in which an argument has one type where it is declared, and no pointer can be cast."""
    functions: Sequence[str] = ()
    """Functions beside the kernel, of a template written for one language where a body alone does not do."""


class Dialect(ABC):
    """Write the parts of a kernel in one language."""

    name: ClassVar[str]
    prelude: ClassVar[str] = ""
    """The file in a shader folder that defines the names that bodies use; not read if `prelude_text` has them."""

    exchange_extensions: ClassVar[tuple[str, ...]] = ()
    """What `EXCHANGE(v, mask)` of the prelude asks of the compiler: the f32 `v` of the item whose number differs in
    the bits of `mask`. Only kernels for devices with `DeviceCaps.shuffles` use it."""

    def prelude_text(self) -> str | None:
        """Return the definitions themselves, so that a dialect may do without a file; None: they are in `prelude`."""
        return None

    @abstractmethod
    def assemble(self, parts: KernelParts) -> str:
        """Return the whole source of a kernel."""

    @abstractmethod
    def load(self, arg: Arg, index: str) -> str:
        """Return the expression of element `index` as f32 (floats) or i32 (integers)."""

    @abstractmethod
    def store(self, arg: Arg, index: str, value: str) -> str:
        """Return the statement that stores an f32 or i32 `value` as element `index`."""

    @abstractmethod
    def load4(self, arg: Arg, index: str) -> str:
        """Return the expression of the four elements from 4 * `index` on, as f32x4."""

    @abstractmethod
    def store4(self, arg: Arg, index: str, value: str) -> str:
        """Return the statement that stores an f32x4 as the four elements from 4 * `index` on."""

    def store8(self, arg: Arg, index: str, first: str, second: str) -> str:
        """Return the statement that stores two f32x4 one after the other, the first at an even `index`."""
        return f"{self.store4(arg, index, first)} {self.store4(arg, f'{index} + 1', second)}"

    @abstractmethod
    def load_lane(self, arg: Arg, index: str, lane: str) -> str:
        """Return the expression of element 4 * `index` + `lane` of a c4 argument, as f32."""

    def load_quad(self, arg: Arg, index: str) -> str:
        """Return the expression of the four elements from 4 * `index` on of a linear argument, as f32x4."""
        return f"F4({', '.join(self.load(arg, f'({index}) * 4 + {e}') for e in range(4))})"

    def store_quad(self, arg: Arg, index: str, value: str) -> str:
        """Return the statement that stores an f32x4 variable as four elements of a linear argument."""
        stores = (self.store(arg, f"({index}) * 4 + {e}", f"{value}.{lane}") for e, lane in enumerate("xyzw"))
        return f"{{ {' '.join(stores)} }}"

    def quad_view(self, arg: Arg) -> View | None:
        """Return the view of a linear argument that its quads are moved through, if that takes one."""
        return None

    def load_high(self, arg: Arg, index: str) -> str:
        """Return the upper 32 bits of element `index` of an integer argument, widened to 64 bits, as i32."""
        if arg.dtype is DType.INT64:
            return f"TO_I32({arg.name}[{index}] >> 32)"
        return "0" if arg.dtype in (DType.BOOL, DType.UINT8) else f"({self.load(arg, index)} < 0 ? -1 : 0)"

    def store_pair(self, arg: Arg, index: str, low: str, high: str) -> str:
        """Return the statement that stores an integer of which two `uint` are the lower and upper 32 bits."""
        if arg.dtype is DType.INT64:
            return f"{arg.name}[{index}] = TO_I32({high}) * 4294967296 + {low};"
        return self.store(arg, index, f"TO_I32({low})")

    @abstractmethod
    def move(self, target: Arg, to: str, source: Arg, at: str) -> str:
        """Return the statement that moves one raw element without interpreting it."""
