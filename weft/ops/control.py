"""Control flow: If, Loop and Scan. Their graphs run on the session's devices, stage by stage."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from weft.core.graph.control_op import ControlOp, RunGraph, Value, given_value
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph, Names, Node, infer_node
from weft.core.graph.layout import Array
from weft.core.graph.op import Constants, standard_op
from weft.core.graph.tensor import TensorSpec
from weft.core.passes.constants import fold_node
from weft.core.passes.manager import PassContext
from weft.errors import ModelError
from weft.ops.concat import Concat
from weft.ops.random import draws, in_step, known_step, numbered
from weft.ops.shape import Identity, Unsqueeze, one_axis, optional, unfit

MOST_UNROLLED = 256
"""A loop of known length is unrolled if it becomes at most so many nodes."""
MOST_GIVING_SHAPES = 64
"""The most elements of a value that may give the shape of what a body makes that never runs."""


def body_of(body: Graph | None) -> Graph:
    """Return an attribute that is a graph; ModelError if it is missing."""
    if body is None:
        raise unfit("a graph is missing")
    return body


def unlike(body: Graph | None, inputs: int, states: int, outputs: int) -> str:
    """Return how a graph differs from one of so many inputs, first outputs, and outputs in all; "" if it does not."""
    if body is None:
        return "a graph is missing"
    if len(body.inputs) != inputs:
        return f"its graph has {len(body.inputs)} input(s) and gets {inputs}"
    if len(body.outputs) < max(states, outputs):
        return f"its graph makes {len(body.outputs)} output(s), and {max(states, outputs)} are needed"
    return ""


def iterations(value: Value) -> int | None:
    """Return the most iterations that an input of a loop allows, None if it is missing; ModelError if it is none."""
    if value is None:
        return None
    if not isinstance(value, np.ndarray) or value.size != 1 or value.dtype.kind not in "iu":
        raise unfit("the number of iterations is not one integer")
    return int(value.reshape(-1)[0])


@standard_op
class If(ControlOp):
    """One of two graphs, by a condition; inputs the condition, and the captures."""

    then_branch: Graph | None = None
    else_branch: Graph | None = None

    def misfit(self, inputs: int, outputs: int) -> str:
        """Return why no node of so many inputs and outputs can have this op."""
        if self.captures != inputs - 1:
            return f"it captures {self.captures} of {inputs} input(s)"
        found = (unlike(branch, self.captures, 0, outputs) for branch in (self.then_branch, self.else_branch))
        return next(filter(None, found), "")

    def needs(self) -> int | None:
        """Return the condition: once it is known, the branch's nodes replace the op."""
        return 0

    def chosen(self, inputs: Constants) -> Graph | None:
        """Return the branch."""
        condition = optional(inputs, 0)
        return None if condition is None else self.branch(condition)

    def branch(self, condition: Value) -> Graph:
        """Return the branch for a condition."""
        return body_of(self.then_branch if truth(condition, "the condition") else self.else_branch)

    def execute(self, inputs: Sequence[Value], run: RunGraph) -> Sequence[Value]:
        return run(self.branch(inputs[0]), inputs[1:])


