"""From a bound graph to an optimised network: rewrite, assign, let each backend optimise, partition, copy (A7).

Each step is a function of its own that can be called and printed alone:

    prepare_network    fold, rewrite, store as fp32 or fp16       weft/core/placement/prepare.py
    decompose_refused  take apart ops that a device refuses       weft/core/placement/decompose.py
    assign             which device runs which node               weft/core/placement/assign.py
    optimize_parts     each backend's OptimizeSubgraph            here
    add_debug_nodes    when asked                                 weft/core/placement/debug_nodes.py
    partition          as few subgraphs as possible               weft/core/placement/partition.py
    insert_copies      copies, or imports, between subgraphs      here
    lower_network      layouts, views and launches of each part   weft/core/placement/lower_network.py

Debug nodes are added before the partition, because they need a device too, and after the backends' optimisers, so that
they see the nodes that run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from weft.core.contract.backend import Backend, BackendConfig
from weft.core.contract.error_context import blame, callback_of
from weft.core.contract.views import OptimizationViews, SubgraphView, substitute
from weft.core.graph.graph import Graph, Names, Node
from weft.core.graph.limits import Budget, Limits
from weft.core.host.garbage import without_collections
from weft.core.passes import AnyPass
from weft.core.passes.dead import remove_unread
from weft.core.passes.duplicates import share_small_values
from weft.core.passes.journal import Journal
from weft.core.placement.assign import Assignment, Backends, assign, assign_node, unsupported
from weft.core.placement.check_network import imports
from weft.core.placement.debug_nodes import DebugSink, add_debug_nodes
from weft.core.placement.decompose import decompose_refused
from weft.core.placement.hints import Hints, lost_hints
from weft.core.placement.in_place import settle, without_casts
from weft.core.placement.lower_network import lower_network
from weft.core.placement.optimized_network import Copy, OptimizedNetwork, Part, PreCompiled, Tail
from weft.core.placement.partition import partition
from weft.core.placement.prepare import PreparedNetwork, prepare_network
from weft.core.placement.replan import until_taken
from weft.core.placement.stage_split import split
from weft.errors import BackendError, ExecutionError, UnsupportedOps, ValueNeeded, listing


@dataclass(frozen=True)
class OptimizerOptions:
    """What a user asks of the optimiser.

    `hints`: devices by node name or pattern. `fallback`: with "error", a node runs on the device of its hint, or
    without a hint on the first device, or not at all. `debug` receives every output of every node in each run.
    `limits`: what the model may cost before it runs. `passes`: a user's own passes, run among the standard ones.
    """

    config: BackendConfig = field(default_factory=BackendConfig)
    hints: Mapping[str, str] = field(default_factory=dict)
    fallback: str = "cpu"
    debug: DebugSink | None = None
    limits: Limits = field(default_factory=Limits)
    passes: tuple[AnyPass, ...] = ()


def optimize(
    bound: Graph, backends: Backends, options: OptimizerOptions, *, host: str = "cpu:0",
    before: Assignment | None = None, prepared: PreparedNetwork | None = None,
) -> OptimizedNetwork:
    """Return the network of a graph whose input shapes are all known.

    `backends` are asked in order. Debug nodes run on the device `host`. `before` holds the refusals that came up when
    an earlier result was loaded. `prepared` is the result of `prepare_network`, if it was called before.
    """

    def plan(before: Assignment) -> OptimizedNetwork:
        divided = divide(bound, backends, options, host=host, before=before, prepared=prepared)
        return lower_network(divided, backends)

    return until_taken(plan, before=before)


def divide_first(
    bound: Graph, backends: Backends, options: OptimizerOptions, *, host: str = "cpu:0",
    before: Assignment | None = None, prepared: PreparedNetwork | None = None,
) -> OptimizedNetwork:
    """Return what `divide` returns; where sizes follow from values, the first stage, with what comes after it."""
    try:
        return divide(bound, backends, options, host=host, before=before, prepared=prepared)
    except ValueNeeded:
        stage = split(bound, Budget(options.limits))
        if stage.rest is None:
            raise
    network = divide(stage.graph, backends, options, host=host, before=before)
    inputs = {i: bound.specs[i] for i in bound.inputs}
    tail = Tail(inputs, tuple(bound.outputs), stage.corners, stage.rest, options)
    return replace(network, tail=tail)


@without_collections()
def divide(
    bound: Graph, backends: Backends, options: OptimizerOptions, *, host: str = "cpu:0",
    before: Assignment | None = None, prepared: PreparedNetwork | None = None,
) -> OptimizedNetwork:
    """Return what `optimize` returns before the backends lower their parts."""
    prepared = prepared or prepare_network(bound, options.config.precision, options.limits, options.passes)
    hints, journal = Hints(options.hints), prepared.journal.copy()
    graph, notes = decompose_refused(prepared.graph, backends, hints, journal)
    if notes:  # what came of ops that were taken apart
        apart, graph = graph, share_small_values(graph)
        purpose = "Compute small values once that several nodes would compute alike."
        journal.note("share_small_values", apart.nodes, graph.nodes, graph.outputs, purpose=purpose)
    graph = without_casts(graph, backends)
    notes += lost_hints(graph, options.hints)
    assignment = assign(graph, backends, hints, before=before)
    graph, device = optimize_parts(graph, backends, assignment, hints, journal)
    _check_fallback(assignment, next(iter(backends)), options.fallback, hints)
    if options.debug is not None:
        graph = add_debug_nodes(graph, device, host, options.debug)
    notes += settle(graph, device, backends)
    undivided = graph.nodes
    parts = insert_copies(partition(graph, device, tuple(backends)), graph, backends)
    whole = graph.copy()
    whole.nodes = [node for part in parts for node in (*part.copies, *part.part.graph.nodes)]
    if any(part.copies for part in parts):
        purpose = "Bring values from one device to another."
        journal.note("insert_copies", undivided, whole.nodes, whole.outputs, purpose=purpose)
    whole.specs |= {v: s for part in parts for v, s in part.part.graph.specs.items()}
    return OptimizedNetwork(
        graph=whole,
        parts=tuple(part.part for part in parts),
        devices=tuple(backends),
        config=options.config,
        refusals=tuple(assignment.refusals.values()),
        notes=(*prepared.notes, *notes),
        passes=prepared.passes,
        versions={b.info.id: b.info.version for b in backends.values()},
        backend_options={b.info.id: b.info.kept_options for b in backends.values()},
        named={device: b.info.named for device, b in backends.items() if b.info.named},
        journal=journal,
    )


# -- the backends' own optimisers (A5, A6) ------------------------------------------------------------------


def optimize_parts(
    graph: Graph, backends: Backends, assignment: Assignment, hints: Mapping[str, str] | Hints | None = None,
    journal: Journal | None = None,
) -> tuple[Graph, dict[str, str]]:
    """Return the graph after the backends' optimisers, and the device of every node.

    Each backend sees its subgraphs once. Nodes that it fails, and only those, go to the next backend that supports
    them, and to its optimiser. `assignment` receives the reasons, `journal` the changes. UnsupportedOps names all nodes
    that no backend takes.
    """
    work = _Optimisation(graph, backends, assignment, Hints.of(hints), journal or Journal())
    while work.unseen:
        before = work.progress
        for name in backends:
            work.ask(name)
        if work.progress == before:
            raise BackendError(
                "the backends' optimisers do not come to an end",
                where=", ".join(sorted({work.device.get(n, "no device") for n in work.unseen})),
                why=f"no backend optimised {listing([*map(repr, sorted(work.unseen))], ', ')}",
                fix="answer in OptimizeSubgraph for every node of the view: substituted, failed, untouched or deleted",
            )
    if work.homeless:
        raise unsupported(work.homeless, backends, assignment)
    return remove_unread(work.graph), work.device


class _Optimisation:
    """The state between calls of the backends' optimisers; `unseen` are the names of nodes that still await one."""

    def __init__(
        self, graph: Graph, backends: Backends, assignment: Assignment, hints: Hints, journal: Journal
    ) -> None:
        self.graph, self._backends, self._assignment, self._hints = graph, backends, assignment, hints
        self._journal = journal
        self.device = dict(assignment.device)
        self.unseen = {n.name for n in graph.nodes}
        self.homeless: list[Node] = []
        self._parts: list[Part] | None = None
        """The current partition; None after a backend changed the graph or a node changed its device."""

    @property
    def progress(self) -> tuple[int, int]:
        """Return two counts, of which each step changes at least one: unseen nodes and refusals."""
        return len(self.unseen), len(self._assignment.refusals)

    def ask(self, name: str) -> None:
        """Let a backend optimise its subgraphs that it has not seen."""
        if not any(self.device.get(n) == name for n in self.unseen):
            return
        if self._parts is None:
            self._parts = self._divided()
        asked = [SubgraphView(part.graph) for part in self._parts if part.device == name]
        self._take(name, [(view, _ask(self._backends[name], name, view)) for view in asked])

    def _divided(self) -> list[Part]:
        """Return the partition of the graph, with optimised nodes apart from nodes that still await an optimiser."""
        labels = {
            n.name: self.device.get(n.name, "nobody") + ("" if n.name in self.unseen else " (done)")
            for n in self.graph.nodes
        }
        return partition(self.graph, labels)

    def _take(self, name: str, answers: list[tuple[SubgraphView, OptimizationViews]]) -> None:
        """Apply a backend's answers for its subgraphs; all at once, because there may be thousands."""
        mine = {n.name: n for view, _ in answers for n in view.nodes}
        self.unseen -= mine.keys()
        every = OptimizationViews()
        for _, views in answers:
            every.substitutions += views.substitutions
            every.deleted += views.deleted
            every.failed += views.failed
            every.reasons |= views.reasons
        if every.substitutions or every.deleted:
            before = self.graph
            self.graph, self._parts = substitute(before, every, name), None
            purpose = "The backend's own rewrites of its part."
            nodes, reasons = (before.nodes, self.graph.nodes), every.reasons
            self._journal.note(name, *nodes, before.outputs, purpose=purpose, reasons=reasons)
            homeless = {n.name for n in self.homeless}
            self.device = {n.name: self.device.get(n.name, name) for n in self.graph.nodes if n.name not in homeless}
        for node, reason in [(mine[n.name], f.reason) for f in every.failed for n in f.part.nodes]:
            self._assignment.refuse(node, name, reason)
            self._parts = None
            if assign_node(self.graph, node, self._backends, self._hints, self._assignment):
                self.device[node.name] = self._assignment.device[node.name]
                self.unseen.add(node.name)
            else:
                del self.device[node.name]
                self.homeless.append(node)


