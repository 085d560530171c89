"""Unique on GPUs where it differs from ONNX Runtime: NaN equals NaN, as in numpy. And what is too much for it."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from tests.helpers.nets import Net
from tests.helpers.op_rows import GPUS, assert_agree, reference, run
from weft.errors import UnsupportedOps
from weft.ops.select import Unique


@pytest.mark.parametrize("device", GPUS)
def test_nan_is_one_value_behind_all_others(device: str) -> None:
    net, x = Net(), np.array([np.nan, 1, -np.inf, np.nan, np.inf, 1], np.float32)
    net.add("Unique", net.input("x", 6), name="y", bounded=True, outputs=5)
    actual = run(net.finish("y", "y.1", "y.2", "y.3", "y.4"), {"x": x}, device)
    assert_agree(actual, reference(Unique(bounded=True), [x]), Unique(bounded=True))
    assert actual[-1].tolist() == [4, 4, 6, 4]


def test_too_many_to_compare_with_each_other() -> None:
    net = Net()
    net.add("Unique", net.input("x", 40000), name="y", bounded=True, outputs=5)
    with pytest.raises(UnsupportedOps, match="would compare 40000 elements or slices with each other"):
        weft.load(net.finish("y", "y.4"), "opencl", fallback="error")
