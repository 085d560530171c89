"""The journal of an optimised network: which pass made, changed, merged or removed which node, and why.

What is kept of each pass that changed something is the list of nodes before it and after it, which costs a run of the
optimiser next to nothing. Only when somebody asks are the two compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from weft.core.graph.graph import Node
from weft.core.graph.op import Op

Kind = Literal["made", "changed", "merged", "bypassed", "folded", "removed", "left", "planned"]
"""What became of a node.

`made`, `changed`: it is new, or reads, computes or writes something else. `merged`: other nodes do its work.
`bypassed`: its readers read another value. `folded`: its results are constants. `removed`: nothing reads its results.
`left`: a pass would have rewritten it and could not. `planned`: how its device runs it, or where its results lie.
"""


@dataclass(frozen=True, slots=True)
class Change:
    """What one pass did to one node."""

    kind: Kind
    node: str
    text: str
    """A sentence without its subject, which is the node: "is merged into 'conv1', which makes 'y' now"."""
    before: str = ""
    """The node as the pass found it, printed; empty if the pass made it."""
    values: tuple[str, ...] = ()
    """The values that the node made or makes, and values that it reads since, or no longer reads."""
    into: tuple[str, ...] = ()
    """The nodes that replace it."""


@dataclass(eq=False)
class PassNote:
    """A pass that changed something: its name, what it does, and what it did to each node."""

    by: str
    purpose: str = ""
    lowering: bool = False
    """Whether a backend did it as it lowered its part; done anew for other shapes, and where a network is loaded."""
    _nodes: tuple[Sequence[Node], Sequence[Node], Sequence[str]] | None = None
    """The nodes before and after, and the names of the outputs; None after they were compared."""
    _reasons: Mapping[str, str] = field(default_factory=dict)
    _left: Mapping[str, str] = field(default_factory=dict)
    _changes: tuple[Change, ...] = ()

    @classmethod
    def of_changes(cls, by: str, purpose: str, changes: Iterable[Change], lowering: bool = False) -> PassNote:
        """Return a step whose changes are known already, such as one of a saved network."""
        return cls(by, purpose, lowering, _changes=tuple(changes))

    @property
    def changes(self) -> tuple[Change, ...]:
        """Return what was done to each node, in the order of the nodes."""
        held = self._nodes
        if held is not None:
            found = _difference(*held, self._reasons)
            self._changes = (*found, *(Change("left", node, f"stays: {why}") for node, why in self._left.items()))
            self._nodes = None  # last: until then another thread compares them again
        return self._changes


class Journal:
    """The steps that changed a network, in order. `life` and `explain` follow one node or value through them."""

    def __init__(self, steps: Iterable[PassNote] = ()) -> None:
        self.notes = list(steps)

    def note(
        self, by: str, before: Sequence[Node], after: Sequence[Node], outputs: Sequence[str], *,
        purpose: str = "", reasons: Mapping[str, str] | None = None, left: Mapping[str, str] | None = None,
    ) -> None:
        """Note what a pass did to the nodes of a graph with these outputs; note nothing if it did nothing.

        The lists must not change afterwards. `reasons` says why single nodes were removed or made, `left` why the pass
        did not rewrite nodes that it is for.
        """
        if before is not after or left:
            self.notes.append(PassNote(by, purpose, False, (before, after, outputs), reasons or {}, left or {}))

    def lowered(self, steps: Iterable[PassNote]) -> Journal:
        """Return a journal with these steps of lowering instead of its own."""
        return Journal([*(s for s in self.notes if not s.lowering), *(replace(s, lowering=True) for s in steps)])

    def copy(self) -> Journal:
        """Return a journal that can be continued without touching this one."""
        return Journal(self.notes)

    def life(self, name: str) -> list[tuple[PassNote, Change]]:
        """Return the changes to a node and to the nodes that replaced it, or to a value; empty if there were none."""
        return self._followed(name)[0]

    def heirs(self, name: str) -> list[str]:
        """Return the nodes that replaced a node, in the order in which they did."""
        return self._followed(name)[1]

    def _followed(self, name: str) -> tuple[list[tuple[PassNote, Change]], list[str]]:
        """Return the changes to a node and to the nodes that replaced it, and these nodes."""
        followed, found = {name: None}, list[tuple[PassNote, Change]]()
        is_node = any(c.node == name for note in self.notes for c in note.changes)
        for step in self.notes:
            now = set(followed)
            for change in step.changes:
                if change.node in now if is_node else name in change.values:
                    found.append((step, change))
                    followed.update(dict.fromkeys(change.into if is_node else ()))
        return found, list(followed)[1:]

    def __eq__(self, other: object) -> bool:
        """Tell whether another journal has the same steps, with the same changes."""
        if not isinstance(other, Journal):
            return NotImplemented
        mine, theirs = ([(s.by, s.purpose, s.lowering, s.changes) for s in journal.notes] for journal in (self, other))
        return mine == theirs

    __hash__ = None  # type: ignore[assignment]  # steps are added to it

    def names(self) -> set[str]:
        """Return the names of all nodes and values that some pass touched."""
        changes = [c for note in self.notes for c in note.changes]
        return {c.node for c in changes} | {v for c in changes for v in c.values}

    def explain(self, name: str) -> list[str]:
        """Return the life of a node or value, a line for each change: the pass, its purpose, and what it did."""
        lines = []
        told: set[str] = set()
        for step, change in self.life(name):
            if change.before and not told:
                lines.append(f"as read: {change.before}")
            told.add(change.node)
            purpose = f" ({step.purpose.rstrip('.')})" if step.purpose else ""
            lines.append(f"{step.by}{purpose}: {change.node!r} {change.text}")
        return lines


@dataclass
class _Fate:
    """The nodes in the place of one that a step removed."""

    makers: dict[str, str] = field(default_factory=dict)
    """The node that makes each of its values now."""
    into: dict[str, None] = field(default_factory=dict)
    """The nodes that it was merged into."""
    instead: dict[str, None] = field(default_factory=dict)
    """The values that its readers read instead."""
    folded: bool = False


def _difference(
    before: Sequence[Node], after: Sequence[Node], outputs: Sequence[str], reasons: Mapping[str, str]
) -> list[Change]:
    """Return what became of each node."""
    old, new = {n.name: n for n in before}, {n.name: n for n in after}
    gone = [n for n in before if n.name not in new]
    fates = _fates(gone, before, after, new, outputs)
    changes = []
    taken: dict[str, list[str]] = {}
    for node in gone:
        fate = fates[node.name]
        targets = tuple(dict.fromkeys([*fate.makers.values(), *fate.into]))
        for target in targets:
            taken.setdefault(target, []).append(node.name)
        kind, text = _end(fate, targets)
        values = (*filter(None, node.outputs), *fate.instead)
        changes.append(Change(kind, node.name, _because(text, reasons.get(node.name)), str(node), values, targets))
    for node in after:
        found = old.get(node.name)
        work = f", and does the work of {_listed(taken[node.name])}" if node.name in taken else ""
        if found is None:
            text = f"is new: {node}{work}"
            values = tuple(filter(None, (*node.outputs, *node.inputs)))
            changes.append(Change("made", node.name, _because(text, reasons.get(node.name)), "", values))
        elif not _same(found, node):
            text, values = _alterations(found, node)
            text = _because(f"{text}{work}", reasons.get(node.name))
            changes.append(Change("changed", node.name, text, str(found), values))
    return changes


def _fates(
    gone: Sequence[Node], before: Sequence[Node], after: Sequence[Node], new: Mapping[str, Node],
    outputs: Sequence[str],
) -> dict[str, _Fate]:
    """Return what replaced each removed node: nodes that make its values now, or its readers."""
    lost = {o for n in gone for o in n.outputs if o}
    readers: dict[str, list[Node]] = {}
    for node in before:
        for value in dict.fromkeys(node.inputs):
            if value in lost:
                readers.setdefault(value, []).append(node)
    makers = {o: n.name for n in after for o in n.outputs if o in lost}
    read = {i for n in after for i in n.inputs if i in lost} | (lost & set(outputs))
    fates: dict[str, _Fate] = {}
    for node in reversed(gone):  # readers come before what they read
        fate = fates[node.name] = _Fate()
        for value in filter(None, node.outputs):
            if value in makers:
                fate.makers[value] = makers[value]
            elif value in read:
                fate.folded = True
            else:
                for reader in readers.get(value, ()):
                    _follow(fate, value, reader, fates.get(reader.name), new.get(reader.name))
    return fates


def _follow(fate: _Fate, value: str, reader: Node, end: _Fate | None, now: Node | None) -> None:
    """Add what became of a value at one of its readers, which is gone itself or is another node `now`."""
    if now is None:
        if end is not None:
            fate.into.update(dict.fromkeys([*end.makers.values(), *end.into]))
            fate.folded |= end.folded
        return
    if _same(now.op, reader.op) and len(now.inputs) == len(reader.inputs):
        here = (new for was, new in zip(reader.inputs, now.inputs, strict=True) if was == value)
        fate.instead.update(dict.fromkeys(filter(None, here)))
    else:
        fate.into[now.name] = None


def _end(fate: _Fate, targets: tuple[str, ...]) -> tuple[Kind, str]:
    """Return how a node ended, as a kind and a sentence."""
    if fate.makers:
        made = "; ".join(f"{maker!r} makes {value!r} now" for value, maker in fate.makers.items())
        return "merged", f"is gone: {made}"
    if targets:
        return "merged", f"is merged into {_listed(targets)}"
    if fate.instead:
        return "bypassed", f"is gone: its readers read {_listed(fate.instead)} instead"
    if fate.folded:
        return "folded", "is computed once, before all runs: its results are constants"
    return "removed", "is gone: nothing reads its results"


def _alterations(old: Node, new: Node) -> tuple[str, tuple[str, ...]]:
    """Return what changed about a node, as the end of a sentence, and the values concerned."""
    said = []
    if not _same(old.op, new.op):
        said.append(_other_op(old.op, new.op))
    dropped = [i for i in dict.fromkeys(old.inputs) if i and i not in new.inputs]
    added = [i for i in dict.fromkeys(new.inputs) if i and i not in old.inputs]
    if added or dropped:
        reads = f"reads {_listed(added)}" if added else f"no longer reads {_listed(dropped)}"
        said.append(f"{reads} instead of {_listed(dropped)}" if dropped and added else reads)
    elif old.inputs != new.inputs:
        said.append("reads its inputs in another order")
    if old.outputs != new.outputs:
        said.append(f"makes {_listed(new.outputs)} instead of {_listed(old.outputs)}")
    values = dict.fromkeys([*old.outputs, *new.outputs, *dropped, *added])
    return ", ".join(said), tuple(filter(None, values))


def _other_op(old: Op, new: Op) -> str:
    """Return what changed about an op: its attributes, if its type is the same."""
    before, after = old.attributes(), new.attributes()
    if old.type != new.type or before.keys() != after.keys():
        return f"is now {new}"
    other = [name for name in after if str(before[name]) != str(after[name])]
    return "has " + ", ".join(f"{name}={after[name]} instead of {before[name]}" for name in other)


def _same(a: Node | Op, b: Node | Op) -> bool:
    """Tell whether two nodes or ops are equal; with an array among the attributes only if they are one object."""
    try:
        return a is b or a == b
    except ValueError:  # numpy's, of the truth of an array
        return False


def changed_nodes(before: Sequence[Node], after: Sequence[Node]) -> list[str]:
    """Return the names of the nodes that were made, changed or removed between two lists."""
    old, new = ({node.name: node for node in nodes} for nodes in (before, after))
    return [name for name in old | new if name not in old or name not in new or not _same(old[name], new[name])]


def same_nodes(a: Sequence[Node], b: Sequence[Node]) -> bool:
    """Tell whether two lists have equal nodes."""
    return a is b or (len(a) == len(b) and all(map(_same, a, b)))


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, filter(None, names)))


def _because(text: str, reason: str | None) -> str:
    return f"{text}: {reason}" if reason else text
