"""Passes that join siblings: nodes that read one value, or parts of one, and do the same with it.

Three passes join nodes that read one value and have constant weights:

    projections     the products that make an attention's Q, K and V, which the attention then reads as one value
    products        other products: the joint result is split
    convolutions    convolutions whose results are summed: one convolution has the sum of their weights

A fourth joins what comes next:

    steps           what is done alike with parts of one value, as those that `products` splits: it is done once, with
                    these parts together

Two files hold what these passes share:

    joint_product   a product with a constant matrix and its bias, and one product in place of several (`projections`,
                    `products`)
    rows            values that lie side by side in another one: which nodes do the same with each, and how their
                    results lie (`steps`)
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
