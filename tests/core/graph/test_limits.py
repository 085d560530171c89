"""What a model may cost before it runs: limits that errors name, and what is left to run for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import weft
from tests.helpers.nets import Net, kinds
from weft.core.graph.graph import Graph
from weft.core.graph.limits import Budget
from weft.core.host.host_backend import HostBackend
from weft.core.passes import PassContext, run_passes
from weft.core.passes.batch_norm import fold_batch_norm
from weft.core.passes.constants import fold_constants
from weft.errors import ConfigError, ModelError, OutOfMemory

GIB = 1 << 30
NONE = np.array([], np.float32)
X = np.ones(2, np.float32)


def of_nodes(nodes: list[onnx.NodeProto], constants: Mapping[str, Any], functions: Any = ()) -> onnx.ModelProto:
    """Return a model of these nodes from x to y, two numbers each."""
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy"]
    weights = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], weights)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    return helper.make_model(graph, opset_imports=opsets, functions=list(functions), ir_version=9)


LARGE: dict[str, tuple[list[Any], int]] = {
    "ConstantOfShape": ([np.array([2 * GIB])], 1),
    "Range": ([np.float32(0), np.float32(2 * GIB), np.float32(1)], 1),
    "Expand": ([np.array([1], np.float32), np.array([2 * GIB])], 1),
    "Tile": ([np.array([1, 2], np.float32), np.array([GIB])], 1),
    "Pad": ([np.array([1, 2], np.float32), np.array([0, 2 * GIB])], 1),
    "Resize": ([np.zeros((1, 1, 2, 2), np.float32), NONE, NONE, np.array([1, 1, 2, GIB])], 4),
}


@pytest.mark.parametrize("kind", LARGE)
def test_large_values_of_small_constants_are_left_to_run(kind: str) -> None:
    constants, rank = LARGE[kind]
    names = [f"c{k}" for k in range(len(constants))]
    begin = helper.make_node("Slice", ["large", *(f"s{k}" for k in range(3))], ["part"])
    where = {f"s{k}": np.array([[0], [2], [rank - 1]][k]) for k in range(3)}
    nodes = [
        helper.make_node(kind, names, ["large"]), begin,
        helper.make_node("ReduceSum", ["part"], ["sum"], keepdims=0), helper.make_node("Add", ["x", "sum"], ["y"]),
    ]
    model = of_nodes(nodes, dict(zip(names, constants, strict=True)) | where)
    network = weft.optimize(model, "cpu", fallback="error")
    assert kind in kinds(network.graph)
    assert any("'folding_bytes'" in note and "'large'" in note for note in network.notes)


def test_a_large_value_is_folded_where_the_limit_is_raised_and_left_where_it_is_lowered() -> None:
    nodes = [
        helper.make_node("Expand", ["c", "n"], ["large"]),
        helper.make_node("ReduceSum", ["large"], ["s"], keepdims=0),
        helper.make_node("Add", ["x", "s"], ["y"]),
    ]
    model = of_nodes(nodes, {"c": np.array([1], np.float32), "n": np.array([1000])})
    assert kinds(weft.optimize(model, "cpu", limits={"folding_bytes": 10_000}).graph) == ["Add"]
    left = weft.optimize(model, "cpu", limits={"folding_bytes": 3_999})
    assert kinds(left.graph) == ["Expand", "ReduceSum", "Add"]
    with weft.load(model, "cpu", limits={"folding_bytes": 3_999}) as session:
        np.testing.assert_array_equal(session.run(X)[0], X + 1000)
        assert any("4,000" in note and "3,999" in note for note in session.report.notes)


def test_what_a_shape_follows_from_cannot_be_left_to_run_and_the_error_names_the_limit() -> None:
    nodes = [
        helper.make_node("Expand", ["c", "n"], ["many"]), helper.make_node("Reshape", ["x", "many"], ["y"]),
    ]
    model = of_nodes(nodes, {"c": np.array([1]), "n": np.array([1000])})
    with pytest.raises(ModelError, match="limit 'folding_bytes'") as caught:
        weft.optimize(model, "cpu", limits={"folding_bytes": 100})
    assert "8,000" in caught.value.why and "100" in caught.value.why
    assert '{"folding_bytes": 8000}' in caught.value.fix and "--limit folding_bytes=8000" in caught.value.fix


def test_folding_ends_when_its_time_is_over_but_shapes_are_known_all_the_same() -> None:
    net = Net()
    x = net.input("x", 4)
    big = net.add("Mul", np.ones(1000, np.float32), np.ones(1000, np.float32))
    size = net.add("Add", np.array([2]), np.array([0]))
    graph = net.finish(net.add("Reshape", x, net.add("Concat", size, np.array([-1]), axis=0)), big)
    budget = Budget(weft.Limits(folding_seconds=0))
    assert kinds(fold_constants(graph, PassContext(budget))) == ["Mul", "Reshape"]
    assert "'folding_seconds'" in budget.notes()[0]


def test_a_folding_that_would_take_longer_than_is_left_is_not_begun() -> None:
    net = Net()
    graph = net.finish(net.add("MatMul", np.ones((1000, 1000), np.float32), np.ones((1000, 1000), np.float32)))
    assert kinds(fold_constants(graph, PassContext(Budget(weft.Limits(folding_seconds=1))))) == ["MatMul"]
    assert kinds(fold_constants(graph, PassContext(Budget(weft.Limits(folding_seconds=60))))) == []


def test_time_that_folding_took_counts() -> None:
    ticks = iter(range(100))
    net = Net()
    ones = np.ones(1000, np.float32)
    graph = net.finish(*[net.add("Mul", ones, ones) for _ in range(5)])
    budget = Budget(weft.Limits(folding_seconds=3), clock=lambda: float(next(ticks)))
    assert len(fold_constants(graph, PassContext(budget)).nodes) == 2


def test_weights_that_many_nodes_share_are_not_multiplied_without_end() -> None:
    net = Net()
    weights, ones = np.ones((64, 64, 1, 1), np.float32), np.ones(64, np.float32)
    x = net.input("x", 1, 64, 2, 2)
    for _ in range(6):
        x = net.add("BatchNormalization", net.add("Conv", x, weights), ones, ones, ones, ones)
    graph = net.finish(x)
    folded = fold_batch_norm(graph, PassContext(Budget(weft.Limits(folding_bytes=3 * weights.nbytes))))
    assert kinds(folded).count("BatchNormalization") == 3


def to_fold() -> Graph:
    net = Net()
    return net.finish(net.add("Add", net.add("Neg", net.random(40, 40)), net.input("x", 40, 40)))


def to_move() -> Graph:
    net = Net()
    turned = net.add("Transpose", net.input("x", 40, 50), perm=(1, 0))
    return net.finish(net.add("Transpose", net.add("Add", turned, net.random(50, 40)), perm=(1, 0)))


def to_join() -> Graph:
    net = Net()
    x = net.input("x", 1, 5, 40)
    parts = [net.add("MatMul", x, net.random(40, 40)) for _ in range(3)]
    return net.finish(net.add("weft::Attention", *parts, scale=1.0, heads=2))


def to_normalize() -> Graph:
    net = Net()
    y = net.conv(net.input("x", 1, 30, 4, 4), 40, 1)
    return net.finish(net.add("BatchNormalization", y, *np.ones((4, 40), np.float32)))


@pytest.mark.parametrize("build", [to_fold, to_move, to_join, to_normalize])
def test_no_pass_makes_constants_beyond_the_budget(build: Callable[[], Graph]) -> None:
    graph = build()
    free, bound = (run_passes(graph, context=PassContext(Budget(weft.Limits(folding_bytes=b)))) for b in (GIB, 0))
    assert len(free.nodes) < len(graph.nodes)
    assert [str(n) for n in bound.nodes] == [str(n) for n in graph.nodes]
    assert sum(value.nbytes for value in bound.constants.values()) == sum(v.nbytes for v in graph.constants.values())


def test_more_nodes_than_the_limit_are_refused_wherever_they_come_from() -> None:
    nodes = [helper.make_node("Relu", ["x" if not k else f"v{k}"], [f"v{k + 1}"]) for k in range(9)]
    model = of_nodes([*nodes, helper.make_node("Relu", ["v9"], ["y"])], {})
    graph = weft.parse(model).to_graph()
    for given in (model, graph, model.SerializeToString()):
        with pytest.raises(ModelError, match="limit 'nodes'") as caught:
            weft.load(given, "cpu", limits={"nodes": 9})
        assert "10" in caught.value.why and "9" in caught.value.why and "--limit nodes=10" in caught.value.fix
        weft.load(given, "cpu", limits=weft.Limits(nodes=10)).close()
    with pytest.raises(ModelError, match="limit 'nodes'"):
        weft.parse(model, limits={"nodes": 9})


def test_nodes_are_counted_after_functions_are_expanded() -> None:
    opset = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    functions = [helper.make_function("local", "f0", ["a"], ["b"], [helper.make_node("Relu", ["a"], ["b"])], opset)]
    for k in range(1, 30):
        twice = [helper.make_node(f"f{k - 1}", [a], [b], domain="local") for a, b in (("a", "t"), ("t", "b"))]
        functions.append(helper.make_function("local", f"f{k}", ["a"], ["b"], twice, opset))
    model = of_nodes([helper.make_node("f29", ["x"], ["y"], domain="local")], {}, functions)
    with pytest.raises(ModelError, match="limit 'nodes'") as caught:
        weft.load(model, "cpu")
    assert "536,870,912" in caught.value.why and "250,000" in caught.value.why


def test_constants_in_functions_count_once_for_each_call() -> None:
    value = numpy_helper.from_array(np.ones(1000, np.float32), "")
    opset = [helper.make_opsetid("", 17)]
    body = [
        helper.make_node("Constant", [], ["c"], value=value),
        helper.make_node("ReduceSum", ["c"], ["s"], keepdims=0),
        helper.make_node("Add", ["a", "s"], ["b"]),
    ]
    function = helper.make_function("local", "f", ["a"], ["b"], body, opset)
    calls = [helper.make_node("f", ["x" if not k else f"v{k}"], [f"v{k + 1}"], domain="local") for k in range(9)]
    model = of_nodes([*calls, helper.make_node("f", ["v9"], ["y"], domain="local")], {}, [function])
    with pytest.raises(ModelError, match="limit 'constant_bytes'"):
        weft.load(model, "cpu", limits={"constant_bytes": 39_999})
    weft.load(model, "cpu", limits={"constant_bytes": 50_000}).close()


def test_more_bytes_of_constants_than_the_limit_are_refused() -> None:
    nodes = [helper.make_node("Add", ["x", "c"], ["s"]), helper.make_node("Add", ["s", "d"], ["y"])]
    model = of_nodes(nodes, {"c": X, "d": X})
    for given in (model, weft.parse(model).to_graph()):
        with pytest.raises(ModelError, match="limit 'constant_bytes'") as caught:
            weft.load(given, "cpu", limits={"constant_bytes": 15})
        assert "16" in caught.value.why and "15" in caught.value.why
        weft.load(given, "cpu", limits={"constant_bytes": 16}).close()


@pytest.mark.parametrize(
    "limits", [{"node": 1}, {"nodes": -1}, {"nodes": 1.5}, {"nodes": "9"}, {"folding_seconds": True}, 7, {3: 1}]
)
def test_limits_that_make_no_sense_are_refused_with_those_that_there_are(limits: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        weft.load(of_nodes([helper.make_node("Relu", ["x"], ["y"])], {}), "cpu", limits=limits)
    assert "nodes" in caught.value.fix


def test_limits_may_be_numbers_of_numpy() -> None:
    made = weft.Limits.of({"nodes": np.int64(5), "folding_seconds": np.float32(0.5)})  # type: ignore[dict-item]
    assert (made.nodes, type(made.nodes), made.folding_seconds) == (5, int, 0.5)
    for wrong in ({"nodes": np.True_}, {"nodes": np.float64(5)}, {"folding_seconds": np.float32("nan")}):
        with pytest.raises(ConfigError, match="limits are not understood"):
            weft.Limits.of(wrong)  # type: ignore[arg-type]


def test_a_saved_network_takes_no_limits(tmp_path: Path) -> None:
    path = tmp_path / "saved.weft"
    weft.optimize(of_nodes([helper.make_node("Relu", ["x"], ["y"])], {}), "cpu").save(path)
    with pytest.raises(ConfigError, match="loaded as it is"):
        weft.load(path, limits={"nodes": 10})


def test_memory_that_no_host_has_is_not_promised() -> None:
    with pytest.raises(OutOfMemory, match="cannot be allocated"):
        HostBackend._allocate("cpu:0", 1 << 60)
