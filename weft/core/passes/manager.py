"""A pass is a rewrite that declares what it requires of a graph and what it ensures; the `PassManager` runs passes.

It runs them in order, and a pass with `rounds` until it changes nothing. It checks each against its declaration, a pass
of Weft's own in full only if `WEFT_CHECK_PASSES` is set, and keeps the journal.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from weft import config
from weft.core.contract.error_context import is_error
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph
from weft.core.graph.layout import Array
from weft.core.graph.limits import Budget
from weft.core.graph.validate import InferredSpecs, graph_problems, wrong_specs
from weft.core.passes.journal import Journal, same_nodes
from weft.core.passes.properties import SHAPES_INFERRED, Property
from weft.errors import ConfigError, PassError, listing, said_of

SHOWN = 10
"""Nodes that an error names."""


@dataclass
class PassContext:
    """What a pass gets besides the graph, and what it may report about single nodes."""

    budget: Budget = field(default_factory=Budget)
    """What computing constants may cost: ask `PassContext.allows` before, call `spend` after."""
    reasons: dict[str, str] = field(default_factory=dict)
    """Why the pass removed or made a node, by the node's name, where the journal needs more than the pass's purpose."""
    left: dict[str, str] = field(default_factory=dict)
    """Why the pass left a node as it is, by the node's name: these nodes may break what the pass ensures."""
    stored: DType = DType.FLOAT32
    """The type in which constants of float32 are stored once all passes have run."""

    def leave(self, node: str, why: str) -> None:
        """Record why the pass did not rewrite a node that it was for; the journal shows it."""
        self.left[node] = why

    def allows(
        self, node: str, nbytes: int, what: str = "its new constants", *, values: Iterable[str] = (),
        flops: int = 0, read: int = 0,
    ) -> bool:
        """Tell whether the budget allows constants of so many bytes for a node; if not, record that the node is left.

        The journal says that `what` would go beyond the limit. The others are those of `Budget.allows`. Ask only once
        nothing but the budget is in the way.
        """
        need = self.budget.limit_in_the_way(nbytes, flops=flops, read=read)
        if need is not None:
            self.leave(node, f"{what} would go beyond the limit {need[0]!r}")
        return self.budget.allows(values, nbytes, flops=flops, read=read)


Rewrite = Callable[[Graph, PassContext], Graph]
"""Returns a new graph, or the given one if there is nothing to rewrite; it never changes the given one."""


@dataclass(frozen=True)
class Pass:
    """A rewrite with a name, the properties that it requires, and the properties that it ensures.

    It gets a bound graph. It must keep the graph well formed, and the names, shapes and types of inputs and outputs.
    It runs up to `rounds` times, as long as it changes something. A user's pass runs behind the last place of the
    standard pass that `after` names, and behind the whole group if that place is in one.
    """

    name: str
    rewrite: Rewrite
    requires: tuple[Property, ...] = (SHAPES_INFERRED,)
    ensures: tuple[Property, ...] = ()
    rounds: int = 1
    after: str = ""

    def __call__(self, graph: Graph, context: PassContext | None = None) -> Graph:
        """Return the rewritten graph; the given one stays as it is."""
        return PassManager(context or PassContext()).run(graph, self)

    @property
    def description(self) -> str:
        """Return in one line what the rewrite does."""
        return (self.rewrite.__doc__ or "").strip().partition("\n")[0]


@dataclass(frozen=True)
class PassGroup:
    """Passes that make work for each other: run in order, at most `rounds` times, until none changes anything."""

    name: str
    description: str
    members: tuple[Pass, ...]
    rounds: int
    requires: tuple[Property, ...] = (SHAPES_INFERRED,)
    ensures: tuple[Property, ...] = ()
    after: str = ""

    def __call__(self, graph: Graph, context: PassContext | None = None) -> Graph:
        """Return the rewritten graph; the given one stays as it is."""
        return PassManager(context or PassContext()).run(graph, self)


AnyPass = Pass | PassGroup


def with_members(item: AnyPass) -> tuple[AnyPass, ...]:
    """Return a pass; or a group, and then each of its members."""
    return (item, *item.members) if isinstance(item, PassGroup) else (item,)


def graph_pass(
    *,
    requires: tuple[Property, ...] = (SHAPES_INFERRED,),
    ensures: tuple[Property, ...] = (),
    rounds: int = 1,
    after: str = "",
) -> Callable[[Rewrite], Pass]:
    """Return a decorator that makes a pass of a function, under the function's name; see `Pass`."""
    return lambda rewrite: Pass(rewrite.__name__, rewrite, requires, ensures, rounds, after)


@dataclass(frozen=True, slots=True)
class PassRecord:
    """A pass that was run, the nodes before and after it, and whether it changed anything."""

    name: str
    before: int
    after: int
    changed: bool


