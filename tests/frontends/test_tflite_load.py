"""TensorFlow Lite files: how they are read, and what Weft makes of whole networks."""

from __future__ import annotations

import contextlib
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from tests.helpers.tflite_cases import numbers
from tests.helpers.tflite_files import File, Graph, flexbuffer, one_op, quantized
from weft import models
from weft.cli import main
from weft.errors import ConfigError, ModelError, UnsupportedOps, WeftError
from weft.extend import TFLiteNode, tflite_op
from weft.frontends.tflite.flexbuffer import read_flexbuffer
from weft.frontends.tflite.schema import OPS

CONV = {"stride_w": 1, "stride_h": 1}


def convolved(graph: Graph, x: int, shape: tuple[int, ...], *, half: bool = False, **options: Any) -> int:
    """Add a convolution to as many channels, whose weights may be of float16 before a DEQUANTIZE."""
    channels = shape[3]
    weights = numbers((channels, 3, 3, channels)) / 4
    if half:
        packed, kernel = graph.constant(weights.astype(np.float16)), graph.tensor(weights.shape)
        graph.add("DEQUANTIZE", [packed], [kernel])
    else:
        kernel = graph.constant(weights)
    y = graph.tensor(shape)
    graph.add("CONV_2D", [x, kernel, graph.constant(numbers((channels,)))], [y], **{**CONV, **options})
    return y


def blocks() -> File:
    """Return a network as MediaPipe's are: blocks of convolutions, around each a pool with more channels."""
    file = File()
    graph = file.graph()
    x = graph.input((1, 8, 8, 4), name="image")
    pads = graph.constant(np.array([[0, 0], [0, 0], [0, 0], [0, 4]], np.int32))
    y = convolved(graph, x, (1, 8, 8, 4), half=True, activation="RELU")
    pooled, padded, added, shown = (graph.tensor(s) for s in ((1, 4, 4, 4), (1, 4, 4, 8), (1, 4, 4, 8), (1, 4, 4, 8)))
    graph.add("MAX_POOL_2D", [y], [pooled], stride_w=2, stride_h=2, filter_w=2, filter_h=2)
    graph.add("PAD", [pooled, pads], [padded])
    kernel = graph.constant(numbers((8, 3, 3, 4)) / 4)
    wide = graph.tensor((1, 4, 4, 8))
    graph.add("CONV_2D", [y, kernel, graph.constant(numbers((8,)))], [wide], stride_w=2, stride_h=2)
    graph.add("ADD", [padded, wide], [added], activation="")
    graph.add("PRELU", [added, graph.constant(numbers((1, 1, 8)))], [shown])
    last = convolved(graph, shown, (1, 4, 4, 8))
    flat = graph.tensor((1, 128), name="scores")
    graph.add("RESHAPE", [last, graph.constant(np.array([1, 128], np.int32))], [flat])
    graph.outputs = [flat]
    return file


@pytest.mark.alike
@pytest.mark.parametrize("device", ["opencl", "vulkan"])
def test_blocks_of_convolutions_run_on_a_device_as_on_the_cpu(device: str) -> None:
    x, results = numbers((1, 8, 8, 4)), []
    for each in ("cpu", device):
        with weft.load(blocks().bytes(), each, fallback="error") as session:
            assert session.inputs == {"image": (1, 8, 8, 4)} and session.outputs == ["scores"]
            results.append(session.run(x)[0])
            assert set(session.report.nodes_by_device) == {each}
    np.testing.assert_allclose(results[1], results[0], rtol=1e-4, atol=1e-4)


def test_convolutions_are_transposed_at_the_edges_alone() -> None:
    network = weft.optimize(blocks().bytes(), "cpu")
    moves = [node for node in network.graph.nodes if node.op.type == "Transpose"]
    assert [node.inputs[0] for node in moves[:1]] == ["image"] and len(moves) == 2
    assert network.graph.nodes[-2] is moves[1] and network.graph.nodes[-1].op.type == "Reshape"


def test_an_image_that_is_padded_before_a_convolution_is_padded_by_it() -> None:
    file = File()
    graph = file.graph()
    x, padded = graph.input((1, 6, 6, 3)), graph.tensor((1, 8, 8, 3))
    graph.add("PAD", [x, graph.constant(np.array([[0, 0], [1, 1], [1, 1], [0, 0]], np.int32))], [padded])
    graph.outputs = [convolved(graph, padded, (1, 6, 6, 3), padding=1)]
    network = weft.optimize(file.bytes(), "cpu")
    assert [node.op.type for node in network.graph.nodes] == ["Transpose", "Conv", "Transpose"]


