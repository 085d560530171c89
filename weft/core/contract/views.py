"""What a backend may do to its part of a network: `OptimizeSubgraph(view) -> OptimizationViews` (A5).

The names are Arm NN's. Slots are value names. A part's input slots are the values that it reads and does
not make, except constants; its output slots are the values that it makes and others read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from weft.core.contract.check_answers import shown
from weft.core.graph.graph import Graph, Node, sort_nodes
from weft.core.graph.op import Op
from weft.core.graph.validate import wrong_specs
from weft.errors import BackendError, ModelError


@dataclass(frozen=True, eq=False)
class SubgraphView:
    """Nodes of one backend as a graph of their own; read it, do not change it."""

    graph: Graph

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Return the nodes in topological order."""
        return tuple(self.graph.nodes)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Return the input slots: values made elsewhere."""
        return tuple(self.graph.inputs)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Return the output slots: values that are read elsewhere."""
        return tuple(self.graph.outputs)

    def part(self, nodes: Iterable[Node]) -> SubgraphView:
        """Return some of the nodes as a separate view, with the slots they then have."""
        chosen = sorted({self._places[n.name] for n in _nodes(nodes) if n.name in self._places})
        own = [self.graph.nodes[k] for k in chosen]
        made = [o for n in own for o in n.outputs if o]
        near = [n for o in made for n in self._readers.get(o, ())]
        around = replace(self.graph, nodes=near, outputs=[o for o in made if o in self._results])
        return SubgraphView(subgraph(around, self.graph.name, own))

    # A network may have thousands of parts, so making one must not scan the whole network.

    @cached_property
    def _places(self) -> dict[str, int]:
        return {n.name: k for k, n in enumerate(self.graph.nodes)}

    @cached_property
    def _results(self) -> set[str]:
        return set(self.graph.outputs)

    @cached_property
    def _readers(self) -> dict[str, list[Node]]:
        readers: dict[str, list[Node]] = {}
        for node in self.graph.nodes:
            for i in node.inputs:
                readers.setdefault(i, []).append(node)
        return readers


@dataclass(frozen=True, eq=False)
class Substitution:
    """A part and the graph that replaces it, with the same input and output slots."""

    part: SubgraphView
    replacement: Graph


@dataclass(frozen=True, eq=False)
class FailedPart:
    """A part that the backend cannot run after all, and why."""

    part: SubgraphView
    reason: str


