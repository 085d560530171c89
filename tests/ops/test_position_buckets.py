"""T5's bias of positions: which row of the table a distance has, and what a large result costs before it runs."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import weft
from tests.helpers.nets import kinds
from weft.core.graph.layout import Array
from weft.errors import ModelError

TABLE = np.arange(16, dtype=np.float32).reshape(8, 2)


def model(queries: int, keys: int, **attributes: Any) -> onnx.ModelProto:
    node = helper.make_node("RelativePositionBias", ["t", "q", "k"], ["y"], domain="com.microsoft", **attributes)
    sizes = [numpy_helper.from_array(np.array([size]), name) for name, size in (("q", queries), ("k", keys))]
    ends = [helper.make_tensor_value_info("t", TensorProto.FLOAT, TABLE.shape)]
    graph = helper.make_graph([node], "g", ends, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], sizes)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def bucket(distance: Array, bidirectional: int, furthest: int) -> Array:
    """Return the buckets of 8 as the T5 paper's code has them: near distances by themselves, far ones by their log."""
    count = 4 if bidirectional else 8
    first = count * (bidirectional and distance > 0)
    distance = np.abs(distance) if bidirectional else np.maximum(-distance, 0)
    near = count // 2
    grown = near + np.log(np.maximum(distance, 1) / near) / np.log(furthest / near) * (count - near)
    return np.asarray(first + np.where(distance < near, distance, np.minimum(grown, count - 1).astype(int)))


@pytest.mark.parametrize("bidirectional", [0, 1])
@pytest.mark.parametrize("furthest", [6, 40])
def test_each_distance_has_its_bucket_and_far_ones_the_last(bidirectional: int, furthest: int) -> None:
    with weft.load(model(30, 50, is_bidirectional=bidirectional, max_distance=furthest), "cpu") as session:
        (y,) = session.run(TABLE)
    distance = np.arange(50)[None, :] - np.arange(30)[:, None]
    np.testing.assert_array_equal(y[0], TABLE[bucket(distance, bidirectional, furthest)].transpose(2, 0, 1))


def test_positions_are_not_computed_to_learn_the_shape() -> None:
    tracemalloc.start()
    try:
        network = weft.optimize(model(1 << 24, 8, max_distance=6), "cpu")
        assert tracemalloc.get_traced_memory()[1] < 1 << 26
    finally:
        tracemalloc.stop()
    assert kinds(network.graph) == ["com.microsoft::RelativePositionBias"]


def test_a_table_of_too_many_distances_is_refused() -> None:
    with pytest.raises(ModelError, match="max_distance is 1099511627776; at most 1048576 is supported"):
        weft.load(model(2, 3, max_distance=1 << 40), "cpu")
