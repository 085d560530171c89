"""A network for all sizes up to their capacities: a size that grows costs neither planning nor compilation.

`with_capacities` takes a network that was prepared with open sizes, and gives some of these a fixed capacity, such as
the 1,024 rows of a cache of which a text has filled 600. Values are stored at their capacities. Of each such axis the
first elements are *live*, as many as the size is at the moment; what follows is *padding*. Most ops compute an element
from elements at the same places, so padding stays padding. The others are given what hides it: numbers that each run
computes from the sizes. The rules in this module tell which ops are which. XLA's dynamic padder does the same for
bounded shapes, and caches of language models with a fixed capacity are the special case that is known best.

Padding is finite as long as live values are. A NaN or an infinity among these may spread further than it would without.
"""

from __future__ import annotations

from weft.core.placement.capacity.axes import Axes, NoCapacity, is_padded
from weft.core.placement.capacity.builder import growth, with_capacities
from weft.core.placement.capacity.network import CapacityNetwork

__all__ = ["Axes", "CapacityNetwork", "NoCapacity", "growth", "is_padded", "with_capacities"]
