"""The graph: nodes in topological order, joined by value names; weights stay numpy arrays."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from weft.core.graph.dtypes import DType
from weft.core.graph.layout import Array, Layout, Shape
from weft.core.graph.op import Op
from weft.core.graph.symbolic import LaterConstant
from weft.core.graph.tensor import TensorSpec
from weft.errors import InputError, ModelError, ValueNeeded, WeftError, listing, said_of


@dataclass(frozen=True, slots=True)
class Node:
    """One op with the names of the values it reads ("" for a missing optional one) and writes."""

    name: str
    op: Op
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def __str__(self) -> str:
        return f"{', '.join(self.outputs)} = {self.op}({', '.join(self.inputs)})  # {self.name}"


@dataclass(frozen=True, slots=True)
class Declared:
    """What a file declares about an output; None where it declares no type, shape or size."""

    dtype: DType | None
    shape: tuple[int | None, ...] | None

    def fits(self, shape: Shape) -> bool:
        """Tell whether a shape is what is declared."""
        if self.shape is None:
            return True
        return len(self.shape) == len(shape) and all(d in (None, n) for d, n in zip(self.shape, shape, strict=True))

    def __str__(self) -> str:
        sizes = " of any shape"
        if self.shape is not None:
            sizes = f"[{'x'.join('?' if d is None else str(d) for d in self.shape)}]"
        return f"{self.dtype.value if self.dtype else 'any type'}{sizes}"


@dataclass(eq=False)
class Graph:
    """A network. `specs` and `constants` are keyed by value name; `layouts` lists the values that are not NCHW.

    A graph with symbolic input dimensions has specs for inputs and constants only; `bind` sets the
    sizes, and `infer_shapes` then fills in the rest.
    """

    name: str
    inputs: list[str]
    outputs: list[str]
    nodes: list[Node] = field(default_factory=list)
    specs: dict[str, TensorSpec] = field(default_factory=dict)
    constants: dict[str, Array] = field(default_factory=dict)
    layouts: dict[str, Layout] = field(default_factory=dict)
    declared: dict[str, Declared] = field(default_factory=dict)
    """What the model's file declares about outputs; it need not be true."""
    wide: frozenset[str] = frozenset()
    """Values that nodes outside of this graph need in float32, see `weft.core.passes.wide_values`."""
    overflowing: frozenset[str] = frozenset()
    """Values of which a run found that float16 does not hold them; they may be of other graphs of the same model."""
    aliases: dict[str, str] = field(default_factory=dict)
    """The inputs in whose memory outputs lie, by the names of the outputs (`weft.core.placement.in_place`)."""
    defaults: frozenset[str] = frozenset()
    """Inputs of the model's file that are constants here, as the file has an initialiser of each."""
    state: dict[str, str] = field(default_factory=dict)
    """The inputs that the model itself keeps from run to run, with the outputs that they become."""
    initial: dict[str, Array] = field(default_factory=dict)
    """What such inputs are before the first run, by their names; the others are zeros."""

    def copy(self) -> Graph:
        """Return a graph that can be changed without changing this one (weights are shared)."""
        return Graph(
            self.name,
            list(self.inputs),
            list(self.outputs),
            list(self.nodes),
            dict(self.specs),
            dict(self.constants),
            dict(self.layouts),
            dict(self.declared),
            self.wide,
            self.overflowing,
            dict(self.aliases),
            self.defaults,
            dict(self.state),
            dict(self.initial),
        )

    def no_input(self, name: str) -> str:
        """Return in words that there is no input of this name, and why if the model's file lists it as one."""
        if name not in self.defaults:
            return f"there is no input {name!r}"
        return (
            f"{name!r} is no input here: Weft takes its initialiser in the file as a constant, which rewrites may fold"
            " (to give it to runs, remove it from the model's graph.initializer)"
        )

    def producers(self) -> dict[str, Node]:
        """Return the node that writes each value."""
        return {out: node for node in self.nodes for out in node.outputs if out}

    def readers(self) -> Counter[str]:
        """Return how often each value is read; being an output of the graph counts, too."""
        return Counter([i for n in self.nodes for i in n.inputs if i] + self.outputs)

    def input_specs(self, node: Node) -> list[TensorSpec | None]:
        """Return the specs of a node's inputs, None for a missing one."""
        return [self.specs[i] if i else None for i in node.inputs]

    def output_specs(self, node: Node) -> list[TensorSpec]:
        """Return the specs of a node's outputs; unnamed ones are left out."""
        return [self.specs[o] for o in node.outputs if o]

    def input_constants(self, node: Node) -> list[Array | None]:
        """Return the known values of a node's inputs, None for the others."""
        held = [self.constants.get(i) if i else None for i in node.inputs]
        return [None if isinstance(value, LaterConstant) else value for value in held]

    def fresh_name(self, base: str) -> str:
        """Return an unused value or node name that starts with `base`; for many names, create `Names` once."""
        return Names(self).fresh(base)

    def symbols(self) -> set[str]:
        """Return the names of the symbolic dimensions of the inputs, `OPEN_RANK` among them."""
        return {d for i in self.inputs for d in self.specs[i].shape if isinstance(d, str)}

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes)

    def __str__(self) -> str:
        head = [f"graph {self.name}"]
        head += [f"  input  {i}: {self.specs.get(i, '?')}" for i in self.inputs]
        body = [f"  {node}  -> {', '.join(str(self.specs.get(o, '?')) for o in node.outputs)}" for node in self.nodes]
        return "\n".join(head + body + [f"  output {o}" for o in self.outputs])