@standard_op
class Loop(ControlOp):
    """A graph that runs repeatedly; inputs the most iterations, the condition, the carried values, the captures.

    The body reads the iteration's number, the condition and the carried values. It makes the next condition and carried
    values, and outputs that are stacked over all iterations.
    """

    body: Graph | None = None

    def misfit(self, inputs: int, outputs: int) -> str:
        """Return why no node of so many inputs and outputs can have this op."""
        carried = max(inputs - self.captures - 2, 0)
        body = unlike(self.body, 2 + carried + self.captures, 1 + carried, outputs + 1)
        return super().misfit(inputs, outputs) or body

    @cached_property
    def each(self) -> Graph:
        """The body of each iteration."""
        body = body_of(self.body)
        return in_step(body, body.inputs[0]) if draws(body) else body

    def chosen(self, inputs: Constants) -> Graph | None:
        """Return all iterations as one graph, if their number is known and they have few nodes, with inner loops'."""
        body, count, condition = self.each, optional(inputs, 0), optional(inputs, 1)
        formal = len(inputs) - self.captures
        if formal < 2:
            return None
        steps = iterations(count)
        begins = condition is not None and truth(condition, "the condition")
        if steps is None or not begins or not _keeps_on(body) or not 1 <= steps <= MOST_UNROLLED:
            return None
        captured = dict(zip(body.inputs[2 + formal - 2 :], inputs[formal:], strict=True))
        if steps * max(_nodes_of(body, captured), len(body.outputs) - formal + 1) > MOST_UNROLLED:
            return None
        return _unrolled(body, steps, formal - 2, self.captures)

    def first_runs(self, inputs: Sequence[Value]) -> Sequence[tuple[Graph, Sequence[Value]]]:
        """Return the body with what the first iteration reads."""
        formal, captured = inputs[: len(inputs) - self.captures], inputs[len(inputs) - self.captures :]
        return [(self.each, [np.asarray(0, np.int64), np.asarray(True), *formal[2:], *captured])]

    def foreseen(
        self, inputs: Sequence[Value], constants: Constants, ends: Sequence[Sequence[Value] | None]
    ) -> Sequence[Value]:
        """Return the carried values that keep their shapes, and what is stacked if the most iterations are known."""
        (end,), formal = ends, inputs[: len(inputs) - self.captures]
        if end is None:
            return ()
        carried = _steady(formal[2:], end[1:])
        if any(value is None for value in carried):  # the next iteration may make other shapes
            return carried
        count = iterations(optional(constants, 0))
        return [*carried, *(_repeated(value, count) for value in end[1 + len(carried) :])]

    def execute(self, inputs: Sequence[Value], run: RunGraph) -> Sequence[Value]:
        """Return the carried values after the last iteration, and what was stacked."""
        body = self.each
        formal, captured = (
            list(inputs[: len(inputs) - self.captures]),
            list(inputs[len(inputs) - self.captures :]),
        )
        limit = iterations(given_value(formal, 0))
        begins = given_value(formal, 1)
        carried = formal[2:]
        goes_on, step = begins is None or truth(begins, "the condition"), 0
        stacked: list[list[Array]] = [[] for _ in body.outputs[1 + len(carried) :]]
        while goes_on and (limit is None or step < limit):
            made = run(body, [np.asarray(step, np.int64), np.asarray(goes_on), *carried, *captured])
            goes_on, carried = truth(made[0], "the condition"), made[1 : 1 + len(carried)]
            for held, value in zip(stacked, made[1 + len(carried) :], strict=True):
                held.append(np.asarray(value))
            step += 1
        first = [np.asarray(0, np.int64), np.asarray(True), *carried, *captured]
        return [*carried, *(stack(held, body, 1 + len(carried) + k, first) for k, held in enumerate(stacked))]


