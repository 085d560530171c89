"""The constants of nodes on a device: several pipelines that run the same nodes for other sizes hold them once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakValueDictionary, ref

from weft.core.graph.layout import Array
from weft.core.graph.op import Op
from weft.core.graph.tensor import Tensor


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class HeldConstant:
    """A constant in device memory, and what it was made of."""

    tensor: Tensor
    op: Op
    sources: tuple[ref[Array], ...]

    @property
    def is_held(self) -> bool:
        """Tell whether it was not released yet."""
        return self.tensor.memory.slot.buffer is not None

    def is_made_of(self, sources: Sequence[Array]) -> bool:
        """Tell whether it was made of these arrays."""
        same = len(self.sources) == len(sources)
        return same and all(held() is now for held, now in zip(self.sources, sources, strict=True))

    def is_of(self, op: Op, sources: Sequence[Array]) -> bool:
        """Tell whether an op makes the same of these arrays."""
        return self.is_made_of(sources) and (self.op is op or self.op == op)


NodeConstants = WeakValueDictionary[tuple[str, str], HeldConstant]
"""What pipelines hold, by the label of a node and the key of the constant. The last one that holds it is found."""
