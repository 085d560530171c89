"""Matrix units that round toward zero, in numpy: as Hopper's add, by what has been published of them.

Fasi, Higham, Mikaitis and Pranesh, "Numerical behavior of NVIDIA tensor cores" (2021), found that the units add the
exact products of a block to the sum at once, truncate them to fit the largest and round the result toward zero. Later
work of the same kind measured blocks of sixteen and two bits beyond fp32's for Hopper.
"""

from __future__ import annotations

import numpy as np

from weft.core.graph.layout import Array
from weft.ops.gpu.conv.matrix.halves import LOW_BITS, SIDE

GUARD_BITS = 2


def ulp(numbers: Array) -> Array:
    """Return the unit in the last place in fp32 of each number."""
    exponents = np.where(numbers == 0, -100, np.frexp(numbers)[1])
    return np.asarray(np.ldexp(1.0, exponents - 24))


def truncated(numbers: Array, units: Array) -> Array:
    """Return numbers rounded toward zero to multiples of units."""
    return np.asarray(np.trunc(numbers / units) * units)


def added(total: Array, products: Array, guard_bits: int | None = GUARD_BITS) -> Array:
    """Return the sum of `total` and the products of a block (last axis); with None nothing is lost until the end."""
    terms = np.concatenate([total[..., None], products], axis=-1)
    if guard_bits is not None:
        terms = truncated(terms, np.ldexp(ulp(np.abs(terms).max(axis=-1, keepdims=True)), -guard_bits))
    exact = terms.sum(axis=-1)
    return truncated(exact, ulp(exact))


def split_products(
    x: tuple[Array, Array], w: tuple[Array, Array], step: int, guard_bits: int | None = GUARD_BITS
) -> Array:
    """Return the products of rows of split numbers as the kernels make them: small ones first, then in fp32."""
    (x_high, x_low), (w_high, w_low) = ([half.astype(np.float64) for half in halves] for halves in (x, w))
    depth = x_high.shape[1]
    total = np.zeros((len(x_high), len(w_high)), np.float32)
    for first in range(0, depth, step):
        blocks = [slice(k, min(k + SIDE, first + step, depth)) for k in range(first, min(first + step, depth), SIDE)]
        sums = np.zeros(total.shape)
        for a, b in ((x_low, w_high), (x_high, w_low)):
            for block in blocks:
                sums = added(sums, a[:, None, block] * b[None, :, block], guard_bits)
        sums = np.ldexp(sums, -LOW_BITS)
        for block in blocks:
            sums = added(sums, x_high[:, None, block] * w_high[None, :, block], guard_bits)
        total += sums.astype(np.float32)
    return total