@dataclass
class PassManager:
    """Runs passes, and keeps their journal and records. Those in `own` are a user's, always checked in full."""

    context: PassContext = field(default_factory=PassContext)
    own: Collection[AnyPass] = ()
    journal: Journal = field(default_factory=Journal)
    records: list[PassRecord] = field(default_factory=list)
    _told: set[tuple[str, str, str]] = field(default_factory=set)
    """Pass, node and reason of each node that was left: the journal notes each once, however many rounds there are."""
    _specs: InferredSpecs = field(default_factory=InferredSpecs)

    def run(self, graph: Graph, item: AnyPass) -> Graph:
        """Return the graph after all rounds of a pass, checked against what the pass declares."""
        before = len(graph.nodes)
        graph, changed, _ = self._repeat(graph, item, item in self.own)
        self.records.append(PassRecord(item.name, before, len(graph.nodes), changed))
        return graph

    def _repeat(self, graph: Graph, item: AnyPass, own: bool) -> tuple[Graph, bool, dict[str, str]]:
        """Return the graph after a pass or a group, whether that changed anything, and what the last round left."""
        any_changed, checked = False, own or config.check_passes()
        left: dict[str, str] = {}
        if checked:
            _check_properties(item, graph, item.requires, "requires", {})
        for _ in range(item.rounds):
            changed, left = False, {}
            for each in item.members if isinstance(item, PassGroup) else ():
                graph, did, theirs = self._repeat(graph, each, own)
                changed |= did
                left |= theirs
            if isinstance(item, Pass):
                graph, changed, left = self._rewrite(graph, item, own, checked)
            any_changed |= changed
            if not changed:
                break
        if checked:
            _check_properties(item, graph, item.ensures, "ensures", left)
        return graph, any_changed, left

    def _rewrite(self, graph: Graph, item: Pass, own: bool, checked: bool) -> tuple[Graph, bool, dict[str, str]]:
        """Return the graph after one round of a pass, whether that changed anything, and what the pass left."""
        self.context.reasons, self.context.left = {}, {}
        after = _applied(item, graph, self.context, own)
        rewired = not same_nodes(graph.nodes, after.nodes)
        changed = rewired or not _has_same_constants(graph, after)
        _check_interface(item, graph, after)
        if checked and (changed or after is not graph):  # specs alone may have changed
            _check_graph(item, after, self._specs)
        gone = {n.name for n in graph.nodes} - {n.name for n in after.nodes} if self.context.left else set[str]()
        # What one attempt left, another may have rewritten.
        left = self.context.left = {name: why for name, why in self.context.left.items() if name not in gone}
        news = {name: why for name, why in left.items() if (item.name, name, why) not in self._told}
        self._told.update((item.name, name, why) for name, why in news.items())
        if rewired or news:
            purpose, reasons = item.description, self.context.reasons
            self.journal.note(
                item.name, graph.nodes, after.nodes, after.outputs, purpose=purpose, reasons=reasons, left=news
            )
        return after, changed, left


def arranged(standard: Sequence[AnyPass], own: Sequence[AnyPass], default: str) -> list[AnyPass]:
    """Return the standard passes with a user's among them: each behind the last pass named in its `after`.

    If that is a member of a group, the user's goes behind the group. One without `after` goes behind `default`; several
    at one place keep their order. ConfigError names the passes whose `after` names no pass, and the passes that require
    what no earlier pass ensures.
    """
    last = {each.name: place for place, item in enumerate(standard) for each in with_members(item)}
    problems = [
        f"pass {each.name!r} is to come after {each.after!r}, and there is no such pass"
        for each in own
        if each.after and each.after not in last
    ]
    if problems:
        raise ConfigError(
            "there is no place for a pass",
            why="; ".join(problems),
            fix=f"choose one of {', '.join(last)}",
        )
    places: dict[int, list[AnyPass]] = {}
    for each in own:
        places.setdefault(last[each.after or default], []).append(each)
    order = [p for k, each in enumerate(standard) for p in (each, *places.get(k, ()))]
    _check_order(order)
    return order


def _check_order(order: Sequence[AnyPass]) -> None:
    """Raise ConfigError if a pass requires what no pass before it ensures."""
    held: dict[Property, None] = {}
    problems = []
    for k, each in enumerate(order):
        for wanted in each.requires:
            if wanted not in held:
                later = [p.name for p in order[k:] if wanted in p.ensures]
                hint = f"; {later[0]!r} does, later" if later else ""
                problems.append(f"pass {each.name!r} requires {wanted.name!r}, which no pass before it ensures{hint}")
        held.update(dict.fromkeys(each.ensures))
    if problems:
        raise ConfigError(
            "a pass has its place where what it requires does not hold",
            why="; ".join(problems),
            fix="give it a later place (after=...), or a pass before it that ensures this",
        )


