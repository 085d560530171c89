"""Contract row A4: as few parts as possible, each of one device, none waiting for itself through another."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft.ops  # noqa: F401  (registers the ops)
from tests.helpers.nets import Net, op
from tests.helpers.run_length import examples
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph, Node
from weft.core.graph.op import Op
from weft.core.graph.tensor import TensorSpec
from weft.core.placement.optimized_network import Part
from weft.core.placement.partition import partition

F32 = TensorSpec((2,), DType.FLOAT32)


def plain() -> Op:
    """Return an op for nodes of which nobody asks what they compute."""
    return op("Relu")


def graph_of(edges: Mapping[str, str], outputs: str = "") -> Graph:
    """Return a graph from `{"c": "a b"}`: node c reads the values of nodes a and b."""
    nodes = [Node(name, plain(), tuple(reads.split()) or ("x",), (name,)) for name, reads in edges.items()]
    read = {i for n in nodes for i in n.inputs}
    results = outputs.split() or [name for name in edges if name not in read]
    return Graph("g", ["x"], results, nodes, dict.fromkeys(["x", *edges], F32))


def chains(*words: str) -> tuple[Graph, dict[str, str]]:
    """Return a graph with a chain of nodes for each word, its letters the devices: a0, a1 ... for the first."""
    device = {f"{chr(97 + c)}{k}": letter for c, word in enumerate(words) for k, letter in enumerate(word)}
    return graph_of({n: f"{n[0]}{int(n[1:]) - 1}" if n[1:] != "0" else "" for n in device}), device


def shown(parts: Sequence[Part]) -> list[str]:
    """Return the parts as text: "cpu: a b"."""
    return [f"{p.device}: {' '.join(n.name for n in p.graph.nodes)}" for p in parts]


def devices(text: str) -> dict[str, str]:
    """Return {"a": "cpu", ...} from "cpu: a b; gpu: c"."""
    pairs = (part.split(":") for part in text.split(";"))
    return {name: device.strip() for device, names in pairs for name in names.split()}


def problems(graph: Graph, device: Mapping[str, str], parts: Sequence[Part]) -> list[str]:
    """Return every way in which the parts are no partition of the graph."""
    out = []
    home = {n.name: k for k, p in enumerate(parts) for n in p.graph.nodes}
    if sorted(n.name for p in parts for n in p.graph.nodes) != sorted(n.name for n in graph.nodes):
        out.append("the nodes of the parts are not those of the graph")
    out += [f"part {k} is empty" for k, p in enumerate(parts) if not p.graph.nodes]
    out += [f"{n.name} is on {p.device}" for p in parts for n in p.graph.nodes if device[n.name] != p.device]
    made = {o: n.name for n in graph.nodes for o in n.outputs if o}
    for n in graph.nodes:
        out += [
            f"{n.name} comes before {made[i]}" for i in n.inputs if i in made and home[made[i]] > home[n.name]
        ]
    place = {n.name: k for k, n in enumerate(graph.nodes)}
    for k, p in enumerate(parts):
        order = [place[n.name] for n in p.graph.nodes]
        out += [f"part {k} changed the order of its nodes"] if order != sorted(order) else []
        out += [f"part {k} is named {p.graph.name!r}"] if p.graph.name != f"{graph.name}.{k}" else []
        out += slot_problems(graph, p.graph)
    return out


def slot_problems(graph: Graph, part: Graph) -> list[str]:
    """Return what is wrong with the inputs, outputs, constants and specs of a part."""
    names = {n.name for n in part.nodes}
    made = {o for n in part.nodes for o in n.outputs if o}
    read = {i for n in part.nodes for i in n.inputs if i}
    elsewhere = {i for n in graph.nodes if n.name not in names for i in n.inputs} | set(graph.outputs)
    constants = {i: v for i, v in graph.constants.items() if i in read - made}
    wanted = (
        read - made - constants.keys(),
        made & elsewhere,
        constants,
        {v: graph.specs[v] for v in read | made},
    )
    given_ = (set(part.inputs), set(part.outputs), part.constants, part.specs)
    doubled = len(set(part.inputs)) < len(part.inputs) or len(set(part.outputs)) < len(part.outputs)
    return [f"{part.name} has other slots"] if wanted != given_ or doubled else []


def fewest(graph: Graph, device: Mapping[str, str]) -> int:
    """Return the fewest runs of one device among all topological orders, by trying them all."""
    made = {o: k for k, n in enumerate(graph.nodes) for o in n.outputs if o}
    waits = [sum({1 << made[i] for i in n.inputs if i in made}) for n in graph.nodes]
    best = {(0, ""): 0}
    for _ in graph.nodes:
        after: dict[tuple[int, str], int] = {}
        for (done, last), runs in best.items():
            for k, n in enumerate(graph.nodes):
                if not done >> k & 1 and waits[k] & done == waits[k]:
                    key = (done | 1 << k, device[n.name])
                    after[key] = min(after.get(key, 99), runs + (device[n.name] != last))
        best = after
    return min(best.values())


@st.composite
def assigned(draw: st.DrawFn, most: int = 30, kinds: int = 4) -> tuple[Graph, dict[str, str]]:
    """Draw a graph with sinks, sources, constants and values read by many, and a device for each node."""
    names = [f"n{k}" for k in range(draw(st.integers(1, most)))]
    values, nodes = ["x", "y", "w", ""], []
    for name in names:
        reads = draw(st.lists(st.sampled_from(values[-12:]), max_size=3))
        made = [f"{name}.{k}" for k in range(draw(st.sampled_from([1, 1, 1, 2, 0])))]
        nodes.append(Node(name, plain(), tuple(reads), tuple(made)))
        values += made
    known = [v for v in values if v]
    graph = Graph("g", ["x", "y"], draw(st.lists(st.sampled_from(known), unique=True)), nodes)
    graph.specs = dict.fromkeys(known, F32)
    graph.constants = {"w": np.zeros(2, np.float32)}
    where = st.sampled_from(["cpu:0", "gpu:0", "npu:0", "dsp:0"][: draw(st.integers(1, kinds))])
    return graph, {name: draw(where) for name in names}


# -- worked examples -----------------------------------------------------------------------------------------


def test_A4_one_backend_may_own_several_parts_as_in_the_figure_of_the_tutorial() -> None:
    net = Net()
    value = net.input("x", 2, 3)
    for k in range(1, 6):
        value = net.add("Relu", value, name=f"layer{k}")
    graph = net.finish(value)
    where = {n.name: "npu:0" if n.name == "n_layer3" else "gpu:0" for n in graph.nodes}
    parts = partition(graph, where)
    assert shown(parts) == ["gpu:0: n_layer1 n_layer2", "npu:0: n_layer3", "gpu:0: n_layer4 n_layer5"]
    assert [p.graph.name for p in parts] == ["net.0", "net.1", "net.2"]
    assert [(p.graph.inputs, p.graph.outputs) for p in parts] == [
        (["x"], ["layer2"]),
        (["layer2"], ["layer3"]),
        (["layer3"], ["layer5"]),
    ]


def test_A4_branches_that_alternate_in_the_file_are_not_cut() -> None:
    graph = graph_of({"a": "", "b1": "a", "c1": "a", "b2": "b1", "c2": "c1", "d": "b2 c2"})
    where = devices("cpu: a b1 b2 d; gpu: c1 c2")
    assert shown(partition(graph, where)) == ["cpu: a b1 b2", "gpu: c1 c2", "cpu: d"]


def test_A4_the_start_is_chosen_for_fewest_parts_not_by_preference() -> None:
    graph = graph_of({"a": "", "b": "", "c": "b", "d": "a c"})
    where = devices("cpu: a c d; gpu: b")
    assert shown(partition(graph, where, ["cpu", "gpu"])) == ["gpu: b", "cpu: a c d"]


def test_A4_of_equally_few_parts_the_preferred_device_goes_first() -> None:
    graph = graph_of({"a": "", "b": ""})
    where = devices("cpu: a; gpu: b")
    assert shown(partition(graph, where)) == ["cpu: a", "gpu: b"]
    assert shown(partition(graph, where, ["cpu", "gpu"])) == ["cpu: a", "gpu: b"]
    assert shown(partition(graph, where, ["gpu", "cpu"])) == ["gpu: b", "cpu: a"]


def test_A4_three_devices_take_turns_so_that_two_chains_share_them() -> None:
    graph, where = chains("abc", "bca")
    assert shown(partition(graph, where, "cba")) == ["a: a0", "b: a1 b0", "c: a2 b1", "a: b2"]


def test_A4_two_nodes_of_a_device_around_one_of_another_are_not_joined() -> None:
    # Joined, {a, c} would wait for itself through b, although a and c also touch.
    graph = graph_of({"a": "", "b": "a", "c": "a b"})
    assert shown(partition(graph, devices("cpu: a c; gpu: b"))) == ["cpu: a", "gpu: b", "cpu: c"]


def test_A4_inputs_that_are_outputs_and_constants_that_are_outputs() -> None:
    graph = graph_of({"a": "x", "b": "a w"}, outputs="x w a b")
    graph.constants["w"], graph.specs["w"] = np.zeros(2, np.float32), F32
    first, second = partition(graph, devices("cpu: a; gpu: b"))
    assert (first.graph.inputs, first.graph.outputs, list(first.graph.constants)) == (["x"], ["a"], [])
    assert (second.graph.inputs, second.graph.outputs, list(second.graph.constants)) == (["a"], ["b"], ["w"])


def test_A4_a_graph_without_nodes_has_no_parts() -> None:
    assert partition(Graph("g", ["x"], ["x"], [], {"x": F32}), {}) == []


# -- any graph -----------------------------------------------------------------------------------------------


@given(assigned())
@settings(deadline=None)
def test_A4_every_node_is_in_one_part_of_its_device_and_no_part_waits_for_a_later_one(
    case: tuple[Graph, dict[str, str]],
) -> None:
    graph, device = case
    assert problems(graph, device, partition(graph, device)) == []


@given(assigned(most=9, kinds=2))
@settings(max_examples=examples(200), deadline=None)
def test_A4_two_devices_have_no_fewer_parts_in_any_order(case: tuple[Graph, dict[str, str]]) -> None:
    graph, device = case
    assert len(partition(graph, device)) == fewest(graph, device)


@given(assigned(most=9, kinds=3))
@settings(max_examples=examples(200), deadline=None)
def test_A4_three_devices_have_one_part_more_at_most_in_small_graphs(case: tuple[Graph, dict[str, str]]) -> None:
    graph, device = case
    assert fewest(graph, device) <= len(partition(graph, device)) <= fewest(graph, device) + 1


@given(assigned(), st.randoms(use_true_random=False))
@settings(deadline=None)
def test_A4_equal_graphs_give_equal_parts(case: tuple[Graph, dict[str, str]], rng: random.Random) -> None:
    graph, device = case

    def shuffled(known: Mapping[str, object]) -> list[str]:
        return rng.sample(list(known), len(known))

    other = graph.copy()
    other.specs = {k: graph.specs[k] for k in shuffled(graph.specs)}
    parts = partition(other, {k: device[k] for k in shuffled(device)}, ["npu:0", "gpu:0"])
    assert shown(parts) == shown(partition(graph, device, ["npu:0", "gpu:0"]))


# -- size ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kinds", [2, 3])
def test_A4_a_chain_of_5000_nodes(kinds: int) -> None:
    graph = graph_of({f"n{k}": f"n{k - 1}" if k else "" for k in range(5000)})
    device = {f"n{k}": f"d{k % kinds}" for k in range(5000)}
    parts = partition(graph, device)
    assert [n.name for p in parts for n in p.graph.nodes] == [n.name for n in graph.nodes]
    assert [(len(p.graph.nodes), p.graph.inputs) for p in parts[1:]] == [(1, [f"n{k}"]) for k in range(4999)]


def test_A4_thousands_of_ends_take_no_time_at_each_turn() -> None:
    """They are what debug outputs are: ready early, and of a device that has its turn at the end."""
    chain = {f"n{k}": f"n{k - 1}" if k else "" for k in range(3000)}
    graph = graph_of({**chain, **{f"e{k}": f"n{k}" for k in range(3000)}})
    device = {name: "end" if name[0] == "e" else f"d{int(name[1:]) % 2}" for name in (n.name for n in graph.nodes)}
    assert len(partition(graph, device)) == 3001


def test_A4_many_chains_are_divided_within_the_bound() -> None:
    rng = random.Random(4)
    words = ["".join(rng.choice("pqrs") for _ in range(100)) for _ in range(20)]
    graph, device = chains(*words)
    parts = partition(graph, device)
    assert problems(graph, device, parts) == []
    longest = max(sum(a != b for a, b in pairwise(word)) for word in words)
    assert longest < len(parts) < 2 * longest
