"""Splits a network into nodes that can be planned now and nodes that wait for sizes or values of a run.

A stage is what can be planned once certain shapes are known. It ends where a node's result has a size that follows from
values (`RunSized`: its bounded form belongs to the stage), where a node's shape follows from a value, and where a node
is the session's own (`ControlOp`). The rest of the network is split again when the stage has run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from weft.core.contract.error_context import blame
from weft.core.graph.control_op import ControlOp
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph, Names, Node, infer_node, name_outputs
from weft.core.graph.layout import Array
from weft.core.graph.limits import Budget
from weft.core.graph.op import Constants, new_op
from weft.core.graph.run_sized import RunSized
from weft.core.graph.tensor import SequenceSpec, TensorSpec
from weft.core.passes.constants import fold_node
from weft.core.passes.manager import PassContext
from weft.core.passes.wide_values import wide_values
from weft.errors import ExecutionError, ModelError, ValueNeeded

SMALL = 64
"""The host computes integers of at most so many elements to find a shape."""


@dataclass(frozen=True)
class Corner:
    """A value stored at index 0 of the larger tensor `room`. Its shape is `sizes[begin:begin + rank]`."""

    room: str
    sizes: str
    begin: int
    rank: int
    axis: int | None = None
    """The axis whose size a run counts."""

    def of(self, values: Mapping[str, Array]) -> Array:
        """Return the value, from what a run made; ExecutionError if the room has no such corner."""
        room, sizes = values[self.room], values[self.sizes][self.begin : self.begin + self.rank].tolist()
        if not all(0 <= size <= most for size, most in zip(sizes, room.shape, strict=True)):
            raise ExecutionError(
                f"a run counts more elements than there is room for, or fewer than none, in {self.room!r}",
                why=f"{self.sizes!r} says {sizes}, and there is room for {list(room.shape)}",
                fix="optimise the model again, if this is a saved network; else the device computes wrong sizes",
            )
        return room[tuple(map(slice, sizes))]


@dataclass(frozen=True, eq=False)
class Stage:
    """A graph that can be planned and what waits for it."""

    graph: Graph
    """Its outputs are what the rest reads, and the network's outputs that it makes."""
    corners: Mapping[str, Corner]
    """Values that the graph computes as corners of larger tensors, by name."""
    rest: Graph | None
    """The nodes that wait, with specs of constants alone; None if there are none."""
    wanted: frozenset[str]
    """Inputs of the graph whose values would let more nodes be planned."""
    reason: ModelError | None = None
    """Why the first node that waits for a value, rather than for another node, cannot be planned."""


def split(graph: Graph, budget: Budget) -> Stage:
    """Return the stage of a graph whose inputs have specs; an input without one is not a tensor.

    ModelError names the first node whose inputs do not fit.
    """
    return _Split(graph, budget).stage()


def is_staged(graph: Graph) -> bool:
    """Tell whether a graph has nodes or inputs that require a split, whatever its shapes."""
    if not all(is_tensor(graph.specs[i]) for i in graph.inputs):
        return True
    return any(isinstance(node.op, (ControlOp, RunSized)) for node in graph.nodes)


def is_tensor(spec: TensorSpec | None) -> bool:
    """Tell whether an input with that spec, if it has one, is a tensor."""
    return spec is not None and not isinstance(spec, SequenceSpec)


def chosen(node: Node, op: ControlOp, inputs: Constants) -> Graph | None:
    """Return the graph that replaces a node, as `ControlOp.chosen`; its errors name the node."""
    with blame(f"node {node.name!r} ({op.type})", "the graph of a node could not be chosen"):
        return op.chosen(inputs)


