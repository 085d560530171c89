"""Ops in terms of other ops. Where a device has no kernel for such an op, it runs the op's parts.

There are two kinds. A `Composite` is nothing but its parts: they give its shapes and its reference, too. An op that has
a rule for shapes and a reference of its own registers a `decomposition`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import prod
from typing import Any, ClassVar

import numpy as np

from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph, Names, Node, infer_node
from weft.core.graph.interpreter import evaluate, values
from weft.core.graph.later_constants import fold_symbolic
from weft.core.graph.layout import Array, Shape
from weft.core.graph.op import Constants, Op, new_op
from weft.core.graph.symbolic import LaterConstant, SymbolicInt, int_array, is_symbolic, key_of
from weft.core.graph.tensor import TensorSpec
from weft.errors import ModelError

MOST_KEPT = 512
"""How many bodies are kept for runs on the host."""
MOST_COMPUTED = 1 << 20
"""The most elements of a result that a body computes as it is made."""
MOST_COMPARED = 1 << 10
"""The most elements of constants that are compared by value."""
SIZED_BY_VALUES = frozenset({"ConstantOfShape", "Expand", "Pad", "Range", "Resize", "Tile"})
"""Ops whose results may be larger than all their inputs, multiplied."""


class Body:
    """Builds nodes in a graph, which gets their specs and constants. Values are named by strings.

    Sizes may be open (`SymbolicInt`). Make constants of them by `ints`, `integer`, `counting` and `zeros`, and compute
    further with nodes: what constants decide becomes a constant, if need be one that is computed for each size.
    """

    def __init__(self, graph: Graph, label: str, names: Names) -> None:
        self.graph, self.label, self.names = graph, label, names
        self.nodes: list[Node] = []
        self.added: list[str] = []

    def dims(self, value: str) -> Shape:
        """Return the shape of a value."""
        return self.graph.specs[value].dims

    def dtype(self, value: str) -> DType:
        """Return the element type of a value."""
        return self.graph.specs[value].dtype

    def known(self, value: str) -> Array | None:
        """Return the value of a constant, None for everything else."""
        return self.graph.constants.get(value)

    def constant(self, value: Array) -> str:
        """Add a constant."""
        return self._constant(value, TensorSpec(value.shape, DType.of(value.dtype)))

    def _constant(self, value: Array | LaterConstant, spec: TensorSpec) -> str:
        name = self.names.fresh(f"{self.label}.constant")
        self.added.append(name)
        self.graph.constants[name] = value  # type: ignore[assignment]  # an array that nobody may read yet
        self.graph.specs[name] = spec
        return name

    def ints(self, *numbers: int) -> str:
        """Add a constant list of int64."""
        return self._constant(int_array(numbers), TensorSpec((len(numbers),), DType.INT64))

    def integer(self, number: int) -> str:
        """Add a constant scalar of int64."""
        return self._constant(int_array([number]).reshape(()), TensorSpec((), DType.INT64))

    def counting(self, count: int, *shape: int) -> str:
        """Add the constant int64 numbers from 0 to before `count`, as a list or in another shape."""
        row = self.add("Range", self.integer(0), self.integer(count), self.integer(1))
        return self.reshape(row, *shape) if shape else row

    def zeros(self, dtype: DType, *shape: int) -> str:
        """Add a constant of zeros."""
        return self.add("Expand", self.constant(np.zeros((), dtype.numpy)), self.ints(*shape))

    def number(self, value: float, like: str) -> str:
        """Add a scalar of the type of another value."""
        return self.constant(np.asarray(value, self.dtype(like).numpy))

    def add(self, kind: str, *inputs: str, made: int = 1, **attributes: Any) -> str:
        """Add a node of `made` outputs and return the first."""
        return self.all(kind, *inputs, made=made, **attributes)[0]

    def all(self, kind: str, *inputs: str, made: int, **attributes: Any) -> tuple[str, ...]:
        """Add a node and return its outputs; a composite adds its own nodes, and what constants decide is computed.

        More than `MOST_COMPUTED` elements stay a node: the pass that folds constants has a budget.
        """
        op = new_op(kind, **attributes)
        if isinstance(op, Composite):
            return tuple(op.body(self, inputs))[:made]
        given = [self.known(i) if i else None for i in inputs]
        is_known = any(inputs) and all(value is not None for i, value in zip(inputs, given, strict=True) if i)
        is_plain = is_known and not any(map(is_symbolic, given))
        if is_plain and self._is_small(op, inputs, given):
            return tuple(self.constant(value) for value in evaluate(op, given)[:made])
        name = self.names.fresh(f"{self.label}.{kind}")
        node = Node(name, op, inputs, (name, *(self.names.fresh(name) for _ in range(1, made))))
        infer_node(self.graph, node)
        if is_known and not is_plain:
            later = zip(fold_symbolic(self.graph, node), node.outputs, strict=True)
            return tuple([self._constant(value, self.graph.specs.pop(output)) for value, output in later])
        self.added += node.outputs
        self.nodes.append(node)
        return node.outputs

    def _is_small(self, op: Op, inputs: Sequence[str], given: Constants) -> bool:
        """Tell whether what constants make is small: few ops make more than all numbers of elements, multiplied."""
        if op.type not in SIZED_BY_VALUES and prod(a.size or 1 for a in given if a is not None) <= MOST_COMPUTED:
            return True
        specs = op.inferred([self.graph.specs[i] if i else None for i in inputs], given)
        return sum(spec.size for spec in specs) <= MOST_COMPUTED

    def reshape(self, value: str, *shape: int) -> str:
        """Return a value under another shape."""
        if self.dims(value) == shape:
            return value
        return self.add("Reshape", value, self.ints(*shape), allowzero=int(0 in shape))

    def cast(self, value: str, to: DType) -> str:
        """Return a value as another element type."""
        return value if self.dtype(value) is to else self.add("Cast", value, to=to)

    def part(self, value: str, axis: int, start: int, end: int, step: int = 1) -> str:
        """Return the elements from `start` to before `end` of one axis."""
        whole = start == 0 and end >= self.dims(value)[axis] and step == 1
        if whole:
            return value
        return self.add("Slice", value, self.ints(start), self.ints(end), self.ints(axis), self.ints(step))

    def split(self, value: str, *sizes: int) -> tuple[str, ...]:
        """Return parts along the last axis."""
        count = len(sizes)
        return self.all("Split", value, self.ints(*sizes), made=count, axis=-1, outputs=count)

    def finish(self, results: Sequence[str], outputs: Sequence[str]) -> list[Node]:
        """Return the nodes that `results` need, so renamed that these are called `outputs`."""
        made = {name for node in self.nodes for name in node.outputs}
        names: dict[str, str] = {}
        for result, output in zip(results, outputs, strict=True):
            if result in made and result not in names:
                names[result] = output
            else:  # an input, a constant, or what is already another output
                name = self.names.fresh(f"{self.label}.Identity")
                self.nodes.append(Node(name, new_op("Identity"), (result,), (output,)))
        wanted, kept = {*outputs}, list[Node]()
        for node in reversed(self.nodes):
            node = replace(
                node,
                inputs=tuple(names.get(i, i) for i in node.inputs),
                outputs=tuple(names.get(o, o) for o in node.outputs),
            )
            if wanted.intersection(node.outputs):
                wanted.update(node.inputs)
                kept.append(node)
        return kept[::-1]


def padded(inputs: Sequence[str], count: int) -> list[str]:
    """Return the names of so many inputs, "" for those at the end that a node does not have."""
    return [*inputs, *[""] * count][:count]


@dataclass(frozen=True)
class Composite(Op):
    """An op that other ops define. `outputs` is the number of outputs of the node."""

    shaped_by: ClassVar[tuple[int, ...]] = ()
    """The inputs whose values decide shapes. One that a run computes makes `body` raise ValueNeeded."""
    least_inputs: ClassVar[int] = 0
    """How many inputs, the first ones, a node must have. Where `body` checks that itself, it is 0."""
    outputs: int = field(default=1, kw_only=True)

    def sharing(self) -> Composite:
        """Return the op for a node of which outputs may lie in inputs (`Graph.aliases`): by default the op itself."""
        return self

    @abstractmethod
    def body(self, make: Body, inputs: Sequence[str]) -> Sequence[str]:
        """Add the nodes and return the results; "" stands for a missing input.

        Which nodes there are may depend on shapes, types and the constants that `shaped_by` names.
        Raise ModelError where the inputs do not fit.
        """

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        """Return the specs of what the body makes; ModelError if it has too few inputs."""
        missing = [k for k in range(self.least_inputs) if k >= len(inputs) or inputs[k] is None]
        if missing:
            raise ModelError(
                f"{self.type} does not fit",
                why=f"it needs the first {self.least_inputs} inputs; missing: {', '.join(map(str, missing))}",
                fix="connect them",
            )
        known = {k: v for k in self.shaped_by if k < len(constants) and (v := constants[k]) is not None}
        kept, key = _place(self, inputs, known)
        found = None if key is None else kept.get(key)
        if found is None:
            make, names = _begun(inputs, known)
            results = self.body(make, names)
            found = tuple(make.graph.specs[name] for name in results[: self.outputs])
            if key is not None:
                if len(kept) >= MOST_KEPT:
                    kept.clear()
                kept[key] = found
        return found

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        """Return what the references of the body's nodes compute."""
        specs = tuple(None if a is None else TensorSpec(a.shape, DType.of(a.dtype)) for a in inputs)
        known = tuple((k, _frozen(a)) for k in self.shaped_by if k < len(inputs) and (a := inputs[k]) is not None)
        graph = _body(self, specs, known)
        found = values(graph, {f"x{k}": a for k, a in enumerate(inputs) if a is not None})
        return tuple(found[name] for name in graph.outputs)


