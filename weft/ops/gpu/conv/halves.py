"""fp32 as sums of halves: split weights, with which matrix units multiply in fp32-class accuracy.

After Ootomo and Yokota, "Recovering single precision accuracy from Tensor Cores while surpassing the FP32
theoretical peak performance" (2022): a = hi + lo / 2^11 with both in fp16, and a b = hi hi + (hi lo + lo hi) / 2^11.
As there, sums leave the matrix units, which round toward zero, after a few steps and are added up in fp32. Truncation
takes the same share off every sum, on average, and the layers of a deep network would add it up. So the weights are
larger by that share where it was measured.

Activations are split by the kernels, scaled by 2^-8 so that magnitudes up to 1.6e7 fit fp16. What they lose is at
most 2^-23 of themselves, and 2^-28 (4e-9) where they are smaller than 2^-6.
"""

from __future__ import annotations

from math import prod, sqrt

import numpy as np

from weft.core.graph.layout import PACK, Array

ACTIVATION_BITS = 8
"""Activations are divided by 2 to this power before they are split."""
LOW_BITS = 11
"""The low part is multiplied by 2 to this power, so that fp16 holds all of its bits."""
TRUNCATION = 0.24 * 2.0**-23
"""The share of a sum that Hopper's matrix units take off on average, as they round it toward zero. Fitted: the errors
of EfficientNet-B0, MobileNetV3-L, DeepLabV3 and a YOLO are least for 0.61 to 0.73 * 2^-23 in a step of four sums."""
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


def truncation(step: int) -> float:
    """Return the share that truncation takes off the sums of a kernel, on average.

    It adds the products of `step` elements along K in its matrix units, SIDE at a time, one sum on top of the other.
    The sums grow like a random walk, and each is truncated. A last step of fewer sums is made up for like the others:
    errors of deep networks were larger with less (benchmarks/NOTES.md).
    """
    sums = step // SIDE
    return TRUNCATION * sum(sqrt(n / sums) for n in range(1, sums + 1))


def split_weights(rows: Array, lost: float = 0.0, low_bits: int = LOW_BITS) -> tuple[Array, Array]:
    """Return fp16 arrays hi and lo of rows of fp32 weights, each row scaled by 2^shift: hi + lo / 2^low_bits.

    The low halves make up for the share `lost` (`truncation`). hi is rounded toward zero, and neither is zero unless
    the weight is: both have its sign, so that an infinite activation gives infinity and not NaN.
    """
    scaled = rows * np.ldexp(np.float32(1), shifts(rows))[:, None]
    with np.errstate(all="ignore"):
        # An fp32 without its last 13 bits is a half, unless it is very small.
        high = (scaled.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float16)
        high = np.where((high == 0) & (scaled != 0), np.copysign(_TINY, scaled).astype(np.float16), high)
        rest = scaled - high.astype(np.float32) + scaled * np.float32(lost)
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
