"""The plan of a network on a GPU: fusing, layouts, views, memory and levels, without running a kernel.

A plan is played on numpy memory: each node reads its inputs where the plan put them, computes its op's
reference, and writes where the plan says. All memory is poisoned with NaN before, and scratch memory when
it is used, so that a view at the wrong place or memory that is reused too early spoils the result.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

import weft
from tests.helpers.gpu_plans import assert_plan_computes, planned, play
from tests.helpers.nets import Net, branching, feeds, kinds
from tests.helpers.null_gpu import null_gpu
from tests.helpers.random_nets import SLOW, networks
from tests.helpers.rewrites import gpu_fuses
from tests.helpers.run_length import examples
from weft.backends.gpu.lowering.layout.layouts import assign_layouts, find_views
from weft.core.contract.lowered import ValueView
from weft.core.graph.dtypes import DType
from weft.core.graph.fused_op import Fused
from weft.core.graph.graph import Graph
from weft.core.graph.interpreter import outputs
from weft.core.graph.layout import Layout
from weft.core.passes import run_passes
from weft.core.passes.constants import fold_constants
from weft.core.passes.fuse import fuse_epilogues

many = settings(max_examples=examples(120), deadline=None, suppress_health_check=SLOW)


@given(graph=networks(12))
@many
def test_a_plan_gives_the_numbers_of_the_network(graph: Graph) -> None:
    assert_plan_computes(graph, drawn=True)


@given(graph=networks(8))
@settings(many, max_examples=examples(40))
def test_a_plan_in_fp16_gives_them_too(graph: Graph) -> None:
    assert_plan_computes(graph, "low", 0.05, drawn=True)


@pytest.mark.parametrize("channels", [1, 3, 4, 6, 8])
@pytest.mark.parametrize("batch", [1, 2])
def test_the_plan_of_a_branch(channels: int, batch: int) -> None:
    assert_plan_computes(branching(channels, batch=batch))


def test_the_numbers_are_right_after_a_resize_too() -> None:
    net = Net()
    x = net.input("x", "N", 4, 6, 6)
    w = net.random(8, 4, 3, 3)
    a = net.add("Relu", net.add("Conv", x, w, pads=(1, 1, 1, 1)))
    b = net.add("Conv", a, net.random(4, 8, 1, 1))
    graph = net.finish(net.add("Concat", a, b, name="y", axis=1))
    with null_gpu(), weft.load(graph, device="null") as session:
        for n in (1, 3, 2):
            session.resize({"x": (n, 4, 6, 6)})
            (pipeline,) = session.pipelines
            fed = {"x": net.random(n, 4, 6, 6)}
            np.testing.assert_allclose(play(pipeline, fed)[0], outputs(graph, fed)[0], rtol=1e-5, atol=1e-5)


# -- layouts -----------------------------------------------------------------------------------------------


def laid_out(graph: Graph) -> Graph:
    return assign_layouts(fuse_epilogues(run_passes(graph), gpu_fuses))


@given(graph=networks())
@many
def test_each_op_gets_the_layout_it_wants_and_the_ends_are_nchw(graph: Graph) -> None:
    after = laid_out(graph)
    assert (after.inputs, after.outputs) == (graph.inputs, graph.outputs)
    assert not any(after.layouts.get(v) for v in (*after.inputs, *after.outputs))
    for node in after.nodes:
        if node.op.type == "Relayout":
            continue
        activations = [v for v in (*node.inputs, *node.outputs) if v and v not in after.constants]
        held = {after.layouts.get(v, Layout.NCHW) for v in activations}
        assert len(held) == 1, f"{node} works in two layouts"
    expected, got = outputs(graph, feeds(graph)), outputs(after, feeds(graph))
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4 * max(float(np.abs(b).max(initial=0)), 1))


def test_a_chain_of_convolutions_is_converted_at_its_ends_alone() -> None:
    net = Net()
    x = net.input("x", 1, 3, 8, 8)
    for k in range(3):
        x = net.add("Relu", net.conv(x, 8, 3, name=f"c{k}"))
    after = laid_out(net.finish(net.add("MaxPool", x, name="y", kernel_shape=(2, 2))))
    assert kinds(after) == ["Relayout", "Fused", "Fused", "Fused", "MaxPool", "Relayout"]


def test_a_value_that_several_read_is_converted_once() -> None:
    net = Net()
    x = net.input("x", 1, 8, 4, 4)
    graph = net.finish(*(net.conv(x, 4, name=f"y{k}") for k in range(3)))
    assert kinds(laid_out(graph)).count("Relayout") == 1 + 3


# -- views -------------------------------------------------------------------------------------------------


def fire(*channels: int, more: bool = False) -> Graph:
    net = Net()
    x = net.input("x", 1, 8, 4, 4)
    parts = [net.conv(x, c, name=f"part{k}") for k, c in enumerate(channels)]
    both = net.add("Concat", *parts, name="both", axis=1)
    shown = [parts[0]] if more else []
    return net.finish(net.conv(both, 4, name="y"), *shown)


def test_a_concat_of_full_blocks_costs_nothing() -> None:
    views = find_views(laid_out(fire(4, 8, 6)))
    firsts = {"part0": 0, "part1": 1, "part2": 3}
    assert views == {name: ValueView("both", first, 5) for name, first in firsts.items()}
    with planned(fire(4, 8, 6)) as session:
        labels = [launch.label for launch in session.pipelines[0].backend.recording.run.rest]  # type: ignore[attr-defined]
    assert not any("both" in label for label in labels)


@pytest.mark.parametrize("channels", [(6, 4), (4, 6, 4), (3, 3)])
def test_a_concat_of_broken_blocks_is_copied(channels: tuple[int, ...]) -> None:
    assert find_views(laid_out(fire(*channels))) == {}
    assert_plan_computes(fire(*channels))


def test_an_output_of_the_network_is_no_view() -> None:
    graph = fire(4, 4, more=True)
    assert "part0" not in find_views(laid_out(graph))
    assert_plan_computes(graph)


def test_a_part_that_occurs_twice_is_copied() -> None:
    net = Net()
    part = net.conv(net.input("x", 1, 8, 4, 4), 4, name="part")
    both = net.add("Concat", part, part, name="both", axis=1)
    graph = net.finish(net.conv(both, 4, name="y"))
    assert find_views(laid_out(graph)) == {}
    assert_plan_computes(graph)
    net.graph.outputs = [net.conv(net.add("Concat", part, both, name="three", axis=1), 4, name="z")]
    assert_plan_computes(net.graph)


@pytest.mark.parametrize("batch", [1, 2])
def test_a_part_that_lies_between_others_is_not_taken_for_a_whole(batch: int) -> None:
    net = Net()
    x = net.input("x", batch, 8, 4, 4)
    pooled = [net.add("GlobalAveragePool", net.conv(x, c), name=f"p{c}") for c in (4, 8)]
    both = net.add("Concat", *pooled, name="both", axis=1)
    flat = [net.add("Flatten", p, name=f"flat{k}") for k, p in enumerate(pooled)]
    graph = net.finish(net.conv(both, 4, name="y"), *(net.add("Softmax", f) for f in flat))
    assert_plan_computes(graph)


def test_concats_of_concats_are_one_memory() -> None:
    net = Net()
    x = net.input("x", 2, 4, 3, 3)
    value = net.conv(x, 4, name="v0")
    for k in range(1, 4):
        value = net.add("Concat", value, net.conv(value, 4, name=f"new{k}"), name=f"v{k}", axis=1)
    graph = net.finish(net.conv(value, 4, name="y"))
    views = find_views(laid_out(graph))
    assert {v.root for v in views.values()} == {"v3"} and len(views) == 6
    assert_plan_computes(graph)


def test_a_reshape_is_another_name_for_the_same_memory() -> None:
    net = Net()
    x = net.add("Exp", net.input("x", 2, 3, 4), name="e")
    flat = net.add("Flatten", net.add("Reshape", x, np.array([6, 4]), name="r"), name="f", axis=0)
    graph = net.finish(net.add("Tanh", flat, name="y"))
    # Not rewritten before: one reshape of a reshape is what the passes would leave.
    views = find_views(assign_layouts(fold_constants(graph)))
    assert views["r"] == ValueView("e") and views["f"] == ValueView("e")
    assert_plan_computes(graph)


def ends_in_a_flatten(*, read: bool = False, twice: bool = False, concat: bool = False, channels: int = 8) -> Graph:
    net = Net()
    x = net.input("x", 2, 8, 4, 4)
    z = net.conv(x, channels, name="z")
    z = net.add("Concat", z, net.conv(x, 4, name="w"), name="both", axis=1) if concat else z
    pooled = net.add("GlobalAveragePool", z, name="pooled")
    more = [net.add("Softmax", pooled, name="s", axis=1)] if read else []
    more += [net.add("Reshape", pooled, np.array([1, -1]), name="other")] if twice else []
    return net.finish(net.add("Flatten", pooled, name="y"), *more)


@pytest.mark.parametrize(
    ("graph", "moves"),
    [
        (ends_in_a_flatten(), 0),
        (ends_in_a_flatten(read=True), 0),
        (ends_in_a_flatten(concat=True), 0),
        (ends_in_a_flatten(twice=True), 1),
        (ends_in_a_flatten(channels=6), 1),
    ],
    ids=["alone", "read by others", "of a concat", "of two outputs", "of broken blocks"],
)
def test_what_an_output_is_another_name_for_is_written_there(graph: Graph, moves: int) -> None:
    assert_plan_computes(graph)
    with planned(graph) as session:
        labels = [launch.label for launch in session.pipelines[0].backend.recording.run.rest]  # type: ignore[attr-defined]
    moved = [label for label in labels if label.rpartition("/")[2] in ("move", "relayout") and "x.c4" not in label]
    assert len(moved) == moves, labels


# -- fusing as GPUs do it ------------------------------------------------------------------------------------


def test_activation_and_residual_go_into_the_convolution() -> None:
    net = Net()
    x = net.input("x", 1, 4, 5, 5)
    summed = net.add("Add", net.conv(x, 4, 3, pads=(1, 1, 1, 1)), x)
    scaled = net.add("Mul", summed, net.random(4, 1, 1))
    graph = net.finish(net.add("Clip", scaled, np.array(0, np.float32), np.array(6, np.float32), name="y"))
    fused = fuse_epilogues(run_passes(graph), gpu_fuses)
    assert isinstance(fused.nodes[0].op, Fused) and len(fused.nodes) == 1
    assert [s.op.type for s in fused.nodes[0].op.steps] == ["Add", "Mul", "Clip"]


@pytest.mark.parametrize("shape", [(1, 1, 5, 1), (5,), (2, 1, 4, 5, 5)])
def test_what_a_store_cannot_read_is_not_fused(shape: tuple[int, ...]) -> None:
    net = Net()
    conv = net.conv(net.input("x", 1, 4, 5, 5), 4)
    graph = net.finish(net.add("Add", conv, net.random(*shape), name="y"))
    assert kinds(fuse_epilogues(run_passes(graph), gpu_fuses)) == ["Conv", "Add"]
    assert_plan_computes(graph)


def test_other_element_types_are_not_fused() -> None:
    net = Net()
    x = net.input("x", 2, 4)
    matmul = net.add("MatMul", x, net.random(4, 4))
    graph = net.finish(net.add("Cast", matmul, name="y", to=DType.INT32))
    assert kinds(fuse_epilogues(run_passes(graph), gpu_fuses)) == ["MatMul", "Cast"]




def test_a_conversion_that_moves_nothing_is_not_launched() -> None:
    net = Net()
    pooled = net.add("GlobalAveragePool", net.conv(net.input("x", 1, 5, 8, 8), 8, 3))
    graph = net.finish(net.add("Sigmoid", net.add("Flatten", pooled, axis=1), name="y"))
    with null_gpu(), weft.load(graph, "null", fallback="error") as session:
        (pipeline,) = session.pipelines
        launches = pipeline.backend.recording.run.rest  # type: ignore[attr-defined]
    kernels = [launch.label.rpartition("/")[2] for launch in launches]
    assert kernels.count("relayout") == 1, "of the input alone"
