"""What a kernel is once it is rendered: text for one language, and what must be bound to it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from weft.core.graph.dtypes import DType

ArgKind = Literal["linear", "fours", "c4", "wide", "raw", "raw4", "raw8", "raw16"]
"""linear: scalars, converted to f32 or i32. fours: four floats a step. c4: four channels a step (NC4HW4, NHWC4).
wide: eight halves a step, for templates of one language. raw: scalars moved as bits; raw4, raw8 and raw16: so many
bytes a step."""
RAW_KINDS: dict[int, ArgKind] = {4: "raw4", 8: "raw8", 16: "raw16"}
"""By the bytes that are moved at a time."""
ConstantKind = Literal["int", "float"]
SUBGROUP = 32
"""Items that exchange values or multiply matrices together, in the kernels that do so."""


@dataclass(frozen=True, slots=True)
class Arg:
    """A buffer that a kernel reads or writes, under the name its template uses."""

    name: str
    dtype: DType
    kind: ArgKind
    written: bool = False

    @property
    def raw_bytes(self) -> int:
        """Return the bytes that are moved at a time as bits; 0 if elements are converted."""
        if self.kind == "raw":
            return self.dtype.itemsize
        return next((size for size, kind in RAW_KINDS.items() if kind == self.kind), 0)

    @property
    def in_fours(self) -> bool:
        """Tell whether a step is a vector of four floats."""
        return self.kind in ("c4", "fours")


@dataclass(frozen=True)
class KernelSource:
    """A rendered kernel. Equal text means equal meaning: the values of `constants` are not part of it.

    The first constants are the ints LX, LY and LZ, the local size. In Vulkan GLSL the constant at
    position i has `constant_id` i + 3 (ids 0 to 2 are the local size of the layout), in OpenCL C each is
    a macro. `entry` is the name of the kernel function; `args` are bound in order.
    """

    entry: str
    text: str
    args: tuple[Arg, ...]
    constants: tuple[tuple[str, ConstantKind], ...]
    shared: tuple[tuple[str, str], ...] = ()
    """The arrays of work-group memory: a type of the language, and how many, as an expression of constants."""
    subgroup: int = 0
    """The items of a subgroup that it counts on; 0 if it works with any."""
    warpgroup: bool = False
    """Whether it is written for four subgroups together and their memory (`DeviceCaps.warpgroup_units`)."""

    @cached_property
    def digest(self) -> str:
        """Return the hash by which the source is cached and shipped."""
        return hashlib.blake2b(self.text.encode(), digest_size=16).hexdigest()
