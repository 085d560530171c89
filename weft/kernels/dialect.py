"""A kernel language: how OpenCL C, GLSL and CUDA C write the few things in which they differ.

A dialect is data and a few short methods. Kernel bodies use the prelude's names (f32, f32x4, F4, the
ids and barriers) and the `load`/`store` methods of their arguments, so they work in every language.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from weft.core.graph.dtypes import DType
from weft.kernels import index_map_text
from weft.kernels.formats import INDICES, ODD_FLOAT, ON_GRID, ROUNDED, WORDS, functions
from weft.kernels.source import (
    Arg,
    ConstantKind,
    KernelCode,
    KernelSource,
    Shared,
    Trait,
    computes_double,
    defined,
)

if TYPE_CHECKING:
    from weft.kernels.chain import Level


@dataclass(frozen=True, slots=True)
class View:
    """A second name for an argument, as an array of another type; for templates written for one language."""

    arg: str
    type: str
    name: str


@dataclass(frozen=True, slots=True)
class KernelParts:
    """The parts that a dialect joins: `body` is the rendered template, `prelude` the language's definitions.

    Both use `real` for the type that the kernel computes in. Literals have no suffix: they are of that type.
    """

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
    macros: Sequence[str] = ()
    """The macros that the body defines in its own way."""
    traits: Sequence[Trait] = ()

    @property
    def computes_double(self) -> bool:
        """Tell whether `real` is a double."""
        return computes_double(self.args)


def is_word_pair(dtype: DType) -> bool:
    """Tell whether elements are integers of 64 bits, which kernels take as two words."""
    return dtype in (DType.INT64, DType.UINT64)


def cut_to_bits(dtype: DType, value: str, convert: str = "") -> str:
    """Return what is stored of a number in an integer type; below eight bits, that is the lowest bits of an i32.

    `convert` is the function that makes the number an i32 first, where it may be an f32.
    """
    return f"{convert}({value}) & {(1 << dtype.bits) - 1}" if dtype.is_integer and dtype.bits < 8 else value


def extended(dtype: DType, value: str) -> str:
    """Return the i32 expression of an element that was stored by `cut_to_bits`."""
    if not dtype.is_integer or dtype.bits >= 8:
        return value
    sign, mask = 1 << dtype.bits - 1, (1 << dtype.bits) - 1
    return f"((({value}) & {mask} ^ {sign}) - {sign})" if dtype.is_signed else f"(({value}) & {mask})"


_DECIMAL = re.compile(r"(?<![\w.])((?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)(?![\w.])")


def with_suffix(text: str, suffix: str) -> str:
    """Return a text with a suffix at each of its decimal literals, which bodies write without one."""
    return _DECIMAL.sub(rf"\1{suffix}", text)


FIRST_GROUP, ALL_GROUPS = "FIRST_GROUP", "ALL_GROUPS"
"""The constants of a kernel by `Dialect.from_group`."""


class Dialect(ABC):
    """Writes the parts of a kernel in one language."""

    name: ClassVar[str]
    prelude: ClassVar[str] = ""
    """The file in a shader folder that defines the names that bodies use; unused if `prelude_text` returns them."""

    launch: ClassVar[Mapping[str, str]] = {}
    """The macros by which bodies know their place in a launch, if no prelude defines them: LOCAL_X, LOCAL_Y, LOCAL_Z,
    GROUP_X, GROUP_Y, GROUP_Z and GROUPS_X, and BARRIER."""

    exchange_extensions: ClassVar[tuple[str, ...]] = ()
    """Compiler extensions that `EXCHANGE(v, mask)` of the prelude requires. It returns the f32 `v` of the item whose
    number differs in the bits of `mask`. Only kernels for devices with `DeviceCaps.shuffles` use it."""

    kept_loop: ClassVar[tuple[str, tuple[str, ...]]] = ("", ())
    """The text before a loop that the compiler should not unroll, and the compiler extensions that it requires."""

    exact_block: ClassVar[str] = ""
    """What begins a block of statements in which no product and sum may become one instruction, if a language needs
    it: fused steps are rounded as the nodes are that they come from."""

    plus_product: ClassVar[str] = (
        "f32 plus_product(f32 sum, f32 a, f32 b) { volatile f32 product = a * b; return sum + product; }\n"
    )
    """A function that returns sum + a * b, rounded after the product and after the sum. Compilers make one instruction
    of both, which rounds once, where nothing keeps them from it."""

    dot4: ClassVar[str] = ""
    """A function `int DOT4(uint a, uint b, int sum)` that adds the products of the four int8 in two words to a sum.

    It is for devices with `DeviceCaps.dot8`: where there is no such instruction, floats are faster."""

    dot4_extensions: ClassVar[tuple[str, ...]] = ()
    """Compiler extensions that it requires."""

    reinterprets: ClassVar[tuple[str, str, str]] = ("", "", "")
    """The bits of the f32 `v` as `uint`, the f32 of which `v` are the bits, and the number `v` as `uint`."""

    def from_group(self, source: KernelSource, axis: int) -> KernelSource | None:
        """Return a kernel whose work-groups begin at FIRST_GROUP along an axis, of ALL_GROUPS in several launches.

        Both are further int constants. None if the language has no `launch` for bodies, or the kernel is one text.
        """
        own = f"GROUP_{'XYZ'[axis]}"
        if own not in self.launch or not source.code.in_pieces:
            return None
        launch = {**self.launch, own: f"(FIRST_GROUP + {self.launch[own]})"}
        if axis == 0:
            launch["GROUPS_X"] = ALL_GROUPS
        constants = (*source.constants, (FIRST_GROUP, "int"), (ALL_GROUPS, "int"))
        return replace(source, code=replace(source.code, launch=defined(launch.items())), constants=constants)

    def formats(self, parts: KernelParts) -> tuple[str, ...]:
        """Return the functions for element types that the language lacks, and what gives the bits of floats.

        There are none if no argument is of such a type and the body asks for no bits. Before them come the functions
        of indices, if the body calls one, `plus_product` likewise, and those of arguments reached through a map.
        """
        indices = (INDICES,) if any(name in parts.body for name in ("index_of_", "_place(", "place_inside(")) else ()
        product = (self.plus_product,) if "plus_product(" in parts.body else ()
        return (*indices, *product, *index_map_text.functions(parts.args), *self._formats(parts))

    def _formats(self, parts: KernelParts) -> tuple[str, ...]:
        rounds = [dtype for dtype in ROUNDED if f"narrow_{dtype.name.lower()}(" in parts.body]
        texts = functions([*(a.dtype for a in parts.args if not a.raw_bytes and not a.double), *rounds])
        texts += (ODD_FLOAT,) if "odd_float(" in parts.body else ()
        texts += tuple(ROUNDED[dtype] for dtype in rounds)
        called = {"step_of(": ON_GRID, "four_of(": WORDS, "word_of(": WORDS, "DOT4(": self.dot4}
        texts += tuple(dict.fromkeys(text for name, text in called.items() if name in parts.body))
        names = ("BITS_OF", "FLOAT_OF", "TO_U32")
        if not texts and not any(f"{name}(" in parts.body for name in names):
            return ()
        bits = ((f"{name}(v)", form) for name, form in zip(names, self.reinterprets, strict=True))
        return (defined(bits), *texts)

    def prelude_text(self) -> str | None:
        """Return the prelude's definitions, for a dialect without a prelude file; None: read the file `prelude`."""
        return None

    @abstractmethod
    def assemble(self, parts: KernelParts) -> KernelCode:
        """Return a kernel; one text, `KernelCode(text)`, suffices where no device joins or divides launches."""

    def chain(self, levels: Sequence[Level], args: Sequence[Arg], items: int) -> str | None:
        """Return the text of one kernel of `items` work-items that does what the levels do; None if it cannot.

        Its first argument is the counter by which all work-groups wait for each other. It is called `CHAIN`, its
        constants are those that `weft.kernels.chain` names.
        """
        return None

    @abstractmethod
    def load(self, arg: Arg, index: str) -> str:
        """Return the expression of element `index` as f32 or double (floats) or i32 (integers)."""

    @abstractmethod
    def store(self, arg: Arg, index: str, value: str) -> str:
        """Return the statement that stores an f32, double or i32 `value` as element `index`."""

    @abstractmethod
    def load4(self, arg: Arg, index: str) -> str:
        """Return the expression of the four elements from 4 * `index` on, as f32x4."""

    @abstractmethod
    def store4(self, arg: Arg, index: str, value: str) -> str:
        """Return the statement that stores an f32x4 as the four elements from 4 * `index` on."""

    def store8(self, arg: Arg, index: str, first: str, second: str) -> str:
        """Return the statement that stores two f32x4 one after the other, the first at an even `index`."""
        return f"{self.store4(arg, index, first)} {self.store4(arg, f'{index} + 1', second)}"

    def store_words(self, arg: Arg, index: str, first: str, second: str) -> str:
        """Return the statement that stores two words one after the other, the first at an even `index`."""
        return f"{arg.name}[{index}] = {first}; {arg.name}[{index} + 1] = {second};"

    def store2(self, arg: Arg, index: str, first: str, second: str) -> str:
        """Return the statement that stores two f32 as the elements from 2 * `index` on of a c4 argument.

        As written here it is for languages in which vectors have elements by index.
        """
        lanes = (f"{arg.name}[({index}) / 2][({index}) % 2 * 2 + {lane}]" for lane in range(2))
        return " ".join(f"{at} = {value};" for at, value in zip(lanes, (first, second), strict=True))

    def twos_view(self, arg: Arg) -> View | None:
        """Return the view by which `store2` accesses a c4 argument two elements at a time, if it needs one."""
        return None

    @abstractmethod
    def load_lane(self, arg: Arg, index: str, lane: str) -> str:
        """Return the expression of element 4 * `index` + `lane` of a c4 argument, as f32."""

    def shared_number(self, array: str, index: str) -> str:
        """Return number `index` of an array of f32x4 in work-group memory, to assign to.

        As written here it is for languages in which vectors have elements by index.
        """
        return f"{array}[({index}) / 4][({index}) % 4]"

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
        if arg.raw_bytes == 8:
            return f"TO_I32({arg.name}[{index}].y)"
        if is_word_pair(arg.dtype):
            return f"TO_I32({arg.name}[{index}] >> 32)"
        return f"({self.load(arg, index)} < 0 ? -1 : 0)" if arg.dtype.is_signed else "0"

    def load_index(self, arg: Arg, index: str) -> str:
        """Return element `index` as i32; a number beyond 32 bits becomes the nearest one within."""
        if arg.dtype.is_float:
            return f"index_of_float({self.load(arg, index)})"
        if is_word_pair(arg.dtype) or arg.dtype is DType.UINT32:
            return f"index_of_words({self.load(arg, index)}, {self.load_high(arg, index)})"
        return self.load(arg, index)

    def store_pair(self, arg: Arg, index: str, low: str, high: str) -> str:
        """Return the statement that stores an integer given as two `uint`: its lower and its upper 32 bits."""
        if is_word_pair(arg.dtype):
            return f"{arg.name}[{index}] = TO_I32({high}) * 4294967296 + {low};"
        return self.store(arg, index, f"TO_I32({low})")

    def move(self, target: Arg, to: str, source: Arg, at: str) -> str:
        """Return the statement that moves one raw element without interpreting it."""
        return f"{target.name}[{to}] = {source.name}[{at}];"