class Names:
    """Creates names that no value or node of a graph has, each without a search."""

    def __init__(self, graph: Graph) -> None:
        self._taken = {*graph.specs, *graph.constants, *graph.inputs, *graph.outputs}
        for node in graph.nodes:
            self._taken.update((node.name, *node.inputs, *node.outputs))  # a value without a spec is one too
        self._last: Counter[str] = Counter()

    def fresh(self, base: str) -> str:
        """Return an unused name that starts with `base`, and mark it as used."""
        name, k = base, self._last[base]
        while name in self._taken:
            k += 1
            name = f"{base}.{k}"
        self._last[base] = k
        self._taken.add(name)
        return name


def bind(graph: Graph, shapes: Mapping[str, Shape], like: Graph | None = None) -> Graph:
    """Return the graph with the shapes of the named inputs set; equal symbols must get equal sizes.

    `like` is what an earlier call returned for this graph: its nodes are taken over, which saves a look at all outputs.
    Raise InputError that lists each unknown input, wrong rank, wrong fixed dimension, and symbol with two sizes.
    """
    out = graph.copy()
    sizes: dict[str, int] = {}
    problems = []
    known = set(graph.inputs)
    for name, shape in shapes.items():
        if name not in known:
            problems.append(graph.no_input(name))
            continue
        spec = graph.specs[name]
        declared = shape if spec.has_open_rank else spec.shape
        problem = _bind_one(declared, tuple(shape), sizes)
        if problem:
            problems.append(f"{name!r} cannot have shape {tuple(shape)}: {problem}")
    if problems:
        wanted = ", ".join(f"{i!r}: {graph.specs[i]}" for i in graph.inputs) or "no inputs"
        raise InputError("the shapes do not fit the network", why="; ".join(problems), fix=f"it has {wanted}")
    for name in graph.inputs:
        spec = graph.specs[name]
        if not spec.is_static:
            open_dims = shapes.get(name, spec.shape) if spec.has_open_rank else spec.shape
            dims = tuple([sizes.get(d, d) if isinstance(d, str) else d for d in open_dims])
            out.specs[name] = replace(spec, shape=dims)
    if like is not None:
        out.nodes = list(like.nodes)
    elif any("" in node.outputs for node in graph.nodes):
        names = Names(graph)
        out.nodes = [name_outputs(node, names) for node in graph.nodes]
    return out


def name_outputs(node: Node, names: Names) -> Node:
    """Return the node with a name for each output up to its last named one: code finds outputs by position."""
    if "" not in node.outputs:
        return node
    named = [k for k, o in enumerate(node.outputs) if o]
    count = named[-1] + 1 if named else 0
    outputs = (o or names.fresh(f"{node.name}.unused{k}") for k, o in enumerate(node.outputs[:count]))
    return replace(node, outputs=tuple(outputs))


