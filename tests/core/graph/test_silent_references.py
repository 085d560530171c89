"""What an op computes raises no warning of numpy's, whether its reference turns them off itself or not."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers.nets import op
from weft.core.graph.interpreter import evaluate
from weft.core.graph.layout import Array
from weft.core.graph.op import Op
from weft.ops.elementwise import Elementwise

LARGE = {half: np.full((2, 2), value, half) for half, value in (("float16", 6e4), ("float32", 3e38))}
SMALL = {half: np.full((2, 2), value, half) for half, value in (("float16", 1e-7), ("float32", 1e-45))}


@pytest.mark.parametrize("kind", ["float16", "float32"])
@pytest.mark.parametrize(
    ("name", "count", "attributes"),
    [
        ("Add", 2, {}), ("Mul", 2, {}), ("Exp", 1, {}), ("MatMul", 2, {}), ("Gemm", 3, {"alpha": 3.0}),
        ("Softmax", 1, {}), ("LogSoftmax", 1, {}), ("ReduceSum", 1, {}),
    ],
)
def test_numbers_beyond_a_type_raise_no_warning(
    name: str, count: int, attributes: dict[str, object], kind: str
) -> None:
    node = op(name, **attributes)
    for values in (LARGE[kind], SMALL[kind], LARGE[kind] * np.array([[1, -1], [-1, 1]], kind)):
        with np.errstate(all="raise"):
            evaluate(node, [values] * count)
    with np.errstate(all="raise"):
        evaluate(node, [np.array([[np.inf, np.nan], [-np.inf, 0]], kind)] * count)


def test_a_reference_in_place_of_a_silent_one_need_not_be_silent() -> None:
    class Loud(Elementwise):
        def reference(self, *inputs: Array | None) -> Array:
            return np.asarray(inputs[0]) * np.float32(3e38)

    loud: Op = Loud()
    with np.errstate(all="raise"):
        (result,) = evaluate(loud, [np.full(2, 3e38, np.float32)])
    assert np.isinf(result).all()