@standard_op
class Scan(ControlOp):
    """A graph that runs for each slice of its inputs; inputs the states, the scanned tensors, the captures.

    Axes and directions are as in opset 9 and later, one for each scanned input or stacked output; 1 is backwards.
    """

    body: Graph | None = None
    num_scan_inputs: int = 1
    scan_input_axes: tuple[int, ...] = ()
    scan_input_directions: tuple[int, ...] = ()
    scan_output_axes: tuple[int, ...] = ()
    scan_output_directions: tuple[int, ...] = ()
    batched: bool = False
    """Whether axis 0 is that of a batch: opset 8."""
    lengths: bool = False
    """Whether the first input is a length for each of a batch."""

    def misfit(self, inputs: int, outputs: int) -> str:
        """Return why no node of so many inputs and outputs can have this op."""
        given = inputs - int(self.lengths)
        states = given - self.captures - self.num_scan_inputs
        if self.num_scan_inputs < 1 or states < 0:
            return f"it scans {self.num_scan_inputs} of {given - self.captures} input(s)"
        return super().misfit(inputs, outputs) or unlike(self.body, given, states, outputs)

    @cached_property
    def each(self) -> Graph:
        """The body of each step; if it draws random numbers, it reads the number of the step first."""
        return numbered(body_of(self.body))

    def first_runs(self, inputs: Sequence[Value]) -> Sequence[tuple[Graph, Sequence[Value]]]:
        """Return the body with the first slices; nothing where there is none, or where an input is no tensor."""
        formal, captured = inputs[: len(inputs) - self.captures], inputs[len(inputs) - self.captures :]
        arrays = [value for value in formal[int(self.lengths) :] if isinstance(value, np.ndarray)]
        if len(arrays) + int(self.lengths) < len(formal) or any(0 in a.shape for a in arrays):
            return ()
        arrays = [a[0] for a in arrays] if self.batched else arrays
        states, scanned = arrays[: len(arrays) - self.num_scan_inputs], arrays[len(arrays) - self.num_scan_inputs :]
        axes = [one_axis(optional(self.scan_input_axes, k) or 0, a.ndim) for k, a in enumerate(scanned)]
        slices = [a[(slice(None),) * axis + (0,)] for a, axis in zip(scanned, axes, strict=True)]
        number = [] if self.each is body_of(self.body) else [np.asarray(0)]
        return [(self.each, [*number, *states, *map(np.asarray, slices), *captured])]

    def foreseen(
        self, inputs: Sequence[Value], constants: Constants, ends: Sequence[Sequence[Value] | None]
    ) -> Sequence[Value]:
        """Return the states that keep their shapes, and what is stacked; nothing for a batch of scans."""
        formal = [np.asarray(v) for v in inputs[: len(inputs) - self.captures]]
        if self.batched or len(ends) != 1 or ends[0] is None:
            return ()
        scanned, end = formal[len(formal) - self.num_scan_inputs :], ends[0]
        begun = formal[: len(formal) - self.num_scan_inputs]
        states = _steady(begun, end)
        if any(value is None for value in states):
            return states
        length = scanned[0].shape[one_axis(optional(self.scan_input_axes, 0) or 0, scanned[0].ndim)]
        outputs: list[Value] = [*states]
        for k, value in enumerate(end[len(states) :]):
            whole = _repeated(value, length)
            if isinstance(whole, np.ndarray):
                axis = one_axis(optional(self.scan_output_axes, k) or 0, whole.ndim)
                whole = np.moveaxis(whole, 0, axis)
            outputs.append(whole)
        return outputs

    def execute(self, inputs: Sequence[Value], run: RunGraph) -> Sequence[Value]:
        """Return the states after the last slice, and what was stacked."""
        formal, captured = (
            list(inputs[: len(inputs) - self.captures]),
            list(inputs[len(inputs) - self.captures :]),
        )
        if not self.batched:
            return self._scan(formal, captured, run)
        lengths = formal.pop(0) if self.lengths else None
        arrays = [np.asarray(value) for value in formal]
        scanned = arrays[len(arrays) - self.num_scan_inputs :]
        length = scanned[0].shape[1]
        rows = []
        for k in range(arrays[0].shape[0]):
            steps = length if lengths is None else int(np.asarray(lengths)[k])
            states = [np.asarray(a[k]) for a in arrays[: len(arrays) - self.num_scan_inputs]]
            rows.append(self._scan([*states, *(a[k][:steps] for a in scanned)], captured, run, k * length))
        states_count = len(arrays) - self.num_scan_inputs
        if not rows:
            body = body_of(self.body)
            first = [
                TensorSpec(a.shape[1 if k < states_count else 2 :], DType.of(a.dtype)) for k, a in enumerate(arrays)
            ]
            stacked = [stack([], body, k, [*first, *captured]) for k in range(states_count, len(body.outputs))]
            return [*arrays[:states_count], *(np.zeros((0, length, *a.shape[1:]), a.dtype) for a in stacked)]
        return [
            np.stack([_lengthened(np.asarray(row[k]), length if k >= states_count else None) for row in rows])
            for k in range(len(rows[0]))
        ]

    def _scan(
        self, formal: Sequence[Value], captured: Sequence[Value], run: RunGraph, first: int = 0
    ) -> list[Value]:
        body, each, count = body_of(self.body), self.each, self.num_scan_inputs
        states, scanned = (
            list(formal[: len(formal) - count]),
            [np.asarray(v) for v in formal[len(formal) - count :]],
        )
        axes = [one_axis(optional(self.scan_input_axes, k) or 0, a.ndim) for k, a in enumerate(scanned)]
        lengths = {a.shape[axis] for a, axis in zip(scanned, axes, strict=True)}
        if len(lengths) != 1:
            raise unfit(f"what is scanned has {sorted(lengths)} slices")
        (length,) = lengths
        backwards = [bool(optional(self.scan_input_directions, k)) for k in range(count)]
        stacked: list[list[Array]] = [[] for _ in body.outputs[len(states) :]]
        for step in range(length):
            slices = [
                np.asarray(a.take(length - 1 - step if back else step, axis))
                for a, axis, back in zip(scanned, axes, backwards, strict=True)
            ]
            number = [] if each is body else [np.asarray(first + step)]
            made = run(each, [*number, *states, *slices, *captured])
            states = made[: len(states)]
            for held, value in zip(stacked, made[len(states) :], strict=True):
                held.append(np.asarray(value))
        outputs: list[Value] = [*states]
        forms = [
            TensorSpec((*a.shape[:axis], *a.shape[axis + 1 :]), DType.of(a.dtype))
            for a, axis in zip(scanned, axes, strict=True)
        ]
        for k, held in enumerate(stacked):
            if optional(self.scan_output_directions, k):
                held.reverse()
            whole = stack(held, body, len(states) + k, [*states, *forms, *captured])
            outputs.append(np.moveaxis(whole, 0, one_axis(optional(self.scan_output_axes, k) or 0, whole.ndim)))
        return outputs