_INFERRED: dict[object, tuple[TensorSpec, ...]] = {}
"""What composites inferred without open sizes: the layers of a network are alike."""


def _place(
    op: Composite, specs: Sequence[TensorSpec | None], known: Mapping[int, Array]
) -> tuple[dict[object, tuple[TensorSpec, ...]], object]:
    """Return where what an op infers is kept, and by which key; the key is None if it is not kept."""
    numbers: list[Any] = [n for spec in specs if spec is not None for n in spec.shape]
    values: list[object] = []
    for k, value in known.items():
        if isinstance(value, LaterConstant):
            return _INFERRED, None
        if value.dtype == object:
            numbers += value.reshape(-1).tolist()
            values.append((k, value.shape, key_of(value.reshape(-1).tolist())))
        else:
            values.append((k, *_frozen(value)))
    given = tuple(None if spec is None else (key_of(spec.shape), spec.dtype) for spec in specs)
    key = (op, given, tuple(values))
    try:
        hash(key)
    except TypeError:  # an attribute, such as a graph, has no hash
        return _INFERRED, None
    open_size = next((n for n in numbers if type(n) is SymbolicInt), None)
    return _INFERRED if open_size is None else open_size.sizes.inferred, key


def _frozen(array: Array) -> tuple[str, Shape, bytes]:
    return array.dtype.str, array.shape, array.tobytes()


