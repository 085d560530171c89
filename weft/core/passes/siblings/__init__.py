"""Passes that join siblings: nodes that read one value, or parts of one, and do the same with it.

    products        products of one value with constant matrices: those that make an attention's Q, K and V, which the
                    attention then reads as one value, and others, whose joint result is split
    convolutions    convolutions whose results are summed: one convolution has the sum of their weights
    steps           what is done alike with parts of one value, as those that `products` splits: it is done once, with
                    these parts together
"""

from __future__ import annotations

from weft.core.passes.siblings.convolutions import PARALLEL_CONVOLUTIONS_JOINED, join_parallel_convolutions
from weft.core.passes.siblings.products import join_projections, join_sibling_products
from weft.core.passes.siblings.steps import join_sibling_steps

__all__ = [
    "PARALLEL_CONVOLUTIONS_JOINED",
    "join_parallel_convolutions",
    "join_projections",
    "join_sibling_products",
    "join_sibling_steps",
]
