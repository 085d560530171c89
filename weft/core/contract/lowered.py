"""What a backend made of its part of a network: the nodes that run, where values lie, what is launched."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from weft.core.graph.fused_op import Fused
from weft.core.graph.graph import Graph, Node
from weft.core.graph.index_map import IDENTITY, IndexMap
from weft.core.graph.layout import Layout
from weft.core.graph.tensor import TensorSpec
from weft.errors import BackendError

if TYPE_CHECKING:
    from weft.core.passes.journal import PassNote

Size3 = tuple[int, int, int]


class PlanAgain(BackendError):
    """Raised by `Engine.lower` if the device can do less than the backend said: the network is planned anew."""


class TakesLong(BackendError):
    """Raised by `Engine.lower`, once, if a session that wants its first run soon should run otherwise until then."""


@dataclass(frozen=True)
class Launch:
    """One launch of a kernel, as it is planned: `grid` work-groups of `local` items each, for one node."""

    node: str
    kernel: str
    grid: Size3
    local: Size3
    read: int
    """Bytes that the kernel reads if it takes each of its arguments from memory once."""
    written: int
    levels: tuple[tuple[str, str], ...] = field(default=(), kw_only=True)
    """For several launches as one: the node and the kernel of each. `node` is then the first of these nodes."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """Return the nodes that it is for, each once."""
        return tuple(dict.fromkeys([self.node, *(node for node, _ in self.levels)]))

    @property
    def facts(self) -> tuple[object, ...]:
        """Return what two launches have in common that do the same, whatever class they are of."""
        return self.node, self.kernel, self.grid, self.local, self.read, self.written, self.levels

    def __str__(self) -> str:
        groups, items = ("x".join(map(str, size)) for size in (self.grid, self.local))
        text = f"{self.kernel}: {groups} groups of {items}, reads {self.read:,} bytes, writes {self.written:,}"
        if not self.levels:
            return text
        return f"{text}; its levels are {', '.join(f'{kernel} for {node}' for node, kernel in self.levels)}"


@dataclass(frozen=True, slots=True)
class ValueView:
    """A value that lies inside another's memory.

    `first` and `blocks` count channel blocks. `blocks` is 0 for an alias: the same bytes under another name, or, if
    `places` is not the identity, elements that lie where this map says.
    """

    root: str
    first: int = 0
    blocks: int = 0
    places: IndexMap = IDENTITY

    def __str__(self) -> str:
        if self.blocks:
            return f"in {self.root} from block {self.first} of {self.blocks}"
        return f"as {self.root}" if self.places.is_identity else f"in {self.root} at {self.places}"


def root_of(views: Mapping[str, ValueView], name: str) -> str:
    """Return the value in whose memory a value lies: itself, if it is no view."""
    view = views.get(name)
    return name if view is None else view.root


@dataclass(frozen=True, eq=False)
class Lowered:
    """A part of a network as one backend runs it; what `Engine.lower` returns.

    `graph` has the nodes in the order of execution, with the layouts of their values (`Graph.layouts`), and the
    inputs and outputs of the part. `launches` are in the order in which the device gets them; it may start launches
    that do not wait for each other side by side. `views` are the values without memory of their own.
    """

    graph: Graph
    launches: tuple[Launch, ...] = ()
    views: Mapping[str, ValueView] = field(default_factory=dict)
    plan: object = None
    """Whatever else the backend needs to run the part: handed to `Engine.onLowered`, never saved."""
    decisions: Mapping[str, Sequence[object]] = field(default_factory=dict)
    """By the name of a node, what was chosen between kernels for it, and why; each is printed with `str`."""
    steps: tuple[PassNote, ...] = ()
    """What lowering did to the nodes, in order; `OptimizedNetwork.why` tells it."""
    why_apart: Callable[[], Mapping[str, str]] = dict
    """Returns, by the names of nodes that are element-wise or move elements, why each has launches of its own."""

    @cached_property
    def listing(self) -> Listing:
        """Return what can be shown of it."""
        return Listing(tuple(map(self._listed, self.graph.nodes)), self.launches)

    def _listed(self, node: Node) -> ListedNode:
        graph, op = self.graph, node.op
        ops = (op.base, *(step.op for step in op.steps)) if isinstance(op, Fused) else (op,)
        shapes = [None if s is None else s.dims for s in graph.input_specs(node)]
        flops = op.flops(shapes, [s.dims for s in graph.output_specs(node)])
        made = [
            ListedValue(o, graph.specs[o], graph.layouts.get(o, Layout.NCHW), self.views.get(o))
            for o in node.outputs
            if o
        ]
        return ListedNode(node.name, " + ".join(each.type for each in ops), flops, tuple(made))


@dataclass(frozen=True, slots=True)
class ListedValue:
    """A value that a lowered node makes, and how and where it lies."""

    name: str
    spec: TensorSpec
    layout: Layout
    view: ValueView | None

    def __str__(self) -> str:
        return f"{self.name}: {self.spec} {self.layout.value}" + (f" {self.view}" if self.view else "")


@dataclass(frozen=True, slots=True)
class ListedNode:
    """A lowered node: the op types that it is made of, and the floating-point operations as its ops count them."""

    name: str
    kind: str
    flops: int
    outputs: tuple[ListedValue, ...]

    def __str__(self) -> str:
        return f"{self.name} ({self.kind}) -> {', '.join(map(str, self.outputs))}; {self.flops:,} FLOP"


@dataclass(frozen=True)
class Listing:
    """What a lowered part launches, to be shown; nothing is run by it."""

    nodes: tuple[ListedNode, ...]
    launches: tuple[Launch, ...]

    @property
    def flops(self) -> int:
        """Return the floating-point operations of all nodes."""
        return sum(node.flops for node in self.nodes)

    @property
    def read(self) -> int:
        """Return the bytes that the launches read."""
        return sum(launch.read for launch in self.launches)

    @property
    def written(self) -> int:
        """Return the bytes that the launches write."""
        return sum(launch.written for launch in self.launches)

    def __str__(self) -> str:
        return self.text({})

    def text(self, decisions: Mapping[str, Sequence[object]]) -> str:
        """Return what is printed: each node with its launches, and behind them the decisions that led to these."""
        count = f"{len(self.launches)} launches for {len(self.nodes)} nodes"
        lines = [f"{count}: {self.flops:,} FLOP, reads {self.read:,} bytes, writes {self.written:,}"]
        launches: dict[str, list[str]] = {}
        for launch in self.launches:
            launches.setdefault(launch.node, []).append(str(launch))
            for name in launch.nodes[1:]:
                launches.setdefault(name, []).append(f"in the {launch.kernel} of {launch.node}")
        for node in self.nodes:
            lines += [f"  {node}", *(f"    {launch}" for launch in launches.get(node.name, ()))]
            reasons = (line for each in decisions.get(node.name, ()) for line in _indented(str(each)))
            lines += [f"      {line}" for line in reasons]
        return "\n".join(lines)


def _indented(text: str) -> list[str]:
    """Return the lines of a decision, all but the first indented."""
    head, *rest = text.splitlines()
    return [head, *(f"  {line}" for line in rest)]


def difference(told: Listing, made: Listing) -> str:
    """Return how what is made differs from what was told of, or ""."""
    launches = [
        f"{b.node!r} has {b}, and not {a}"
        for a, b in zip(told.launches, made.launches, strict=False)
        if a.facts != b.facts
    ]
    nodes = [f"{b}, and not {a}" for a, b in zip(told.nodes, made.nodes, strict=False) if a != b]
    counts = [f"{len(listing.launches)} launches for {len(listing.nodes)} nodes" for listing in (made, told)]
    more = [f"{counts[0]}, and not {counts[1]}"] if counts[0] != counts[1] else []
    return next(iter([*more, *launches, *nodes]), "")
