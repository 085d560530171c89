"""A network prepared with open sizes is, for each size, what it would be if it were prepared for that size alone."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any
from weakref import ref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from benchmarks.gpt2 import gpt2
from benchmarks.minilm import Sizes
from benchmarks.models import resnet50
from tests.helpers.decoders import EACH, rotated
from tests.helpers.nets import Net
from tests.helpers.random_nets import SLOW
from tests.helpers.run_length import examples
from weft.backends.cpu.backend import CpuBackend
from weft.core.contract.backend import BackendInfo, Precision
from weft.core.graph.graph import Graph, Node, bind
from weft.core.graph.layout import Shape
from weft.core.graph.limits import Limits
from weft.core.graph.op import Op
from weft.core.graph.tensor import Tensor, TensorSpec
from weft.core.passes.patterns.attention import ATTENTION
from weft.core.placement import optimizer
from weft.core.placement.open_network import OpenNetwork, OpenNetworks, prepare_open
from weft.core.placement.optimized_network import OptimizedNetwork
from weft.core.placement.optimizer import OptimizerOptions
from weft.core.placement.prepare import PreparedNetwork, prepare_network
from weft.errors import ModelError, WeftError
from weft.frontends.onnx import load as load_onnx
from weft.ops.elementwise import Elementwise
from weft_conformance.cases.table import Case, all_cases

SIZES = Sizes(layers=1, hidden=32, heads=2, inner=48, vocabulary=40, positions=90)


def caches(past: int, words: int = 1) -> dict[str, Shape]:
    """Return the shapes of GPT-2's inputs."""
    shapes: dict[str, Shape] = {"input_ids": (1, words), "attention_mask": (1, past + words)}
    return shapes | {f"past.0.{kind}": (1, 2, past, 16) for kind in ("key", "value")}


def feeds(past: int) -> dict[str, np.ndarray]:
    """Return GPT-2's inputs, all of them ones."""
    return {
        name: np.ones(shape, np.float32 if name.startswith("past") else np.int64)
        for name, shape in caches(past).items()
    }


def opened(graph: Graph, shapes: Mapping[str, Shape]) -> OpenNetwork | None:
    return prepare_open(graph, bind(graph, shapes), Precision.HIGH, Limits())


def assert_same(made: Graph, wanted: Graph) -> None:
    """Compare what two prepared graphs compute, and how."""
    assert made.nodes == wanted.nodes
    values = {v for n in wanted.nodes for v in (*n.inputs, *n.outputs) if v} | {*wanted.inputs, *wanted.outputs}
    for value in values:
        assert made.specs[value] == wanted.specs[value]
        assert all(type(d) is int for d in made.specs[value].shape)
        assert (value in made.constants) == (value in wanted.constants)
        if value in wanted.constants:
            assert made.constants[value].dtype == wanted.constants[value].dtype
            np.testing.assert_array_equal(made.constants[value], wanted.constants[value])


def assert_serves(network: OpenNetwork, graph: Graph, shapes: Mapping[str, Shape]) -> None:
    """A network with open sizes serves these shapes, and as if it had been prepared for them."""
    bound = bind(graph, shapes)
    sized = network.sized(bound)
    assert sized is not None
    assert_same(network.prepared(sized).graph, prepare_network(bound, Precision.HIGH).graph)


def test_a_growing_cache() -> None:
    """Masks, places and shapes follow from the length; a length that an axis does not have is not served."""
    graph = load_onnx(gpt2(SIZES))
    network = opened(graph, caches(5))
    assert network is not None
    for past in (5, 6, 20, 89):
        assert_serves(network, graph, caches(past))
    assert network.sized(bind(graph, caches(90))) is None


def test_batch_and_picture_of_a_convolutional_network() -> None:
    """Quotients by strides are open, too."""
    graph = load_onnx(resnet50("n", image=64, width=0.125, classes=4))
    graph.specs["x"] = TensorSpec(("n", 3, "h", "w"), graph.specs["x"].dtype)
    network = opened(graph, {"x": (1, 3, 64, 64)})
    assert network is not None
    for shape in ((2, 3, 64, 64), (1, 3, 96, 64), (3, 3, 128, 224)):
        assert_serves(network, graph, {"x": shape})


