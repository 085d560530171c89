"""The plan of a network on a GPU: fusing, layouts, views, memory and levels, without running a kernel.

A plan is played on numpy memory: each node reads its inputs where the plan put them, computes its op's
reference, and writes where the plan says. All memory is poisoned with NaN before, and scratch memory when
it is used, so that a view at the wrong place or memory that is reused too early spoils the result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import weft
from tests.core.nets import Net, branching, feeds, kinds, outputs, values
from tests.core.null_gpu import null_gpu
from tests.core.random_nets import networks
from weft.backends.gpu import memory as memory_module
from weft.backends.gpu import recording as recording_module
from weft.backends.gpu.device import BarrierCommand, Binding, CopyCommand, GpuBuffer, MemoryKind
from weft.backends.gpu.fusion import can_fuse
from weft.backends.gpu.layouts import View, assign_layouts, find_views
from weft.backends.gpu.schedule import Access, levels, schedule
from weft.core.backend import StorageType
from weft.core.dtypes import DType
from weft.core.fused import Fused
from weft.core.graph import Graph
from weft.core.layout import Array, Layout, from_storage, storage_shape, to_storage
from weft.core.optimize import run_passes
from weft.core.optimize.fuse import fuse_epilogues
from weft.core.pipeline import Pipeline, Task
from weft.core.tensor import Tensor

SLOW = (HealthCheck.too_slow, HealthCheck.data_too_large)
many = settings(max_examples=120, deadline=None, suppress_health_check=SLOW)


# -- playing a plan ----------------------------------------------------------------------------------------


def stored(tensor: Tensor) -> Array:
    """Return the piece of memory that a tensor of a GPU backend lies in, as an array of its storage shape."""
    region = tensor.memory
    shape = storage_shape(tensor.shape, tensor.layout)
    whole = (shape[0], region.blocks, *shape[2:]) if region.blocks else shape
    start, nbytes = region.slot.offset, prod(whole) * tensor.dtype.itemsize
    memory: Array = region.slot.buffer.handle[start : start + nbytes].view(tensor.dtype.numpy).reshape(whole)
    return memory[:, region.first : region.first + shape[1]] if region.blocks else memory


def read(tensor: Tensor | None) -> Array | None:
    if tensor is None or tensor.constant is not None:
        return None if tensor is None else tensor.constant
    return from_storage(np.ascontiguousarray(stored(tensor)), tensor.shape, tensor.layout)


def write(tensor: Tensor, value: Array) -> None:
    stored(tensor)[...] = to_storage(value, tensor.layout)


def join(task: Task) -> None:
    """Copy the parts of a channel concat, but for those that already lie where they belong."""
    (whole,), first = task.outputs, 0
    for part in task.inputs:
        assert part is not None
        assert part.shape[1] % 4 == 0 or part is task.inputs[-1]
        blocks = part.storage_shape[1]
        if part.memory.slot is not whole.memory.slot:
            stored(whole)[:, first : first + blocks] = stored(part)
        first += blocks


def poison_scratch(task: Task, launches: Sequence[Any]) -> None:
    known = {id(t) for t in (*task.inputs, *task.outputs)}
    label = f"{task.outputs[0].name}/"
    for launch in launches:
        for tensor in (*launch.reads, *launch.writes):
            slot = tensor.memory.slot
            if launch.label.startswith(label) and id(tensor) not in known and slot.storage is StorageType.DYNAMIC:
                slot.buffer.handle[slot.offset : slot.offset + tensor.nbytes] = 0xFF


def play(pipeline: Pipeline, fed: dict[str, Array]) -> list[Array]:
    """Return the outputs of a pipeline on a null device."""
    launches = pipeline.backend.recording.launches  # type: ignore[attr-defined]
    tensors = [t for task in pipeline.tasks for t in (*task.inputs, *task.outputs) if t and t.constant is None]
    for tensor in tensors:
        tensor.memory.slot.buffer.handle[:] = 0xFF
    for name in pipeline.graph.inputs:
        write(pipeline.tensor(name), fed[name])
    for task in pipeline.tasks:
        poison_scratch(task, launches)
        if task.node.op.type == "Concat" and task.outputs[0].layout is Layout.NC4HW4:
            join(task)
            continue
        with np.errstate(all="ignore"):
            result = task.node.op.reference(*(read(t) for t in task.inputs))
        results = result if isinstance(result, tuple) else (result,)
        for tensor, value in zip(task.outputs, results, strict=False):
            write(tensor, np.asarray(value))
    found = [read(pipeline.tensor(name)) for name in pipeline.graph.outputs]
    return [f for f in found if f is not None]


@contextmanager
def planned(graph: Graph, precision: str = "high") -> Iterator[weft.Session]:
    with null_gpu(), weft.load(graph, device="null", precision=precision, fallback="error") as session:
        yield session


def assert_plays(graph: Graph, precision: str = "high", tolerance: float = 1e-5) -> None:
    with planned(graph, precision) as session:
        if not session._pipelines:
            return
        (pipeline,) = session._pipelines
        fed = feeds(graph)
        known = values(graph, fed)
        for name, got in zip(pipeline.graph.outputs, play(pipeline, fed), strict=True):
            scale = max(float(np.abs(known[name]).max(initial=0)), 1.0)
            np.testing.assert_allclose(got / scale, known[name] / scale, rtol=0, atol=tolerance)


@given(graph=networks(12))
@many
def test_a_plan_gives_the_numbers_of_the_network(graph: Graph) -> None:
    assert_plays(graph)


@given(graph=networks(8))
@settings(many, max_examples=40)
def test_a_plan_in_fp16_gives_them_too(graph: Graph) -> None:
    assert_plays(graph, "low", 0.05)


@pytest.mark.parametrize("channels", [1, 3, 4, 6, 8])
@pytest.mark.parametrize("batch", [1, 2])
def test_the_plan_of_a_branch(channels: int, batch: int) -> None:
    assert_plays(branching(channels, batch=batch))


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
            (pipeline,) = session._pipelines
            fed = {"x": net.random(n, 4, 6, 6)}
            np.testing.assert_allclose(play(pipeline, fed)[0], outputs(graph, fed)[0], rtol=1e-5, atol=1e-5)


# -- layouts -----------------------------------------------------------------------------------------------


def laid_out(graph: Graph) -> Graph:
    return assign_layouts(fuse_epilogues(run_passes(graph), can_fuse))


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
    assert views == {"part0": View("both", 0, 5), "part1": View("both", 1, 5), "part2": View("both", 3, 5)}
    with planned(fire(4, 8, 6)) as session:
        labels = [launch.label for launch in session._pipelines[0].backend.recording.launches]  # type: ignore[attr-defined]
    assert not any("both" in label for label in labels)


@pytest.mark.parametrize("channels", [(6, 4), (4, 6, 4), (3, 3)])
def test_a_concat_of_broken_blocks_is_copied(channels: tuple[int, ...]) -> None:
    assert find_views(laid_out(fire(*channels))) == {}
    assert_plays(fire(*channels))


def test_an_output_of_the_network_is_no_view() -> None:
    graph = fire(4, 4, more=True)
    assert "part0" not in find_views(laid_out(graph))
    assert_plays(graph)


def test_a_part_that_occurs_twice_is_copied() -> None:
    net = Net()
    part = net.conv(net.input("x", 1, 8, 4, 4), 4, name="part")
    graph = net.finish(net.conv(net.add("Concat", part, part, name="both", axis=1), 4, name="y"))
    assert find_views(laid_out(graph)) == {}
    assert_plays(graph)


@pytest.mark.parametrize("batch", [1, 2])
def test_a_part_that_lies_between_others_is_not_taken_for_a_whole(batch: int) -> None:
    net = Net()
    x = net.input("x", batch, 8, 4, 4)
    pooled = [net.add("GlobalAveragePool", net.conv(x, c), name=f"p{c}") for c in (4, 8)]
    both = net.add("Concat", *pooled, name="both", axis=1)
    flat = [net.add("Flatten", p, name=f"flat{k}") for k, p in enumerate(pooled)]
    graph = net.finish(net.conv(both, 4, name="y"), *(net.add("Softmax", f) for f in flat))
    assert_plays(graph)


def test_concats_of_concats_are_one_memory() -> None:
    net = Net()
    x = net.input("x", 2, 4, 3, 3)
    value = net.conv(x, 4, name="v0")
    for k in range(1, 4):
        value = net.add("Concat", value, net.conv(value, 4, name=f"new{k}"), name=f"v{k}", axis=1)
    graph = net.finish(net.conv(value, 4, name="y"))
    views = find_views(laid_out(graph))
    assert {v.root for v in views.values()} == {"v3"} and len(views) == 6
    assert_plays(graph)


def test_a_reshape_is_another_name_for_the_same_memory() -> None:
    net = Net()
    x = net.add("Exp", net.input("x", 2, 3, 4), name="e")
    flat = net.add("Flatten", net.add("Reshape", x, np.array([6, 4]), name="r"), name="f", axis=0)
    graph = net.finish(net.add("Tanh", flat, name="y"))
    views = find_views(laid_out(graph))
    assert views["r"] == View("e") and views["f"] == View("e")
    assert_plays(graph)


# -- levels ------------------------------------------------------------------------------------------------

Piece = tuple[int, int, int]
pieces = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 8), st.integers(1, 4)), max_size=3)


def overlap(a: Piece, b: Piece) -> bool:
    return a[0] == b[0] and a[1] < b[1] + b[2] and b[1] < a[1] + a[2]


def conflict(one: tuple[list[Piece], list[Piece]], other: tuple[list[Piece], list[Piece]]) -> bool:
    """Tell whether the order of two commands, each with what it reads and writes, matters."""
    (r1, w1), (r2, w2) = one, other
    return any(overlap(a, b) for a in w1 for b in (*r2, *w2)) or any(overlap(a, b) for a in r1 for b in w2)


@given(st.lists(st.tuples(pieces, pieces), max_size=12))
@settings(max_examples=300, deadline=None)
def test_commands_of_one_level_may_run_in_any_order(commands: list[tuple[list[Piece], list[Piece]]]) -> None:
    buffers = [GpuBuffer(64, MemoryKind.DEVICE, None) for _ in range(2)]

    def bindings(those: list[Piece]) -> tuple[Binding, ...]:
        return tuple(Binding(buffers[k], start, size) for k, start, size in those)

    dummy = Binding(buffers[0], 0, 1)
    made = [CopyCommand(dummy, dummy, str(k)) for k in range(len(commands))]
    accesses = [Access(c, bindings(r), bindings(w)) for c, (r, w) in zip(made, commands, strict=True)]
    found = {c.label: k for k, level in enumerate(levels(accesses)) for c in level}  # type: ignore[union-attr]
    assert len(found) == len(commands)
    for j, later in enumerate(commands):
        before = [found[str(i)] for i in range(j) if conflict(commands[i], later)]
        assert found[str(j)] == max(before, default=-1) + 1, "as early as it may be, and no earlier"


def test_there_is_a_barrier_between_two_levels_and_nowhere_else() -> None:
    buffer = GpuBuffer(64, MemoryKind.DEVICE, None)
    a, b, c = (Binding(buffer, k, 1) for k in (0, 8, 16))
    copies = [CopyCommand(a, b), CopyCommand(a, c), CopyCommand(b, c)]
    order = schedule([Access(x, (x.source,), (x.target,)) for x in copies])
    assert [isinstance(x, BarrierCommand) for x in order] == [False, False, True, False]
    assert schedule([]) == []


def touched(tensor: Tensor) -> list[Piece]:
    """Return the bytes of a tensor, image by image where it lies between others."""
    region = tensor.memory
    base = id(region.slot.buffer)
    if not region.blocks:
        return [(base, region.slot.offset, max(tensor.nbytes, 1))]
    own, plane = tensor.storage_shape[1], prod(tensor.storage_shape[2:]) * tensor.dtype.itemsize
    starts = [(n * region.blocks + region.first) * plane for n in range(tensor.shape[0])]
    return [(base, region.slot.offset + start, max(own * plane, 1)) for start in starts]


def covers(tensor: Tensor, piece: Piece) -> bool:
    """Tell whether what the schedule takes for a tensor's memory holds this piece of it."""
    taken = memory_module.touched(tensor)
    return taken.offset <= piece[1] and piece[1] + piece[2] <= taken.offset + taken.nbytes