# -- where files lie -------------------------------------------------------------------------------------


def test_F2_a_file_loads_under_any_name_and_as_bytes(tmp_path: Path) -> None:
    data = one_op("RELU", [((3,), "float32")], [((3,), "float32")]).bytes()
    for name in ("model.tflite", "model.bin", "model.onnx"):
        (tmp_path / name).write_bytes(data)
        with weft.load(tmp_path / name, "cpu") as session:
            assert session.run(np.array([-1, 0, 2], np.float32))[0].tolist() == [0, 0, 2]
    for held in (data, bytearray(data), memoryview(data)):
        with weft.load(held, "cpu") as session:
            assert session.run(np.array([-1, 0, 2], np.float32))[0].tolist() == [0, 0, 2]


def with_data_outside(**more: Any) -> File:
    """Return x + w, where w is a tensor whose fields are given."""
    file = File()
    graph = file.graph()
    x, w, y = graph.input((2, 3)), graph.tensor((2, 3), more=more.pop("tensor")), graph.tensor((2, 3))
    graph.add("ADD", [x, w], [y])
    graph.outputs = [y]
    file.more.update(more.pop("root", {}))
    return file


WEIGHTS = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_a_buffer_behind_the_tables() -> None:
    file = with_data_outside(tensor={2: ("I", 1)})
    file.buffers.append({1: ("Q", 2), 2: ("Q", 24)})
    size = len(file.bytes()) // 16 * 16 + 16
    file.buffers[1] = {1: ("Q", size), 2: ("Q", 24)}
    data = file.bytes().ljust(size, b"\0") + WEIGHTS.tobytes()
    with weft.load(data, "cpu") as session:
        assert session.run(np.ones((2, 3), np.float32))[0].tolist() == (WEIGHTS + 1).tolist()
    with pytest.raises(UnsupportedOps, match="24 bytes at"):
        weft.load(data[:-4], "cpu")


def external(name: str, offset: int = 16, length: int = 24) -> bytes:
    entry = {0: ("I", 7), 1: ("I", 0), 2: ("Q", offset), 3: ("Q", length)}
    return with_data_outside(tensor={10: ("I", 7)}, root={8: [{0: name}], 9: [entry]}).bytes()


def test_a_buffer_in_a_file_beside_the_model(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(16) + WEIGHTS.tobytes())
    (tmp_path / "model.tflite").write_bytes(external("w.bin"))
    with weft.load(tmp_path / "model.tflite", "cpu") as session:
        assert session.run(np.ones((2, 3), np.float32))[0].tolist() == (WEIGHTS + 1).tolist()


@pytest.mark.parametrize("name", ["../w.bin", "/etc/hostname", "link.bin", "missing.bin", ""])
def test_a_file_that_is_not_the_models_is_refused(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "w.bin").write_bytes(bytes(64))
    os.symlink(tmp_path / "w.bin", folder / "link.bin")
    (folder / "model.tflite").write_bytes(external(name))
    with pytest.raises(UnsupportedOps, match="external data of the model is refused"):
        weft.load(folder / "model.tflite", "cpu")


def test_bytes_have_no_files_beside_them() -> None:
    with pytest.raises(UnsupportedOps, match="there is no folder to look in"):
        weft.load(external("w.bin"), "cpu")


# -- weights ---------------------------------------------------------------------------------------------


def test_weights_of_four_bits() -> None:
    values = np.array([-8, -1, 0, 3, 7, 2], np.int8)
    packed = bytes((int(a) & 15) | (int(b) & 15) << 4 for a, b in zip(values[::2], values[1::2], strict=True))
    file = File()
    graph = file.graph()
    x, y = graph.input((1, 3)), graph.tensor((1, 2))
    w = graph.tensor((2, 3), "int4", data=packed, scale=quantized([0.5, 0.25]))
    graph.add("FULLY_CONNECTED", [x, w, -1], [y])
    graph.outputs = [y]
    with weft.load(file.bytes(), "cpu") as session:
        got = session.run(np.array([[1, 2, 4]], np.float32))[0]
    want = (values.reshape(2, 3) * np.array([[0.5], [0.25]])) @ [1, 2, 4]
    assert got.reshape(-1).tolist() == want.tolist()


