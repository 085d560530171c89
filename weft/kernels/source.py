"""A rendered kernel: its text in one language, and what must be bound to it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from functools import cached_property
from typing import Any, Literal

from weft.core.graph.dtypes import DType
from weft.core.graph.layout import PACK

ArgKind = Literal["linear", "fours", "c4", "wide", "raw", "raw4", "raw8", "raw16"]
"""linear: scalars, converted to f32, double or i32. fours: four floats at once. c4: four channels at once (NC4HW4,
NHWC4). wide: eight halves at once, for templates of one language. raw: scalars moved as bits; raw4, raw8 and raw16:
that many bytes at once."""
RAW_KINDS: dict[int, ArgKind] = {4: "raw4", 8: "raw8", 16: "raw16"}
"""Argument kinds by the bytes that one access moves."""
ConstantKind = Literal["int", "float", "double"]
LOCAL_SIZE = ("LX", "LY", "LZ")
"""The constants that are the local size. They must be known when a kernel is built."""
_AXIS = re.compile(r"\w*[DS]\d+")
"""Matches the constants that are sizes and steps of numbered axes, by which an item finds its coordinates."""
SUBGROUP = 32
"""Work-items that exchange values or multiply matrices together, in the kernels that do so."""


@dataclass(frozen=True, slots=True)
class Through:
    """How the text of a kernel reaches an argument whose elements lie at places that an `IndexMap` gives.

    `stages` has an item for each stage of the map: for each of its axes, whether it is shifted. The numbers of the map
    are constants (`weft.kernels.index_map_text`).
    """

    stages: tuple[tuple[bool, ...], ...]
    in_fours: bool
    """Whether each four elements, the first at a multiple of four, lie so as well."""


@dataclass(frozen=True, slots=True)
class Arg:
    """A buffer that a kernel reads or writes, by the name its template uses."""

    name: str
    dtype: DType
    kind: ArgKind
    written: bool = False
    through: Through | None = None
    """None: element i lies at place i."""
    double: bool = False
    """Whether the kernel computes with its float64 elements; otherwise they are two words each, converted to f32."""
    output_map: str = ""
    """The `OutputMap` by which it is stored; "" if the kernel's pixels and channels are its own."""
    grid: bool = False
    """Whether its elements are int8 that kernels take for floats: (q - zero point) * scale, two constants of theirs.

    Of an argument in fours, each four are one word, whose lowest byte is the first of them.
    """

    @property
    def raw_bytes(self) -> int:
        """Return the bytes that one access moves as bits; 0 if elements are converted."""
        if self.grid and self.in_fours:
            return PACK
        if self.kind == "raw":
            return self.dtype.itemsize
        return next((size for size, kind in RAW_KINDS.items() if kind == self.kind), 0)

    @property
    def in_fours(self) -> bool:
        """Tell whether one access is a vector of four floats."""
        return self.kind in ("c4", "fours")


def computes_double(args: Iterable[Arg]) -> bool:
    """Tell whether a kernel with these arguments computes in float64: `real` is then a double, otherwise f32."""
    return any(a.double for a in args)


Trait = Literal["covered", "numbered", "unwritten"]
"""What a template declares of instructions of one language. covered: the compiler must not see some of them
(`weft.backends.opencl.ptx`). numbered: barriers have numbers, which no other part of the group may use. unwritten: some
loads are right only of what no work-item writes while the kernel runs."""


@dataclass(frozen=True, slots=True)
class Shared:
    """An array in work-group memory; `size` is an expression of constants, `align` is in bytes (0: by its type)."""

    type: str
    name: str
    size: str
    align: int = 0


