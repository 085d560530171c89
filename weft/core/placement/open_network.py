"""A network prepared once for sizes that stay open: another size costs neither shape rules nor passes.

The passes run on a graph whose open dimensions are `SymbolicInt`s (`weft.core.graph.symbolic`). What they return holds
for all sizes that give every comparison the same answer. For such sizes this module only fills in numbers: shapes,
integers that shapes are computed from, and constants that follow from them. The result is what `prepare_network`
returns for these shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from weft.core.contract.backend import Backend, Precision
from weft.core.contract.error_context import is_error
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import OTHER_SHAPES, Graph, Node
from weft.core.graph.interpreter import evaluate
from weft.core.graph.later_constants import NamedOp
from weft.core.graph.layout import Array, Shape
from weft.core.graph.limits import Limits
from weft.core.graph.op import Op
from weft.core.graph.symbolic import (
    LaterConstant,
    OpenSizes,
    SymbolicInt,
    Terms,
    has_open_size,
    int_array,
    is_symbolic,
    key_of,
)
from weft.core.graph.tensor import OPEN_RANK, TensorSpec
from weft.core.passes import AnyPass
from weft.core.placement.optimized_network import OptimizedNetwork
from weft.core.placement.prepare import PreparedNetwork, prepare_network
from weft.core.placement.stage_split import is_staged
from weft.errors import LESS_MEMORY, ModelError, OutOfMemory, WeftError, said_of

T = TypeVar("T")
TRIES = 8
"""How often a graph is prepared with open sizes. Sizes of 0 and 1, and some that are equal to others, need one each."""
FEW = 64
"""Constants of up to so many elements are compared by them, to find that two nodes compute the same."""
Divide = Callable[[PreparedNetwork], OptimizedNetwork]
"""Divides a prepared network over devices."""


@dataclass(frozen=True, eq=False)
class Sized:
    """The parts of a network that depend on its sizes, for certain sizes."""

    specs: Mapping[str, TensorSpec]
    constants: Mapping[str, Array]
    nodes: Mapping[str, Node]
    """Nodes whose op has a size in an attribute, by name."""


class OpenNetwork:
    """A network that was prepared with open sizes."""

    def __init__(
        self, graph: Graph, sizes: OpenSizes, prepared: PreparedNetwork,
        valued: Sequence[tuple[str, Shape]] = (),
    ) -> None:
        self._declared = {i: graph.specs[i].shape for i in graph.inputs}
        self._valued = valued
        self._sizes, self._prepared = sizes, prepared
        self._open = _OpenGraph(sizes, prepared.graph)
        self._before = sizes.copy()
        self._divisions: list[tuple[OptimizedNetwork, _OpenGraph]] = []
        self._left = TRIES
        """How often it may still be divided with open sizes."""

    @property
    def prepared_open(self) -> tuple[PreparedNetwork, OpenSizes]:
        """Return the network with its open sizes."""
        return self._prepared, self._sizes

    def sized(self, bound: Graph) -> Sized | None:
        """Return what the prepared graph is for the shapes of a bound one; None if a guard does not hold for them."""
        sizes = self._given(bound)
        return None if sizes is None else self._open.sized(sizes)

    def prepared(self, sized: Sized) -> PreparedNetwork:
        """Return the prepared network for certain sizes."""
        return replace(self._prepared, graph=resized(self._prepared.graph, sized))

    def divided(self, bound: Graph, divide: Divide, backends: Mapping[str, Backend]) -> OptimizedNetwork | None:
        """Return the network as it is divided over backends, which are asked once for all sizes.

        None if it must be divided for these sizes alone: a backend does not take open sizes, or a guard does not hold.
        """
        if not self._left:
            return None
        self._left -= 1
        sizes = self._given(bound)
        if sizes is None or not self._divide(sizes, divide, backends):
            self._left = 0
            return None
        return self.known_division(bound)

    def known_division(self, bound: Graph) -> OptimizedNetwork | None:
        """Return what `divided` returned before for other sizes, for these; None if no division holds for them."""
        sizes = self._given(bound)
        for network, opened in self._divisions if sizes is not None else ():
            assert sizes is not None
            sized = opened.sized(sizes)
            if sized is not None:
                parts = tuple(replace(part, graph=resized(part.graph, sized)) for part in network.parts)
                return replace(network, graph=resized(network.graph, sized), parts=parts)
        return None

    def _divide(self, sizes: Mapping[str, int], divide: Divide, backends: Mapping[str, Backend]) -> bool:
        """Divide the network with these as the sizes of the moment, and tell whether that holds for others, too."""
        # A subclass may answer otherwise than its parent, so it has to say this itself.
        if not all(vars(type(backend)).get("takes_open_sizes", False) for backend in backends.values()):
            return False
        if any(b.find_creator(n.op.type) for b in backends.values() for n in self._prepared.graph.nodes):
            return False
        self._sizes.begin_again(self._before, sizes)
        try:
            network = divide(self._prepared)
        except Exception as e:  # dividing for certain sizes meets the error again, or none
            if not is_error(e):
                raise
            return False
        texts = network.notes or network.refusals
        if self._sizes.failed or (texts and self._sizes.shown) or network.copies:
            return False
        self._divisions.append((network, _OpenGraph(self._sizes, network.graph)))
        return True

    def _given(self, bound: Graph) -> dict[str, int] | None:
        """Return the open sizes of a bound graph by name; None if the values of other inputs are known in it."""
        if _valued(self._declared, bound) != [*self._valued]:
            return None
        sizes = {name: size for i, _ in self._valued for name, size in _elements(i, bound.constants[i])}
        for name, declared in self._declared.items():
            for d, size in zip(declared, bound.specs[name].shape, strict=True):
                if isinstance(d, str):
                    sizes[d] = size  # type: ignore[assignment]  # bound
        return sizes


class _OpenGraph:
    """A graph with open sizes, and what is to be filled in."""

    def __init__(self, sizes: OpenSizes, made: Graph) -> None:
        terms: dict[Terms, int] = {}

        at = partial(placed, places=terms)
        forms: dict[object, tuple[list[str], TensorSpec]] = {}
        for name, spec in made.specs.items():
            if has_open_size(spec.shape):
                forms.setdefault((key_of(spec.shape), spec.dtype), ([], spec))[0].append(name)
        self._specs = [(names, tuple(map(at, spec.shape)), spec.dtype) for names, spec in forms.values()]
        self._last_specs: list[TensorSpec | None] = [None] * len(self._specs)
        """The specs that were filled in last, for each group of names."""
        self._sized: dict[str, TensorSpec] = {}
        """The same by name."""
        self._integers = [
            (name, made.specs[name].dtype.numpy, value.shape, tuple(map(at, value.reshape(-1))))
            for name, value in made.constants.items()
            if isinstance(value, np.ndarray) and is_symbolic(value)
        ]
        self._last: dict[str, tuple[tuple[int, ...], Array]] = {}
        """The integers that were filled in last, with their array."""
        self._later = LaterConstants(terms)
        for name, value in made.constants.items():
            if isinstance(value, LaterConstant):
                self._later.add(name, value)
        self._nodes = []
        for node in made.nodes:
            named = {f.name: value for f in fields(node.op) if _has_size(value := getattr(node.op, f.name))}
            if named:
                self._nodes.append((node, {name: _mapped(value, at) for name, value in named.items()}))
        self._evaluate = sizes.evaluator(list(terms))

    def sized(self, sizes: Mapping[str, int]) -> Sized | None:
        """Return what changes for sizes by name; None if a guard does not hold for them."""
        values = self._evaluate(sizes)
        if values is None:
            return None
        for k, (names, shape, dtype) in enumerate(self._specs):
            dims, before = _filled(shape, values), self._last_specs[k]
            if before is None or before.shape != dims:  # else the same spec
                spec = self._last_specs[k] = TensorSpec(dims, dtype)
                self._sized.update(dict.fromkeys(names, spec))
        constants: dict[str, Array] = {}
        for name, kind, dims, given in self._integers:
            filled, last = _filled(given, values), self._last.get(name)
            if last is None or last[0] != filled:  # else the same array: readers see at once that nothing changed
                last = self._last[name] = filled, np.array(filled, kind).reshape(dims)
            constants[name] = last[1]
        constants |= self._later.made(values)
        nodes = {
            node.name: replace(node, op=replace(node.op, **{n: _mapped(v, _filler(values)) for n, v in named.items()}))
            for node, named in self._nodes
        }
        return Sized(dict(self._sized), constants, nodes)


def resized(graph: Graph, sized: Sized) -> Graph:
    """Return a graph with what is different for certain sizes; names that it does not have are left out."""
    out = graph.copy()
    _update(out.specs, sized.specs)
    _update(out.constants, sized.constants)
    if sized.nodes:
        out.nodes = [sized.nodes.get(node.name, node) for node in graph.nodes]
    return out


def _update(held: dict[str, T], new: Mapping[str, T]) -> None:
    """Replace values by new ones of their names; names that are not held are left out."""
    held.update(new if new.keys() <= held.keys() else {name: new[name] for name in new.keys() & held.keys()})


class OpenNetworks:
    """Prepares a graph for one shape after the other, and keeps what it prepared last with open sizes."""

    def __init__(
        self, graph: Graph, precision: Precision, limits: Limits, own: Sequence[AnyPass] = (), *,
        tries: int = TRIES,
    ) -> None:
        self._graph, self._precision, self._limits, self._own = graph, precision, limits, own
        self._held: Sequence[OpenNetwork] = ()
        """At most TRIES, the one used last first: guesses come and go as a text grows."""
        symbols = graph.symbols()
        self._left = 0 if own or OPEN_RANK in symbols else tries
        """How often it may still prepare the graph with open sizes; not at all with a user's passes or open ranks."""

    def find(self, bound: Graph) -> tuple[OpenNetwork, Sized] | None:
        """Return a network with open sizes, and what changes for these; None if they must be prepared for alone."""
        held = self._fitting(bound)
        if held is not None or not self._left:
            return held
        self._left -= 1
        made = prepare_open(self._graph, bound, self._precision, self._limits)
        sized = None if made is None else made.sized(bound)
        if made is None or sized is None:
            self._left = 0
            return None
        self._keep(made)
        return made, sized

    def found(self, bound: Graph) -> OpenNetwork | None:
        """Return a network with open sizes that hold for these, which may be a guess: a wrong one ends no tries."""
        held = self._fitting(bound)
        if held is not None:
            return held[0]
        made = prepare_open(self._graph, bound, self._precision, self._limits)
        if made is None or made.sized(bound) is None:
            return None
        self._keep(made)
        return made

    def _keep(self, network: OpenNetwork) -> None:
        self._held = [network, *(held for held in self._held if held is not network)][:TRIES]

    def _fitting(self, bound: Graph) -> tuple[OpenNetwork, Sized] | None:
        for network in self._held:
            sized = network.sized(bound)
            if sized is not None:
                self._keep(network)
                return network, sized
        return None

    def known(self, bound: Graph) -> PreparedNetwork | None:
        """Return what `prepare` returns, if it was prepared for sizes that differ in nothing else."""
        found = self._fitting(bound)
        return None if found is None else found[0].prepared(found[1])

    def known_division(self, bound: Graph) -> OptimizedNetwork | None:
        """Return the network for these sizes if it was divided for others that differ in nothing else."""
        found = (network.known_division(bound) for network in self._held)
        return next((network for network in found if network is not None), None)

    def prepare(self, bound: Graph) -> PreparedNetwork:
        """Return what `prepare_network` returns."""
        found = self.find(bound)
        if found is None:
            return prepare_network(bound, self._precision, self._limits, self._own)
        return found[0].prepared(found[1])