@given(graph=networks(12))
@settings(many, max_examples=60)
def test_launches_that_may_run_side_by_side_do_not_touch_each_other(graph: Graph) -> None:
    seen: list[tuple[list[Any], list[Any]]] = []

    def watched(accesses: Sequence[Access]) -> list[Any]:
        seen.append(([a.command for a in accesses], schedule(accesses)))
        return seen[-1][1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recording_module, "schedule", watched)
        with planned(graph) as session:
            if not session._pipelines:
                return
            launches = session._pipelines[0].backend.recording.launches  # type: ignore[attr-defined]
            given_order, recorded = seen[-1]
            level, at = 0, {}
            for command in recorded:
                level += isinstance(command, BarrierCommand)
                at[id(command)] = level
            commands = [c for c in given_order if not isinstance(c, CopyCommand)]
            bytes_of = [
                ([p for t in one.reads for p in touched(t)], [p for t in one.writes for p in touched(t)])
                for one in launches
            ]
            for one in launches:
                assert all(covers(t, p) for t in (*one.reads, *one.writes) for p in touched(t))
            for j in range(len(launches)):
                for i in range(j):
                    if conflict(bytes_of[i], bytes_of[j]):
                        assert at[id(commands[i])] < at[id(commands[j])], f"{launches[i].label}, {launches[j].label}"