@pytest.mark.parametrize("precision", [Precision.HIGH, Precision.LOW])
@pytest.mark.parametrize("half", [False, True])
def test_masks_that_follow_from_sizes_are_stored_in_the_precision(half: bool, precision: Precision) -> None:
    """Of fp16 files, and at precision LOW: the conversion waits for the sizes, as the mask does."""
    graph = load_onnx(gpt2(SIZES, half=half, tied=half))
    network = prepare_open(graph, bind(graph, caches(5)), precision, Limits())
    assert network is not None
    for past in (5, 6, 20):
        sized = network.sized(bind(graph, caches(past)))
        assert sized is not None
        assert_same(network.prepared(sized).graph, prepare_network(bind(graph, caches(past)), precision).graph)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_scales_and_sizes_of_a_resize(mode: str) -> None:
    """Twice, a half, three halves, and the size of another value."""
    net = Net()
    x = net.input("x", "n", 3, "h", "w")
    half = net.add("MaxPool", x, kernel_shape=(2, 2), strides=(2, 2))
    outs = [net.add("Resize", half, "", "", net.add("Shape", x), mode=mode)]
    for k in (2, 0.5, 1.5):
        outs.append(net.add("Resize", x, "", np.asarray([1, 1, k, k], np.float32), mode=mode))
    graph = net.finish(*outs)
    network = opened(graph, {"x": (2, 3, 10, 14)})
    assert network is not None
    for shape in ((2, 3, 10, 14), (1, 3, 11, 9), (4, 3, 31, 40)):
        if network.sized(bind(graph, {"x": shape})) is None:  # odd sizes are no twice of a half
            network = opened(graph, {"x": shape})
            assert network is not None
        assert_serves(network, graph, {"x": shape})


@pytest.mark.parametrize("fmod", [0, 1])
def test_a_picture_padded_to_a_multiple(fmod: int) -> None:
    net = Net()
    x = net.input("x", "n", 3, "h", 8)
    height = net.add("Gather", net.add("Shape", x), np.array([2]))
    more = net.add("Mod", net.add("Neg", height), np.array([8]), fmod=fmod)
    pads = net.add("Concat", np.zeros(6, np.int64), net.add("Abs", more), np.zeros(1, np.int64), axis=0)
    graph = net.finish(net.add("Pad", x, pads))
    network = opened(graph, {"x": (2, 3, 11, 8)})
    assert network is not None
    for height_now in (11, 12, 19, 31):
        assert_serves(network, graph, {"x": (1, 3, height_now, 8)})


def test_choices_between_open_sizes_and_by_floats() -> None:
    """A Where of sizes is computed beforehand, one of floats and its comparison become one op."""
    net = Net()
    x = net.input("x", "n", 3, "h", 5)
    small = net.add("Mul", x, np.asarray(0.1, np.float32))
    net.add("Where", net.add("Greater", x, np.asarray(0, np.float32)), x, small, name="leaky")
    sizes = net.add("Shape", "leaky")
    zeros, ones = net.add("ConstantOfShape", sizes), net.add("Expand", np.ones(1, np.float32), sizes)
    net.add("Where", net.add("Greater", "leaky", zeros), "leaky", ones, name="above")
    repeats = net.add("Where", net.add("Greater", sizes, np.array(4)), np.array(1), np.array(2))
    graph = net.finish(net.add("Tile", "above", repeats))
    network = opened(graph, {"x": (6, 3, 9, 5)})
    assert network is not None
    for shape in ((6, 3, 9, 5), (5, 3, 12, 5), (8, 3, 5, 5)):
        assert_serves(network, graph, {"x": shape})
        made = prepare_network(bind(graph, {"x": shape}), Precision.HIGH).graph
        assert [n.op.type for n in made.nodes] == ["Mul", *["weft::CompareSelect"] * 2, "Tile"]
        assert all(value.ndim == 0 for value in made.constants.values() if value.dtype == np.float32)


def test_attention_over_an_open_batch() -> None:
    """The heads of several sequences are fused for any number of them."""
    net = Net()
    q, kv = net.input("q", "n", 4, 1, 16), net.input("kv", "n", 4, "past", 16)
    shares = net.add("Softmax", net.add("MatMul", q, net.add("Transpose", kv, perm=(0, 1, 3, 2))), axis=-1)
    graph = net.finish(net.add("MatMul", shares, kv))
    shapes: dict[str, Shape] = {"q": (2, 4, 1, 16), "kv": (2, 4, 5, 16)}
    network = opened(graph, shapes)
    assert network is not None
    assert_serves(network, graph, {"q": (3, 4, 1, 16), "kv": (3, 4, 9, 16)})
    assert [n.op.type for n in prepare_network(bind(graph, shapes), Precision.HIGH).graph.nodes] == [ATTENTION]


