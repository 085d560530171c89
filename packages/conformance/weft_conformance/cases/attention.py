"""Rows of attention, an op of Weft's own."""

from __future__ import annotations

from math import inf

import numpy as np

from weft_conformance.cases.table import Case, Input, case, f16, f32, given

ALONE = "an op of Weft's own: its rows stand for networks that are compared with onnxruntime"


def heads(*lead: int, queries: int, keys: int, depth: int, width: int | None = None) -> tuple[Input, ...]:
    """Return Q, K and V."""
    return f32(*lead, queries, depth), f32(*lead, keys, depth), f32(*lead, keys, width or depth)


def _hidden(fill: float) -> Input:
    """Return a mask that hides other keys from each query, and all keys but the last from the first."""
    hidden = np.zeros((5, 40), np.float32)
    hidden[0, :39] = fill
    hidden[1, 3:] = fill
    hidden[2, :20] = fill
    return given(hidden)


def _infinite_scores() -> tuple[Input, ...]:
    """Return Q, K and V of which some keys that `_hidden` hides have infinite scores, and others NaN."""
    keys = np.linspace(-1, 1, 2 * 40 * 8, dtype=np.float32).reshape(1, 2, 40, 8)
    keys[0, :, 38, 3] = inf
    keys[0, 1, 17] = np.nan
    return f32(1, 2, 5, 8, low=0.1), given(keys), f32(1, 2, 40, 8)


def _odd_rows() -> Input:
    """Return a mask that hides every key from one query, and makes scores of others NaN and infinite."""
    rows = np.zeros((5, 33), np.float32)
    rows[0, 4:] = -inf
    rows[1] = -inf
    rows[2, 32] = np.nan
    rows[3, 7] = inf
    return given(rows)


def _lengths(*shown: int, keys: int) -> Input:
    """Return a mask of one row for each image of the batch, which shows its first keys: what a cache holds so far."""
    rows = np.full((len(shown), 1, 1, keys), -inf, np.float32)
    for row, count in zip(rows, shown, strict=True):
        row[..., :count] = 0
    return given(rows)


CASES: list[Case] = [
    case("weft::Attention", *inputs, name=name, unverified=ALONE, **attributes)
    for name, inputs, attributes in (
        ("plain", heads(2, 3, queries=7, keys=7, depth=16), {"scale": 0.25}),
        ("one-axis", heads(4, queries=9, keys=33, depth=8, width=10), {}),
        ("odd-sizes", heads(1, 2, queries=17, keys=70, depth=5, width=13), {"scale": 0.5}),
        ("largest", heads(1, 1, queries=3, keys=19, depth=128), {"scale": 0.1}),
        ("mask-of-keys", (*heads(2, 3, queries=5, keys=9, depth=8), f32(2, 1, 1, 9, low=-9)), {}),
        ("mask-of-all", (*heads(2, 3, queries=5, keys=9, depth=8), f32(2, 3, 5, 9, low=-9)), {}),
        ("mask-of-rows", (*heads(2, queries=5, keys=9, depth=8), f32(5, 1)), {}),
        ("hidden", (*heads(1, 2, queries=5, keys=40, depth=8), _hidden(-inf)), {}),
        ("lowest", (*heads(1, 2, queries=5, keys=40, depth=8), _hidden(float(np.finfo(np.float32).min))), {}),
        ("replaced", (*_infinite_scores(), _hidden(-1e30)), {"low_replaces": 1}),
        ("replaced-by-infinity", (*_infinite_scores(), _hidden(-inf)), {"low_replaces": 1}),
        (
            "lengths",
            (*heads(4, 2, queries=3, keys=150, depth=8, width=5), _lengths(1, 70, 150, 0, keys=150)),
            {"zero_hidden": 1},
        ),
        ("full-blocks", heads(1, 2, queries=40, keys=64, depth=32), {"scale": 0.2}),
        ("uneven-heads", (*heads(2, queries=18, keys=37, depth=40, width=72), f32(37)), {"scale": 0.2}),
        (
            "all-hidden",
            (*heads(1, 1, queries=1, keys=33, depth=8), given(np.full((1, 33), -inf, np.float32))),
            {},
        ),
        (
            "all-hidden-zero",
            (*heads(1, 2, queries=5, keys=33, depth=8), given(np.where(np.arange(5) == 2, -inf, np.zeros((33, 5))).T)),
            {"zero_hidden": 1},
        ),
        (
            "odd-rows-zero",
            (*heads(1, 2, queries=5, keys=33, depth=8), _odd_rows()),
            {"zero_nan": 1, "scale": 0.5},
        ),
        ("shared", (f32(2, 6, 5, 8), *[f32(2, 2, 9, n) for n in (8, 16)], f32(2, 6, 5, 9)), {"scale": 0.5}),
        ("shared-side-by-side", (f32(2, 20, 64), f32(2, 9, 32), f32(2, 9, 32), f32(2, 1, 1, 9)), {"heads": 8}),
        ("large-scores", heads(1, 1, queries=5, keys=40, depth=64), {"scale": 400.0}),
        ("heads", (*heads(2, queries=5, keys=9, depth=24, width=30), f32(2, 1, 5, 9)), {"heads": 3}),
        ("packed", (f32(2, 20, 72), f32(2, 1, 1, 20)), {"heads": 3, "packed": 1, "scale": 0.3}),
        ("halves", (f16(2, 20, 72),), {"heads": 3, "packed": 1, "scale": 0.3}),
        ("capped", (*heads(2, 3, queries=5, keys=9, depth=8), f32(2, 1, 1, 9, low=-9)), {"scale": 2.0, "softcap": 3.0}),
        ("capped-hidden", (*heads(1, 2, queries=5, keys=40, depth=8), _hidden(-inf)), {"softcap": 0.5, "scale": 0.5}),
        ("capped-odd-sizes", heads(1, 2, queries=17, keys=70, depth=5, width=13), {"scale": 30.0, "softcap": 5.0}),
        ("capped-high", heads(1, 2, queries=17, keys=40, depth=16), {"softcap": 1e4}),
        (
            "capped-odd-rows-zero",
            (*heads(1, 2, queries=5, keys=33, depth=8), _odd_rows()),
            {"zero_nan": 1, "softcap": 2.0},
        ),
        ("capped-halves", (f16(2, 20, 72),), {"heads": 3, "packed": 1, "scale": 3.0, "softcap": 2.0}),
    )
]