@dataclass
class _Split:
    given: Graph
    budget: Budget
    late: list[Node] = field(default_factory=list)
    blocked: set[str] = field(default_factory=set)
    corners: dict[str, Corner] = field(default_factory=dict)
    needed: set[str] = field(default_factory=set)
    reason: ModelError | None = None

    def stage(self) -> Stage:
        given = self.given
        self.graph = given.copy()
        self.names = Names(given)
        self.graph.nodes, self.context = [], PassContext(self.budget)
        self.blocked |= {i for i in given.inputs if not is_tensor(given.specs.get(i))}
        waiting = deque(alive(given))
        while waiting:
            node = waiting.popleft()
            if isinstance(node.op, ControlOp):
                body, index = chosen(node, node.op, self.graph.input_constants(node)), node.op.needs()
                if body is not None:
                    waiting.extendleft(reversed(inlined(self.graph, node, body, self.names)))
                elif index is not None and node.inputs[index] in self.blocked:
                    self._wait(node)
                else:
                    self._wait(node, ValueNeeded(f"{node.op.type} {node.name!r} runs between stages", index=index))
            elif any(i in self.blocked for i in node.inputs):
                self._wait(node)
            else:
                self._plan(node)
        return self._made()

    def _plan(self, node: Node) -> None:
        graph = self.graph
        try:
            infer_node(graph, node)
        except ValueNeeded as e:
            if not isinstance(node.op, RunSized) or e.index is not None:
                blocking = self.budget.blocking(node.inputs, f"node {node.name!r} ({node.op.type})")
                if blocking is not None:
                    raise blocking from e
                self._wait(node, e)
            else:
                self._bound(node, node.op)
            return
        values = fold_node(graph, node, self.context) if node.outputs else None
        if values is None:
            graph.nodes.append(node)
            return
        graph.constants.update((name, value) for name, value in zip(node.outputs, values, strict=False) if name)

    def _bound(self, node: Node, op: RunSized) -> None:
        """Plan the bounded form of a node; the readers of its true outputs wait."""
        node = name_outputs(node, self.names)
        most = len(op.room(self.graph.input_specs(node)))
        rooms = [self.names.fresh(f"{node.name}.room{k}") for k in range(most)]
        sizes = self.names.fresh(f"{node.name}.sizes")
        made = replace(node, op=op.with_bounds(self.graph.input_constants(node)), outputs=(*rooms, sizes))
        infer_node(self.graph, made)
        self.graph.nodes.append(made)
        begin = 0
        for k, room in enumerate(rooms):
            rank = len(self.graph.specs[room].dims)
            if k < len(node.outputs):
                axis = op.counted_axes()[k]
                self.corners[node.outputs[k]] = Corner(
                    room, sizes, begin, rank, None if axis is None else axis % rank
                )
            begin += rank
        self.blocked.update(node.outputs)

    def _wait(self, node: Node, why: ValueNeeded | None = None) -> None:
        self.late.append(node)
        self.blocked.update(o for o in node.outputs if o)
        if why is not None:
            self.reason = self.reason or why
            if why.index is not None:
                if why.index >= len(node.inputs) or not node.inputs[why.index]:
                    raise ModelError(
                        f"node {node.name!r} ({node.op.type}) lacks an input",
                        why=f"input {why.index} decides a shape, and there is none",
                        fix="export the model again, with this input",
                    )
                self.needed.add(node.inputs[why.index])

    def _made(self) -> Stage:
        graph, late = self.graph, self.late
        if not late and not self.corners:
            graph.inputs = list(self.given.inputs)
            # An earlier stage may have made the others.
            there = {*graph.inputs, *graph.constants, *(o for node in graph.nodes for o in node.outputs)}
            graph.outputs = [o for o in graph.outputs if o in there]
            graph.declared = {v: d for v, d in graph.declared.items() if v in there}
            return Stage(graph, {}, None, frozenset())
        wanted = self._wanted()
        read = {i for node in late for i in node.inputs if i}
        there = {o for node in graph.nodes for o in node.outputs if o}
        results = dict.fromkeys(graph.outputs)
        fetched = [v for v in dict.fromkeys((*sorted(read), *results)) if v in there]
        fetched += [
            each for v, c in self.corners.items() if v in read or v in results for each in (c.room, c.sizes)
        ]
        corners = {v: c for v, c in self.corners.items() if v in read or v in results}
        graph.wide = wide_values(self.given)
        rest = Graph(graph.name, [], list(graph.outputs), late, wide=graph.wide)
        made = {o for node in late for o in node.outputs if o}
        rest.constants = {v: graph.constants[v] for v in (*sorted(read), *results) if v in graph.constants}
        rest.specs = {v: graph.specs[v] for v in rest.constants}
        rest.inputs = [v for v in sorted(read) if v not in made and v not in rest.constants]
        graph.outputs = list(dict.fromkeys(fetched))
        rest.declared = {v: d for v, d in graph.declared.items() if v in made}
        graph.declared = {v: d for v, d in graph.declared.items() if v in set(graph.outputs)}
        graph.nodes = alive(graph)
        used = {i for node in graph.nodes for i in node.inputs}
        graph.inputs = [i for i in graph.inputs if i in used]
        for held in (graph.constants, graph.specs):
            for name in [v for v in held if v not in used and v not in there and v not in graph.inputs]:
                del held[name]
        return Stage(graph, corners, rest, wanted, self.reason)

    def _wanted(self) -> frozenset[str]:
        """Return the inputs that decide shapes, directly or through a few integers."""
        makers, found = self.graph.producers(), set[str]()
        for value in self.needed:
            cone, leaves, waiting, small = set[str](), set[str](), [value], True
            while waiting and small:
                each = waiting.pop()
                if each in cone or each in self.graph.constants:
                    continue
                cone.add(each)
                spec = self.graph.specs.get(each)
                small = spec is not None and (each == value or _is_small(spec))
                if each in makers:
                    waiting += [i for i in makers[each].inputs if i]
                elif each in self.given.inputs:
                    leaves.add(each)
                else:
                    small = False
            if small:
                found |= leaves
        return frozenset(found)


