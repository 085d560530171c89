"""The products of small matrices that a device's matrix units compute at once, and those that Weft's kernels need.

A device lists its shapes (`DeviceCaps.matrices`): Vulkan's drivers tell them, for others they are known by
architecture. An algorithm asks for the one that it is written for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Scope = Literal["subgroup", "warpgroup", "workgroup"]
"""Who multiplies together: a subgroup, four subgroups beside each other, or all work-items of a group."""


@dataclass(frozen=True, slots=True, order=True)
class MatrixShape:
    """A product of a matrix of `rows` x `depth` with one of `depth` x `columns`, added to `rows` x `columns` sums."""

    rows: int
    """Of scope "workgroup": the step in which the number of rows may grow."""
    columns: int
    """Of a wider scope than "subgroup": the step in which the number of columns may grow."""
    depth: int
    """Of scope "workgroup": the step in which the depth may grow."""
    operands: str
    """The type of both matrices, by its usual name: "float16", "bfloat16", "int8"."""
    sums: str
    """The type of the sums."""
    items: int
    """Work-items that multiply together: the size of the subgroup, warpgroup or work-group."""
    scope: Scope = "subgroup"

    def __str__(self) -> str:
        """Return it as devices are listed: "16x16x16 float16 to float32 by 32 items"."""
        by = f"{self.items} items" + ("" if self.scope == "subgroup" else f" of a {self.scope}")
        return f"{self.rows}x{self.columns}x{self.depth} {self.operands} to {self.sums} by {by}"

    @property
    def products(self) -> int:
        """Return the products of numbers in it."""
        return self.rows * self.columns * self.depth


HALVES = MatrixShape(16, 16, 16, "float16", "float32", 32)
"""Tiles of 16 x 16 halves, summed in fp32 by a subgroup of 32: what most kernels on matrix units need."""
BYTES = MatrixShape(16, 8, 32, "int8", "int32", 32)
"""Tiles of bytes, summed exactly by a subgroup of 32."""
WARPGROUP_HALVES = MatrixShape(64, 8, 16, "float16", "float32", 128, "warpgroup")
"""What kernels need in which four subgroups multiply matrices of halves that lie in work-group memory (sm_90a)."""