@dataclass(eq=False)
class OptimizationViews:
    """The result for a view: every node of it is in exactly one of the four lists."""

    substitutions: list[Substitution] = field(default_factory=list)
    failed: list[FailedPart] = field(default_factory=list)
    untouched: list[SubgraphView] = field(default_factory=list)
    deleted: list[SubgraphView] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)
    """Why the backend made, changed or removed nodes, by their names: the journal shows it, where there is one."""

    def substitute(self, part: SubgraphView, replacement: Graph) -> None:
        """Replace a part by a graph with the part's inputs and outputs."""
        _hold(_no_graph(replacement), "substitute")
        self.substitutions.append(Substitution(_part(part, "substitute"), replacement))

    def fail(self, part: SubgraphView, reason: str) -> None:
        """Give a part back for the next backend that supports it; `reason` is a sentence for the user."""
        self.failed.append(FailedPart(_part(part, "fail"), reason))

    def keep(self, part: SubgraphView) -> None:
        """Leave a part unchanged: the backend runs it node by node."""
        self.untouched.append(_part(part, "keep"))

    def delete(self, part: SubgraphView) -> None:
        """Remove a part whose results nothing reads any more."""
        self.deleted.append(_part(part, "delete"))

    def keep_rest(self, view: SubgraphView) -> OptimizationViews:
        """Keep every node of the view that is in no list yet, and return these views."""
        _part(view, "keep_rest")
        _hold(self._kinds(), "keep_rest")
        known = {n.name for part in self._parts() for n in part.nodes}
        rest = [n for n in view.nodes if n.name not in known]
        if rest:
            self.keep(view.part(rest))
        return self

    def _parts(self) -> list[SubgraphView]:
        changed = [*(s.part for s in self.substitutions), *(f.part for f in self.failed)]
        return [*changed, *self.untouched, *self.deleted]

    def check(self, view: SubgraphView, device: str) -> None:
        """Raise BackendError, naming the backend and each slot or node, unless each node is in exactly one list."""
        problems = self._kinds() or self._problems(view)
        if problems:
            raise BackendError(
                "the backend's OptimizeSubgraph broke its contract",
                where=device,
                why="; ".join(problems),
                fix="put every node of the view into one list, and keep the slots of what is substituted",
            )

    def _kinds(self) -> list[str]:
        """Return the list entries of the wrong type; a backend may have put them there itself."""
        fields = {"substitutions": Substitution, "failed": FailedPart}
        problems = []
        for name in ("substitutions", "failed", "untouched", "deleted"):
            held, kind = getattr(self, name), fields.get(name, SubgraphView)
            if not isinstance(held, list):
                problems.append(f"{name} is {shown(held)}, not a list")
                continue
            strange = [e for e in held if not isinstance(e, kind)]
            problems += [f"{name} holds {shown(e)}, which is not a {kind.__name__}" for e in strange]
        if not isinstance(self.reasons, dict):
            problems.append(f"reasons is {shown(self.reasons)}, not a dict from names of nodes to sentences")
        else:
            strange = [pair for pair in self.reasons.items() if not all(isinstance(each, str) for each in pair)]
            problems += [f"reasons holds {shown(pair)}, which is no name of a node and a sentence" for pair in strange]
        if problems:
            return problems
        parts = [*(s.part for s in self.substitutions), *(f.part for f in self.failed)]
        problems += [f"{shown(p)} is no part; use view.part(nodes)" for p in parts if not isinstance(p, SubgraphView)]
        problems += [p for s in self.substitutions for p in _no_graph(s.replacement)]
        if problems:
            return problems
        reasons = [(_first(f.part), f.reason) for f in self.failed if not isinstance(f.reason, str)]
        return [f"{first} failed with the reason {shown(why)}; write a sentence" for first, why in reasons]

    def _problems(self, view: SubgraphView) -> list[str]:
        """Return what is wrong with the parts, slots and reasons."""
        problems = _coverage(view, self._parts())
        for s in self.substitutions:
            part = view.part(s.part.nodes)  # the slots it really has, whatever the backend put in the part
            problems += _slots("input", part.inputs, s.replacement.inputs)
            problems += _slots("output", part.outputs, s.replacement.outputs)
            problems += _values(part, s.replacement) or _specs(part, s.replacement)
        problems += [f"{_first(f.part)} failed without a reason" for f in self.failed if not f.reason.strip()]
        return problems + [f"output slot {o!r} was deleted and is still read" for o in self._lost(view)]

    def _lost(self, view: SubgraphView) -> list[str]:
        """Return the values of deleted parts that something still reads."""
        gone = {n.name for part in self.deleted for n in part.nodes}
        gone |= {n.name for s in self.substitutions for n in s.part.nodes}
        left = [n for n in view.nodes if n.name not in gone]
        left += [n for s in self.substitutions for n in s.replacement.nodes]
        made = {o for n in left for o in n.outputs}
        read = {i for n in left for i in n.inputs} | set(view.outputs)
        return sorted({o for part in self.deleted for n in part.nodes for o in n.outputs} & read - made)


def _hold(problems: Sequence[str], method: str, fix: str = "") -> None:
    """Raise BackendError if a method of the views was given wrong arguments."""
    if problems:
        where = f"OptimizationViews.{method}"
        raise BackendError("OptimizationViews got a wrong argument", where=where, why=problems[0], fix=fix)


def _part(part: object, method: str) -> Any:
    wrong = [] if isinstance(part, SubgraphView) else [f"it got {shown(part)}, which is not a SubgraphView"]
    _hold(wrong, method, "use view.part(nodes), or the view itself for all of them")
    return part