def _steady(before: Sequence[Value], after: Sequence[Value]) -> list[Value]:
    """Return the values after an iteration that are tensors of the shapes and types from before it, None for others."""

    def form(value: Value) -> object:
        return (value.shape, value.dtype) if isinstance(value, np.ndarray) else object()

    return [new if form(old) == form(new) else None for old, new in zip(before, after, strict=False)]


def _repeated(value: Value, count: int | None) -> Array | None:
    """Return a value of the shape that so many stacked ones have, without memory of its own; None if that is open.

    It is, too, if no memory holds them: a value may end the loop earlier.
    """
    if count is None or not isinstance(value, np.ndarray) or count * max(value.nbytes, 1) > sys.maxsize:
        return None
    return np.broadcast_to(value, (max(count, 0), *value.shape))


def truth(value: Value, what: str) -> bool:
    """Return a tensor of one element as a bool; ModelError for anything else."""
    if not isinstance(value, np.ndarray) or value.size != 1:
        raise unfit(f"{what} is not one bool")
    return bool(value.reshape(-1)[0])


def stack(values: list[Array], body: Graph, index: int, first: Sequence[Value | TensorSpec]) -> Array:
    """Return slices stacked on a new first axis; without slices, an empty array of the shape that the body makes.

    The body declares that shape, or it follows from `first`: the inputs of its first run, or their specs.
    """
    output = body.outputs[index]
    if values:
        if len({(v.shape, v.dtype) for v in values}) > 1:
            raise unfit(f"output {output!r} of the body has another shape in each iteration")
        return np.stack(values)
    declared = body.declared.get(output)
    if declared is not None and declared.dtype is not None and declared.shape is not None:
        return np.zeros((0, *(d or 0 for d in declared.shape)), declared.dtype.numpy)
    spec = _foreseen_spec(body, first, output)
    if spec is None:
        raise ModelError(
            "a loop of no iterations makes an output of unknown shape",
            why=f"its body does not declare the shape of {output!r}, which only a run of the body tells",
            fix="export the model with the shapes of the body's outputs, or let the loop run at least once",
        )
    return np.zeros((0, *spec.dims), spec.dtype.numpy)


def _foreseen_spec(body: Graph, inputs: Sequence[Value | TensorSpec], output: str) -> TensorSpec | None:
    """Return the spec that a value of a body has for these inputs; None if that does not follow from their shapes.

    Inputs of few elements, and what follows from them, are used as in the first run, because they may give a shape.
    """
    graph, context = body.copy(), PassContext()
    for name, value in zip(body.inputs, inputs, strict=True):
        if isinstance(value, TensorSpec):
            graph.specs[name] = value
        elif isinstance(value, np.ndarray):
            graph.specs[name] = TensorSpec(value.shape, DType.of(value.dtype))
            if value.size <= MOST_GIVING_SHAPES:
                graph.constants[name] = value
    for node in body.nodes:
        if not all(i in graph.specs for i in node.inputs if i):
            continue
        try:
            infer_node(graph, node)
        except ModelError:  # its shapes follow from a value, or what it reads does not fit
            continue
        if all(graph.specs[o].size <= MOST_GIVING_SHAPES for o in node.outputs if o):
            made = fold_node(graph, node, context) or ()
            graph.constants.update((o, v) for o, v in zip(node.outputs, made, strict=False) if o)
    return graph.specs.get(output)


