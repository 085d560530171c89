"""fp32 as sums of halves: split weights, with which matrix units multiply in fp32-class accuracy.

After Ootomo and Yokota, "Recovering single precision accuracy from Tensor Cores while surpassing the FP32
theoretical peak performance" (2022): a = hi + lo / 2^11 with both in fp16, and a b = hi hi + (hi lo + lo hi) / 2^11.
As there, sums leave the matrix units, which round toward zero, after a few additions and are added up in fp32.

What truncation takes off has the sign of the sum, so the layers of a deep network would add it up. An addition takes
from nothing to an ulp off its sum S, half an ulp on average, which is `HALF_ULP` of S. A product is part of all sums
that follow it in its step. So these losses together are, on average, what weights lack that are smaller by `HALF_ULP`
for each of these sums, whatever the signs of the products; and weights that are larger by as much make up for them.
They do so for every input: an addition's error is within 0.36 * 2^-23 * |S| upwards and 0.64 * 2^-23 * |S| downwards
then, where it may be 2^-23 * |S| downwards without. Before they add, the units also cut small products off to fit the
largest one. That depends on the signs, and nothing makes up for it.

Activations are split by the kernels, scaled by 2^-8 so that magnitudes up to 1.6e7 fit fp16. What they lose is at
most 2^-23 of themselves, and 2^-28 (4e-9) where they are smaller than 2^-6.
"""

from __future__ import annotations

from math import log, prod

import numpy as np

from weft.core.graph.layout import PACK, Array

ACTIVATION_BITS = 8
"""Activations are divided by 2 to this power before they are split."""
LOW_BITS = 11
"""The low part is multiplied by 2 to this power, so that fp16 holds all of its bits."""
HALF_ULP = 2.0**-23 / (4 * log(2))
"""Half an ulp of a number in fp32, over the number: the mean for significands that follow the logarithmic law."""
TOP = 15
"""The largest weight of an output channel is scaled to just below 2 to this power."""
_TINY = np.float16(2.0**-24)
_MOST = 126
"""The largest scale of weights, as a power of two."""
SIDE = 16
"""Channels of a tile."""
LANES = np.array([4 * (p % 8 // 2) + p // 8 * 2 + p % 2 for p in range(SIDE)])
"""The order of sixteen channels in a tile that gives each work-item four adjacent ones.

Item t of four has positions 2t, 2t + 1, 2t + 8 and 2t + 9 of a tile (PTX ISA, mma.m16n8k16).
"""


def shifts(rows: Array) -> Array:
    """Return the powers of two by which each row of weights is scaled, so that its largest is just below 2^TOP."""
    largest = np.where(np.isfinite(rows), np.abs(rows), 0).max(axis=1, initial=0)
    powers: Array = np.minimum(np.where(largest > 0, TOP - np.frexp(largest)[1], 0), _MOST)
    return powers


def truncation(step: int, depth: int) -> Array:
    """Return for each of `depth` elements along K the share of its products that truncation takes off, on average.

    A kernel adds the products of `step` elements in the matrix units, SIDE at a time, one sum on top of the other. The
    last step may have fewer.
    """
    place = np.arange(depth)
    sums = -(-np.minimum(step, depth - place // step * step) // SIDE)
    shares: Array = ((sums - place % step // SIDE) * HALF_ULP).astype(np.float32)
    return shares


def split_weights(rows: Array, lost: Array | None = None, low_bits: int = LOW_BITS) -> tuple[Array, Array]:
    """Return fp16 arrays hi and lo of rows of fp32 weights, each row scaled by 2^shift: hi + lo / 2^low_bits.

    The low halves make up for the shares `lost` along K (`truncation`). hi is rounded toward zero, and neither is zero
    unless the weight is: both have its sign, so that an infinite activation gives infinity and not NaN.
    """
    scaled = rows * np.ldexp(np.float32(1), shifts(rows))[:, None]
    with np.errstate(all="ignore"):
        # An fp32 without its last 13 bits is a half, unless it is very small.
        high = (scaled.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float16)
        high = np.where((high == 0) & (scaled != 0), np.copysign(_TINY, scaled).astype(np.float16), high)
        rest = scaled - high.astype(np.float32)
        if lost is not None:
            rest += scaled * lost
        low = (rest * np.float32(2.0**low_bits)).astype(np.float16)
        bad = np.nonzero((high != 0) & ((low == 0) | np.isnan(low) | (np.signbit(low) != np.signbit(high))))
        low[bad] = np.copysign(_TINY, high[bad])
    return high, low


def undoing(weight: Array) -> Array:
    """Return for each output channel the factor that undoes the scaling of weights and activations; it is exact."""
    factors: Array = np.ldexp(np.float32(1), ACTIVATION_BITS - shifts(weight.reshape(weight.shape[0], -1)))
    return factors


def by_taps(weight: Array) -> Array:
    """Return weights (co, ci, *kernel) as rows along K: taps, and channels padded to whole blocks in each."""
    co, ci, taps = weight.shape[0], weight.shape[1], prod(weight.shape[2:])
    out = np.zeros((co, taps, -(-ci // PACK) * PACK), weight.dtype)
    out[:, :, :ci] = weight.reshape(co, ci, taps).transpose(0, 2, 1)
    return out.reshape(co, -1)
