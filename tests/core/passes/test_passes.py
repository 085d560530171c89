"""Each rewrite: what it does to a small network, and that it changes the numbers of no network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

import weft
from tests.helpers.nets import Net, kinds, op
from tests.helpers.random_nets import SLOW, networks
from tests.helpers.rewrites import assert_same, fusable, gpu_fuses
from tests.helpers.run_length import examples
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph
from weft.core.graph.layout import Array
from weft.core.graph.limits import Budget, Limits
from weft.core.graph.op import Constants, Op
from weft.core.graph.tensor import TensorSpec
from weft.core.passes import PASSES, PassContext, run_passes
from weft.core.passes.batch_norm import fold_batch_norm
from weft.core.passes.constants import fold_constants
from weft.core.passes.dead import remove_dead_nodes
from weft.core.passes.fuse import fuse_epilogues
from weft.core.passes.identities import remove_identities
from weft.core.passes.pads import fold_pads
from weft.core.passes.precision import set_storage
from weft.errors import ExecutionError

Pass = Callable[[Graph], Graph]
many = settings(max_examples=examples(80), deadline=None, suppress_health_check=SLOW)


def f32(*numbers: float) -> Array:
    return np.array(numbers, np.float32)


EACH: dict[str, Pass] = {
    **{p.name: lambda g, p=p: p(fold_constants(g)) for p in PASSES},  # type: ignore[misc]
    "all of them": run_passes,
    "all of them twice": lambda g: run_passes(run_passes(g)),
    "fuse_epilogues": lambda g: fuse_epilogues(fold_constants(g), fusable),
    "fuse_epilogues as GPUs do": lambda g: fuse_epilogues(run_passes(g), gpu_fuses),
    "set_storage to what it is": lambda g: set_storage(fold_constants(g), DType.FLOAT32),
}


# In the short run tests/core/passes/test_properties.py shows this of each pass by itself, and of more networks.
ALONE = {p.name for p in PASSES}
SHOWN = [pytest.param(name, marks=[pytest.mark.long] * (name in ALONE)) for name in EACH]


@pytest.mark.parametrize("name", SHOWN)
@given(graph=networks())
@many
def test_a_pass_changes_no_numbers(name: str, graph: Graph) -> None:
    before = str(graph)
    assert_same(graph, EACH[name](graph))
    assert str(graph) == before, "a pass leaves the graph that it was given"


@given(graph=networks())
@many
def test_storage_in_fp16_changes_digits_alone(graph: Graph) -> None:
    after = set_storage(run_passes(graph), DType.FLOAT16)
    exact = {node.inputs[k] for node in after.nodes for k in node.op.exact_parameters}
    assert not any(s.dtype is DType.FLOAT32 for v, s in after.specs.items() if v not in ("x", *exact, *graph.outputs))
    with np.errstate(over="ignore"):
        assert_same(graph, after, 0.05)


# -- fold_constants ----------------------------------------------------------------------------------------


def test_what_follows_from_constants_is_computed_once() -> None:
    net = Net()
    x = net.input("x", 2)
    two = net.add("Add", f32(1, 1), f32(1, 1))
    graph = fold_constants(net.finish(net.add("Mul", x, net.add("Mul", two, two), name="y")))
    assert kinds(graph) == ["Mul"]
    np.testing.assert_array_equal(graph.constants[graph.nodes[0].inputs[1]], [4, 4])


def test_what_follows_from_a_shape_is_a_constant() -> None:
    net = Net()
    x = net.input("x", 2, 3, 4)
    shape = net.add("Shape", net.add("Relu", x))
    size = net.add("Size", x)
    tail = net.add("Concat", net.add("Gather", shape, np.array([0])), np.array([-1]), axis=0)
    graph = fold_constants(net.finish(net.add("Reshape", x, tail, name="y"), size))
    assert kinds(graph) == ["Relu", "Reshape"]
    np.testing.assert_array_equal(graph.constants[graph.nodes[1].inputs[1]], [2, -1])
    np.testing.assert_array_equal(graph.constants[size], 24)


def test_a_constant_output_of_the_network_keeps_its_name() -> None:
    net = Net()
    graph = fold_constants(net.finish(net.add("Exp", f32(0, 1), name="y")))
    assert graph.nodes == [] and graph.outputs == ["y"]
    np.testing.assert_allclose(graph.constants["y"], np.exp([0, 1]), rtol=1e-6)


@dataclass(frozen=True)
class Failing(Op):
    """An op that cannot compute its result."""

    type = "Failing"

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        return (TensorSpec((2,), DType.FLOAT32),)

    def reference(self, *inputs: Array | None) -> Array:
        raise ValueError("no")


def test_a_node_that_fails_on_its_constants_stays_to_say_so_when_it_runs() -> None:
    net = Net()
    graph = net.finish(net.add(Failing(), f32(1, 2), name="y"))
    assert kinds(fold_constants(graph)) == ["Failing"]
    with weft.load(graph, device="cpu") as session, pytest.raises(ExecutionError, match=r"n_y.*Failing"):
        session.run()


def test_a_constant_that_would_be_huge_is_not_computed() -> None:
    net = Net()
    graph = net.finish(net.add("Expand", f32(1), np.array([1000]), name="y"))
    assert kinds(fold_constants(graph, PassContext(Budget(Limits(folding_bytes=100))))) == ["Expand"]


def test_folding_says_nothing_about_nan_and_infinity() -> None:
    net = Net()
    graph = fold_constants(net.finish(net.add("Log", f32(-1, 0, 1), name="y")))
    np.testing.assert_array_equal(graph.constants["y"], [np.nan, -np.inf, 0])


# -- remove_identities ---------------------------------------------------------------------------------------

EMPTY = np.zeros(0, np.float32)
NOTHING: dict[str, tuple[str, list[Array], dict[str, Any]]] = {
    "Identity": ("Identity", [], {}),
    "Dropout": ("Dropout", [f32(0.5).reshape(())], {}),
    "a cast to what it is": ("Cast", [], {"to": DType.FLOAT32}),
    "a reshape to what it is": ("Reshape", [np.array([2, -1, 4])], {}),
    "an expand to what it is": ("Expand", [np.array([3, 1])], {}),
    "a transpose that moves nothing": ("Transpose", [], {"perm": (0, 1, 2)}),
    "a concat of one": ("Concat", [], {"axis": 1}),
    "a factor of one": ("Mul", [f32(1)], {}),
    "factors of one": ("Mul", [np.ones((3, 1), np.float32)], {}),
    "a divisor of one": ("Div", [f32(1)], {}),
    "an average of one pixel": ("AveragePool", [], {"kernel_shape": (1,), "strides": (1,)}),
    "a maximum of one pixel": ("MaxPool", [], {"kernel_shape": (1,), "pads": (0, 0), "auto_pad": "SAME_UPPER"}),
    "a resize to its size": ("Resize", [EMPTY, EMPTY, np.array([2, 3, 4])], {"mode": "cubic"}),
    "a resize by one": ("Resize", [EMPTY, f32(1, 1, 1)], {"mode": "linear"}),
}
ONE_WIDE: dict[str, tuple[str, list[Array], dict[str, Any]]] = {
    "a sum": ("ReduceSum", [np.array([2])], {}),
    "a maximum along no axes": ("ReduceMax", [], {"noop_with_empty_axes": 1}),
    "a mean of images of one pixel": ("GlobalAveragePool", [], {}),
}


@pytest.mark.parametrize("case", NOTHING)
def test_a_node_that_changes_nothing_goes(case: str) -> None:
    kind, more, attributes = NOTHING[case]
    net = Net()
    x = net.add("Relu", net.input("x", 2, 3, 4), name="r")
    graph = net.finish(net.add("Tanh", net.add(kind, x, *more, **attributes), name="y"))
    after = remove_identities(graph)
    assert kinds(after) == ["Relu", "Tanh"] and after.nodes[1].inputs == ("r",)
    assert_same(graph, after)


@pytest.mark.parametrize("case", ONE_WIDE)
def test_what_combines_single_elements_goes(case: str) -> None:
    kind, more, attributes = ONE_WIDE[case]
    net = Net()
    x = net.add("Relu", net.input("x", 2, 3, 1), name="r")
    graph = net.finish(net.add("Tanh", net.add(kind, x, *more, **attributes), name="y"))
    assert kinds(remove_identities(graph)) == ["Relu", "Tanh"]


CHANGES: dict[str, tuple[str, list[Array], dict[str, Any]]] = {
    "a cast": ("Cast", [], {"to": DType.FLOAT16}),
    "a reshape": ("Reshape", [np.array([2, 12])], {}),
    "a transpose": ("Transpose", [], {"perm": (0, 2, 1)}),
    "a transpose without a perm": ("Transpose", [], {}),
    "an expand": ("Expand", [np.array([5, 2, 3, 4])], {}),
    "a factor": ("Mul", [f32(1, 1, 2, 1)], {}),
    "factors of one that repeat the value": ("Mul", [np.ones((5, 2, 3, 4), np.float32)], {}),
    "a pool of every second pixel": ("MaxPool", [], {"kernel_shape": (1,), "strides": (2,)}),
    "a pool with a border": ("AveragePool", [], {"kernel_shape": (1,), "pads": (1, 1)}),
    "a norm of one pixel": ("LpPool", [], {"kernel_shape": (1,)}),
    "a resize that almost keeps the size": ("Resize", [EMPTY, f32(1, 1.2, 1)], {"mode": "linear"}),
    "a resize that moves": (
        "Resize", [EMPTY, EMPTY, np.array([2, 3, 4])],
        {"coordinate_transformation_mode": "tf_half_pixel_for_nn", "nearest_mode": "round_prefer_ceil"},
    ),
    "a sum of more": ("ReduceSum", [np.array([2])], {}),
}


@pytest.mark.parametrize("case", CHANGES)
def test_a_node_that_changes_something_stays(case: str) -> None:
    kind, more, attributes = CHANGES[case]
    net = Net()
    graph = net.finish(net.add("Tanh", net.add(kind, net.input("x", 2, 3, 4), *more, **attributes), name="y"))
    assert kinds(remove_identities(graph)) == [kind, "Tanh"]


def test_chains_of_nothing_go_as_a_whole() -> None:
    net = Net()
    value = net.input("x", 2)
    for _ in range(3):
        value = net.add("Identity", value)
    graph = net.finish(net.add("Relu", value, name="y"))
    assert remove_identities(graph).nodes[0].inputs == ("x",)


def test_outputs_of_the_network_keep_their_names() -> None:
    net = Net()
    x = net.input("x", 2)
    y = net.add("Identity", x, name="y")
    graph = net.finish(y, net.add("Relu", y, name="z"))
    after = remove_identities(graph)
    assert_same(graph, after)
    assert kinds(after) == ["Identity", "Relu"]


def test_a_dropout_whose_mask_is_read_stays() -> None:
    net = Net()
    kept = net.add(op("Dropout", outputs=2), net.input("x", 2), name="d", outputs=2)
    graph = net.finish(net.add("Relu", kept, name="y"))
    assert kinds(remove_identities(graph)) == ["Relu"]
    graph.outputs.append("d.1")
    assert kinds(remove_identities(graph)) == ["Dropout", "Relu"]


# -- fold_pads -----------------------------------------------------------------------------------------------


def padded(
    reader: str = "Conv", amounts: tuple[int, ...] = (0, 0, 1, 2, 0, 0, 3, 4), fill: float = 0.0, **more: Any
) -> Graph:
    net = Net()
    x = net.add("Pad", net.input("x", 1, 2, 6, 6), np.array(amounts), f32(fill).reshape(()), **more.pop("pad", {}))
    if reader == "Conv":
        return net.finish(net.conv(x, 3, 3, name="y", **more))
    return net.finish(net.add(reader, x, name="y", kernel_shape=(3, 3), **more))


def test_zero_padding_moves_into_a_convolution() -> None:
    graph = padded(pads=(1, 0, 1, 0), strides=(2, 1))
    after = fold_pads(graph)
    assert kinds(after) == ["Conv"]
    assert after.nodes[0].op.attributes()["pads"] == (2, 2, 4, 4)
    assert_same(graph, after)


def test_zero_padding_moves_into_an_average_that_counts_it() -> None:
    graph = padded("AveragePool", (0, 0, 1, 1, 0, 0, 1, 1), count_include_pad=1)
    assert kinds(fold_pads(graph)) == ["AveragePool"]
    assert_same(graph, fold_pads(graph))


def test_padding_may_name_its_axes() -> None:
    net = Net()
    x = net.add("Pad", net.input("x", 1, 2, 6, 6), np.array([1, 2]), "", np.array([-1]))
    graph = net.finish(net.conv(x, 3, 3, name="y"))
    after = fold_pads(graph)
    assert after.nodes[0].op.attributes()["pads"] == (0, 1, 0, 2)
    assert_same(graph, after)


STAYS: dict[str, Graph] = {
    "of another value": padded(fill=1.0),
    "of channels": padded(amounts=(0, 1, 1, 1, 0, 0, 1, 1)),
    "that crops": padded(amounts=(0, 0, -1, 0, 0, 0, 0, 0)),
    "that reflects": padded(amounts=(0, 0, 1, 1, 0, 0, 1, 1), pad={"mode": "reflect"}),
    "before a maximum": padded("MaxPool", (0, 0, 1, 1, 0, 0, 1, 1)),
    "before an average that leaves out its own": padded("AveragePool", (0, 0, 1, 1, 0, 0, 1, 1), pads=(1, 1, 1, 1)),
    "before an average with a last window that may drop": padded("AveragePool", (0, 0, 1, 1, 0, 0, 1, 1), ceil_mode=1),
    "before an automatic padding": padded(amounts=(0, 0, 1, 1, 0, 0, 1, 1), auto_pad="SAME_UPPER"),
}


@pytest.mark.parametrize("case", STAYS)
def test_padding_stays(case: str) -> None:
    graph = STAYS[case]
    assert kinds(fold_pads(graph))[0] == "Pad"


def test_padding_that_another_node_reads_stays() -> None:
    graph = padded()
    graph.outputs.append(graph.nodes[0].outputs[0])
    assert kinds(fold_pads(graph)) == ["Pad", "Conv"]


# -- fold_batch_norm -----------------------------------------------------------------------------------------


def normalized(bias: bool = True, group: int = 1, outputs_too: bool = False) -> Graph:
    net = Net()
    conv = net.conv(net.input("x", 2, 4, 5, 5), 8, 3, bias=bias, group=group, name="conv")
    parts = [net.random(8) for _ in range(3)] + [net.random(8) ** 2]
    y = net.add("BatchNormalization", conv, *parts, name="y", epsilon=1e-3)
    return net.finish(y, *(["conv"] if outputs_too else []))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("group", [1, 2, 4])
def test_a_batch_norm_becomes_weights(bias: bool, group: int) -> None:
    graph = normalized(bias, group)
    after = fold_batch_norm(graph)
    assert kinds(after) == ["Conv"] and len(after.nodes[0].inputs) == 3
    assert_same(graph, after, 1e-6)


def test_a_batch_norm_stays_where_the_convolution_has_another_reader() -> None:
    assert kinds(fold_batch_norm(normalized(outputs_too=True))) == ["Conv", "BatchNormalization"]


def test_a_batch_norm_stays_where_a_parameter_is_computed() -> None:
    net = Net()
    scale = net.input("scale", 8)
    conv = net.conv(net.input("x", 1, 4, 5, 5), 8, 1)
    parts = [net.random(8), net.random(8), net.random(8) ** 2]
    graph = net.finish(net.add("BatchNormalization", conv, scale, *parts, name="y"))
    assert kinds(fold_batch_norm(graph)) == ["Conv", "BatchNormalization"]


def test_weights_that_two_convolutions_share_are_left_alone() -> None:
    net = Net()
    x, w = net.input("x", 1, 4, 5, 5), net.constant(net.random(8, 4, 1, 1))
    plain = net.add("Conv", x, w, name="plain")
    parts = [net.random(8) for _ in range(3)] + [net.random(8) ** 2]
    graph = net.finish(plain, net.add("BatchNormalization", net.add("Conv", x, w), *parts, name="y"))
    after = fold_batch_norm(graph)
    assert kinds(after) == ["Conv", "Conv"]
    assert_same(graph, after)


# -- remove_dead_nodes ---------------------------------------------------------------------------------------


def test_what_nobody_reads_goes_with_its_constants() -> None:
    net = Net()
    x = net.input("x", 2)
    net.input("unused", 3)
    net.add("Mul", net.add("Exp", x, name="dead"), f32(1, 2), name="deader")
    graph = remove_dead_nodes(net.finish(net.add("Relu", x, name="y")))
    assert kinds(graph) == ["Relu"] and not graph.constants
    assert graph.inputs == ["x", "unused"] and set(graph.specs) == {"x", "unused", "y"}


# -- set_storage ---------------------------------------------------------------------------------------------


def test_storage_in_fp16_casts_at_the_edges_alone() -> None:
    net = Net()
    x = net.input("x", 2, 3)
    hidden = net.add("Add", x, f32(1, 2, 3), name="h")
    graph = net.finish(net.add("Relu", hidden, name="y"), hidden, x)
    after = set_storage(graph, DType.FLOAT16)
    assert kinds(after) == ["Cast", "Add", "Relu", "Cast", "Cast"]
    assert [after.specs[o].dtype for o in after.outputs] == [DType.FLOAT32] * 3
    assert all(s.dtype is DType.FLOAT16 for v, s in after.specs.items() if v not in ("x", "h", "y"))
    assert all(c.dtype == np.float16 for c in after.constants.values())
    assert_same(graph, after, 1e-2)


def test_explicit_casts_between_the_two_become_casts_to_the_one() -> None:
    net = Net()
    half = net.add("Cast", net.input("x", 4), name="half", to=DType.FLOAT16)
    graph = net.finish(net.add("Cast", net.add("Exp", half), name="y", to=DType.FLOAT32))
    after = set_storage(graph, DType.FLOAT32)
    assert [n.op.attributes()["to"] for n in after.nodes if n.op.type == "Cast"] == [DType.FLOAT32] * 2
    assert all(s.dtype is DType.FLOAT32 for s in after.specs.values())


def test_other_types_are_not_touched_by_storage() -> None:
    net = Net()
    i = net.input("i", 4, dtype=DType.INT64)
    graph = net.finish(net.add("Cast", net.add("Add", i, np.ones(4, np.int64)), name="y", to=DType.FLOAT32))
    after = set_storage(graph, DType.FLOAT16)
    assert [after.specs[n.outputs[0]].dtype for n in after.nodes] == [DType.INT64, DType.FLOAT16, DType.FLOAT32]


@pytest.mark.parametrize("storage", [DType.FLOAT16, DType.FLOAT32])
def test_a_constant_output_keeps_all_of_its_digits(storage: DType) -> None:
    net = Net()
    x, k = net.input("x", 2), net.constant(f32(1 / 3, 2 / 3), "k")
    graph = net.finish(k, net.add("Mul", x, k, name="y"))
    after = set_storage(graph, storage)
    np.testing.assert_array_equal(after.constants["k"], f32(1 / 3, 2 / 3))
    assert_same(graph, after, 1e-2)