def prepare_open(graph: Graph, bound: Graph, precision: Precision, limits: Limits) -> OpenNetwork | None:
    """Return the network of a graph with open dimensions; None if what it is follows from their numbers.

    `bound` is the same graph with the sizes of the moment, all of which are known. Integers that it has as constants in
    the place of inputs are open, too.
    """
    valued = _valued(graph.inputs, bound)
    if not (valued or graph.symbols()) or is_staged(bound):
        return None
    labels = {label for name, _ in valued for label, _ in _elements(name, bound.constants[name])}
    if labels.intersection(graph.symbols()):
        return None  # a dimension has the name of an element, and a size must have one of its own
    sizes, symbols = OpenSizes(), dict[str, SymbolicInt]()
    opened = bound.copy()
    for name in graph.inputs:
        shape, now = graph.specs[name].shape, bound.specs[name].shape
        for d, size in zip(shape, now, strict=True):
            if isinstance(d, str) and d not in symbols:
                symbols[d] = sizes.size(d, size)  # type: ignore[arg-type]  # bound
        dims: Any = tuple(symbols[d] if isinstance(d, str) else d for d in shape)
        opened.specs[name] = replace(bound.specs[name], shape=dims)
    for name, _ in valued:
        value = bound.constants[name]
        numbers = [sizes.size(label, number) for label, number in _elements(name, value)]
        opened.constants[name] = int_array(numbers).reshape(value.shape)
    try:
        prepared = prepare_network(opened, precision, limits)
        alone = sizes.failed or (prepared.notes and sizes.shown)
        return None if alone else OpenNetwork(graph, sizes, prepared, valued)
    except Exception as e:  # an op's rule may do with a size what only a number can; then each shape is prepared alone
        if not is_error(e):
            raise
        return None