def test_weights_with_a_scale_for_each_block() -> None:
    rng = np.random.default_rng(0)
    values, scales = rng.integers(-7, 8, (3, 8)).astype(np.int8), rng.random((3, 2)).astype(np.float16)
    file = File()
    graph = file.graph()
    held = graph.constant(scales)
    blocks_of_four = {4: ("B", 2), 5: {0: ("i", held), 1: ("i", -1), 2: ("i", 4)}}
    w = graph.tensor((3, 8), "int8", data=values, scale=blocks_of_four)
    x, y = graph.input((2, 8)), graph.tensor((2, 3))
    graph.add("FULLY_CONNECTED", [x, w, -1], [y])
    graph.outputs = [y]
    given_ = rng.random((2, 8)).astype(np.float32)
    with weft.load(file.bytes(), "cpu") as session:
        (got,) = session.run(given_)
    np.testing.assert_allclose(got, given_ @ (values * np.repeat(scales.astype(np.float32), 4, 1)).T, rtol=1e-5)


def test_weights_of_eight_bits_meet_floats_as_floats() -> None:
    values = np.array([[1, -2, 3], [100, 50, -127]], np.int8)
    x = np.array([[0.5, -1, 2]], np.float32)
    weights = values, quantized([0.5, 0.01])
    file = one_op("FULLY_CONNECTED", [((1, 3), "float32"), weights, None], [((1, 2), "float32")])
    with weft.load(file.bytes(), "cpu") as session:
        (got,) = session.run(x)
    np.testing.assert_allclose(got, x @ (values * np.array([[0.5], [0.01]])).T, rtol=1e-6)


def sparse(**changed: Any) -> bytes:
    """Return x + w for a sparse w of 4 x 4: blocks of 2 x 2, of which each row of blocks has some."""
    dense = np.zeros((4, 4), np.float32)
    dense[0:2, 2:4], dense[2:4, 0:2], dense[2:4, 2:4] = [[1, 2], [3, 4]], [[5, 6], [7, 8]], [[9, 10], [11, 12]]
    held = np.concatenate([dense[0:2, 2:4].ravel(), dense[2:4, 0:2].ravel(), dense[2:4, 2:4].ravel()])
    levels = [
        {0: ("b", 0), 1: ("i", 2)},
        {0: ("b", 1), 2: ("B", 3), 3: {0: np.array(changed.get("segments", [0, 1, 3]), np.uint8)},
         4: ("B", 3), 5: {0: np.array(changed.get("indices", [1, 0, 1]), np.uint8)}},
        {0: ("b", 0), 1: ("i", changed.get("block", 2))},
        {0: ("b", 0), 1: ("i", 2)},
    ]  # fmt: skip
    file = File()
    graph = file.graph()
    form = {0: np.array(changed.get("order", [0, 1, 2, 3]), np.int32), 1: np.array([0, 1], np.int32), 2: levels}
    w = graph.tensor((4, 4), data=held[: changed.get("values", 12)], more={6: form})
    x, whole, y = graph.input((4, 4)), graph.tensor((4, 4)), graph.tensor((4, 4))
    graph.add("DENSIFY", [w], [whole])
    graph.add("ADD", [x, whole], [y])
    graph.outputs = [y]
    return file.bytes()


def test_sparse_weights_have_their_zeros() -> None:
    with weft.load(sparse(), "cpu") as session:
        got = session.run(np.zeros((4, 4), np.float32))[0]
    assert got.tolist() == [[0, 0, 1, 2], [0, 0, 3, 4], [5, 6, 9, 10], [7, 8, 11, 12]]


@pytest.mark.parametrize(
    "changed",
    [{"segments": [0, 1, 9]}, {"segments": [0, 3, 1]}, {"segments": [1, 1, 3]}, {"segments": [0, 3]},
     {"indices": [1, 0, 2]}, {"block": 3}, {"block": 0}, {"order": [0, 1, 2, 2]}, {"order": [3, 2, 1, 9]},
     {"values": 11}],
    ids=str,
)  # fmt: skip
def test_a_sparse_form_that_makes_no_sense_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedOps, match="sparse form makes no sense"):
        weft.load(sparse(**changed), "cpu")


# -- signatures, shapes, state ---------------------------------------------------------------------------


def two_signatures() -> bytes:
    file = File()
    for factor, name in ((2.0, "double"), (3.0, "triple")):
        graph = file.graph()
        x, y = graph.input((-1, 2)), graph.tensor((-1, 2))
        graph.add("MUL", [x, graph.constant(np.float32(factor))], [y])
        graph.outputs = [y]
        file.signature(name, graph, {"x": x}, {f"{name}d": y})
    return file.bytes()