def _applied(item: Pass, graph: Graph, context: PassContext, own: bool) -> Graph:
    """Return the graph that a pass returns. A user's pass gets a copy of the graph with read-only weights."""
    if not own:
        return item.rewrite(graph, context)
    given = graph.copy()
    given.constants = {name: _read_only(value) for name, value in graph.constants.items()}
    shown = dict(given.constants)
    try:
        result: object = item.rewrite(given, context)
    except Exception as e:
        if not is_error(e):
            raise
        fix = (
            "make a new array, and put that into the constants of graph.copy()"
            if "read-only" in str(e)
            else ""
        )
        raise PassError(f"pass {item.name!r} failed", why=said_of(e), fix=fix) from e
    if not isinstance(result, Graph):
        raise PassError(
            f"pass {item.name!r} returned no graph",
            why=f"it returned {'None' if result is None else f'a {type(result).__name__}'}",
            fix="return the rewritten graph, or the given one if there is nothing to do",
        )
    fields = ("inputs", "outputs", "nodes", "specs", "layouts")
    touched = [f for f in fields if not _is_equal(getattr(given, f), getattr(graph, f))]
    touched += [] if _is_equal(given.constants, shown) else ["constants"]
    if touched:
        raise PassError(
            f"pass {item.name!r} changed the graph that it was given",
            why=f"its {', '.join(touched)} changed",
            fix="work on graph.copy(), and return that",
        )
    if result is given:
        return graph
    # Put the original arrays back for their read-only views: packed weights are found by the identity of the array.
    originals = {id(view): graph.constants[name] for name, view in shown.items()}
    out = result.copy()
    out.constants = {name: originals.get(id(value), value) for name, value in result.constants.items()}
    return out


def _read_only(array: Array) -> Array:
    """Return a read-only view of an array."""
    view = array.view()
    view.setflags(write=False)
    return view


def _is_equal(a: object, b: object) -> bool:
    """Tell whether a list or mapping holds the same objects as another."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a is b or (a.keys() == b.keys() and all(map(operator.is_, a.values(), map(b.get, a))))
    assert isinstance(a, list) and isinstance(b, list)
    return a is b or (len(a) == len(b) and all(map(operator.is_, a, b)))


def _has_same_constants(before: Graph, after: Graph) -> bool:
    return before is after or _is_equal(before.constants, after.constants)


def _check_interface(item: Pass, before: Graph, after: Graph) -> None:
    """Raise PassError unless inputs and outputs are what they were."""
    if before is after:
        return
    problems = []
    specs, told = before.specs, after.specs
    for what in ("inputs", "outputs"):
        names, now = getattr(before, what), getattr(after, what)
        if names != now:
            problems.append(f"the {what} were {', '.join(names)} and are {', '.join(now)}")
        problems += [
            f"{name!r} was {specs[name]} and is {told.get(name)}"
            for name in names
            if specs.get(name) is not told.get(name) and name in specs and specs[name] != told.get(name)
        ]
    if problems:
        raise PassError(
            f"pass {item.name!r} changed the inputs or outputs of the network",
            why="; ".join(problems),
            fix="keep their names, shapes and types; an Identity or a Cast can stand before an output",
        )


def _check_graph(item: Pass, graph: Graph, known: InferredSpecs) -> None:
    """Raise PassError with what is wrong with the graph that a pass returned."""
    problems = graph_problems(graph) or wrong_specs(graph, known)
    if problems:
        raise PassError(
            f"pass {item.name!r} returned a graph that is not well formed",
            why=listing(problems, most=SHOWN),
            fix="each value is made once and before it is read, each node has a name of its own (weft.extend.Names), "
            "and each new value a spec (weft.extend.infer_node)",
        )


def _check_properties(
    item: AnyPass, graph: Graph, properties: Iterable[Property], verb: str, left: Mapping[str, str]
) -> None:
    """Raise PassError with each property that does not hold, and the nodes or values that break it."""
    problems = []
    for each in properties:
        broken = [name for name in each.broken_by(graph) if name not in left]
        if broken:
            names = listing([*map(repr, broken)], ", ", most=SHOWN)
            problems.append(f"{each.name!r} does not hold for {names}")
    if problems and verb == "requires":
        raise PassError(
            f"what pass {item.name!r} requires does not hold",
            why="; ".join(problems),
            fix="give the pass a later place (after=...), or mend the pass before it",
        )
    if problems:
        raise PassError(
            f"pass {item.name!r} does not ensure what it declares",
            why="; ".join(problems),
            fix="mend the pass, declare less, or say context.leave(node, why) of what it cannot rewrite",
        )