def _valued(inputs: Iterable[str], bound: Graph) -> list[tuple[str, Shape]]:
    """Return the inputs of a graph of which a bound one has the value, as a constant, and their shapes."""
    given = {*bound.inputs}
    return [(i, bound.constants[i].shape) for i in inputs if i not in given and i in bound.constants]


def _elements(name: str, value: Array) -> list[tuple[str, int]]:
    return [(f"{name}[{k}]", int(number)) for k, number in enumerate(value.reshape(-1))]


# -- filling in ------------------------------------------------------------------------------------------------


class Placed(int):
    """The place of a number among those that are computed for certain sizes."""


def placed(value: Any, places: dict[Terms, int]) -> Any:
    """Return the place of an open size among numbers, behind the last if it has none; anything else as it is."""
    return Placed(places.setdefault(value.terms, len(places))) if type(value) is SymbolicInt else value


def _filled(values: Sequence[Any], numbers: Sequence[int]) -> tuple[int, ...]:
    return tuple([numbers[v] if type(v) is Placed else v for v in values])


def _filler(numbers: Sequence[int]) -> Callable[[Any], Any]:
    return lambda v: numbers[v] if type(v) is Placed else v


def _has_size(value: Any) -> bool:
    return type(value) is SymbolicInt or (isinstance(value, (tuple, list)) and any(map(_has_size, value)))