@lru_cache(maxsize=MOST_KEPT)
def _body(
    op: Composite, specs: tuple[TensorSpec | None, ...], known: tuple[tuple[int, tuple[str, Shape, bytes]], ...]
) -> Graph:
    constants = {k: np.frombuffer(data, dtype).reshape(shape) for k, (dtype, shape, data) in known}
    make, names = _begun(specs, constants)
    results = op.body(make, names)[: op.outputs]
    outputs = [f"y{k}" for k in range(len(results))]
    return replace(make.graph, nodes=make.finish(results, outputs), outputs=outputs)


def _begun(specs: Sequence[TensorSpec | None], constants: Mapping[int, Array]) -> tuple[Body, list[str]]:
    graph = Graph("body", [], [])
    names = [f"x{k}" if spec is not None else "" for k, spec in enumerate(specs)]
    graph.specs = {name: spec for name, spec in zip(names, specs, strict=True) if spec is not None}
    graph.constants = {f"x{k}": value for k, value in constants.items()}
    graph.inputs = list(graph.specs)
    return Body(graph, "body", Names(graph)), names


def with_bodies(graph: Graph, bodies: Mapping[str, Callable[[Body], str]]) -> Graph:
    """Return the graph with other nodes in place of some, by name. Each adds its own, and returns the node's output."""
    out, names, nodes = graph.copy(), Names(graph), list[Node]()
    for node in graph.nodes:
        if node.name in bodies:
            make = Body(out, node.name, names)
            nodes += make.finish([bodies[node.name](make)], node.outputs)
        else:
            nodes.append(node)
    out.nodes = nodes
    return out