def test_sibling_products_over_open_rows() -> None:
    """Products of one value with several constant matrices are one for any number of rows."""
    net = Net()
    x = net.input("x", "n", "rows", 16)
    parts = []
    for heads in (4, 2, 2):
        made = net.add("Reshape", net.add("MatMul", x, net.random(16, heads * 8)), np.array([0, 0, heads, 8]))
        parts.append(net.add("Transpose", made, perm=(0, 2, 1, 3)))
    graph = net.finish(net.add(ATTENTION, *parts))
    network = opened(graph, {"x": (2, 5, 16)})
    assert network is not None
    assert_serves(network, graph, {"x": (3, 9, 16)})
    prepared = prepare_network(bind(graph, {"x": (2, 5, 16)}), Precision.HIGH).graph
    assert [n.op.type for n in prepared.nodes[:2]] == ["MatMul", "Split"]


def test_sibling_steps_over_open_rows() -> None:
    """Q and K are normalized and rotated together for any number of rows."""
    net = Net()
    x, cos, sin = net.input("x", "n", "rows", 16), net.input("cos", "rows", EACH), net.input("sin", "rows", EACH)
    parts = list[str]()
    for heads in (4, 2, 2):
        made = net.add("Reshape", net.add("MatMul", x, net.random(16, heads * EACH)), np.array([0, 0, heads, EACH]))
        if len(parts) < 2:
            made = net.add("RMSNormalization", made, net.random(EACH))
        turned = net.add("Transpose", made, perm=(0, 2, 1, 3))
        parts.append(rotated(net, turned, cos, sin) if len(parts) < 2 else turned)
    graph = net.finish(net.add(ATTENTION, *parts))
    shapes: dict[str, Shape] = {"x": (2, 5, 16), "cos": (5, EACH), "sin": (5, EACH)}
    network = opened(graph, shapes)
    assert network is not None
    assert_serves(network, graph, {"x": (3, 9, 16), "cos": (9, EACH), "sin": (9, EACH)})
    made_of = [n.op.type for n in prepare_network(bind(graph, shapes), Precision.HIGH).graph.nodes]
    assert made_of.count("RMSNormalization") == made_of.count("Concat") == 1


def one_op(row: Case) -> tuple[Graph, dict[str, Shape]]:
    """Return the graph of a row with a name for each dimension, and its shapes."""
    graph, names, shapes = Graph(row.id, [], []), list[str](), dict[str, Shape]()
    for k, (spec, constant) in enumerate(zip(row.specs(), row.constants(), strict=True)):
        names.append("" if spec is None else f"i{k}")
        if spec is None:
            continue
        graph.specs[f"i{k}"] = spec
        if constant is not None:
            graph.constants[f"i{k}"] = constant
        else:
            graph.inputs.append(f"i{k}")
            graph.specs[f"i{k}"] = TensorSpec(tuple(f"size {d}" for d in spec.dims), spec.dtype)
            shapes[f"i{k}"] = spec.dims
    made = row.make_op().inferred(row.specs(), row.constants())
    graph.outputs = [f"o{k}" for k in range(len(made))]
    graph.nodes = [Node("node", row.make_op(), tuple(names), tuple(graph.outputs))]
    return graph, shapes


def grown(shapes: Mapping[str, Shape], by: int) -> dict[str, Shape]:
    return {name: tuple(d + by for d in shape) for name, shape in shapes.items()}


def test_rows_of_the_op_table() -> None:
    """Each op is what it is alone, or its sizes are refused; both at the row's sizes and at others."""
    served = others = 0
    for row in all_cases()[::12]:
        try:
            graph, shapes = one_op(row)
        except WeftError:
            continue
        network = opened(graph, shapes)
        if network is None:
            continue
        assert_serves(network, graph, shapes)
        served += 1
        for by in (1, 3):
            if network.sized(bind(graph, grown(shapes, by))) is not None:
                assert_serves(network, graph, grown(shapes, by))
                others += 1
    assert served > 100
    assert others > 100


