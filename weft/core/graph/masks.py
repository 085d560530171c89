"""From which number down a mask of attention hides a score: passes that make masks and the op that adds them agree."""

from __future__ import annotations

import numpy as np

from weft.core.graph.dtypes import DType

LOWEST = -1e30
"""A finite mask of this or less leaves nothing of a score, in float32."""
LOWEST_HALF = float(np.finfo(np.float16).min)
"""What float16 makes of a lower finite mask."""


def replaces_from(dtype: DType) -> float:
    """Return the number of a mask from which down an attention may put it in place of scores, for the mask's type."""
    return LOWEST_HALF if dtype is DType.FLOAT16 else LOWEST