def test_branches_of_a_network_share_a_level() -> None:
    net = Net()
    x = net.input("x", 1, 8, 4, 4)
    graph = net.finish(*(net.conv(net.add("Relu", net.conv(x, 8)), 8, name=f"y{k}") for k in range(3)))
    seen: list[list[Any]] = []

    def watched(accesses: Sequence[Access]) -> list[Any]:
        seen.append(schedule(accesses))
        return seen[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recording_module, "schedule", watched)
        with planned(graph):
            pass
    barriers = sum(isinstance(c, BarrierCommand) for c in seen[-1])
    assert barriers == 5, "upload, relayout, three first, three second convolutions, three relayouts, downloads"


# -- fusing as GPUs do it ------------------------------------------------------------------------------------


def test_activation_and_residual_go_into_the_convolution() -> None:
    net = Net()
    x = net.input("x", 1, 4, 5, 5)
    summed = net.add("Add", net.conv(x, 4, 3, pads=(1, 1, 1, 1)), x)
    scaled = net.add("Mul", summed, net.random(4, 1, 1))
    graph = net.finish(net.add("Clip", scaled, np.array(0, np.float32), np.array(6, np.float32), name="y"))
    fused = fuse_epilogues(run_passes(graph), can_fuse)
    assert isinstance(fused.nodes[0].op, Fused) and len(fused.nodes) == 1
    assert [s.op.type for s in fused.nodes[0].op.steps] == ["Add", "Mul", "Clip"]


@pytest.mark.parametrize("shape", [(1, 1, 5, 1), (5,), (2, 1, 4, 5, 5)])
def test_what_a_store_cannot_read_is_not_fused(shape: tuple[int, ...]) -> None:
    net = Net()
    conv = net.conv(net.input("x", 1, 4, 5, 5), 4)
    graph = net.finish(net.add("Add", conv, net.random(*shape), name="y"))
    assert kinds(fuse_epilogues(run_passes(graph), can_fuse)) == ["Conv", "Add"]
    assert_plays(graph)


def test_other_element_types_are_not_fused() -> None:
    net = Net()
    x = net.input("x", 2, 4)
    matmul = net.add("MatMul", x, net.random(4, 4))
    graph = net.finish(net.add("Cast", matmul, name="y", to=DType.INT32))
    assert kinds(fuse_epilogues(run_passes(graph), can_fuse)) == ["MatMul", "Cast"]