def _nodes(nodes: Iterable[Node]) -> list[Node]:
    if isinstance(nodes, Node):
        raise BackendError("part was called with one node", where="SubgraphView.part", fix="write view.part([node])")
    chosen = list(nodes) if isinstance(nodes, Iterable) else [nodes]
    wrong = [n for n in chosen if not isinstance(n, Node)]
    if wrong:
        why = f"it got {shown(wrong[0])}"
        what, fix = "part was called with something that is not a node", "pass nodes of view.nodes"
        raise BackendError(what, where="SubgraphView.part", why=why, fix=fix)
    return chosen


def _no_graph(graph: object) -> list[str]:
    """Return why this object is not a valid Graph."""
    if not isinstance(graph, Graph):
        return [f"the replacement is {shown(graph)}, which is not a Graph"]
    lists = {"inputs": (list, str), "outputs": (list, str), "nodes": (list, Node)}
    for name, (kind, item) in lists.items():
        held = getattr(graph, name)
        if not isinstance(held, kind) or not all(isinstance(e, item) for e in held):
            return [f"{name} of the replacement must be a list of {item.__name__}, and is {shown(held)}"]
    for node in graph.nodes:
        texts = (node.name, *node.inputs, *node.outputs)
        if not all(isinstance(t, str) for t in texts) or not isinstance(node.op, Op):
            return [f"a node of the replacement is not made of names and an op: {shown(node)}"]
    return []


def _coverage(view: SubgraphView, parts: list[SubgraphView]) -> list[str]:
    counts = {n.name: 0 for n in view.nodes}
    problems = []
    for part in parts:
        for n in part.nodes:
            if n.name in counts:
                counts[n.name] += 1
            else:
                problems.append(f"node {n.name!r} is not in the view")
    problems += [f"node {name!r} is in none of the lists" for name, count in counts.items() if not count]
    return problems + [f"node {name!r} is in {count} of the lists" for name, count in counts.items() if count > 1]


def _slots(kind: str, wanted: Iterable[str], given: Iterable[str]) -> list[str]:
    want, got = dict.fromkeys(wanted), dict.fromkeys(given)
    lost = [f"a substitution lost {kind} slot {s!r}" for s in want if s not in got]
    return lost + [f"a substitution has {kind} slot {s!r}, which its part does not have" for s in got if s not in want]


def _values(part: SubgraphView, graph: Graph) -> list[str]:
    """Return what is wrong with the values that a replacement makes, reads and describes."""
    slots = (*part.inputs, *part.outputs)
    before, after = part.graph.specs, graph.specs
    made = {o for n in graph.nodes for o in n.outputs if o}
    known = {*made, *part.inputs, *graph.constants, *part.graph.constants}
    new = "" if part.nodes else ", ".join(repr(n.name) for n in graph.nodes)
    problems = [f"{new} replaces no nodes"] if new else []
    problems += [f"a substitution makes no value for output slot {o!r}" for o in part.outputs if o not in made]
    problems += [
        f"{n.name!r} reads {i!r}, which is no input slot of its part"
        for n in graph.nodes
        for i in dict.fromkeys(n.inputs)
        if i and i not in known
    ]
    unknown = sorted(v for v in (*made, *graph.constants) if v not in after and v not in before)
    problems += [f"value {v!r} has no shape and type (Graph.specs)" for v in unknown]
    problems += [
        f"slot {v!r} was {before[v]} and became {after[v]}" for v in slots if v in after and after[v] != before[v]
    ]
    moved = [v for v in slots if graph.layouts.get(v) != part.graph.layouts.get(v)]
    return problems + [f"slot {v!r} became {graph.layouts[v].value}" for v in moved if v in graph.layouts]


def _specs(part: SubgraphView, graph: Graph) -> list[str]:
    """Return where a replacement's specs do not match its ops or the part that it replaces.

    A kernel reads as much as a spec says, so a wrong spec would read other tensors' memory.
    """
    asked = graph.copy()
    asked.specs = {**graph.specs, **part.graph.specs}
    asked.constants = {**part.graph.constants, **graph.constants}
    try:
        nodes = sort_nodes(graph.nodes, {*part.inputs, *asked.constants})
    except ModelError as e:
        return [e.short]
    before = {node.name: node for node in part.nodes}
    asked.nodes = [node for node in nodes if before.get(node.name) != node]
    return wrong_specs(asked)