def _is_small(spec: TensorSpec) -> bool:
    return spec.is_static and spec.size <= SMALL and (spec.dtype is DType.BOOL or not spec.dtype.is_float)


def alive(graph: Graph) -> list[Node]:
    """Return the nodes that an output depends on, and those without outputs, which have side effects."""
    read, kept = set(graph.outputs), list[Node]()
    for node in reversed(graph.nodes):
        if not node.outputs or any(o in read for o in node.outputs):
            kept.append(node)
            read.update(node.inputs)
    return kept[::-1]


def inlined(graph: Graph, node: Node, body: Graph, free: Names) -> list[Node]:
    """Return the nodes of a body in the place of the node that holds it; its constants are added to the graph.

    What the body names gets names from `free`: those of the graph around it may be the same.
    """
    outer = node.inputs[len(node.inputs) - len(body.inputs) :]
    names = dict(zip(body.inputs, outer, strict=True))
    made = {o for each in body.nodes for o in each.outputs if o}
    results = dict(zip(body.outputs, node.outputs, strict=False))
    names |= {inner: out for inner, out in results.items() if inner in made and out}
    for name, value in body.constants.items():
        names[name] = free.fresh(f"{node.name}/{name}")
        graph.constants[names[name]], graph.specs[names[name]] = value, body.specs[name]

    def renamed(values: Iterable[str]) -> tuple[str, ...]:
        for v in values:
            if v and v not in names:
                names[v] = free.fresh(f"{node.name}/{v}")
        return tuple(names[v] if v else "" for v in values)

    nodes = [
        name_outputs(Node(free.fresh(f"{node.name}/{n.name}"), n.op, renamed(n.inputs), renamed(n.outputs)), free)
        for n in body.nodes
    ]
    for k, (inner, out) in enumerate(zip(body.outputs, node.outputs, strict=False)):
        if out and names.get(inner) != out:
            nodes.append(Node(free.fresh(f"{node.name}/output {k}"), new_op("Identity"), renamed((inner,)), (out,)))
    return nodes


def without(graph: Graph, done: Collection[str]) -> Graph:
    """Return what is left of a graph that waits when the nodes of these names have run."""
    left = graph.copy()
    left.nodes = [n for n in graph.nodes if n.name not in done]
    made = {o for n in left.nodes for o in n.outputs if o}
    read = {i for n in left.nodes for i in n.inputs if i}
    left.inputs = sorted(read - made - left.constants.keys())
    return left
