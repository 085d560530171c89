"""Contract row A7: `optimize` does its steps in order, says what it did, and does the same each time."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import numpy as np
import pytest

import weft
from tests.helpers.fakes import Inputs, Mock, Outputs, mock, mocks
from tests.helpers.nets import Net, branching, feeds, kinds
from weft.core.contract.backend import Precision
from weft.core.contract.views import OptimizationViews, SubgraphView
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph, Node
from weft.core.graph.interpreter import outputs
from weft.core.graph.op import Op
from weft.core.passes import PASSES, PassRecord
from weft.core.placement import open_network, optimizer
from weft.core.placement.optimized_network import Copy, OptimizedNetwork
from weft.core.placement.prepare import prepare_network, steps
from weft.errors import ConfigError, InputError, ModelError


def to_be_rewritten() -> Graph:
    """Identity, a batch norm to fold, a pad to fold, a constant to fold, a dead node."""
    net = Net()
    x = net.add("Identity", net.input("x", 1, 3, 6, 6))
    padded = net.add("Pad", x, np.array([0, 0, 1, 1, 0, 0, 1, 1]))
    y = net.conv(padded, 4, 3, bias=False)
    normal = net.add("BatchNormalization", y, *(np.abs(net.random(4)) + 1 for _ in range(4)))
    net.add("Exp", normal, name="dead")
    two = net.add("Add", np.ones((), np.float32), np.ones((), np.float32))
    return net.finish(net.add("Mul", net.add("Relu", normal), two, name="y"))


def test_A7_the_steps_are_done_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def noting(module: ModuleType, name: str) -> None:
        step: Callable[..., object] = getattr(module, name)

        def note(*given: object, **named: object) -> object:
            done.append(name)
            return step(*given, **named)

        monkeypatch.setattr(module, name, note)

    steps = ("prepare_network", "assign", "optimize_parts", "add_debug_nodes", "insert_copies")
    for name in steps:
        noting(optimizer, name)
    noting(open_network, "prepare_network")
    with mocks(one=mock("Relu", "Conv")) as ids:
        weft.optimize(branching(), ids, debug=lambda record: None)
    assert tuple(done) == steps


def test_A7_the_passes_are_recorded_with_the_nodes_before_and_after() -> None:
    network = weft.optimize(to_be_rewritten(), "cpu")
    assert [p.name for p in network.passes] == [p.name for p in steps(Precision.HIGH)]
    assert all(a.after == b.before for a, b in zip(network.passes, network.passes[1:], strict=False))
    by_name: dict[str, list[PassRecord]] = {}
    for record in network.passes:
        by_name.setdefault(record.name, []).append(record)
    assert [r.before - r.after for r in by_name["settle_convolutions"]] == [1]
    assert [r.before - r.after for r in by_name["fold_batch_norm"]] == [1]
    assert sum(r.before - r.after for r in by_name["remove_identities"]) == 1
    assert sum(r.before - r.after for r in by_name["remove_dead_nodes"]) == 1
    assert kinds(network.graph) == ["Conv", "Relu", "Mul"]
    assert network.passes[-1].after == len(network.graph.nodes)


def test_A7_each_pass_and_each_step_runs_and_prints_alone() -> None:
    network = prepare_network(to_be_rewritten(), weft.Precision.HIGH)
    assert "Conv" in str(network.graph)
    for each in PASSES:
        assert each.description and str(each(network.graph)) == str(network.graph)


def test_A7_backends_see_the_rewritten_network() -> None:
    one = mock()
    with mocks(one=one) as ids:
        network = weft.optimize(to_be_rewritten(), ids)
    assert one.views == [[n.name for n in network.graph.nodes]]


def test_A7_all_that_is_wrong_with_a_network_is_said_at_once() -> None:
    graph = branching()
    graph.nodes += [
        Node("n_stem", graph.nodes[0].op, ("x", "nowhere"), ("z",)),
        Node("late", graph.nodes[1].op, ("nothing",), ("stem",)),
    ]
    graph.outputs.append("missing")
    with pytest.raises(ModelError) as caught:
        weft.optimize(graph, "cpu")
    for said in ("2 nodes are called 'n_stem'", "'nowhere'", "'nothing'", "'stem' is made 2 times", "'missing'"):
        assert said in caught.value.why


def test_A7_a_network_with_open_shapes_cannot_be_optimised() -> None:
    net = Net()
    graph = net.finish(net.add("Relu", net.input("x", "N", "C")))
    with pytest.raises(InputError, match="sizes of C, N are not known: input 'x' is") as caught:
        weft.optimize(graph, "cpu")
    assert caught.value.fix == "pass, for instance, shapes={'x': (1, 1)}"
    network = weft.optimize(graph, "cpu", shapes={"x": (2, 3)})
    with weft.load(network) as session:
        assert session.inputs == {"x": (2, 3)}
        with pytest.raises(InputError):
            session.run(np.zeros((4, 3), np.float32))
        np.testing.assert_array_equal(session.run(np.ones((2, 3), np.float32))[0], np.ones((2, 3), np.float32))


def test_A7_fp16_is_a_step_when_it_is_asked_for() -> None:
    high, low = (weft.optimize(branching(), "cpu", precision=p) for p in ("high", "low"))
    assert [p.name for p in low.passes] == [*(p.name for p in high.passes), "store_as_float16", "remove_identities"]
    kept = {low.graph.specs[n.outputs[0]].dtype for n in low.graph.nodes if n.op.type != "Cast"}
    assert kept == {DType.FLOAT16} and "Cast" not in kinds(high.graph)
    assert low.graph.specs[low.graph.outputs[0]].dtype is DType.FLOAT32
    with weft.load(low) as session:
        assert session.report.config.precision is weft.Precision.LOW
        np.testing.assert_allclose(
            session.run(feeds(branching()))[0], outputs(branching(), feeds(branching()))[0], atol=0.01
        )


def test_A7_fp16_constants_reach_the_backends_as_fp16() -> None:
    seen: list[DType] = []

    class Looking(Mock):
        def why_not(self, inputs: Inputs, outputs: Outputs, op: Op) -> str | None:
            seen.extend(t.dtype for t in inputs if t is not None and op.type == "Conv")
            return None

        def OptimizeSubgraph(self, view: SubgraphView) -> OptimizationViews:
            return OptimizationViews().keep_rest(view)

    with mocks(one=Looking) as ids:
        weft.optimize(branching(), ids, precision="low")
    assert set(seen) == {DType.FLOAT16}


# -- the result ------------------------------------------------------------------------------------------------


def divided() -> OptimizedNetwork:
    with mocks(one=mock("Conv", "Add"), two=mock("Relu", "Concat", "Softmax")) as ids:
        return weft.optimize(branching(), ids)


def test_A7_the_parts_cover_the_network() -> None:
    network = divided()
    inside = [n.name for p in network.parts for n in p.graph.nodes]
    copies = [n.name for n in network.graph.nodes if isinstance(n.op, Copy)]
    assert sorted(inside + copies) == sorted(n.name for n in network.graph.nodes)
    assert [n.name for n in network.copies] == copies and network.placement == {
        n.name: p.device for p in network.parts for n in p.graph.nodes
    }
    known = {*network.graph.inputs, *network.graph.constants}
    for node in network.graph.nodes:
        assert set(filter(None, node.inputs)) <= known, f"{node.name} comes before what it reads"
        known.update(node.outputs)
        assert all(o in network.graph.specs for o in node.outputs)
    assert set(network.graph.outputs) <= known


def test_A7_the_result_can_be_printed() -> None:
    network = divided()
    text = str(network)
    assert f"{len(network.parts)} subgraph(s) on one:0, two:0, cpu:0" in text
    for node in network.graph.nodes:
        assert f"# {node.name}" in text
    assert "one:0 " in text and "copy " in text


def test_A7_two_calls_give_the_same_network() -> None:
    first, second = divided(), divided()
    assert str(first) == str(second) and first.refusals == second.refusals and first.passes == second.passes
    assert [(p.device, str(p.graph)) for p in first.parts] == [(p.device, str(p.graph)) for p in second.parts]
    assert list(first.graph.constants) == list(second.graph.constants)


@pytest.mark.parametrize("device", ["cpu", "opencl", "vulkan"])
def test_A7_a_network_can_be_loaded_many_times(device: str) -> None:
    graph = branching(8)
    network = weft.optimize(graph, device)
    wanted = outputs(graph, feeds(graph))[0]
    with weft.load(network) as one, weft.load(network) as two:
        for session in (one, two, one):
            np.testing.assert_allclose(session.run(feeds(graph))[0], wanted, rtol=1e-4, atol=1e-6)
        assert str(one.optimized) == str(network) and one.report.placement == two.report.placement


def test_A7_the_given_graph_stays_as_it_is() -> None:
    graph = to_be_rewritten()
    before, specs = str(graph), dict(graph.specs)
    weft.optimize(graph, "cpu", precision="low")
    assert str(graph) == before and graph.specs == specs


def test_A7_options_of_an_optimised_network_are_not_given_again() -> None:
    network = weft.optimize(branching(), "cpu")
    for options in ({"precision": "low"}, {"hints": {"n_stem": "cpu"}}, {"shapes": {"x": (1, 3, 5, 5)}}):
        with pytest.raises(ConfigError, match=r"loaded as it is[\s\S]*weft.optimize"):
            weft.load(network, **options)  # type: ignore[arg-type]


def test_A7_a_network_without_nodes() -> None:
    net = Net()
    x, c = net.input("x", 2), net.constant(np.arange(3, dtype=np.float32))
    network = weft.optimize(net.finish(x, c), "cpu")
    assert network.parts == () and "0 subgraph(s)" in str(network)
    with weft.load(network) as session:
        y, z = session.run(np.ones(2, np.float32))
        np.testing.assert_array_equal(y, np.ones(2))
        np.testing.assert_array_equal(z, np.arange(3))
