"""Random networks of the ops that a backend takes: with what they compute, at two sizes, from one seed.

A node is kept if its reference computes something sound with all inputs of the network: no rounding on the way there
may change the result by more than the comparison allows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph, Node, infer_node
from weft.core.graph.interpreter import evaluate
from weft.core.graph.layout import Array, Shape
from weft.core.graph.op import Op
from weft.core.graph.tensor import Dim, TensorSpec
from weft.errors import WeftError
from weft_conformance.cases.table import Input, tolerance
from weft_conformance.networks import rearranged

CHANNELS = (1, 3, 5, 7, 65, 130)
"""Numbers of channels that fill no block of four: few, and more than 64."""
SIDES = (1, 2, 3, 4, 5, 6, 7, 9, 12, 17)
TYPES = frozenset({DType.FLOAT32, DType.INT32, DType.INT64, DType.BOOL, DType.UINT8, DType.INT8})
"""The element types of networks: others have tolerances of their own, and rows."""
STEPWISE = frozenset({"Floor", "Ceil", "Round", "Sign", "Mod", "ThresholdedRelu", "Shrink"})
"""Ops on floats that jump: like those that return integers, they get values that no rounding has changed."""
MOST_NODES, MOST_ELEMENTS, LARGEST = 6, 60_000, 1e3
RUNS = 3
"""Two runs at one size, the second with the first's inputs rearranged, and one at another size."""

Accepts = Callable[[Graph, Node], bool]


@dataclass(frozen=True)
class Run:
    """The inputs of one run, and what the network's outputs must be."""

    feeds: dict[str, Array]
    wanted: list[Array]


@dataclass(frozen=True)
class Trial:
    """A network with runs; `bounds` are (rtol, atol) of its outputs. Sizes that differ between runs are open."""

    graph: Graph
    runs: tuple[Run, ...]
    bounds: list[tuple[float, float]]


@dataclass
class World:
    """All values of a network in one run: what the references compute, and the same with some rounding everywhere."""

    specs: dict[str, TensorSpec] = field(default_factory=dict)
    exact: dict[str, Array] = field(default_factory=dict)
    noisy: dict[str, Array] = field(default_factory=dict)


@dataclass(frozen=True)
class Made:
    """A node to try: an op, what it reads, and how many outputs it has.

    It reads values by their names, arrays as constants, and an `Input` as an input of the network that is added for it.
    """

    op: Op
    inputs: Sequence[str | Array | Input | None]
    outputs: int = 1


