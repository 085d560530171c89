"""A rendered kernel: its text in one language, and what must be bound to it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from weft.core.graph.dtypes import DType

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

    @property
    def raw_bytes(self) -> int:
        """Return the bytes that one access moves as bits; 0 if elements are converted."""
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


@dataclass(frozen=True)
class KernelSource:
    """A rendered kernel. Its text leaves out the values of `constants`, so equal texts mean equal kernels.

    The first constants are the ints LX, LY and LZ, the local size. In Vulkan GLSL the constant at
    position i has `constant_id` i + 3 (ids 0 to 2 are the local size of the layout), in OpenCL C each is
    a macro. `entry` is the name of the kernel function; `args` are bound in order.
    """

    entry: str
    text: str
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