def test_signatures_name_subgraphs_and_their_inputs() -> None:
    x = np.array([[1, 2], [3, 4]], np.float32)
    for signature, factor, output in ((None, 2, "doubled"), ("double", 2, "doubled"), ("triple", 3, "tripled")):
        with weft.load(two_signatures(), "cpu", signature=signature) as session:
            assert list(session.inputs) == ["x"] and session.outputs == [output]
            assert session.run({"x": x})[0].tolist() == (x * factor).tolist()
            assert session.run(x[:1])[0].tolist() == (x[:1] * factor).tolist()  # the first size is open
    with pytest.raises(ConfigError, match=r"has no signature 'half'.*\n.*\n.*'double', 'triple'"):
        weft.load(two_signatures(), "cpu", signature="half")


def test_a_signature_means_nothing_to_other_models() -> None:
    with pytest.raises(ConfigError, match="signature='x' means nothing here"):
        weft.load(models.path("shapes"), "cpu", signature="x")


def counting() -> File:
    """Return a network with a variable, first 10, to which each run adds its input."""
    file = File()
    graph, start = file.graph(), file.graph()
    handle, first = start.tensor((), "resource"), start.constant(np.array([10, 20], np.float32))
    start.add("VAR_HANDLE", [], [handle], shared_name="total")
    start.add("ASSIGN_VARIABLE", [handle, first], [])
    x, now, total = graph.input((2,), name="x"), graph.tensor((2,)), graph.tensor((2,), name="y")
    held = graph.tensor((), "resource")
    graph.add("CALL_ONCE", [], [], init_subgraph=1)
    graph.add("VAR_HANDLE", [], [held], shared_name="total")
    graph.add("READ_VARIABLE", [held], [now])
    graph.add("ADD", [now, x], [total])
    graph.add("ASSIGN_VARIABLE", [held, total], [])
    graph.outputs = [total]
    return file


@pytest.mark.parametrize("device", ["cpu", "opencl"])
def test_variables_live_from_run_to_run(device: str) -> None:
    with weft.load(counting().bytes(), device) as session:
        assert list(session.inputs) == ["x"] and session.outputs == ["y"] and session.keeps_state
        one = np.ones(2, np.float32)
        assert [session.run(one)[0].tolist() for _ in range(3)] == [[11, 21], [12, 22], [13, 23]]
        saved = session.state.save()
        session.state.reset()
        assert session.run(one)[0].tolist() == [11, 21]
        session.state.restore(saved)
        assert session.run(one)[0].tolist() == [14, 24]


def test_a_file_that_is_edited_keeps_its_variables() -> None:
    network = weft.parse(counting().bytes())
    with weft.load(network, "cpu") as session:
        assert [session.run(np.ones(2, np.float32))[0].tolist() for _ in range(2)] == [[11, 21], [12, 22]]


# -- what is refused -------------------------------------------------------------------------------------


def test_what_cannot_go_with_variables_is_to_be_left_out() -> None:
    """The state is the model's own, so a caller cannot leave that out."""
    with pytest.raises(ConfigError, match=r"a state cannot be kept here(.*\n)+.*next: leave that out$"):
        weft.load(counting().bytes(), "cpu", memory="limit")


def test_all_unknown_ops_are_named_at_once() -> None:
    file = File()
    graph = file.graph()
    x, a, b, y = graph.input((2,)), *(graph.tensor((2,)) for _ in range(3))
    graph.add("acme.Turn", [x], [a], custom=b"")
    graph.add("HASHTABLE_FIND", [a], [b])
    graph.add("acme.Turn", [b], [y], custom=b"")
    graph.outputs = [y]
    with pytest.raises(UnsupportedOps, match="3 of the 3 nodes") as caught:
        weft.load(file.bytes(), "cpu")
    assert caught.value.by_op == {"acme.Turn": 2, "HASHTABLE_FIND": 1}
    assert "weft.extend.tflite_op" in str(caught.value) and "works on texts" in str(caught.value)


