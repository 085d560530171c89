"""Rows of random numbers, which no other program draws alike."""

from __future__ import annotations

from functools import partial

from weft.core.graph.dtypes import DType
from weft_conformance.cases.table import Case, case, f16, f32, given, i64

_case = partial(case, oracles=(), unverified="each program has a generator of its own")

CASES: list[Case] = [
    _case("RandomNormal", shape=(3, 5), seed=7.0),
    _case("RandomNormalLike", f32(2, 3), mean=4.0, scale=0.5, seed=1.0),
    _case("RandomUniform", shape=(2, 3), low=-2.0, high=3.0, seed=2.5, dtype=DType.FLOAT64),
    _case("RandomUniformLike", i64(7), dtype=DType.FLOAT16, seed=3.0),
    _case("RandomUniformLike", f16(2, 2), seed=3.0),
    _case("Bernoulli", f32(4, 9, low=0), seed=2.0),
    _case("Bernoulli", f16(9, low=0), dtype=DType.INT64, seed=3.0),
    _case("Bernoulli", given([0, 1, 0, 1], "float64"), dtype=DType.BOOL, seed=4.0),
    _case("Multinomial", f32(3, 5, low=-2, high=2), sample_size=6, seed=1.0),
    _case("Multinomial", f32(1, 2), sample_size=3, dtype=DType.INT64, seed=5.0),
    _case("Multinomial", f16(1, 3), seed=5.0),
]
