"""Builds a network for capacities from one with open sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from weft.core.graph.composite import Body, Composite, Parts
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph, Names, Node, infer_node
from weft.core.graph.layout import Array, Shape
from weft.core.graph.op import Op, new_op
from weft.core.graph.symbolic import LaterConstant, OpenSizes, SymbolicInt, Terms, has_open_size, is_symbolic
from weft.core.graph.tensor import TensorSpec
from weft.core.host.garbage import without_collections
from weft.core.placement.capacity.axes import Axes, Axis, NoCapacity, Part, is_padded, padded_to, regrouped
from weft.core.placement.capacity.network import CapacityNetwork, Fed
from weft.core.placement.capacity.rules import RESHAPES, ROWS, RULES
from weft.core.placement.open_network import LaterConstants, Placed, placed
from weft.errors import WeftError


@without_collections()
def with_capacities(
    prepared: Graph, sizes: OpenSizes, capacities: Mapping[str, int], fixed: Mapping[str, int],
    state: Mapping[str, str] | None = None,
) -> CapacityNetwork:
    """Return a network for all sizes up to `capacities`, by name; NoCapacity if an op stands in the way.

    `prepared` has shapes of open `sizes`, of which those of `fixed` stay what they are. A size that is computed of
    some with capacities, such as the sum of two, has the greatest of these. `state` has the outputs that are inputs
    of the next run, by these: such a pair has one type, that in which the network computes it, and `Graph.aliases`
    tells that they may have one memory.
    """
    try:
        return Builder(prepared, sizes, capacities, fixed, state or {}).built()
    except WeftError as e:  # a rule for shapes that does not hold for capacities
        raise NoCapacity(e.what) from e


def growth(prepared: Graph, sizes: OpenSizes, state: Mapping[str, str], grown: str) -> list[str]:
    """Return the open sizes by which outputs of state are longer than their inputs along the size `grown`.

    None of them, if they are longer by a number. NoCapacity if they are not longer.
    """
    sums = sizes.sums()
    for given, made in state.items():
        before: Sequence[Any] = prepared.specs[given].dims
        after: Sequence[Any] = prepared.specs[made].dims
        for a, b in zip(before, after, strict=False):
            if type(a) is SymbolicInt and type(b) is SymbolicInt:
                more = sizes.with_values((b - a).terms, {}, sums) if type(b - a) is SymbolicInt else (((), b - a),)
                named = [sizes.name(m[0]) for m, _ in more if m]
                if more and any(c for _, c in more):
                    return [n for n in named if n is not None and n != grown]
    raise NoCapacity("no output of its state is longer than its input")


def _is_bias(key: object) -> bool:
    return isinstance(key, tuple) and key[0] == "bias"


class Builder:
    """Builds the network node by node. Values keep their names, unless nothing is left of the node that made them."""

    def __init__(
        self, prepared: Graph, sizes: OpenSizes, capacities: Mapping[str, int], fixed: Mapping[str, int],
        state: Mapping[str, str],
    ) -> None:
        self._sizes, self._most, self._fixed = sizes, capacities, fixed
        self._sums = sizes.sums()
        self.source = _taken_apart(_typed_alike(prepared, state))
        self._state = {i: o for i, o in state.items() if i in self.source.inputs and o in self.source.outputs}
        self.out = replace(self.source.copy(), nodes=[], specs={}, constants={})
        self.make = Body(self.out, "sizes", Names(self.source))
        self._parts = Parts(self.out, self.make.names)
        self.axes: dict[str, Axes] = {}
        self.zeros: dict[str, set[int]] = {}
        """The axes of values along which padding is zero."""
        self._named: dict[str, str] = {}
        """Values by the names that they have in the source, where these are others."""
        self._caps: dict[Terms, int] = {}
        self._places: dict[Terms, int] = {}
        self._fed: dict[object, Fed] = {}
        self._later = LaterConstants(self._places)
        self._made_later: dict[tuple[int, int], str] = {}
        self.appends = 0

    def built(self) -> CapacityNetwork:
        """Return the network."""
        source, out = self.source, self.out
        for name in source.inputs:
            self.declare(name, self.open_axes(source.specs[name].dims), source.specs[name].dtype)
        for node in source.nodes:
            try:
                self._place(node)
            except (NoCapacity, WeftError) as e:
                why = e.what if isinstance(e, WeftError) else str(e)
                raise NoCapacity(f"node {node.name!r} ({node.op.type}): {why}") from e
        for name in source.outputs:
            value = self.read(name)
            if value != name:
                self.emit(new_op("Identity"), (value,), name, self.axes[value])
        out.nodes, out.inputs = self.make.nodes, [*source.inputs, *(each.name for each in self._fed.values())]
        out.aliases = {o: i for i, o in self._state.items() if out.specs[i] == out.specs[o]}
        outputs = {o: self.axes[o] for o in source.outputs}
        named = {self._sizes.name(unknown): terms for unknown, terms in self._sums.items()}
        equations = {name: self._place_of(terms) for name, terms in named.items() if name is not None}
        numbers = self._sizes.evaluator([*self._places], guarded=False)
        return CapacityNetwork(
            graph=out,
            inputs={i: self.axes[i] for i in source.inputs},
            outputs=outputs,
            capacities=self._caps,
            appends=self.appends,
            equations=equations,
            masks=frozenset(each.name for key, each in self._fed.items() if _is_bias(key)),
            _fed=[*self._fed.values()],
            _later=self._later,
            _places=self._places,
            _numbers=numbers,
        )

    # -- sizes -------------------------------------------------------------------------------------------

    def at(self, value: Any) -> Any:
        """Return the place of a number among those that runs compute, if it is open."""
        return placed(value, self._places)

    def _place_of(self, terms: Terms) -> int:
        return self._places.setdefault(terms, len(self._places))

    def polynomial(self, dim: Any) -> int | Terms:
        """Return a size as a number, or as a polynomial in sizes that have capacities."""
        if type(dim) is not SymbolicInt:
            return int(dim)
        terms = self._sizes.with_values(dim.terms, self._fixed, self._sums)
        if not terms:
            return 0
        return terms[0][1] if len(terms) == 1 and not terms[0][0] else terms

    def axis(self, dim: Any) -> Axis:
        """Return the axis of a size that stands for itself."""
        part = self.polynomial(dim)
        self.capacity(part)
        return () if part == 1 else (part,)

    def open_axes(self, shape: Sequence[Any]) -> Axes:
        """Return the axes of a shape."""
        return tuple(map(self.axis, shape))

    def capacity(self, part: Part) -> int:
        """Return the room for a factor of an axis; NoCapacity if it follows from sizes in a way that has no bound.

        A sum of sizes has the room of the largest: what a run puts behind a cache has to find room there. All else has
        room for the most that it can be.
        """
        if isinstance(part, int):
            return part
        if part not in self._caps:
            names = [self._sizes.name(m[0]) if len(m) == 1 and factor == 1 else None for m, factor in part if m]
            found = [self._most.get(name or "") for name in names]
            simple = [most for most in found if most is not None]
            self._place_of(part)
            self._caps[part] = max(simple) if len(simple) == len(found) else self._bound(part)
        return self._caps[part]

    def _bound(self, terms: Terms) -> int:
        """Return a number that a polynomial does not exceed; sizes are not negative."""
        total = 0
        for monomial, factor in terms:
            if factor > 0:
                total += factor * prod(self._most_of(unknown) for unknown in monomial)
        return total

    def _most_of(self, unknown: int) -> int:
        name, quotient = self._sizes.name(unknown), self._sizes.quotient_of(unknown)
        if name is not None:
            most = self._most.get(name, self._fixed.get(name))
            if most is None:
                raise NoCapacity(f"the size {name!r} has no capacity")
            return most
        assert quotient is not None
        above, below = (self._sizes.with_values(t, self._fixed, self._sums) for t in quotient)
        if len(below) != 1 or below[0][0] or below[0][1] <= 0:
            raise NoCapacity("a size is divided by one that grows")
        return max(self._bound(above) // below[0][1], 0)

    def extents(self, axes: Sequence[Axis]) -> Shape:
        """Return a shape at its capacities."""
        return tuple(prod(map(self.capacity, axis)) for axis in axes)

    def live(self, axis: Axis) -> Callable[[Sequence[int]], int]:
        """Return what computes the live size of an axis from the numbers of a run."""
        known = prod(p for p in axis if isinstance(p, int))
        places = [self._place_of(p) for p in axis if not isinstance(p, int)]
        return lambda numbers: known * prod(numbers[k] for k in places)

    # -- values ------------------------------------------------------------------------------------------

    def declare(self, name: str, axes: Axes, dtype: DType) -> None:
        """Note an input or a constant."""
        self.axes[name] = axes
        self.out.specs[name] = TensorSpec(self.extents(axes), dtype)

    def read(self, name: str) -> str:
        """Return the name of a value of the source, which is there afterwards if it is a constant."""
        name = self._named.get(name, name)
        if name not in self.axes:
            self._read_constant(name, self.source.constants[name], self.source.specs[name])
        return self._named.get(name, name)

    def _read_constant(self, name: str, value: Any, spec: TensorSpec) -> None:
        if isinstance(value, LaterConstant):
            step = self._later.step(value)
            if step in self._made_later:
                self._named[name] = self._made_later[step]
                return
            self._made_later[step] = name
            self._later.add(name, value)
            axes = self._later_axes(value)
            self.declare(name, axes, spec.dtype)
            parts = [p for axis in axes for p in axis]
            live, room, dims = [self.live((p,)) for p in parts], self.extents([(p,) for p in parts]), self.extents(axes)

            def later(numbers: Sequence[int], known: Mapping[str, Array]) -> Array:
                return padded_to(known[name].reshape([n(numbers) for n in live]), room).reshape(dims)

            self._fed[name] = Fed(name, later)
        elif is_symbolic(value):
            elements, shape, dtype = [self.at(e) for e in value.reshape(-1)], value.shape, spec.dtype.numpy
            self.declare(name, self.open_axes(shape), spec.dtype)

            def integers(numbers: Sequence[int], known: Mapping[str, Array]) -> Array:
                return np.array([numbers[e] if type(e) is Placed else e for e in elements], dtype).reshape(shape)

            self._fed[name] = Fed(name, integers)
        else:
            self.declare(name, self.open_axes(spec.dims), spec.dtype)
            self.out.constants[name] = value

    def _later_axes(self, value: LaterConstant) -> Axes:
        """Return the axes of a constant that runs compute; a reshape may have made one of several."""
        kind, given = getattr(getattr(value.op, "op", None), "type", ""), value.inputs[0]
        if kind in RESHAPES and isinstance(given, LaterConstant):
            parts = [p for axis in self._later_axes(given) for p in axis]
            return regrouped(parts, [self.polynomial(d) for d in value.spec.dims])
        return self.open_axes(value.spec.dims)

    def fed(self, key: object, shape: Shape, dtype: DType, make: Callable[[Sequence[int]], Array | int]) -> str:
        """Return an input that follows from the numbers of a run; one of the same key is shared."""
        if key not in self._fed:
            name = self.make.names.fresh("sizes")
            self.axes[name] = tuple(() if n == 1 else (n,) for n in shape)
            self.out.specs[name] = TensorSpec(shape, dtype)
            kind = dtype.numpy
            self._fed[key] = Fed(name, lambda numbers, known: np.broadcast_to(np.asarray(make(numbers), kind), shape))
        return self._fed[key].name

    def emit(self, op: Op, inputs: Sequence[str], output: str, axes: Axes) -> str:
        """Add a node with one output."""
        return self._emit(Node(self.make.names.fresh(output), op, tuple(inputs), (output,)), [axes])

    def _emit(self, node: Node, axes: Sequence[Axes]) -> str:
        infer_node(self.out, node)
        for name, each in zip(node.outputs, axes, strict=True):
            if name and self.out.specs[name].dims != self.extents(each):
                raise NoCapacity(f"{node.op.type} gives {self.out.specs[name]}, not {self.extents(each)}")
            if name:
                self.axes[name] = each
        self.make.nodes.append(node)
        return node.outputs[0]

    def keep(self, node: Node, inputs: Sequence[str], *axes: Axes, op: Op | None = None) -> None:
        """Add a node as it is, with these inputs and the axes of its outputs."""
        self._emit(replace(node, op=op or node.op, inputs=tuple(inputs)), axes)

    def keep_parts(self, node: Node, *axes: Axes) -> None:
        """Add the parts of a node, with the axes of its outputs."""
        self.make.nodes += self._parts.of(node)
        for name, each in zip(node.outputs, axes, strict=True):
            if self.out.specs[name].dims != self.extents(each):
                raise NoCapacity(f"{node.op.type} gives {self.out.specs[name]}, not {self.extents(each)}")
            self.axes[name] = each

    @property
    def keeps_state(self) -> bool:
        """Tell whether the network has a state."""
        return bool(self._state)

    def become(self, node: Node, value: str, axes: Axes) -> None:
        """Let a value take the place of a node's output; its live part may be another."""
        self._named[node.outputs[0]] = value
        if self.axes[value] != axes:  # the same memory, of which another part counts
            (output,) = node.outputs
            del self._named[output]
            self.emit(new_op("Identity"), (value,), output, axes)

    def added(self, kind: str, axes: Axes, *inputs: str, **attributes: Any) -> str:
        """Add a node of this module's own."""
        value = self.make.add(kind, *inputs, **attributes)
        self.axes[value] = axes
        return value

    # -- what hides padding ------------------------------------------------------------------------------

    def one_size(self, axis: Axis) -> Part:
        """Return the size of an axis of which the live elements are the first; NoCapacity if they are not."""
        if any(not isinstance(p, int) for p in axis[1:]):
            raise NoCapacity("a size that grows is the inner one of two that are one axis")
        return axis[0]

    def is_live(self, axis: Axis, behind: int) -> str:
        """Return an input that is true for the live elements of an axis, before `behind` axes of size 1."""
        self.one_size(axis)
        (size,), live = self.extents((axis,)), self.live(axis)
        shape = (size, *[1] * behind)
        at = np.arange(size).reshape(shape)
        return self.fed(("live", axis, behind), shape, DType.BOOL, lambda numbers: at < live(numbers))

    def bias(self, axis: Axis, shape: Shape, dtype: DType) -> str:
        """Return an input of zeros for the live elements of the last axis, and of minus infinity for the others."""
        self.one_size(axis)
        live, at = self.live(axis), np.arange(shape[-1]).reshape(shape)
        return self.fed(
            ("bias", axis, shape, dtype), shape, dtype, lambda numbers: np.where(at < live(numbers), 0, -np.inf)
        )

    def hidden(self, value: str, axis: int, neutral: float) -> str:
        """Return a value whose padding along an axis is a number."""
        axes = self.axes[value]
        if not is_padded(axes[axis]) or (neutral == 0 and axis in self.zeros.get(value, ())):
            return value
        dtype = self.make.dtype(value)
        number: Any = neutral
        if not dtype.is_float and not np.isfinite(neutral):
            number = dtype.limits[0 if neutral < 0 else 1]
        live = self.is_live(axes[axis], len(axes) - 1 - axis)
        out = self.added("Where", axes, live, value, self.make.constant(np.asarray(number, dtype.numpy)))
        if neutral == 0:
            self.zeros[out] = {axis, *self.zeros.get(value, ())}
        return out

    # -- nodes -------------------------------------------------------------------------------------------

    def _place(self, node: Node) -> None:
        rule = RULES.get(node.op.type)
        if rule is not None:
            rule(self, node)
            return
        inputs = [self.read(i) if i else "" for i in node.inputs]
        given = [self.axes[i] for i in inputs if i]
        specs = [self.source.specs[o] for o in node.outputs]
        if node.op.is_elementwise:
            self._place_elementwise(node, inputs)
        elif not any(map(is_padded, (a for axes in given for a in axes))) and not any(
            isinstance(self.polynomial(d), tuple) for spec in specs for d in spec.dims
        ):
            self.keep(node, inputs, *(self.open_axes(spec.dims) for spec in specs))
        elif node.op.type in ROWS:
            if any(is_padded(axes[-1]) for axes in given if len(axes) > 1) or not given[0]:
                raise NoCapacity(f"{node.op.type} computes along a size that grows")
            self.keep(node, inputs, *((*given[0][: len(s.dims) - 1], self.axis(s.dims[-1])) for s in specs))
        else:
            raise NoCapacity(f"{node.op.type} computes along a size that grows")

    def _place_elementwise(self, node: Node, inputs: Sequence[str]) -> None:
        axes = self.broadcast([self.axes[i] for i in inputs if i])
        self.keep(node, inputs, *[axes] * len(node.outputs))
        zero = {"Cast": inputs, "Neg": inputs, "Mul": inputs, "Div": inputs[:1]}.get(node.op.type, ())
        for i in zero:
            ahead = len(axes) - len(self.axes[i])
            self.zeros.setdefault(node.outputs[0], set()).update(ahead + k for k in self.zeros.get(i, ()))

    def broadcast(self, given: Sequence[Axes]) -> Axes:
        """Return the axes of values that are broadcast together."""
        rank = max(map(len, given), default=0)
        out: list[Axis] = [()] * rank
        for axes in given:
            for k, axis in enumerate(axes, start=rank - len(axes)):
                if axis and out[k] and axis != out[k]:
                    raise NoCapacity("values of other sizes are broadcast together")
                out[k] = axis or out[k]
        return tuple(out)


