"""Graphs that nodes hold: each output of a Loop or a Scan has a type of its own, though their types share a name."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import parser

import weft
from tests.helpers.onnx_models import run_onnxruntime

X = np.array([1.7, -2.6, 0.4], np.float32)
ROWS = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
MODELS = {
    "a counter beside a sum": (
        """(float[3] x, int64 n) => (float[3] y, int64 count) {
          c = Constant <value = bool {1}> () zero = Constant <value = int64 {0}> ()
          y, count = Loop <body = b (int64 i, bool ci, float[3] v, int64 k) => (bool co, float[3] vo, int64 ko) {
            vo = Add (v, x) ko = Add (k, i) co = Identity (ci) }> (n, c, x, zero) }""",
        {"x": X, "n": np.array(4)},
    ),
    "places of each turn": (
        """(float[3] x, int64 n) => (float[3] y, int64[k] places) {
          c = Constant <value = bool {1}> ()
          y, places = Loop <body = b (int64 i, bool ci, float[3] v) => (bool co, float[3] vo, int64 ko) {
            vo = Add (v, x) ko = Identity (i) co = Identity (ci) }> (n, c, x) }""",
        {"x": X, "n": np.array(4)},
    ),
    "states and rows of two types": (
        """(float[3] x, int64 s0, float[4, 3] rows) => (int64 s, float[3] f, float[4, 3] a, int64[4] b) {
          s, f, a, b = Scan <num_scan_inputs = 1,
            body = t (int64 si, float[3] fi, float[3] r) => (int64 so, float[3] fo, float[3] ao, int64 bo) {
              bo = ArgMax <axis = 0, keepdims = 0> (r) so = Add (si, bo) fo = Add (fi, r) ao = Mul (r, fi) }>
            (s0, x, rows) }""",
        {"x": X, "s0": np.array(5), "rows": ROWS},
    ),
    "a cast to the type of places": (
        """(float[3] x, float[4, 3] rows) => (float[3] y) {
          sums, places = Scan <num_scan_inputs = 1, body = t (float[3] r) => (float so, int64 po) {
            so = ReduceSum <keepdims = 0> (r) po = ArgMax <axis = 0, keepdims = 0> (r) }> (rows)
          whole = CastLike (x, places) y = Cast <to = 1> (whole) }""",
        {"x": X, "rows": ROWS},
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_each_output_of_a_body_has_its_own_type(name: str) -> None:
    text, feeds = MODELS[name]
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]> g {text}')
    expected = run_onnxruntime(model, feeds)
    for device in ("cpu", "opencl"):
        with weft.load(model, device) as session:
            for got, want in zip(session.run(feeds), expected, strict=True):
                assert got.dtype == want.dtype
                np.testing.assert_allclose(got, want, 1e-5, 1e-6)