@dataclass(frozen=True, slots=True)
class KernelCode:
    """A kernel in one language, in pieces. Printed (`text`), they follow each other in this order.

    What joins kernels to one, or to one program, or changes what a kernel knows of its launch, prints the pieces
    in another way. A kernel that is written by hand may be all `body`; then nothing of that is done with it.
    """

    body: str
    """The statements of the kernel, which name its arguments, its arrays and what the other pieces define."""
    start: str = ""
    """What stands first in a source; another program may begin otherwise."""
    launch: str = ""
    """The macros by which an item knows its place in the launch, and the barrier of its group."""
    prelude: str = ""
    """The names that bodies of this language use; kernels of which it is the same may share it."""
    functions: tuple[str, ...] = ()
    """Functions beside the kernel; each text is the same in all kernels that have it, and reads no constant."""
    head: str = ""
    """The kernel's signature and its arrays of work-group memory, up to its first statement."""
    end: str = ""
    arrays: tuple[Shared, ...] = ()
    """The arrays that `head` declares."""
    macros: tuple[str, ...] = ()
    """The macros that `body` defines in its own way, which must not outlive it."""
    traits: tuple[Trait, ...] = ()
    late: bool = False
    """Whether constants may be known when it runs: ints and floats as arguments in OpenCL C, floats pushed in GLSL."""

    @property
    def text(self) -> str:
        """Return the whole source."""
        pieces = (self.start, self.launch, self.prelude, *self.functions, self.head, self.body, self.end)
        return "".join(pieces)

    @property
    def in_pieces(self) -> bool:
        """Tell whether the kernel can be part of other sources."""
        return bool(self.head)

    def facts(self) -> tuple[Any, ...]:
        """Return the pieces as JSON takes them."""
        return astuple(self)

    @classmethod
    def of_facts(cls, facts: Any) -> KernelCode:
        """Return what `facts` described once it came through JSON; TypeError or ValueError if it is something else."""
        body, start, launch, prelude, functions, head, end, arrays, macros, traits, late = facts
        texts = (body, start, launch, prelude, head, end, *functions, *macros, *traits)
        if {*map(type, texts)} != {str} or {*map(type, (functions, arrays, macros, traits))} != {list}:
            raise TypeError("pieces of code are texts")
        made = tuple(Shared(*array) for array in arrays)
        listed = tuple(functions), head, end, made, tuple(macros), tuple(traits)
        return cls(body, start, launch, prelude, *listed, late is True)


def defined(macros: Iterable[tuple[str, str]]) -> str:
    """Return the lines that define macros."""
    return "".join(f"#define {name} {text}\n" for name, text in macros)


def undefined(names: Iterable[str]) -> str:
    """Return the lines that forget macros."""
    return "".join(f"#undef {name}\n" for name in names)


@dataclass(frozen=True)
class KernelSource:
    """A rendered kernel. Its code leaves out the values of `constants`, so equal texts mean equal kernels.

    The first constants are the ints LX, LY and LZ, the local size. In Vulkan GLSL the constant at
    position i has `constant_id` i + 3 (ids 0 to 2 are the local size of the layout), in OpenCL C each is
    a macro. `entry` is the name of the kernel function; `args` are bound in order.
    """

    entry: str
    code: KernelCode
    args: tuple[Arg, ...]
    constants: tuple[tuple[str, ConstantKind], ...]
    shared: tuple[tuple[str, str], ...] = ()
    """Arrays of work-group memory: a type of the language, and a number of elements as an expression of constants."""
    subgroup: int = 0
    """The subgroup size that the kernel requires; 0 if it works with any."""
    warpgroup: bool = False
    """Whether the kernel needs four subgroups together and their memory (`DeviceCaps.has_warpgroups`)."""
    bounds: frozenset[str] = frozenset()
    """The constants that bound the loop in which the work-groups, or the work-items, of a launch share its work."""

    @cached_property
    def text(self) -> str:
        """Return the code as the compiler gets it, printed once."""
        return self.code.text

    def has(self, trait: Trait) -> bool:
        """Tell whether the template declared this."""
        return trait in self.code.traits

    @property
    def computes_double(self) -> bool:
        """Tell whether the kernel computes in float64."""
        return computes_double(self.args)

    @cached_property
    def digest(self) -> str:
        """Return the hash under which the source is cached and shipped."""
        return hashlib.blake2b(self.text.encode(), digest_size=16).hexdigest()

    @cached_property
    def walk(self) -> frozenset[str]:
        """Return the constants by which items walk through all of the work: what bounds their loop, and its axes."""
        return self.bounds.union(name for name, _ in self.constants if _AXIS.fullmatch(name))
