"""Play the plan of a network on a GPU: on numpy memory, with the references of the ops."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

import numpy as np
from hypothesis import assume

import weft
from tests.helpers.nets import assert_near, feeds
from tests.helpers.null_gpu import null_gpu
from weft.core.contract.backend import StorageType
from weft.core.graph.graph import Graph
from weft.core.graph.interpreter import evaluate, values
from weft.core.graph.layout import PACK, Array, Layout, from_storage, storage_shape, to_storage
from weft.core.graph.tensor import Tensor
from weft.core.session.pipeline import Pipeline, Task


def stored(tensor: Tensor) -> Array:
    """Return the piece of memory that a tensor of a GPU backend lies in, as an array of its storage shape."""
    region = tensor.memory
    shape = storage_shape(tensor.shape, tensor.layout)
    last = tensor.layout is Layout.NHWC4
    axis, each = (len(shape) - 1, PACK) if last else (1, 1)
    whole = (*shape[:axis], region.blocks * each, *shape[axis + 1 :]) if region.blocks else shape
    start, nbytes = region.slot.offset, prod(whole) * tensor.dtype.itemsize
    memory: Array = region.slot.buffer.handle[start : start + nbytes].view(tensor.dtype.numpy).reshape(whole)
    if not region.blocks:
        return memory
    first = region.first * each
    return memory[..., first : first + shape[axis]] if last else memory[:, first : first + shape[axis]]


def places(tensor: Tensor) -> tuple[Array, Array] | None:
    """Return the memory that a tensor's elements are scattered in, and their indices; None if they lie side by side."""
    region = tensor.memory
    if region.places.is_identity:
        return None
    memory = region.slot.buffer.handle[region.slot.offset : region.slot.offset + region.slot.nbytes]
    whole = memory[: len(memory) // tensor.dtype.itemsize * tensor.dtype.itemsize].view(tensor.dtype.numpy)
    return whole, region.places.of(np.arange(prod(tensor.shape))).reshape(tensor.shape)


def read(tensor: Tensor | None) -> Array | None:
    if tensor is None or tensor.constant is not None:
        return None if tensor is None else tensor.constant
    scattered = places(tensor)
    if scattered is not None:
        return scattered[0][scattered[1]]
    return from_storage(np.ascontiguousarray(stored(tensor)), tensor.shape, tensor.layout)


def write(tensor: Tensor, value: Array) -> None:
    scattered = places(tensor)
    if scattered is not None:
        scattered[0][scattered[1]] = value
        return
    stored(tensor)[...] = to_storage(value, tensor.layout)


def join(task: Task) -> None:
    """Copy the parts of a channel concat, but for those that already lie where they belong."""
    (whole,), first = task.outputs, 0
    for part in task.inputs:
        assert part is not None
        assert part.shape[1] % 4 == 0 or part is task.inputs[-1]
        blocks = part.storage_shape[1]
        lies_there = part.memory.slot is whole.memory.slot and part.memory.first == whole.memory.first + first
        if not lies_there:
            stored(whole)[:, first : first + blocks] = stored(part)
        first += blocks


def poison_scratch(task: Task, launches: Sequence[Any]) -> None:
    known = {id(t.memory.slot) for t in (*task.inputs, *task.outputs) if t is not None and t.constant is None}
    label = f"{task.outputs[0].name}/"
    for launch in launches:
        for tensor in (*launch.reads, *launch.writes):
            slot = tensor.memory.slot
            if launch.label.startswith(label) and id(slot) not in known and slot.storage is StorageType.DYNAMIC:
                slot.buffer.handle[slot.offset : slot.offset + tensor.nbytes] = 0xFF


def play(pipeline: Pipeline, fed: dict[str, Array]) -> list[Array]:
    """Return the outputs of a pipeline on a null device."""
    launches = pipeline.backend.recording.run.rest  # type: ignore[attr-defined]
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
        for tensor, value in zip(task.outputs, evaluate(task.node.op, [read(t) for t in task.inputs]), strict=False):
            write(tensor, value)
    found = [read(pipeline.tensor(name)) for name in pipeline.graph.outputs]
    return [f for f in found if f is not None]


@contextmanager
def planned(graph: Graph, precision: str = "high") -> Iterator[weft.Session]:
    with null_gpu(), weft.load(graph, device="null", precision=precision, fallback="error") as session:
        yield session


def assert_plan_computes(
    graph: Graph, precision: str = "high", tolerance: float = 1e-5, *, drawn: bool = False
) -> None:
    """Compare what the plan of a network gives with the references of its ops.

    A `drawn` network of which the passes leave nothing to compute is no example: Hypothesis draws another in its
    place, and fails the test if it must do so for most.
    """
    with planned(graph, precision) as session:
        if drawn:
            assume(session.pipelines)
        (pipeline,) = session.pipelines
        fed = feeds(graph)
        known = values(graph, fed)
        for name, got in zip(pipeline.graph.outputs, play(pipeline, fed), strict=True):
            assert_near(got, known[name], tolerance)