def test_a_custom_op_can_be_registered() -> None:
    @tflite_op("acme.Scale")
    def scale(node: TFLiteNode) -> str:
        (factor,) = struct.unpack("<f", node.custom_options)
        return node.add("Mul", node.value(0), node.scalar(factor))

    data = one_op("acme.Scale", [((3,), "float32")], [((3,), "float32")], custom=struct.pack("<f", 2.5)).bytes()
    with weft.load(data, "cpu") as session:
        assert session.run(np.array([1, 2, 4], np.float32))[0].tolist() == [2.5, 5, 10]
    with pytest.raises(ConfigError, match="has an importer already"):
        tflite_op("acme.Scale")(scale)
    with pytest.raises(UnsupportedOps, match="its importer failed"):

        @tflite_op("acme.Scale", replace=True)
        def fails(node: TFLiteNode) -> str:
            raise RuntimeError("no")

        weft.load(data, "cpu")


DAMAGED = blocks().bytes()


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, len(DAMAGED) - 1), st.integers(0, 255)), max_size=6),
    st.integers(0, len(DAMAGED)),
)
def test_a_damaged_file_is_an_error_of_wefts(changes: list[tuple[int, int]], end: int) -> None:
    data = bytearray(DAMAGED)
    for at, value in changes:
        data[at] = value
    held = bytes(data) if end % 3 else bytes(data[:end])
    with contextlib.suppress(WeftError):
        weft.load(held, "cpu", limits={"folding_seconds": 1}).close()


@pytest.mark.parametrize(
    ("data", "why"),
    [(b"", "no bytes"), (b"\0" * 3 + b"TFL3", "not"), (struct.pack("<I", 2**31) + b"TFL3", "are named"),
     (struct.pack("<I", 8) + b"TFL3" + bytes(16), "")],
)  # fmt: skip
def test_what_is_no_model_is_refused(data: bytes, why: str, tmp_path: Path) -> None:
    (tmp_path / "model.tflite").write_bytes(data)
    with pytest.raises(ModelError):
        weft.load(tmp_path / "model.tflite", "cpu")


def test_tables_that_name_one_part_again_and_again_are_refused() -> None:
    """A file of some kilobytes can name one table any number of times."""
    file = one_op("RELU", [((3,), "float32")], [((3,), "float32")])
    data = bytearray(file.bytes())
    place = len(data)
    # A vector of subgraphs that are all one, in the place of that of one.
    root = struct.unpack_from("<I", data, 0)[0]
    vtable = root - struct.unpack_from("<i", data, root)[0]
    field = root + struct.unpack_from("<H", data, vtable + 4 + 2 * 2)[0]
    old = field + struct.unpack_from("<I", data, field)[0]
    subgraph = old + 4 + struct.unpack_from("<I", data, old + 4)[0]
    struct.pack_into("<I", data, field, place - field)
    count = 20_000
    offsets = ((subgraph - (place + 4 + 4 * k)) % 2**32 for k in range(count))
    data += struct.pack("<I", count) + struct.pack(f"<{count}I", *offsets)
    with pytest.raises(ModelError):
        weft.load(bytes(data), "cpu")


def test_options_that_name_one_text_again_and_again_are_refused() -> None:
    """A vector of texts, each of which is the one of 1,000 bytes at the beginning."""
    texts = [struct.pack("<H", 1006 + 2 * k - 2) for k in range(20)]
    start = struct.pack("<H", 1000) + b"a" * 1000 + b"\0\0"
    kinds, root = bytes([5 << 2 | 1]) * 20, struct.pack("<HBB", 60, 10 << 2 | 1, 2)
    data = start + struct.pack("<H", 20) + b"".join(texts) + kinds + root
    with pytest.raises(ModelError, match="the same texts again"):
        read_flexbuffer(data)


def test_a_small_file_does_not_ask_for_much_memory() -> None:
    most = np.array(2**30, np.int32)
    thresholds = np.array(0.5, np.float32), np.array(0.1, np.float32)
    boxes = [((5, 4), "float32"), ((5,), "float32"), most, *thresholds]
    with pytest.raises(UnsupportedOps, match="boxes of 1,073,741,824 elements are not supported"):
        weft.load(one_op("NON_MAX_SUPPRESSION_V4", boxes, [((4,), "int32"), ((), "int32")]).bytes(), "cpu")
    absurd = File()
    graph = absurd.graph()
    graph.outputs = [graph.input((2**31 - 1, 2**31 - 1))]
    with pytest.raises(ModelError, match="makes no sense"):
        weft.load(absurd.bytes(), "cpu")


def test_names_of_ops_are_in_the_order_of_the_schema() -> None:
    assert (OPS[3], OPS[32], OPS[127], OPS[209]) == (
        "CONV_2D", "CUSTOM", "PLACEHOLDER_FOR_GREATER_OP_CODES", "STABLEHLO_CASE",
    )  # fmt: skip