def _ask(backend: Backend, name: str, view: SubgraphView) -> OptimizationViews:
    """Return a backend's answer for a view; BackendError if it breaks the contract."""
    # The backend gets a copy, so that it cannot change the view that its answer is checked against.
    shown = view.graph.copy()
    shown.nodes = [Node(n.name, n.op, n.inputs, n.outputs) for n in shown.nodes]
    callback = callback_of(backend, "OptimizeSubgraph")
    try:
        with blame(name, "the backend could not optimise its part of the network", callback=callback):
            views = backend.OptimizeSubgraph(SubgraphView(shown))
            if not isinstance(views, OptimizationViews):
                raise BackendError(
                    "the backend's OptimizeSubgraph broke its contract",
                    why=f"it returned {'None' if views is None else f'a {type(views).__name__}'}",
                    fix="return OptimizationViews, with every node of the view in one of its lists",
                )
            views.check(view, name)
            _check_compiled(views, backend)
    except (BackendError, ExecutionError) as e:
        changed = [f for f in ("inputs", "outputs", "nodes", "specs") if getattr(shown, f) != getattr(view.graph, f)]
        if not changed:
            raise
        raise BackendError(
            "the backend's OptimizeSubgraph changed the view that it was shown",
            where=f"{name}: {callback}",
            why=f"its {', '.join(changed)} changed, and then: {e.why or e.what}",
            fix="work on a copy, graph.copy() with dataclasses.replace(node, ...), and substitute that",
        ) from e
    return views


