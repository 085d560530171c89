"""Passes that compute at once what is done alike with one value, or with parts that lie side by side in one.

Products of one value with several matrices become one product, whose columns are theirs side by side: those of an
attention's Q, K and V, which then reads all three in one value (`attention_products.py`), and any others, whose results
are parts of the joint one (`products.py`). What follows each part alike is computed of the joint value
(`steps.py`, by the rows of values that `side_by_side.py` follows). `projections.py` reads and joins products.
Convolutions of one image join on GPUs alone, where that is faster: `weft.backends.gpu.lowering.merge_convolutions`.
"""

from __future__ import annotations

from weft.core.passes.siblings.attention_products import join_projections
from weft.core.passes.siblings.products import join_sibling_products
from weft.core.passes.siblings.steps import join_sibling_steps

__all__ = ["join_projections", "join_sibling_products", "join_sibling_steps"]