def _lengthened(value: Array, length: int | None) -> Array:
    if length is None or value.shape[0] == length:
        return value
    return np.concatenate([value, np.zeros((length - value.shape[0], *value.shape[1:]), value.dtype)])


def _keeps_on(body: Graph) -> bool:
    """Tell whether the body leaves the condition unchanged, or makes it always true."""
    name, makers = body.outputs[0], body.producers()
    while name in makers and isinstance(makers[name].op, Identity):
        name = makers[name].inputs[0]
    known = body.constants.get(name)
    return name == body.inputs[1] or (known is not None and known.size == 1 and bool(known.reshape(-1)[0]))


def _nodes_of(graph: Graph, known: Mapping[str, Array | None]) -> int:
    """Return how many nodes a graph becomes at most, once branches are chosen and loops in it unrolled.

    `known` are the inputs of the graph that are constants. The number of a loop that is open may be known by then.
    """
    count, known = 0, {**graph.constants, **known}
    for node in graph.nodes:
        op, count = node.op, count + 1
        if not isinstance(op, (If, Loop)):
            continue
        captured = [known.get(i) for i in node.inputs[len(node.inputs) - op.captures :]]
        held = (body_of(each) for each in ([op.body] if isinstance(op, Loop) else [op.then_branch, op.else_branch]))
        inner = max(
            _nodes_of(each, dict(zip(each.inputs[len(each.inputs) - op.captures :], captured, strict=True)))
            for each in held
        )
        if isinstance(op, Loop):
            steps = iterations(known.get(node.inputs[0])) if node.inputs and node.inputs[0] else None
            inner = MOST_UNROLLED if steps is None else steps * inner
            inner = inner if inner <= MOST_UNROLLED else 0  # it is not unrolled then
        count += inner
    return count


def _unrolled(body: Graph, steps: int, carried: int, captures: int) -> Graph:
    """Return a graph of so many iterations; its inputs are count, condition, carried values and captures."""
    constants, fresh = dict(body.constants), Names(body).fresh
    outer = body.inputs[len(body.inputs) - captures :] if captures else []
    begin = [fresh(f"begin.{k}") for k in range(carried)]
    inputs = [fresh("count"), fresh("condition"), *begin, *outer]
    out = Graph(body.name, inputs, [], constants=constants, specs=dict(body.specs))

    def constant(base: str, value: Array) -> str:
        name = fresh(base)
        out.constants[name], out.specs[name] = value, TensorSpec(value.shape, DType.of(value.dtype))
        return name

    states, stacked = list(begin), [list[str]() for _ in body.outputs[1 + carried :]]
    axis = constant("stacked.axis", np.zeros(1, np.int64))
    for step in range(steps):
        number = constant(f"{step}/number", np.asarray(step, np.int64))
        going = constant(f"{step}/going", np.asarray(True))
        names = dict(zip(body.inputs, [number, going, *states, *outer], strict=True))
        names |= {name: name for name in body.constants}
        for node in (known_step(node, body.inputs[0], step) for node in body.nodes):
            reads = tuple(names[i] if i else "" for i in node.inputs)
            name = fresh(f"{step}/{node.name}")
            names |= {o: fresh(f"{step}/{o}") for o in node.outputs if o}
            makes = tuple(names[o] if o else "" for o in node.outputs)
            out.nodes.append(replace(node, name=name, inputs=reads, outputs=makes))
        states = [names[o] for o in body.outputs[1 : 1 + carried]]
        for k, value in enumerate(body.outputs[1 + carried :]):
            row = fresh(f"{step}/row {k}")
            out.nodes.append(Node(row, Unsqueeze(), (names[value], axis), (row,)))
            stacked[k].append(row)
    wholes = [fresh(f"stacked {k}") for k in range(len(stacked))]
    for whole, rows in zip(wholes, stacked, strict=True):
        out.nodes.append(Node(whole, Concat(axis=0), tuple(rows), (whole,)))
    out.outputs = [*states, *wholes]
    return out
