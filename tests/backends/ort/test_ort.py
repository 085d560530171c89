"""ONNX Runtime as a device: whole subgraphs, what it refuses, its options, and where it falls in."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

import weft
from tests.helpers.fakes import registered
from weft import Network
from weft.extend import HostBackend
from weft.models import path
from weft.ops.binary import Mod
from weft.ops.softmax import Softmax

PICTURE = np.random.default_rng(0).random((1, 3, 128, 128), np.float32)


@pytest.mark.parametrize(("precision", "bound"), [("high", 1e-6), ("low", 5e-3)])
def test_a_network_goes_whole_to_onnx_runtime(precision: str, bound: float) -> None:
    with weft.load(path("shapes"), "cpu") as cpu:
        (expected,) = cpu.run(PICTURE)
    with weft.load(path("shapes"), "ort", precision=precision, fallback="error") as session:
        (y,) = session.run(PICTURE)
        assert session.report.nodes_by_device == {"ort": 1}
        assert abs(y - expected).max() < bound
        (both,) = session.run(np.concatenate([PICTURE, PICTURE]))  # another shape is another model
        assert abs(both - expected).max() < bound


def test_subgraphs_around_what_is_elsewhere_are_one_node_each() -> None:
    with weft.load(path("shapes"), "cpu") as cpu:
        (expected,) = cpu.run(PICTURE)
    with weft.load(path("shapes"), ["ort", "cpu"], hints={"both/*": "cpu"}) as session:
        (y,) = session.run(PICTURE)
        assert session.report.subgraphs == ("ort:0", "cpu:0", "ort:0")
        assert session.report.nodes_by_device == {"ort": 2, "cpu": 1} and session.report.copies == ()
    assert abs(y - expected).max() < 1e-6


class Rectifier(HostBackend):
    """Computes Relu alone."""


@Rectifier.creator("Relu")
class Relu(weft.Execution):
    def onExecute(self, inputs: Sequence[weft.Tensor | None], outputs: Sequence[weft.Tensor]) -> None:
        (x,) = (t.memory for t in inputs if t is not None)
        np.maximum(x, 0, out=outputs[0].memory)


def test_it_takes_what_another_device_refuses_and_numpy_what_it_refuses() -> None:
    net = Network("three")
    x = net.add_layer("Relu", net.add_input("x", (4,)), name="relu")
    whole = net.add_layer("Cast", net.add_layer("Exp", x, name="exp"), to=weft.DType.INT32, name="cast")
    net.add_output("y", net.add_layer("Mod", whole, whole, name="mod"))
    given = np.array([-1, 0, 1, 2], np.float32)
    with registered(Rectifier, "rectifier"):
        for asked in ({"device": ["rectifier", "ort"]}, {"device": "rectifier", "fallback": "ort"}):
            with weft.load(net, **asked) as session:  # type: ignore[arg-type]
                assert session.run(given)[0].tolist() == [0, 0, 0, 0]
                assert session.report.nodes_by_device == {"rectifier": 1, "ort": 1, "cpu": 1}
                assert list(session.report.devices) == ["rectifier:0", "ort:0", "cpu:0"]
        with weft.load(net, "rectifier") as session:
            assert session.report.nodes_by_device == {"rectifier": 1, "cpu": 3}


def test_a_program_says_how_many_threads_it_has() -> None:
    with weft.load(path("shapes"), "ort", backend_options={"ort": {"threads": 1}}) as session:
        assert session.run(PICTURE)[0].shape == (1, 5, 64, 64)
    with pytest.raises(weft.errors.ConfigError, match="'threads' of 'ort' takes a whole number from 0 on, not -1"):
        weft.load(path("shapes"), "ort", backend_options={"ort": {"threads": -1}})


def test_it_computes_the_same_with_little_memory() -> None:
    with weft.load(path("shapes"), "ort") as usual, weft.load(path("shapes"), "ort", memory="limit") as thrifty:
        np.testing.assert_allclose(thrifty.run(PICTURE)[0], usual.run(PICTURE)[0], rtol=1e-4, atol=1e-5)


def test_the_state_of_a_network_is_kept() -> None:
    net = Network("sum")
    past, x = net.add_input("past", (2,)), net.add_input("x", (2,))
    whole = net.add_layer("Add", past, x)
    net.add_output("present", whole)
    net.add_output("y", net.add_layer("Neg", whole))
    with weft.load(net, "ort", state={"past": "present"}, fallback="error") as session:
        for expected in ([-1, -2], [-2, -4], [-3, -6]):
            assert session.run(np.array([1, 2], np.float32))[0].tolist() == expected


def test_a_saved_network_has_the_models_in_it(tmp_path: Path) -> None:
    with weft.load(path("shapes"), "cpu") as cpu:
        (expected,) = cpu.run(PICTURE)
    network = weft.optimize(path("shapes"), "ort", shapes={"image": PICTURE.shape})
    network.save(tmp_path / "shapes.weft")
    assert (tmp_path / "shapes.weft").stat().st_size < 1.3 * Path(path("shapes")).stat().st_size
    (node,) = network.graph.nodes
    assert any("node(s) as one session" in line for line in network.why(node.name))
    with weft.load(tmp_path / "shapes.weft") as session:
        (y,) = session.run(PICTURE)
        assert session.report.nodes_by_device == {"ort": 1}
    assert abs(y - expected).max() < 1e-6


@pytest.mark.parametrize("last", ["Relu", "ReduceSum"])
@pytest.mark.parametrize("read", [0, 1, 2])
def test_outputs_that_nobody_reads_are_in_the_model(last: str, read: int, tmp_path: Path) -> None:
    """A Split of three, of which one part is read, is no Split of fewer; nor when it was saved."""
    net = Network("split")
    parts = net.add_layer("Split", net.add_input("x", (1, 6)), axis=1, num_outputs=3, name="split")
    net.add_output("y", net.add_layer(last, parts.output(read)))
    x = np.arange(6, dtype=np.float32)[None]
    (expected,) = weft.load(net, "cpu").run(x)
    weft.optimize(net, "ort").save(tmp_path / "split.weft")
    for model in (net, tmp_path / "split.weft"):
        with weft.load(model, *(["ort"] if model is net else [])) as session:
            np.testing.assert_array_equal(session.run(x)[0], expected)
            assert session.report.nodes_by_device == {"ort": 1}


def test_a_split_that_counts_its_outputs_runs_as_a_single_node() -> None:
    """Before opset 18 nothing but the outputs said how many there are."""
    made = helper.make_node("Split", ["x"], ["a", "b"], axis=1)
    ends = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])]
    shown = [helper.make_tensor_value_info("b", TensorProto.FLOAT, [1, 2])]
    graph = helper.make_graph([made], "split", ends, shown)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    with weft.load(model, "ort", fallback="error") as session:
        assert session.run(np.arange(4, dtype=np.float32)[None])[0].tolist() == [[2, 3]]


def reason(net: Network) -> str:
    """Return why the only node of a network is not for ONNX Runtime."""
    (refusal,) = weft.optimize(net, ["ort", "cpu"]).refusals
    assert refusal.device == "ort:0"
    return refusal.reason


def test_onnx_runtimes_own_reasons_arrive() -> None:
    net = Network("refused")
    net.add_output("y", net.add_layer("Erf", net.add_input("x", (3,), "float64")))
    assert reason(net).startswith("ONNX Runtime: Could not find an implementation for Erf")


def test_what_is_no_onnx_node_is_refused() -> None:
    net = Network("old")
    net.add_output("y", net.add_layer(Softmax(axis=1, flatten=True), net.add_input("x", (2, 3, 4))))
    assert reason(net).startswith("Softmax has no attribute flatten in opset")


@pytest.mark.parametrize("op", ["Div", "Mod"])
def test_integers_are_divided_where_nothing_ends_the_process(op: str) -> None:
    net = Network("divided")
    x = net.add_input("x", (3,), "int32")
    net.add_output("by_some", net.add_layer(op, x, net.add_input("y", (3,), "int32")))
    net.add_output("by_two", net.add_layer(op, x, np.array([2], np.int32)))
    smallest = np.iinfo(np.int32).min
    with weft.load(net, "ort") as session, weft.load(net, "cpu") as cpu:
        given = np.array([5, 7, smallest], np.int32), np.array([3, 0, -1], np.int32)
        for got, expected in zip(session.run(*given), cpu.run(*given), strict=True):
            np.testing.assert_array_equal(got, expected)
        assert session.report.nodes_by_device == {"ort": 1, "cpu": 1}


def test_nothing_is_computed_elsewhere() -> None:
    net = Network("nothing")
    net.add_output("y", net.add_layer("LSTM", net.add_input("x", (0, 1, 2)), np.ones((1, 12, 2), np.float32),
                                      np.ones((1, 12, 3), np.float32), hidden_size=3))
    with weft.load(net, "ort") as session:
        assert session.run(np.zeros((0, 1, 2), np.float32))[0].shape == (0, 1, 1, 3)


def test_what_onnx_runtime_takes_and_then_fails_is_refused() -> None:
    net = Network("mod")
    x = net.add_input("x", (3,))
    net.add_output("y", net.add_layer(Mod(), x, x))
    assert reason(net) == "ONNX Runtime has no Mod of floats with fmod=0"


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_what_overflows_in_onnx_runtime_is_refused_or_right(dtype: str) -> None:
    """Some versions compute the formula of ONNX for ReduceLogSumExp, which overflows: the value decides."""
    net = Network("large")
    net.add_output("y", net.add_layer("ReduceLogSumExp", net.add_input("x", (2, 3), dtype), np.array([1])))
    x = np.array([[1000, 1000, 1000], [-1000, -1000, -1001]], dtype)
    with weft.load(net, ["ort", "cpu"]) as session:
        (y,) = session.run(x)
        refusals = [why for each in session.report.refusals.values() for why in each.values()]
    np.testing.assert_allclose(y, [[1001.1], [-999.14]], rtol=1e-3)
    assert all("wrong for large numbers: it gives" in why for why in refusals)


def test_a_pool_has_nan_and_infinities_as_everywhere() -> None:
    """ONNX Runtime's own passes over NaN in wide images, and has the least number for -inf."""
    net = Network("pool")
    x = net.add_input("x", (1, 2, 40, 157))
    net.add_output("y", net.add_layer("MaxPool", x, kernel_shape=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1)))
    given = np.random.default_rng(4).standard_normal((1, 2, 40, 157)).astype(np.float32)
    given[0, 0, 7, 100], given[0, 1, :9], given[0, 1, 20, 5] = np.nan, -np.inf, np.finfo(np.float32).min
    with weft.load(net, "ort", fallback="error") as session, weft.load(net, "cpu") as cpu:
        np.testing.assert_array_equal(session.run(given)[0], cpu.run(given)[0])