class Drawing:
    """Draws one network. `accepts` tells whether the backend takes a node of a graph whose shapes are known."""

    def __init__(self, seed: int, accepts: Accepts, dtype: DType, first: tuple[Shape, Shape] | None = None) -> None:
        """`first` are the shapes of the first input, in the first run and in the last; by default they are drawn."""
        self.rng = np.random.default_rng(seed)
        self.accepts, self.dtype = accepts, dtype
        shape, other = first or self._shapes()
        self.is_open = shape != other
        self.worlds = [World() for _ in range(RUNS)]
        self.graph = Graph("drawn", [], [])
        self.pure: set[str] = set()
        """Values that no rounding has changed."""
        self._add_input(Input("float32", shape), Input("float32", other))

    # -- what makers ask ---------------------------------------------------------------------------------------

    def shape(self, name: str) -> Shape:
        """Return the shape of a value in the first run."""
        return self.worlds[0].specs[name].dims

    def values(self, rank: int | None = None, dtype: DType | None = DType.FLOAT32) -> list[str]:
        """Return the values of a rank and an element type, newer ones more than once."""
        fits = [n for n, s in self.worlds[0].specs.items() if n not in self.graph.constants
                and rank in (None, len(s.dims)) and dtype in (None, s.dtype)]
        return fits + fits[-2:]

    def pick(self, choices: Sequence[Any]) -> Any:
        """Return one of several things."""
        return choices[int(self.rng.integers(len(choices)))]

    def value(self, *ranks: int) -> str | None:
        """Return a float value of one of the ranks, of any rank if none is given; None if there is none."""
        fits = [v for rank in ranks or (None,) for v in self.values(rank)]
        return self.pick(fits) if fits else None

    def numbers(self, *shape: int, low: float = -1.0, high: float = 1.0) -> Array:
        """Return random numbers that the precision's type holds exactly, now and then a constant that is there."""
        fits = [c for c in self.graph.constants.values() if c.shape == shape and c.dtype == np.float32
                and low <= c.min(initial=high) and c.max(initial=low) <= high]
        if fits and self.rng.random() < 0.4:
            return fits[-1]
        return self._held(Input("float32", shape, low, high))

    # -- drawing -----------------------------------------------------------------------------------------------

    def _shapes(self) -> tuple[Shape, Shape]:
        rank = self.pick((4, 4, 4, 4, 3, 2, 5, 1))
        channels = self.pick((*CHANNELS, 2, 4, 6, 8))
        sides = [self.pick(SIDES) for _ in range(max(rank - 2, 0))]
        if channels > 60 or rank == 5:
            sides = [min(s, 6) for s in sides]
        shape = (self.pick((1, 2, 3)), channels, *sides)[:rank]
        if self.rng.random() < 0.4:
            return shape, shape
        if rank > 3 and self.rng.random() < 0.5 and sides[-1] != sides[-2]:
            return shape, (*shape[:-2], shape[-1], shape[-2])  # as many elements
        return shape, tuple(s if k == 1 else self.pick([c for c in SIDES[:8] if c != s]) for k, s in enumerate(shape))

    def _add_input(self, first: Input, other: Input) -> str:
        """Add an input of the network, with one shape and with another in the third run, and return its name."""
        name, dtype = f"x{len(self.graph.inputs)}", DType(first.dtype)
        dims: tuple[Dim, ...] = tuple(
            a if a == b else f"{name}_{k}" for k, (a, b) in enumerate(zip(first.shape, other.shape, strict=True))
        )
        array = self._held(first)
        self.graph.inputs.append(name)
        self.graph.specs[name] = TensorSpec(dims, dtype)
        for world, each in zip(self.worlds, (array, rearranged(array), self._held(other)), strict=True):
            world.specs[name] = TensorSpec(each.shape, dtype)
            world.exact[name] = world.noisy[name] = each
        self.pure.add(name)
        return name

    def _held(self, given: Input) -> Array:
        """Draw an input; the type of floats of the precision holds its numbers exactly."""
        array = given.draw(self.rng)
        return array.astype(self.dtype.numpy).astype(array.dtype) if array.dtype.kind == "f" else array

    def try_node(self, made: Made) -> bool:
        """Add a node if the backend takes it and its result is sound; tell whether it was added."""
        graph, names = self.graph, list[str]()
        before = (list(graph.inputs), dict(graph.specs), dict(graph.constants), set(self.pure))
        kept = [(dict(w.specs), dict(w.exact), dict(w.noisy)) for w in self.worlds]
        for given in made.inputs:
            if isinstance(given, Input):
                names.append(self._add_input(given, given))
            elif isinstance(given, np.ndarray):
                known = next((n for n, c in graph.constants.items() if c is given), None)
                names.append(known or f"w{len(graph.constants)}")
                graph.constants[names[-1]] = given
                graph.specs[names[-1]] = TensorSpec(given.shape, DType.of(given.dtype))
            else:
                names.append(given or "")
        number = len(graph.nodes)
        outputs = tuple(f"v{number}_{k}" if k else f"v{number}" for k in range(made.outputs))
        node = Node(f"node{number}", made.op, tuple(names), outputs)
        if self._works(node):
            graph.nodes.append(node)
            return True
        graph.inputs, graph.specs, graph.constants, self.pure = before
        for world, (specs, exact, noisy) in zip(self.worlds, kept, strict=True):
            world.specs, world.exact, world.noisy = specs, exact, noisy
        return False

    def _works(self, node: Node) -> bool:
        pure = all(i in self.pure or i in self.graph.constants for i in node.inputs if i)
        for k, world in enumerate(self.worlds):
            known = self.graph.copy()
            known.specs |= world.specs
            try:
                infer_node(known, node)
                if (k == 0 or (self.is_open and k == RUNS - 1)) and not self.accepts(known, node):
                    return False
                specs = [known.specs[o] for o in node.outputs]
                if any(s.dtype not in TYPES or not 0 < s.size <= MOST_ELEMENTS for s in specs):
                    return False
                exact, noisy = (self._computed(node, world, side) for side in (world.exact, world.noisy))
            except (WeftError, ValueError, IndexError, TypeError, ArithmeticError, AssertionError):
                return False
            jumps = node.op.type in STEPWISE or any(not s.dtype.is_float for s in specs)
            if jumps and not pure:
                return False
            for name, spec, mine, theirs in zip(node.outputs, specs, exact, noisy, strict=False):
                if not self._is_sound(node, spec, mine, theirs):
                    return False
                world.specs[name], world.exact[name] = spec, mine
                world.noisy[name] = self._noise(node.op, theirs)
        if pure and node.op.op_class == "exact":
            self.pure.update(node.outputs)
            for world in self.worlds:
                world.noisy |= {o: world.exact[o] for o in node.outputs}
        return True

    def _computed(self, node: Node, world: World, side: Mapping[str, Array]) -> tuple[Array, ...]:
        constants = self.graph.constants
        return evaluate(node.op, [None if not i else constants[i] if i in constants else side[i] for i in node.inputs])

    def _is_sound(self, node: Node, spec: TensorSpec, exact: Array, noisy: Array) -> bool:
        if exact.shape != spec.dims or exact.dtype != spec.dtype.numpy:
            return False
        if not spec.dtype.is_float:
            return np.array_equal(exact, noisy)
        if not np.isfinite(exact).all() or np.abs(exact).max() > LARGEST:
            return False
        rtol, atol = self.bounds
        return bool((np.abs(exact - noisy) <= (rtol * np.abs(exact) + atol) / 2).all())

    def _noise(self, op: Op, array: Array) -> Array:
        """Return numbers with as much rounding as a right backend may have in such an op."""
        if array.dtype.kind != "f":
            return array
        rtol, atol = tolerance(self.dtype, op.op_class)
        signs = self.rng.choice((-0.5, 0.5), array.shape)
        return np.asarray(array + signs * (rtol * np.abs(array) + atol)).astype(array.dtype)

    @property
    def bounds(self) -> tuple[float, float]:
        """Return (rtol, atol) of a value at the end of a network."""
        rtol, atol = tolerance(self.dtype, "reduction")
        return rtol * (MOST_NODES + 2), atol * (MOST_NODES + 2)

    def finish(self) -> Trial | None:
        """Return the network with its runs; some values that are read are outputs too. None if it has no nodes."""
        graph = self.graph
        if not graph.nodes:
            return None
        read = {i for n in graph.nodes for i in n.inputs}
        made = [o for n in graph.nodes for o in n.outputs]
        graph.outputs = [o for o in made if o not in read or self.rng.random() < 0.15]
        graph.inputs = [i for i in graph.inputs if i in read]
        used = {*graph.inputs, *graph.constants}
        graph.specs = {n: s for n, s in graph.specs.items() if n in used}
        return trial_of(graph, self.worlds, self.bounds)


def trial_of(graph: Graph, worlds: Sequence[World], bounds: tuple[float, float]) -> Trial:
    """Return a network with a run for each world."""
    runs = tuple(Run({i: w.exact[i] for i in graph.inputs}, [w.exact[o] for o in graph.outputs]) for w in worlds)
    types = [worlds[0].specs[o].dtype for o in graph.outputs]
    return Trial(graph, runs, [bounds if dtype.is_float else (0.0, 0.0) for dtype in types])