def _check_compiled(views: OptimizationViews, backend: Backend) -> None:
    """Raise BackendError if a backend made nodes that it does not run itself."""
    made = [node for s in views.substitutions for node in s.replacement.nodes]
    problems = [
        f"node {n.name!r} is compiled for {n.op.backend!r}"
        for n in made
        if isinstance(n.op, PreCompiled) and n.op.backend != backend.info.id
    ]
    problems += [f"node {n.name!r} is a copy between devices" for n in made if isinstance(n.op, Copy)]
    if problems:
        raise BackendError(
            "the backend's OptimizeSubgraph made nodes that it cannot run",
            where=backend.info.device,
            why="; ".join(problems),
            fix=f"a backend makes PreCompiled nodes of its own id alone: PreCompiled({backend.info.id!r}, ...)",
        )


def _check_fallback(assignment: Assignment, first: str, fallback: str, hints: Hints) -> None:
    """Raise UnsupportedOps with every node that is neither on its hint's device nor, without a hint, on the first."""
    if fallback != "error":
        return
    wanted = {node: hints.device(node) or first for node, _ in assignment.refusals}
    refused = [r for (node, d), r in assignment.refusals.items() if d in (wanted[node], first)]
    if refused:
        devices = dict.fromkeys(wanted[r.node] for r in refused)
        raise UnsupportedOps(
            f"{len({r.node for r in refused})} node(s) cannot run on {', '.join(devices)}",
            [r.problem() for r in refused],
            fix='allow other devices: fallback="cpu"',
            refusals=tuple(assignment.refusals.values()),
        )