def _bind_one(declared: tuple[int | str, ...], shape: Shape, sizes: dict[str, int]) -> str:
    if len(declared) != len(shape):
        return f"rank {len(shape)} instead of {len(declared)}"
    for axis, (want, got) in enumerate(zip(declared, shape, strict=True)):
        if got < 0:
            return f"dimension {axis} is negative"
        if isinstance(want, int) and want != got:
            return f"dimension {axis} is {got} instead of {want}"
        if isinstance(want, str) and sizes.setdefault(want, got) != got:
            return f"dimension {axis} ({want!r}) is {got} here and {sizes[want]} elsewhere"
    return ""


def infer_shapes(graph: Graph) -> Graph:
    """Return the graph with a spec for every value; ModelError names the first node whose inputs do not fit."""
    out = graph.copy()
    for node in graph.nodes:
        infer_node(out, node)
    return out


STAGED = "make that value a constant, or use weft.load, which plans the network in stages"
"""What to do about a shape that follows from a value, as an error says it."""
OTHER_SHAPES = "give inputs the shapes that the model is made for, or export it again"
"""What to do about inputs that do not fit an op, as an error says it."""


def infer_node(graph: Graph, node: Node) -> None:
    """Set the specs of one node's outputs, which follow from its inputs' specs."""
    for name, spec in zip(node.outputs, inferred(graph, node), strict=False):
        if name:
            # An op that returns the spec of its input need not keep its numbers.
            graph.specs[name] = spec if spec.grid is None else replace(spec, grid=None)


def inferred(graph: Graph, node: Node) -> tuple[TensorSpec, ...]:
    """Return the specs of a node's outputs, at least as many as it names; ModelError if its inputs do not fit."""
    try:
        specs = node.op.inferred(graph.input_specs(node), graph.input_constants(node))
        if len(node.outputs) > len(specs):
            raise ModelError(f"it names {len(node.outputs)} outputs and makes {len(specs)}")
    except Exception as e:  # `infer` of a foreign op may raise anything
        why, fix = said_of(e), e.fix if isinstance(e, WeftError) else ""
        label = f"node {node.name!r} ({node.op.type})"
        where = f"inputs {', '.join(f'{i}: {graph.specs[i]}' for i in node.inputs if i)}"
        if isinstance(e, ValueNeeded):
            what, fix = f"the output shape of {label} is not known before a run", fix or STAGED
            raise ValueNeeded(what, where=where, why=why, fix=fix, index=e.index) from e
        what = f"{label} cannot run" if fix else f"the inputs of {label} do not fit"
        raise ModelError(what, where=where, why=why, fix=fix or OTHER_SHAPES) from e
    return specs


def depths(graph: Graph) -> dict[str, int]:
    """Return for each value the length of the longest chain of nodes that leads to it; 0 for inputs and constants."""
    depth: dict[str, int] = {}
    for node in graph.nodes:
        level = 1 + max((depth.get(i, 0) for i in node.inputs if i), default=0)
        depth.update(dict.fromkeys(node.outputs, level))
    return depth


def sort_nodes(nodes: Sequence[Node], known: set[str]) -> list[Node]:
    """Return the nodes in an order in which each follows its inputs; keeps the given order if it is one.

    Raise ModelError naming all nodes that lie on or depend on a cycle, or that read a value that no node makes.
    """
    made = {o for n in nodes for o in n.outputs if o}
    missing = [(n, i) for n in nodes for i in n.inputs if i and i not in made and i not in known]
    if missing:
        raise ModelError(
            "some nodes read values that nothing produces",
            why=listing([f"{n.name!r} ({n.op.type}) reads {i!r}" for n, i in missing]),
            fix="the file lacks an initialiser or a node",
        )
    waits = [len({i for i in n.inputs if i and i not in known}) for n in nodes]
    waiting: dict[str, list[int]] = {}
    for k, node in enumerate(nodes):
        for value in {i for i in node.inputs if i and i not in known}:
            waiting.setdefault(value, []).append(k)
    ready = [k for k, count in enumerate(waits) if not count]
    done: list[Node] = []
    while ready:
        node = nodes[heapq.heappop(ready)]
        done.append(node)
        for k in (k for o in node.outputs if o for k in waiting.pop(o, ())):
            waits[k] -= 1
            if not waits[k]:
                heapq.heappush(ready, k)
    if len(done) < len(nodes):
        stuck = [repr(n.name) for n, count in zip(nodes, waits, strict=True) if count]
        raise ModelError(
            "the graph has a cycle",
            why=f"these nodes wait for each other: {listing(stuck, ', ')}",
            fix="let none of them read what follows from its own outputs",
        )
    return done
