"""What a kernel is once it is rendered: text for one language, and what must be bound to it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from weft.core.dtypes import DType

ArgKind = Literal["linear", "c4", "wide", "raw"]
"""linear: scalars, converted to f32 or i32. c4: four channels a step (NC4HW4, NHWC4). wide: eight halves a step, for
templates of one language. raw: scalars moved as bits."""
ConstantKind = Literal["int", "float"]


@dataclass(frozen=True, slots=True)
class Arg:
    """A buffer that a kernel reads or writes, under the name its template uses."""

    name: str
    dtype: DType
    kind: ArgKind
    written: bool = False


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

    @cached_property
    def digest(self) -> str:
        """Return the hash by which the source is cached and shipped."""
        return hashlib.blake2b(self.text.encode(), digest_size=16).hexdigest()
