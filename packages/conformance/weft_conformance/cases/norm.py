"""Rows of the normalizations."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan

import numpy as np

from weft.core.graph.layout import Array
from weft_conformance.cases.reduce import LINES, ONE_EACH
from weft_conformance.cases.table import Case, Input, case, const, f16, f32, f64, given


def channels(count: int) -> Input:
    """Return a constant with a number for each channel."""
    return const(f32(count))


def variances(count: int) -> Input:
    """Return a constant with a positive number for each channel."""
    return const(f32(count, low=0.5, high=2))


def positive(*shape: int) -> Input:
    """Return numbers whose sum is not near 0."""
    return f32(*shape, low=0.5, high=2)


TRAINING = "ONNX writes it as BatchNormalization with training_mode=1; the rows of old opsets compare that"
LIMITED = "an op of ours: a ReduceL2, a Clip and a Div"
SPREAD = "an op of ours: a ReduceMean, a Sub, a Mul, a ReduceMean, an Add, a Sqrt and an Expand"
SUMMED = "an op of ours: a ReduceSum or ReduceMean, an Add and a Div"
TWO_TYPES = "onnx's evaluator returns the type of X, and onnxruntime refuses two types"
CASES: list[Case] = [
    case("BatchNormalization", f32(*shape), *(channels(shape[1]) for _ in range(3)), variances(shape[1]))
    for shape in ((1, 3, 8, 8), (3, 5, 7, 9), (2, 17, 5), (1, 4, 3, 4, 5), (3, 8))
]
CASES += [
    case(
        "BatchNormalization",
        f32(1, 7, 3, 3),
        channels(7),
        channels(7),
        channels(7),
        variances(7),
        epsilon=0.25,
        momentum=0.5,
    ),
    case(
        "BatchNormalization",
        f16(1, 7, 3, 3),
        const(f16(7)),
        const(f16(7)),
        const(f16(7)),
        const(f16(7, low=0.5, high=2)),
    ),
    case("TrainingBatchNormalization", f32(2, 3, 5, 4), *(channels(3) for _ in range(3)), variances(3), outputs=3,
         unverified=TRAINING),
    case(
        "TrainingBatchNormalization", f16(1, 5, 9), *(const(f16(5)) for _ in range(3)), const(f16(5, low=0.5, high=2)),
        epsilon=0.25, momentum=0.5, unverified=TRAINING,
    ),
    # parameters that are computed at run time
    case("BatchNormalization", f32(2, 7, 5, 3), f32(7), f32(7), f32(7), f32(7, low=0.5, high=2)),
    case("BatchNormalization", f32(3, 6), f32(6), channels(6), f32(6), variances(6), epsilon=0.25),
    case("BatchNormalization", f16(1, 5, 3, 3), f16(5), f16(5), f16(5), f16(5, low=0.5, high=2)),
    case("InstanceNormalization", f32(3, 5, 7, 3), f32(5), f32(5)),
    case("GroupNormalization", f32(2, 8, 3, 4), f32(8), f32(8), num_groups=2),
    case("GroupScaledNormalization", f32(2, 8, 3, 4), f32(2), f32(2), num_groups=2,
         unverified="ONNX's name is GroupNormalization, of an older opset: tests/frontends/test_onnx_opsets.py"),
    case("GroupScaledNormalization", f16(1, 15, 7, 3), const(f16(5)), const(f16(5)), num_groups=5, epsilon=0.01,
         unverified="the same"),
    # groups that are no whole blocks of four channels
    case("GroupNormalization", f32(2, 30, 5, 3), f32(30), f32(30), num_groups=3),
    case("GroupNormalization", f32(1, 15, 7, 3), channels(15), channels(15), num_groups=5),
    case("LayerNormalization", f32(3, 4, 17), f32(4, 1), f32(1, 17), axis=1),
    case("RMSNormalization", f32(3, 4, 17), f32(4, 1), axis=1),
    case("RMSNormalization", f16(3, 20), f32(20), oracles=(), unverified=TWO_TYPES),
    case("RMSNormalization", f32(3, 20), const(f16(20)), epsilon=0.125, oracles=(), unverified=TWO_TYPES),
    # Of doubles: an oracle rounds the usual epsilon to float32.
    case("BatchNormalization", f64(2, 3, 5), *(const(f64(3)) for _ in range(3)), const(f64(3, low=0.5, high=2)),
         epsilon=0.125),
    case("BatchNormalization", f64(2, 3, 2, 2), *(f64(3) for _ in range(3)), f64(3, low=0.5, high=2), epsilon=0.125),
    case("InstanceNormalization", f64(2, 3, 5, 8), f64(3), const(f64(3))),
    case("LayerNormalization", f64(3, 37), f64(37), const(f64(37)), stash_type=11),
    case("RMSNormalization", f64(3, 4, 5), f64(5), epsilon=0.125),
    case("LpNormalization", f64(3, 5), axis=1),
    case("InstanceNormalization", f32(1, 3, 8, 8), const(f32(3)), const(f32(3))),
    case("InstanceNormalization", f32(3, 5, 7), const(f32(5)), const(f32(5)), epsilon=0.01),
    case("InstanceNormalization", f32(2, 4, 3, 4, 5), const(f32(4)), const(f32(4))),
    case("InstanceNormalization", f16(1, 7, 6, 5), const(f16(7)), const(f16(7))),
    case("GroupNormalization", f32(1, 4, 5, 5), const(f32(4)), const(f32(4)), num_groups=2),
    case("GroupNormalization", f32(3, 15, 7), const(f32(15)), const(f32(15)), num_groups=5, epsilon=0.01),
    case("GroupNormalization", f32(2, 8, 3, 4), const(f32(8)), const(f32(8)), num_groups=8, stash_type=1),
    case("GroupNormalization", f32(2, 8, 3, 4), const(f32(8)), const(f32(8)), num_groups=1),
    case("LayerNormalization", f32(2, 5, 17), const(f32(17)), const(f32(17))),
    case("LayerNormalization", f32(2, 5, 17), const(f32(17))),
    case("LayerNormalization", f32(3, 4, 5), const(f32(4, 5)), const(f32(4, 5)), axis=1, epsilon=0.01),
    case("LayerNormalization", f32(3, 4, 5), const(f32(4, 5)), const(f32(4, 5)), axis=-2, outputs=3),
    case("LayerNormalization", f32(3, 4, 5), const(f32(3, 4, 5)), axis=0, stash_type=1),
    case("LayerNormalization", f16(2, 5, 32), const(f16(32)), const(f16(32))),
    # lines of one team of work-items: by fours and by ones, with equal and unequal shares, several a group, too long
    case("LayerNormalization", f32(3, 11, 384), const(f32(384)), const(f32(384)), outputs=3),
    case("LayerNormalization", f32(2, 5, 197), const(f32(197)), const(f32(197))),
    case("LayerNormalization", f32(384, 20), const(f32(384, 20)), const(f32(20))),
    case("LayerNormalization", f32(5, 2052), const(f32(2052))),
    case("LayerNormalization", f32(3, 8, 17), const(f32(8, 17)), const(f32(17)), axis=1),
    case("LayerNormalization", f32(2, 8196), const(f32(8196)), const(f32(8196))),
    case("RMSNormalization", f32(2, 5, 17), const(f32(17))),
    case("RMSNormalization", f32(70, 48), const(f32(48)), epsilon=0.01),
    case("RMSNormalization", f32(2, 3, 5), const(f32(3, 5)), axis=1, epsilon=0.01),
    case("RMSNormalization", f16(2, 3, 8), const(f16(8)), axis=-1, stash_type=1),
    case("LRN", f32(1, 8, 5, 5), size=5),
    case("LRN", f32(2, 7, 3, 4), size=3, alpha=0.5, beta=0.5, bias=2.0),
    case(
        "LRN",
        f32(1, 5, 4, 4),
        size=4,
        alpha=1.0,
        # onnx's evaluator sums over other channels, for odd sizes too.
        oracles=("ort",),
        unverified="onnxruntime takes odd sizes only",
    ),
    case("LRN", f32(1, 3, 4, 4), size=9, alpha=1.0),
    case("LRN", f16(1, 8, 4, 4), size=5, alpha=0.1),
    *(
        case("LRN", f64(*shape), size=size, alpha=0.5, oracles=("ort",), unverified="onnxruntime has none of float64")
        for shape, size in (((2, 7, 3, 4), 4), ((1, 3, 4), 10))
    ),
    case("LpNormalization", f32(2, 5, 7)),
    case("LpNormalization", f32(2, 5, 7), axis=1, p=1),
    case("LpNormalization", f32(2, 5, 7), axis=0, p=2),
    case("LpNormalization", f16(2, 5, 7), axis=-2),
    case("LpNormalization", f32(3, 5, 100), p=1),
    case("weft::L2Normalization", f32(2, 5, 7), unverified=LIMITED),
    case("weft::L2Normalization", f32(2, 5, 37), least=5.0, unverified=LIMITED),
    case("weft::L2Normalization", f32(2, 5, 7), axis=1, least=1e-12, unverified=LIMITED),
    case("weft::L2Normalization", f16(2, 5, 7), axis=-2, least=2.0, unverified=LIMITED),
    case("weft::L2Normalization", f64(3, 5), axis=0, least=1e-12, unverified=LIMITED),
    case("weft::SumNormalization", positive(2, 5, 7), unverified=SUMMED),
    case("weft::SumNormalization", positive(2, 5, 37), mean=1, epsilon=0.5, unverified=SUMMED),
    case("weft::SumNormalization", positive(2, 5, 7), axis=1, epsilon=1e-6, unverified=SUMMED),
    case("weft::SumNormalization", f16(2, 5, 7, low=0.5, high=2), axis=-2, mean=1, unverified=SUMMED),
    case("weft::SumNormalization", f64(3, 5, low=0.5, high=2), axis=0, unverified=SUMMED),
    case("weft::SumNormalization", positive(1, 1280, 1, 1), axis=1, mean=1, epsilon=1e-6, unverified=SUMMED),
    case("weft::GroupDeviation", f32(2, 6, 5, 3), num_groups=2, unverified=SPREAD),
    case("weft::GroupDeviation", f32(1, 16, 5, 3), num_groups=2, epsilon=0.5, unverified=SPREAD),
    case("weft::GroupDeviation", f32(3, 7, 5, 5), num_groups=7, unverified=SPREAD),
    case("weft::GroupDeviation", f32(3, 40), num_groups=5, unverified=SPREAD),
    case("weft::GroupDeviation", f16(2, 8, 4, 7), num_groups=1, unverified=SPREAD),
    case("weft::GroupDeviation", f64(2, 6, 5), num_groups=3, unverified=SPREAD),
    case("MeanVarianceNormalization", f32(2, 3, 4, 5)),
    case("MeanVarianceNormalization", f32(2, 3, 4, 5), axes=(1, -1)),
    case("MeanVarianceNormalization", f32(2, 3, 7), axes=(2,)),
    case("MeanVarianceNormalization", f32(2, 3, 4, 9), axes=(2, 3)),
]


def _special(x: Array, name: str) -> list[Case]:
    """Return rows of norms along the last axis of a matrix, or over images of that many pixels."""
    count, size = x.shape
    images, ones = given(x.reshape(1, count, 1, size)), given(np.ones(count))
    return [
        *(case("LayerNormalization", given(x), *(kind(given(np.full(size, v))) for v in (1.0, 0.5)), name=name)
          for kind in (const, replace)),
        case("RMSNormalization", given(x), given(np.ones(size)), name=name),
        *(case("LpNormalization", given(x), axis=1, p=p, name=name, oracles=("ort",)) for p in (1, 2)),
        *(case("InstanceNormalization", images, *(kind(given(np.full(count, v))) for v in (1.0, 0.5)), name=name)
          for kind in (const, replace)),
        *(case("GroupNormalization", images, const(ones), const(given(np.zeros(count))), num_groups=groups, name=name)
          for groups in (count, count // 2) if count % groups == 0),
        case("MeanVarianceNormalization", images, axes=(0, 2, 3), name=name, oracles=(),
             unverified="the oracles subtract squares, and of equal numbers some make NaN"),
        case("BatchNormalization", images, ones, given(np.zeros(count)), given(np.zeros(count)), ones, name=name),
        case("TrainingBatchNormalization", images, ones, given(np.zeros(count)), given(np.zeros(count)), ones,
             name=name, unverified=TRAINING),
    ]


CASES += _special(LINES[:12], "lines")  # of equal numbers near 1e20 the oracles have this or that
CASES += _special(ONE_EACH, "one")
_PARAMETERS = ([0, 0, 0, 0, inf, 1, 1], [0, 0, 0, 0, 0, nan, 0], [0] * 6 + [inf], [1, 1, 1, 0, 1, 1, -1])
CASES += [
    case("BatchNormalization", given([[nan, inf, -inf, 1, 0, 2, 3]]), *(kind(given(v)) for v in _PARAMETERS),
         name="special")
    for kind in (const, replace)
]