HEADS_AND_CACHES = (
    "Attention", "MultiHeadAttention", "GroupQueryAttention", "RotaryEmbedding", "TensorScatter", "CausalConvWithState",
    "EmbedLayerNormalization", "SkipLayerNormalization",
)


@pytest.mark.parametrize("op", HEADS_AND_CACHES)
def test_attention_and_caches_over_open_rows(op: str) -> None:
    """Of each row of these composite ops, batch and lengths are open; heads and elements are a model's own."""
    rows = [row for row in all_cases() if row.op.rpartition("::")[2] == op]
    assert rows
    for row in rows:
        graph, shapes = one_op(row)
        fixed = {spec.dims[-1] for spec in row.specs() if spec is not None and spec.dims}
        fixed |= {spec.dims[-3] for spec in row.specs() if spec is not None and len(spec.dims) > 3}
        for name in graph.inputs:
            dims = tuple(d if d in fixed else f"size {d}" for d in shapes[name])
            graph.specs[name] = TensorSpec(dims, graph.specs[name].dtype)
        if not graph.symbols():
            continue
        network = opened(graph, shapes)
        assert network is not None, row.id
        assert_serves(network, graph, shapes)


def test_a_graph_that_cannot_be_opened_is_tried_once() -> None:
    """An op of which the shape needs a number: each shape is prepared alone."""
    made = (one_op(row) for row in all_cases() if row.op == "Resize")
    graph, shapes = next((graph, shapes) for graph, shapes in made if opened(graph, shapes) is None)
    networks = OpenNetworks(graph, Precision.HIGH, Limits())
    assert networks.find(bind(graph, shapes)) is None
    assert_same(networks.prepare(bind(graph, shapes)).graph, prepare_network(bind(graph, shapes), Precision.HIGH).graph)


def test_what_was_prepared_for_a_guess_goes_when_others_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.core.placement.open_network.TRIES", 1)
    graph = load_onnx(gpt2(SIZES))
    networks = OpenNetworks(graph, Precision.HIGH, Limits())
    guess = networks.found(bind(graph, caches(1)))
    assert guess is not None and networks.found(bind(graph, caches(1))) is guess
    held = ref(guess)
    del guess
    later = networks.found(bind(graph, caches(5)))
    gc.collect()
    assert held() is None and networks.found(bind(graph, caches(6))) is later


def test_a_network_is_divided_again_where_a_guard_of_a_backend_fails() -> None:
    """And not prepared again: the sizes of the moment are then the new ones."""
    graph, calls = load_onnx(gpt2(SIZES)), []
    network = opened(graph, caches(5))
    assert network is not None

    class Choosy(CpuBackend):
        takes_open_sizes = True

        def why_not(self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], op: Op) -> str | None:
            shape = outputs[0].shape
            return "it is too long" if len(shape) == 4 and shape[3] > 50 else None

    backends = {"choosy:0": Choosy(BackendInfo("choosy", 0)), "cpu:0": CpuBackend(BackendInfo("cpu", 0))}
    for past in (5, 8, 70, 71, 9):
        bound = bind(graph, caches(past))

        def divided(prepared: PreparedNetwork, bound: Graph = bound) -> OptimizedNetwork:
            calls.append(bound)
            return optimizer.divide(bound, backends, OptimizerOptions(), prepared=prepared)

        found = network.known_division(bound) or network.divided(bound, divided, backends)
        alone = optimizer.divide(bound, backends, OptimizerOptions())
        assert found is not None
        assert_same(found.graph, alone.graph)
        assert found.refusals == alone.refusals
        assert [part.device for part in found.parts] == [part.device for part in alone.parts]
    assert len(calls) == 2


@pytest.mark.parametrize("device", ["cpu", "opencl"])
def test_a_constant_that_fails_for_some_sizes_names_its_node(device: str) -> None:
    """Positions beyond their table: the index follows from a size, so only the constant's computation finds it."""
    net = Net()
    x = net.input("x", "n", 4)
    length = net.add("Squeeze", net.add("Shape", x, start=0, end=1))
    places = net.add("Range", np.array(0), length, np.array(1))
    rows = net.add("Gather", np.ones((8, 4), np.float32), places, name="positions")
    graph = net.finish(net.add("Add", x, rows))
    ask = r"node 'n_positions' \(Gather\) (?s:.*)where: (?s:.*)\[9\](?s:.*)why: IndexError: index 8 (?s:.*)next: give"
    with weft.load(graph, device, fallback="error") as session:
        for length_ in (7, 8):
            session.run(np.ones((length_, 4), np.float32))
            with pytest.raises(ModelError, match=ask):
                session.run(np.ones((9, 4), np.float32))
            with pytest.raises(ModelError, match=ask):
                session.resize({"x": (9, 4)})
        np.testing.assert_array_equal(session.run(np.ones((5, 4), np.float32))[0], np.full((5, 4), 2, np.float32))
    with pytest.raises(ModelError, match=ask):
        weft.load(graph, device, shapes={"x": (9, 4)})


