"""Ops without a row in the table, given inputs that hold nothing, and indices that leave their axis."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

from tests.helpers.nets import op
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Declared, Graph, Node
from weft.core.graph.interpreter import evaluate
from weft.core.graph.op import Op
from weft.core.graph.tensor import TensorSpec
from weft.errors import ModelError
from weft.ops.control import Scan
from weft.ops.sequence import SplitToSequence
from weft.ops.shape import Identity


def unused(*_: Any) -> Any:
    raise AssertionError("there is no graph to run")


@pytest.mark.parametrize(("size", "lengths", "pieces"), [(0, 2, 0), (0, [], 0), (0, [0, 0], 2), (4, [4, 0], 2)])
def test_an_empty_axis_makes_no_pieces_as_in_onnxruntime(size: int, lengths: Any, pieces: int) -> None:
    inputs: list[Any] = [np.zeros((size, 2), np.float32), np.array(lengths, np.int64)]
    (made,) = SplitToSequence().execute(inputs, unused)
    assert isinstance(made, list) and len(made) == pieces


def test_pieces_of_negative_length_are_refused() -> None:
    with pytest.raises(ModelError, match=r"\[5, -1\]"):
        SplitToSequence().execute([np.zeros((4, 2), np.float32), np.array([5, -1])], unused)


def test_a_scan_of_opset_8_over_an_empty_batch() -> None:
    nodes = [Node("state", Identity(), ("s",), ("t",)), Node("row", Identity(), ("x",), ("y",))]
    body = Graph("body", ["s", "x"], ["t", "y"], nodes)
    body.declared["y"] = Declared(DType.FLOAT32, (3,))
    inputs = [np.zeros((0, 2), np.float32), np.zeros((0, 5, 3), np.float32)]
    shapes = [np.asarray(made).shape for made in Scan(body=body, batched=True).execute(inputs, unused)]
    assert shapes == [(0, 2), (0, 5, 3)]


def test_rows_outside_of_a_quantised_table_are_an_error() -> None:
    gather = op("com.microsoft::GatherBlockQuantized", block_size=16)
    table, scales = np.zeros((4, 8), np.uint8), np.ones((4, 1), np.float32)
    for index in (4, -5, 1 << 32):
        with pytest.raises(IndexError, match=str(index)):
            gather.reference(table, np.array([index]), scales)
        specs = [TensorSpec(s, t) for s, t in (((4, 8), DType.UINT8), ((1,), DType.INT64), ((4, 1), DType.FLOAT32))]
        with pytest.raises(ModelError, match="leave an axis of 4"):
            gather.infer(specs, [None, np.array([index]), None])


def test_an_axis_without_elements_does_not_grow() -> None:
    specs = [TensorSpec((1, 0, 4), DType.FLOAT32), None, None, TensorSpec((3,), DType.INT64)]
    for sizes in ([1, 2, 4], [1, 0, 0]):
        with pytest.raises(ModelError, match="0 for an axis of 0"):
            op("Resize").infer(specs, [None, None, None, np.array(sizes)])


@pytest.mark.parametrize(
    ("normalization", "shape"),
    [
        (op("InstanceNormalization"), (1 << 12, 1 << 12, 0)),
        (op("GroupNormalization", num_groups=1 << 12), (1 << 12, 1 << 12, 0)),
        (op("LayerNormalization"), (1 << 24, 0)),
        (op("RMSNormalization"), (1 << 24, 0)),
        (op("LpNormalization"), (1 << 24, 0)),
        (op("LpNormalization", p=1), (1 << 24, 0)),
        (op("weft::L2Normalization", axis=1), (1 << 24, 0)),
        (op("weft::SumNormalization", axis=1), (1 << 24, 0)),
        (op("MeanVarianceNormalization", axes=(1,)), (1 << 24, 0)),
        (op("Softmax"), (1 << 24, 0)),
        (op("Hardmax"), (1 << 24, 0)),
    ],
    ids=lambda value: value.type if isinstance(value, Op) else "",
)
def test_normalizing_nothing_takes_no_memory(normalization: Op, shape: tuple[int, ...]) -> None:
    channels = np.ones(shape[1], np.float32)
    rest = {"InstanceNormalization": 2, "GroupNormalization": 2, "LayerNormalization": 1, "RMSNormalization": 1}
    tracemalloc.start()
    try:
        parameters = [channels] * rest.get(normalization.type, 0)
        (made,) = evaluate(normalization, [np.zeros(shape, np.float32), *parameters])
        assert made.shape == shape
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
