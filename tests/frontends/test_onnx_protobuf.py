"""Large weights are cut out of a model's bytes before protobuf parses it; together they equal what protobuf reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import GraphProto, ModelProto, TensorProto, helper

import weft
from weft.frontends.onnx import protobuf
from weft.frontends.onnx.protobuf import cut


def parsed(data: bytes) -> ModelProto | None:
    """Return what protobuf makes of bytes, None if it refuses them."""
    model = ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError:
        return None
    return model


def joined(data: bytes, worth: int) -> ModelProto | None:
    """Return the same by way of `cut`."""
    found = cut(memoryview(data), worth)
    model = parsed(found.model)
    if model is not None:
        for place, view in found.data.items():
            assert not model.graph.initializer[place].HasField("raw_data")
            model.graph.initializer[place].raw_data = bytes(view)
    return model


@st.composite
def tensors(draw: st.DrawFn) -> TensorProto:
    dims = draw(st.lists(st.integers(0, 300), max_size=3))
    tensor = TensorProto(name=draw(st.text(max_size=3)), data_type=1, dims=dims)
    if draw(st.booleans()):
        tensor.raw_data = draw(st.binary(max_size=300))
    if draw(st.booleans()):
        tensor.float_data.extend([1.5] * draw(st.integers(0, 40)))
    return tensor


@st.composite
def models(draw: st.DrawFn) -> ModelProto:
    nodes = [helper.make_node("Add", ["a", "b"], ["c"], alpha=1.0)] * draw(st.integers(0, 2))
    graph = GraphProto(name="g", node=nodes, initializer=draw(st.lists(tensors(), max_size=4)))
    model = ModelProto(ir_version=8, producer_name="p", graph=graph)
    model.opset_import.add(version=20)
    return model


# A busy machine makes models slowly, which says nothing of the reader.
ANY_SPEED = settings(suppress_health_check=[HealthCheck.too_slow])


@ANY_SPEED
@given(models(), st.integers(0, 200))
def test_what_is_cut_and_the_rest_are_the_model(model: ModelProto, worth: int) -> None:
    data = model.SerializeToString()
    assert joined(data, worth) == model
    held = [t for t in model.graph.initializer if t.HasField("raw_data") and len(t.raw_data) >= worth]
    assert len(cut(memoryview(data), worth).data) >= len(held)


@ANY_SPEED
@given(models(), st.data())
def test_damaged_bytes_that_protobuf_still_reads_are_read_alike(model: ModelProto, data: st.DataObject) -> None:
    damaged = bytearray(model.SerializeToString())
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(damaged) - 1))
        damaged[place] = data.draw(st.integers(0, 255))
    damaged = damaged[: data.draw(st.integers(len(damaged) // 2, len(damaged)))]
    want = parsed(bytes(damaged))
    got = joined(bytes(damaged), 0)
    assert want is None or got == want


@pytest.mark.parametrize("twice", ["graph", "raw_data"])
def test_what_encoders_do_not_write_is_left_to_protobuf(twice: str) -> None:
    tensor = TensorProto(name="w", data_type=1, dims=[1], raw_data=b"1234").SerializeToString()
    if twice == "raw_data":
        tensor += TensorProto(raw_data=b"5678").SerializeToString()
    graph = bytes([protobuf.INITIALIZER << 3 | 2, len(tensor)]) + tensor
    data = bytes([protobuf.GRAPH << 3 | 2, len(graph)]) + graph
    data *= 2 if twice == "graph" else 1
    found = cut(memoryview(data), 0)
    assert found.model == data and not found.data
    assert joined(data, 0) == parsed(data)


@pytest.mark.parametrize("way", ["path", "bytes", "bytearray"])
def test_large_weights_arrive(way: str, tmp_path: Path) -> None:
    """At odd places of the file too: arrays that kernels read are aligned."""
    rng = np.random.default_rng(0)
    arrays = {f"w{'x' * k}": rng.standard_normal((40 + k, 50)).astype(np.float32) for k in range(4)}
    made = helper.make_graph(
        [helper.make_node("MatMul", ["x", "t0"], ["y0"])]
        + [helper.make_node("Transpose", [name], [f"t{k}"]) for k, name in enumerate(arrays)]
        + [helper.make_node("MatMul", ["x", f"t{k}"], [f"y{k}"]) for k in range(1, 4)],
        "g",
        [helper.make_tensor_value_info("x", 1, [1, 50])],
        [helper.make_tensor_value_info(f"y{k}", 1, None) for k in range(4)],
        [helper.make_tensor(name, 1, a.shape, a.tobytes(), raw=True) for name, a in arrays.items()],
    )
    data = helper.make_model(made, ir_version=8, opset_imports=[helper.make_opsetid("", 20)]).SerializeToString()
    assert len(cut(memoryview(data)).data) == 4
    path = tmp_path / "model.onnx"
    path.write_bytes(data)
    model = {"path": path, "bytes": data, "bytearray": bytearray(data)}[way]
    fed = rng.standard_normal((1, 50)).astype(np.float32)
    with weft.load(model, "cpu") as session:  # type: ignore[arg-type]
        assert all(a.flags.aligned and not a.flags.writeable for a in session.graph.constants.values())
        for got, array in zip(session.run(fed), arrays.values(), strict=True):
            np.testing.assert_allclose(got, fed @ array.T, rtol=1e-5, atol=1e-5)
