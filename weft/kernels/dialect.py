"""A kernel language: how OpenCL C, GLSL and CUDA C write the few things in which they differ.

A dialect is data and a few short methods. Kernel bodies use the prelude's names (f32, f32x4, F4, the
ids and barriers) and the `load`/`store` methods of their arguments, so they work in every language.
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
    """An array in work-group memory; `size` is an expression of constants, `align` is in bytes (0: by its type)."""

    type: str
    name: str
    size: str
    align: int = 0


@dataclass(frozen=True, slots=True)
class View:
    """A second name for an argument, as an array of another type; for templates written for one language."""

    arg: str
    type: str
    name: str


@dataclass(frozen=True, slots=True)
class KernelParts:
    """The parts that a dialect joins: `body` is the rendered template, `prelude` the language's definitions."""

    entry: str
    prelude: str
    args: Sequence[Arg]
    constants: Sequence[tuple[str, ConstantKind]]
    shared: Sequence[Shared]
    body: str
    extensions: Sequence[str] = ()
    """Compiler extensions that a template for one language requires."""
    views: Sequence[View] = ()
    """For languages that fix an argument's type at its declaration and cannot cast pointers."""
    functions: Sequence[str] = ()
    """Functions beside the kernel, for templates written for one language."""


class Dialect(ABC):
    """Writes the parts of a kernel in one language."""

    name: ClassVar[str]
    prelude: ClassVar[str] = ""
    """The file in a shader folder that defines the names that bodies use; unused if `prelude_text` returns them."""

    exchange_extensions: ClassVar[tuple[str, ...]] = ()
    """Compiler extensions that `EXCHANGE(v, mask)` of the prelude requires. It returns the f32 `v` of the item whose
    number differs in the bits of `mask`. Only kernels for devices with `DeviceCaps.shuffles` use it."""

    def prelude_text(self) -> str | None:
        """Return the prelude's definitions, for a dialect without a prelude file; None: read the file `prelude`."""
        return None

    @abstractmethod
    def assemble(self, parts: KernelParts) -> str:
        """Return the complete source of a kernel."""

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
        """Return the view to access a linear argument four elements at a time, if the language needs one."""
        return None

    def load_high(self, arg: Arg, index: str) -> str:
        """Return the upper 32 bits of element `index` of an integer argument, widened to 64 bits, as i32."""
        if arg.dtype is DType.INT64:
            return f"TO_I32({arg.name}[{index}] >> 32)"
        return "0" if arg.dtype in (DType.BOOL, DType.UINT8) else f"({self.load(arg, index)} < 0 ? -1 : 0)"

    def store_pair(self, arg: Arg, index: str, low: str, high: str) -> str:
        """Return the statement that stores an integer given as two `uint`: its lower and its upper 32 bits."""
        if arg.dtype is DType.INT64:
            return f"{arg.name}[{index}] = TO_I32({high}) * 4294967296 + {low};"
        return self.store(arg, index, f"TO_I32({low})")

    @abstractmethod
    def move(self, target: Arg, to: str, source: Arg, at: str) -> str:
        """Return the statement that moves one raw element without interpreting it."""