Decomposition = Callable[[Any, Body, Node], Sequence[str]]
"""Adds the parts of a node with an op, and returns their results; none if the node stays whole."""
_DECOMPOSITIONS: dict[str, Decomposition] = {}
"""By op type."""


def decomposition(op_type: str) -> Callable[[Decomposition], Decomposition]:
    """Register the decorated function for ops of a type."""

    def register(decompose: Decomposition) -> Decomposition:
        _DECOMPOSITIONS[op_type] = decompose
        return decompose

    return register


class Parts:
    """Takes nodes of a graph apart. The layers of a network are alike: what the first one was made into is copied."""

    def __init__(self, graph: Graph, names: Names) -> None:
        self._graph, self._names = graph, names
        self._made: dict[object, tuple[Node, Sequence[str], Sequence[Node]]] = {}
        """By what they follow from: a node, the values that its parts brought, and the parts."""

    def of(self, node: Node) -> list[Node]:
        """Return the parts that make a node's outputs; the graph gets the specs and constants of their values."""
        key = self._key(node)
        known = None if key is None else self._made.get(key)
        if known is not None:
            return self._copied(*known, node)
        make, decompose = Body(self._graph, node.name, self._names), decomposition_of(node.op)
        assert decompose is not None
        results = decompose(node.op, make, node)
        parts = make.finish(results[: len(node.outputs)], node.outputs)
        for part in parts:
            infer_node(self._graph, part)
        if key is not None:
            self._made[key] = node, make.added, parts
        return parts

    def _key(self, node: Node) -> object:
        """Return what the parts of a node follow from; None if nothing tells it from others."""
        given: list[object] = [node.op, *map(bool, node.outputs)]
        for name in node.inputs:
            value, spec = self._graph.constants.get(name), self._graph.specs.get(name)
            given.append(None if spec is None else (node.inputs.index(name), key_of(spec.shape), spec.dtype))
            if value is not None:
                if is_symbolic(value):
                    return None
                given.append(_frozen(value) if value.size <= MOST_COMPARED else id(value))
        key = tuple(given)
        try:
            hash(key)
        except TypeError:  # an attribute, such as a graph, has no hash
            return None
        return key

    def _copied(self, like: Node, added: Sequence[str], parts: Sequence[Node], node: Node) -> list[Node]:
        graph, names = self._graph, self._names
        renamed = dict(zip((*like.inputs, *like.outputs), (*node.inputs, *node.outputs), strict=True))
        used = {name for part in parts for name in (part.name, *part.inputs, *part.outputs)} - renamed.keys()
        for name in (*(name for name in added if name in used), *(part.name for part in parts)):
            if name not in renamed:
                renamed[name] = names.fresh(f"{node.name}{name.removeprefix(like.name)}")
        for old, new in renamed.items():
            if old in graph.specs and (old in used or old in like.outputs):
                graph.specs[new] = graph.specs[old]
            if old in graph.constants and old in used:
                graph.constants[new] = graph.constants[old]

        def those(values: Sequence[str]) -> tuple[str, ...]:
            return tuple([renamed.get(name, name) for name in values])

        return [Node(renamed[part.name], part.op, those(part.inputs), those(part.outputs)) for part in parts]


def why_whole(make: Body, node: Node) -> str:
    """Return what the op of a node answers to `Op.why_whole`."""
    shapes = [make.dims(name) if name else None for name in node.inputs]
    constants = [make.known(name) if name else None for name in node.inputs]
    return node.op.why_whole(shapes, constants, [make.dims(name) for name in node.outputs if name])


def decomposition_of(op: Op) -> Decomposition | None:
    """Return what adds the parts of a node with this op; None if the op has none."""
    return _body_of if isinstance(op, Composite) else _DECOMPOSITIONS.get(op.type)


def has_parts(op_type: str, kind: type[Op]) -> bool:
    """Tell whether nodes of an op can be taken apart."""
    return issubclass(kind, Composite) or op_type in _DECOMPOSITIONS


def _body_of(op: Composite, make: Body, node: Node) -> Sequence[str]:
    return op.body(make, node.inputs)