def test_landmarks_are_looked_at_closer() -> None:
    """The box of the points 0, 1 and 2, turned so that the line from 0 to 1 is level, is cut out of an image."""
    points = np.array([[[2, 3, 9], [6, 6, 9], [3, 6, 9], [50, 50, 9]]], np.float32)
    image = np.arange(100, dtype=np.float32).reshape(1, 10, 10, 1)
    file = File()
    graph = file.graph()
    p, x = graph.input((1, 4, 3)), graph.input((1, 10, 10, 1))
    matrix, crop, there = graph.tensor((1, 4, 4)), graph.tensor((1, 4, 4, 1)), graph.tensor((1, 2, 2))
    options: dict[str, Any] = {
        "left_rotation_idx": 0, "right_rotation_idx": 1, "output_height": 4, "output_width": 4, "scale_x": 1.5,
        "scale_y": 1.25, "target_rotation_radians": 0, "subset_idxs": [0, 1, 2],
    }  # fmt: skip
    graph.add("Landmarks2TransformMatrix", [p], [matrix], custom=flexbuffer(options), version=2)
    size = flexbuffer({"output_height": 4, "output_width": 4})
    graph.add("TransformTensorBilinear", [x, matrix], [crop], custom=size, version=2)
    corners = graph.constant(np.array([[[0, 0], [4, 4]]], np.float32))
    graph.add("TransformLandmarks", [corners, matrix], [there], custom=b"", version=2)
    graph.outputs = [matrix, crop, there]
    with weft.load(file.bytes(), "cpu") as session:
        made, cut, ends = session.run(points, image)
    turn = np.array([[4, 3], [-3, 4]]) / 5  # the line has the slope 3 / 4
    turned = points[0, :3, :2] @ turn.T
    low, high = turned.min(0), turned.max(0)
    size_of = (high - low) * [1.5, 1.25]
    middle = (low + high) / 2 @ turn

    def place(at: Any) -> Any:
        """Return where a place in the crop, of 4 x 4, is in the image."""
        return (np.asarray(at) / 4 - 0.5) * size_of @ turn + middle

    np.testing.assert_allclose(ends[0], [place([0, 0]), place([4, 4])], atol=1e-5)
    np.testing.assert_allclose(made[0, :2, 3], place([0, 0]), atol=1e-5)
    for row in range(4):
        for column in range(4):
            at_x, at_y = place([column + 0.5, row + 0.5]) - 0.5
            inside = 0 <= at_x <= 9 and 0 <= at_y <= 9
            np.testing.assert_allclose(cut[0, row, column, 0], 10 * at_y + at_x if inside else 0, atol=1e-3)


def test_a_call_is_written_out() -> None:
    file = File()
    graph, callee = file.graph(), file.graph()
    a, b = callee.input((3,)), callee.tensor((3,))
    callee.add("MUL", [a, callee.constant(np.float32(3))], [b])
    callee.outputs = [b]
    x, y, z = graph.input((3,)), graph.tensor((3,)), graph.tensor((3,))
    graph.add("CALL", [x], [y], subgraph=1)
    graph.add("CALL", [y], [z], subgraph=1)
    graph.outputs = [z]
    with weft.load(file.bytes(), "cpu") as session:
        assert session.run(np.array([1, 2, 4], np.float32))[0].tolist() == [9, 18, 36]
    callee.add("CALL", [b], [callee.tensor((3,))], subgraph=1)
    with pytest.raises(UnsupportedOps, match="more than 16 deep"):
        weft.load(file.bytes(), "cpu")


def test_the_command_line_takes_a_file_and_a_signature(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "m.tflite").write_bytes(two_signatures())
    (tmp_path / "s.tflite").write_bytes(counting().bytes())
    for arguments in (
        ["run", str(tmp_path / "m.tflite"), "-d", "cpu", "--signature", "triple", "--shape", "x=1,2"],
        ["inspect", str(tmp_path / "m.tflite"), "-d", "cpu", "--signature", "double"],
        ["run", str(tmp_path / "s.tflite"), "-d", "cpu"], ["inspect", str(tmp_path / "s.tflite"), "-d", "cpu"],
        ["bench", str(tmp_path / "s.tflite"), "-d", "cpu", "--iterations", "2"],
    ):  # fmt: skip
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        said = capsys.readouterr()
        assert not caught.value.code, said.out + said.err
        assert "tripled" in said.out or arguments[0] != "run" or "s.tflite" in arguments[1]