def _collisions(graph: Graph, gone: set[str], substitutions: Iterable[Substitution]) -> list[str]:
    """Return the values of replacements whose names the network already uses elsewhere."""
    taken = {*graph.inputs, *(o for n in graph.nodes if n.name not in gone for o in n.outputs)}
    constants = dict(graph.constants)
    problems = []
    for s in substitutions:
        for node in s.replacement.nodes:
            for o in (o for o in node.outputs if o):
                if o in taken or o in constants:
                    problems.append(f"{node.name!r} makes {o!r}, which the network already has")
                taken.add(o)
        for name, value in s.replacement.constants.items():
            if name in taken:
                problems.append(f"constant {name!r} has the name of another value")
            elif constants.setdefault(name, value) is not value:
                problems.append(f"constant {name!r} of the network has another value")
    return problems


def _first(part: SubgraphView) -> str:
    return f"node {part.nodes[0].name!r}" if part.nodes else "no nodes"


def subgraph(graph: Graph, name: str, nodes: Iterable[Node]) -> Graph:
    """Return some nodes of a graph, in the given order, as a graph with its own slots, constants and specs."""
    chosen = list(nodes)
    made = {o for n in chosen for o in n.outputs if o}
    read = dict.fromkeys(i for n in chosen for i in n.inputs if i)
    names = {n.name for n in chosen}
    outside = {i for n in graph.nodes if n.name not in names for i in n.inputs} | set(graph.outputs)
    constants = {i: graph.constants[i] for i in read if i in graph.constants}
    inputs = [i for i in read if i not in made and i not in constants]
    part = Graph(name, inputs, [o for n in chosen for o in n.outputs if o in outside], chosen)
    part.constants = constants
    part.specs = {v: graph.specs[v] for v in [*read, *made]}
    part.layouts = {v: graph.layouts[v] for v in [*read, *made] if v in graph.layouts}
    part.aliases = {o: i for o, i in graph.aliases.items() if o in made and i in read}
    return part


def substitute(graph: Graph, views: OptimizationViews, device: str) -> Graph:
    """Return the graph with the substitutions and deletions made, its nodes sorted."""
    out = graph.copy()
    gone = {n.name for s in views.substitutions for n in s.part.nodes}
    gone |= {n.name for part in views.deleted for n in part.nodes}
    problems = _collisions(graph, gone, views.substitutions)
    if problems:
        why, fix = "; ".join(problems), "choose names with graph.fresh_name"
        raise BackendError("a substitution uses names that are taken", where=device, why=why, fix=fix)
    last = {s.part.nodes[-1].name: s for s in views.substitutions if s.part.nodes}
    nodes: list[Node] = []
    for node in graph.nodes:
        if node.name not in gone:
            nodes.append(node)
        elif node.name in last:
            nodes += last[node.name].replacement.nodes
    for s in views.substitutions:
        # It cannot redefine its slots or values of the rest of the network.
        brought = s.replacement.constants.keys() - graph.constants.keys()
        made = {o for n in s.replacement.nodes for o in n.outputs} | brought
        out.constants |= {v: s.replacement.constants[v] for v in brought}
        out.specs |= {v: spec for v, spec in s.replacement.specs.items() if v in made}
        out.layouts |= {v: layout for v, layout in s.replacement.layouts.items() if v in made}
    _check_names(nodes, device)
    try:
        out.nodes = sort_nodes(nodes, {*out.inputs, *out.constants})
    except ModelError as e:
        why = e.short
        fix = "let the replacement read only the part's inputs, constants and what it makes itself"
        raise BackendError("a substitution cannot replace its part", where=device, why=why, fix=fix) from e
    return out


def _check_names(nodes: list[Node], device: str) -> None:
    seen: set[str] = set()
    for node in nodes:
        if node.name in seen:
            raise BackendError(
                f"a substitution made a second node named {node.name!r}",
                where=device,
                fix="choose names with graph.fresh_name",
            )
        seen.add(node.name)