def _taken_apart(graph: Graph) -> Graph:
    """Return a graph in which ops that are others', and that no rule knows, are these others where sizes are open."""
    out = graph.copy()
    out.nodes, parts = [], Parts(out, Names(graph))
    for node in graph.nodes:
        held = [graph.specs[i].dims for i in (*node.inputs, *node.outputs) if i and i in graph.specs]
        known = node.op.type in RULES or node.op.type in ROWS or not isinstance(node.op, Composite)
        if known or not any(map(has_open_size, held)):
            out.nodes.append(node)
            continue
        out.nodes += parts.of(node)
    return out


def _typed_alike(graph: Graph, state: Mapping[str, str]) -> Graph:
    """Return a graph in which a pair of state has the type in which it is computed, without casts at the ends."""
    out = graph.copy()
    for given, made in state.items():
        readers = [n for n in out.nodes if given in n.inputs]
        maker = next((n for n in out.nodes if made in n.outputs), None)
        casts = [n for n in readers if n.op.type == "Cast"]
        if maker is None or maker.op.type != "Cast" or len(casts) != len(readers) or not casts:
            continue
        inner = maker.inputs[0]
        dtype = out.specs[inner].dtype
        cast = {n.outputs[0] for n in casts}
        if any(out.specs[o].dtype is not dtype or o in out.outputs for o in cast):
            continue
        names = {n.outputs[0]: given for n in casts} | {inner: made}
        gone = {id(n) for n in (*casts, maker)}
        out.specs[given] = replace(out.specs[given], dtype=dtype)
        out.specs[made] = replace(out.specs[made], dtype=dtype)
        out.nodes = [
            replace(
                n, inputs=tuple(names.get(i, i) for i in n.inputs), outputs=tuple(names.get(o, o) for o in n.outputs)
            )
            for n in out.nodes
            if id(n) not in gone
        ]
    return out