# -- copies (A8) ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class CopiedPart:
    """A part with the copies that run before it."""

    part: Part
    copies: tuple[Node, ...] = ()


def insert_copies(parts: list[Part], graph: Graph, backends: Backends) -> list[CopiedPart]:
    """Return the parts with a `Copy` node for every value that crosses from one device to another.

    There is none if the reader can use the memory of a part that holds the value (`Backend.canImport`): the reader's
    input then has the name of that value.
    """
    holders: dict[str, list[tuple[str, str]]] = {}
    names, out = Names(graph), []
    for part in parts:
        copies: list[Node] = []
        renamed: dict[str, str] = {}
        for value in part.graph.inputs:
            held = holders.get(value)
            if held is None:
                continue
            name = _importable(held, part.device, backends)
            if name is None:
                source = held[0][0]
                name = names.fresh(f"{value}@{part.device}")
                label = names.fresh(f"copy {value}: {source} -> {part.device}")
                copies.append(Node(label, Copy(source, part.device), (value,), (name,)))
                held.append((part.device, name))
            renamed[value] = name
        out.append(CopiedPart(_rename(part, renamed), tuple(copies)))
        for value in part.graph.outputs:
            holders[value] = [(part.device, value)]
    return out


def _importable(held: list[tuple[str, str]], device: str, backends: Backends) -> str | None:
    """Return the name of a value that some part holds in memory which the device can use, or None."""
    for where, name in held:
        if device not in backends or where not in backends:
            continue
        if imports(backends[device], backends[where]):
            return name
    return None


def _rename(part: Part, names: Mapping[str, str]) -> Part:
    """Return the part with its inputs renamed to the results of the copies."""
    if all(old == new for old, new in names.items()):
        return part
    graph = part.graph.copy()
    graph.inputs = [names.get(i, i) for i in graph.inputs]
    graph.nodes = [replace(n, inputs=tuple(names.get(i, i) for i in n.inputs)) for n in graph.nodes]
    graph.specs = {names.get(v, v): spec for v, spec in graph.specs.items()}
    if len(set(graph.inputs)) < len(graph.inputs):
        what = f"part {graph.name!r} reads a value under two names"
        raise BackendError(what, where=part.device, fix="this is a defect of Weft: report it with the model")
    return Part(part.device, graph)