def _mapped(value: Any, function: Callable[[Any], Any]) -> Any:
    if isinstance(value, (tuple, list)):
        return type(value)(_mapped(v, function) for v in value)
    return function(value)


def _op_key(op: Op) -> object:
    """Return a key that equal ops share."""
    attributes = [getattr(op, f.name) for f in fields(op)]
    return (type(op), *map(key_of, attributes)) if any(map(_has_size, attributes)) else op


class LaterConstants:
    """The constants that are computed for certain sizes, each op once, in order."""

    def __init__(self, places: dict[Terms, int]) -> None:
        """Read open sizes where they are in `places`, which gets those that are not there."""
        self._at = partial(placed, places=places)
        self._steps: list[tuple[Any, list[Callable[[list[tuple[Array, ...]], Sequence[int]], Array | None]]]] = []
        self._place: dict[object, int] = {}
        self._named: list[tuple[str, int, int]] = []

    def add(self, name: str, value: LaterConstant) -> None:
        """Compute a constant of this name from now on."""
        self._named.append((name, self._step(value), value.output))

    def step(self, value: LaterConstant) -> tuple[int, int]:
        """Return what is the same for constants that are computed alike."""
        return self._step(value), value.output

    def _step(self, value: LaterConstant) -> int:
        given = [self._input(each) for each in value.inputs]
        key = (_op_key(value.op), tuple(key for key, _ in given))
        if key not in self._place:
            self._steps.append((value.op, [read for _, read in given]))
            self._place[key] = len(self._steps) - 1
        return self._place[key]

    def _input(self, value: Any) -> tuple[object, Callable[[list[tuple[Array, ...]], Sequence[int]], Array | None]]:
        """Return a key that equal inputs share, and what reads the input."""
        if isinstance(value, LaterConstant):
            step, output = self._step(value), value.output
            return (step, output), lambda made, numbers: made[step][output]
        if isinstance(value, TensorSpec):
            shape, dtype = tuple(map(self._at, value.shape)), value.dtype.numpy
            key = (key_of(value.shape), value.dtype)
            return key, lambda made, numbers: np.broadcast_to(np.zeros((), dtype), _filled(shape, numbers))
        if isinstance(value, np.ndarray) and value.dtype == object:
            elements, form = tuple(map(self._at, value.reshape(-1))), value.shape
            places = tuple((type(e) is Placed, e) for e in elements)
            return (form, places), lambda made, numbers: np.array(_filled(elements, numbers), np.int64).reshape(form)
        few = value is not None and value.size <= FEW
        bits = (value.tobytes(), value.dtype, value.shape) if few else id(value)
        return bits, lambda made, numbers: value

    def made(self, numbers: Sequence[int]) -> dict[str, Array]:
        """Return all constants by name."""
        done: list[tuple[Array, ...]] = []
        for op, given in self._steps:
            done.append(_computed(op, [each(done, numbers) for each in given]))
        return {name: done[step][output] for name, step, output in self._named}


def _computed(op: Any, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
    """Return the outputs of an op; ModelError, or OutOfMemory, that names its node, if it has one and fails."""
    try:
        return evaluate(op, inputs)
    except Exception as e:  # the reference of a foreign op may raise anything
        if not is_error(e) or not isinstance(op, NamedOp):
            raise
        memory = isinstance(e, (MemoryError, OutOfMemory))
        usual = LESS_MEMORY if memory else OTHER_SHAPES
        why, fix = said_of(e), (e.fix if isinstance(e, WeftError) else "") or usual
        given = [f"{DType.of(a.dtype).value}{list(a.shape)}" for a in inputs if a is not None]
        raise (OutOfMemory if memory else ModelError)(
            f"node {op.node!r} ({op.op.type}) cannot be computed for these sizes",
            where=f"its inputs {', '.join(given)}", why=why, fix=fix,
        ) from e
