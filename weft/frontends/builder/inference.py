"""The specs of a network in the making, as far as they follow from its inputs.

Ops infer from numbers. Where an input has symbolic dimensions, the network is inferred for several choices
of their sizes, and what the results have in common is known: a size that never changes, or one that is
always that of a symbol. Any other size gets a name of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter

import numpy as np

from weft.core.graph.dtypes import DType
from weft.core.graph.interpreter import evaluate
from weft.core.graph.layout import Array
from weft.core.graph.op import Op
from weft.core.graph.tensor import OPEN_RANK, Dim, TensorSpec
from weft.errors import WeftError, said_of
from weft.frontends.builder.layers import OpLayer
from weft.frontends.builder.slots import ConstantLayer, InputLayer, Layer, OutputSlot

MOST_ELEMENTS = 2**16
"""Values of more elements are not computed: no shape depends on so many."""

PROBES = ((32, 32), (64, 32), (2, 33))
"""Sizes that are tried for the k-th symbol: first * (k + 1) + second. The last ones are odd."""

Sizes = Mapping[str, int]
Errors = (WeftError, ValueError, IndexError, TypeError, ArithmeticError, AssertionError, AttributeError)


@dataclass
class Inference:
    """What is known: the spec of each slot, how many outputs each op makes, and what does not fit."""

    specs: dict[OutputSlot, TensorSpec] = field(default_factory=dict)
    counts: dict[Layer, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


@dataclass
class _Probe:
    """The network with numbers for its symbols; `unsure` are slots whose value was too large to compute."""

    specs: dict[OutputSlot, TensorSpec] = field(default_factory=dict)
    values: dict[OutputSlot, Array] = field(default_factory=dict)
    unsure: set[OutputSlot] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)


def infer(inputs: Sequence[InputLayer], constants: Sequence[ConstantLayer], layers: Sequence[OpLayer]) -> Inference:
    """Return what follows from the inputs; report only problems that no size of a symbol removes."""
    symbols = list(dict.fromkeys(d for i in inputs for d in i.spec.shape if isinstance(d, str)))
    symbols = [s for s in symbols if s != OPEN_RANK]
    order = _ordered(layers)
    choices: list[Sizes] = [{s: first * (k + 1) + second for k, s in enumerate(symbols)} for first, second in PROBES]
    probes = [_probe(inputs, constants, order, sizes) for sizes in (choices if symbols else [{}])]
    counts: dict[Layer, int] = {}
    for probe in probes:
        for slot in probe.specs:
            counts[slot.layer] = max(counts.get(slot.layer, 0), slot.index + 1)
    if not symbols:
        return Inference({i.outputs[0]: i.spec for i in inputs} | probes[0].specs, counts, probes[0].problems)
    out = Inference({i.outputs[0]: i.spec for i in inputs}, counts)
    names: dict[tuple[int | None, ...], str] = {tuple(c[s] for c in choices): s for s in symbols}
    for slot in dict.fromkeys(slot for probe in probes for slot in probe.specs):
        spec = _common([probe.specs.get(slot) for probe in probes], names, slot)
        if spec is not None:
            out.specs.setdefault(slot, spec)
    return out


def _ordered(layers: Sequence[OpLayer]) -> list[OpLayer]:
    """Return the layers in topological order, without layers on or behind a cycle."""
    sources = {layer: [s.source.layer for s in layer.inputs if s.source] for layer in layers}
    sorter: TopologicalSorter[Layer] = TopologicalSorter(sources)
    with suppress(CycleError):  # layers before a cycle still come
        sorter.prepare()
    done: list[OpLayer] = []
    while sorter.is_active() and (ready := sorter.get_ready()):
        done += [layer for layer in ready if isinstance(layer, OpLayer)]
        sorter.done(*ready)
    return done


def _probe(
    inputs: Sequence[InputLayer], constants: Sequence[ConstantLayer], order: Sequence[OpLayer], sizes: Sizes
) -> _Probe:
    probe = _Probe()
    for given in (each for each in inputs if not each.spec.has_open_rank):
        shape = tuple(sizes[d] if isinstance(d, str) else d for d in given.spec.shape)
        probe.specs[given.outputs[0]] = TensorSpec(shape, given.spec.dtype)
    for constant in constants:
        slot = constant.outputs[0]
        probe.specs[slot] = TensorSpec(constant.value.shape, DType.of(constant.value.dtype))
        probe.values[slot] = constant.value
    for layer in order:
        _step(probe, layer)
    return probe


def _step(probe: _Probe, layer: OpLayer) -> None:
    sources = [s.source for s in layer.inputs]
    while sources and sources[-1] is None:
        sources.pop()
    if layer.required() or any(s is not None and s not in probe.specs for s in sources):
        return
    op = layer.completed_op
    specs = [None if s is None else probe.specs[s] for s in sources]
    values = [None if s is None else probe.values.get(s) for s in sources]
    unsure = any(s in probe.unsure for s in sources if s)
    try:
        results = op.inferred(specs, values)
    except Errors as e:
        if not unsure:
            shown = ", ".join(f"{s!r}: {probe.specs[s]}" for s in sources if s)
            probe.problems.append(f"{layer.name!r} ({op.type}) does not fit its inputs ({shown}): {said_of(e)}")
        return
    layer.grow_outputs(len(results))
    slots = list(layer.made_slots)[: len(results)]
    probe.specs.update(zip(slots, results, strict=True))
    _compute(probe, op, slots, sources, specs, values, unsure)


def _compute(
    probe: _Probe, op: Op, slots: Sequence[OutputSlot], sources: Sequence[OutputSlot | None],
    specs: Sequence[TensorSpec | None], values: Sequence[Array | None], unsure: bool,
) -> None:
    """Compute values that do not depend on what is fed, because shapes may depend on them."""
    if op.type in ("Shape", "Size") and specs and specs[0] is not None:
        # Only the shape is read, so an array with strides of zero stands for the value.
        values, unsure = [np.broadcast_to(np.zeros((), specs[0].dtype.numpy), specs[0].dims)], False
    elif any(s is not None and v is None for s, v in zip(sources, values, strict=True)):
        probe.unsure.update(slots if unsure else ())
        return
    sizes = [probe.specs[s].size for s in slots] + [v.size for v in values if v is not None and v.strides]
    if max(sizes, default=0) > MOST_ELEMENTS and op.type not in ("Shape", "Size"):
        probe.unsure.update(slots)
        return
    try:
        results = evaluate(op, values)
    except Errors:
        return
    probe.values.update(zip(slots, results, strict=False))


def _common(
    specs: Sequence[TensorSpec | None], names: dict[tuple[int | None, ...], str], slot: OutputSlot
) -> TensorSpec | None:
    """Return what the specs of one slot have in common; None if fewer than two are known, or ranks differ."""
    known = [s for s in specs if s is not None]
    if len(known) < 2 or len({(len(s.shape), s.dtype) for s in known}) > 1:
        return None
    shape: list[Dim] = []
    for axis in range(len(known[0].shape)):
        sizes = tuple(None if s is None else s.dims[axis] for s in specs)
        each = {d for d in sizes if d is not None}
        if len(each) == 1:
            shape.append(each.pop())
        else:
            shape.append(_symbol(sizes, names, f"{slot.layer.name}.{axis}"))
    return TensorSpec(tuple(shape), known[0].dtype)


def _symbol(sizes: tuple[int | None, ...], names: dict[tuple[int | None, ...], str], fresh: str) -> str:
    """Return the name of the size that has these values; one that is new gets the fresh name."""
    for known, name in names.items():
        if all(a is None or b is None or a == b for a, b in zip(sizes, known, strict=True)):
            return name
    return names.setdefault(sizes, fresh)