@pytest.mark.parametrize("raised", [RuntimeError, MemoryError, weft.errors.OutOfMemory], ids=lambda each: each.__name__)
def test_whatever_a_constant_of_open_sizes_raises_is_an_error_of_wefts(
    raised: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    net = Net()
    x = net.input("x", "n", 4)
    graph = net.finish(net.add("Add", x, net.add("Erf", net.add("ConstantOfShape", net.add("Shape", x)), name="made")))

    def fails(*_: object) -> None:
        raise raised("no way")

    monkeypatch.setattr(Elementwise, "reference", fails)
    wanted = ModelError if raised is RuntimeError else weft.errors.OutOfMemory
    with pytest.raises(wanted, match=r"node 'n_made' \(Erf\) (?s:.*)why: (?s:.*)no way(?s:.*)next: "):
        weft.load(graph, "cpu", shapes={"x": (3, 4)})


@pytest.mark.parametrize("device", ["cpu", "opencl"])
def test_a_session_plans_a_new_length_without_passes_and_backends(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it computes is what a session that was loaded for the length computes, and it asks no backend again."""
    calls, real = [], optimizer.divide

    def noted(*given: Any, **named: Any) -> OptimizedNetwork:
        calls.append(named["prepared"])
        return real(*given, **named)

    monkeypatch.setattr("weft.core.session.planner.divide", noted)
    model = gpt2(SIZES)
    with weft.load(model, device, shapes=caches(5), fallback="error") as session:
        del calls[:]
        for past in (6, 7, 8):
            found = session.run(feeds(past))
        assert not calls
    with weft.load(model, device, shapes=caches(8), fallback="error") as session:
        for a, b in zip(found, session.run(feeds(8)), strict=True):
            np.testing.assert_array_equal(a, b)


NAMES = ("a", "b", "c")
Inputs = dict[str, tuple[str | int, ...]]
INPUTS: Inputs = {"x": ("a", "b", "c"), "y": ("b", "a", "c"), "z": ("a", "c"), "w": ("c", 2, "b")}
SIZE = st.sampled_from((0, 1, 2, 3, 4))


def shapes_of(sizes: Mapping[str, int]) -> dict[str, Shape]:
    return {name: tuple(d if isinstance(d, int) else sizes[d] for d in shape) for name, shape in INPUTS.items()}


def fitting(net: Net, values: Sequence[str], fits: Callable[[tuple[int, ...], tuple[int, ...]], bool]) -> list[Any]:
    shapes = {v: net.shape(v) for v in values}
    return [(v, w) for v in values for w in values if fits(shapes[v], shapes[w])]


def broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    return all(p == q or 1 in (p, q) for p, q in zip(a[::-1], b[::-1], strict=False))


@st.composite
def of_open_sizes(draw: st.DrawFn) -> tuple[Graph, dict[str, int]]:
    """Return a graph with open dimensions, valid for the sizes with it; no number in it is one of these sizes."""
    sizes = {name: draw(SIZE) for name in NAMES}
    net = Net()
    values = [net.input(name, *shape) for name, shape in shapes_of(sizes).items()]
    for _ in range(draw(st.integers(2, 8))):
        x = draw(st.sampled_from(values))
        shape = net.shape(x)
        what = draw(st.sampled_from(("move", "merge", "squeeze", "like", "add", "join", "product", "sum", "size")))
        if what == "move":
            made = net.add("Transpose", x, perm=tuple(draw(st.permutations(range(len(shape))))))
        elif what == "merge":
            made = net.add("Flatten", x, axis=draw(st.integers(0, len(shape))))
        elif what == "squeeze":
            made = net.add("Squeeze" if draw(st.booleans()) else "Relu", x)
        elif what == "sum" and shape:
            made = net.add("ReduceSum", x, np.array([draw(st.integers(0, len(shape) - 1))]), keepdims=0)
        elif what == "size" and shape:
            size = net.add("Gather", net.add("Shape", x), np.array([draw(st.integers(0, len(shape) - 1))]))
            wanted = net.add("Concat", size, np.array([-1]), axis=0)
            if 0 in shape:
                continue
            made = net.add("Reshape", x, wanted)
        else:
            fits: dict[str, Callable[[tuple[int, ...], tuple[int, ...]], bool]] = {
                "like": lambda a, b: prod(a) == prod(b),
                "add": broadcast,
                "join": lambda a, b: len(a) == len(b) > 0 and a[1:] == b[1:],
                "product": lambda a, b: len(a) > 1 < len(b) and a[-1] == b[-2] and broadcast(a[:-2], b[:-2]),
            }
            pairs = fitting(net, values, fits[what]) if what in fits else []
            if not pairs:
                continue
            x, other = draw(st.sampled_from(pairs))
            if what == "like":
                made = net.add("Reshape", x, net.add("Shape", other), allowzero=1)
            elif what == "join":
                made = net.add("Concat", x, other, axis=0)
            else:
                made = net.add("Add" if what == "add" else "MatMul", x, other)
        if len(net.shape(made)) < 6:
            values.append(made)
    graph = net.finish(*dict.fromkeys(draw(st.lists(st.sampled_from(values), min_size=1, max_size=3))), values[-1])
    graph.outputs = list(dict.fromkeys(graph.outputs))
    for name, dims in INPUTS.items():
        graph.specs = {**graph.specs, name: TensorSpec(dims, graph.specs[name].dtype)}
    graph.specs = {n: s for n, s in graph.specs.items() if n in INPUTS or n in graph.constants}
    return graph, sizes


def test_reshapes_that_undo_each_other_are_undone_for_open_sizes() -> None:
    net = Net()
    x = net.input("x", 3, 2, 2)
    flat = net.add("Flatten", x, axis=0)
    graph = net.finish(net.add("Reshape", net.add("Add", flat, flat), net.add("Shape", x)))
    graph.specs = {"x": TensorSpec(("a", 2, "b"), graph.specs["x"].dtype)}
    network = opened(graph, {"x": (3, 2, 2)})
    assert network is not None
    for a, b in ((3, 2), (5, 4), (2, 7)):
        assert_serves(network, graph, {"x": (a, 2, b)})


def test_batch_norms_of_flattened_rows_over_open_sizes() -> None:
    """A batch norm of the rows of a product goes into its weights for any number of rows."""
    net = Net()
    product = net.add("MatMul", net.input("x", "n", "rows", 4), net.random(4, 5))
    rows = net.add("Reshape", product, np.array([-1, 5]))
    normed = net.add("BatchNormalization", rows, *(net.random(5) for _ in range(3)), net.random(5) ** 2)
    graph = net.finish(net.add("Reshape", normed, net.add("Shape", product)))
    network = opened(graph, {"x": (2, 3, 4)})
    assert network is not None
    # Five rows are as many as there are columns.
    for n, count in ((4, 9), (2, 5), (5, 2)):
        assert_serves(network, graph, {"x": (n, count, 4)})
    prepared = prepare_network(bind(graph, {"x": (2, 3, 4)}), Precision.HIGH).graph
    assert [n.op.type for n in prepared.nodes] == ["MatMul", "Add"]


@settings(max_examples=examples(60), deadline=None, suppress_health_check=SLOW)
@given(of_open_sizes(), st.data())
def test_prepared_once_is_what_each_size_gives(made: tuple[Graph, dict[str, int]], data: st.DataObject) -> None:
    """Equal sizes, zeros and ones among them: what depends on those is a guard, also in sets and dicts."""
    graph, sizes = made
    network = opened(graph, shapes_of(sizes))
    if network is None:
        return
    assert_serves(network, graph, shapes_of(sizes))
    for other in data.draw(st.lists(st.tuples(SIZE, SIZE, SIZE), min_size=1, max_size=12, unique=True)):
        shapes = shapes_of(dict(zip(NAMES, other, strict=True)))
        try:
            bound = bind(graph, shapes)
            prepare_network(bound, Precision.HIGH)
        except WeftError:
            assert network.sized(bind(graph, shapes)) is None, "these sizes do not fit"
            continue
        if network.sized(bound) is not None:
            assert_serves(network, graph, shapes)
