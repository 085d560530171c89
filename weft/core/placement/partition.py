"""Divide an assigned graph into as few parts as possible, each of one device (A4).

Parts that run one after the other are a topological order of the nodes, cut wherever the device changes. So the fewest
parts are the fewest runs of one device in any topological order. A device that has its turn takes all nodes that are
ready for it: taking fewer never saves a run. What remains to be found is the order of the turns.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from weft.core.contract.views import subgraph
from weft.core.graph.graph import Graph, Node
from weft.core.placement.optimized_network import Part

CHOICES = 5_000
"""Most states with several possible turns that the exact search visits."""
FORCED = 20
"""Most states of any kind that it visits, for each of those."""
BEAM = 16
"""How many states of each turn the beam search keeps."""


def partition(
    graph: Graph, device: Mapping[str, str], order: Sequence[str] = (), *, choices: int = CHOICES
) -> list[Part]:
    """Return the fewest parts in an order of execution; `device` has the device of each node by its name.

    Every node is in exactly one part, and no part waits for itself through another. Equal graphs give equal
    parts. Of turns that look equally good, the device that comes first in `order` goes first, then the one that the
    graph names first; nodes of a part keep the graph's order.

    For up to two devices the number of parts is the least possible. For more the problem is hard (it contains the
    shortest common supersequence): the exact search gives up after `choices` states with several possible turns, and
    the result is then the best that a beam search found.
    """
    used = dict.fromkeys(device[n.name] for n in graph.nodes)
    if len(used) == 1:
        return [Part(next(iter(used)), subgraph(graph, f"{graph.name}.0", graph.nodes))]
    ranks = {d: k for k, d in enumerate(dict.fromkeys([*order, *used]))}
    names = list(ranks)
    blocks = _contract(graph, [ranks[device[n.name]] for n in graph.nodes], len(ranks))
    turns = _turns(_with_ends_joined(blocks), choices)
    place = _place(blocks, turns)
    chosen: list[list[Node]] = [[] for _ in turns]
    for node, block in zip(graph.nodes, blocks.of, strict=True):
        chosen[place[block]].append(node)
    near = _surroundings(graph, chosen)
    return [
        Part(names[turn], subgraph(around, f"{graph.name}.{k}", nodes))
        for k, (turn, around, nodes) in enumerate(zip(turns, near, chosen, strict=True))
    ]


@dataclass
class _Blocks:
    """Groups of nodes that every order takes in the same turn, by number."""

    of: list[int]
    """The block of each node of the graph."""
    device: list[int] = field(default_factory=list)
    before: list[tuple[int, ...]] = field(default_factory=list)
    """The blocks that each one waits for."""
    after: list[list[int]] = field(default_factory=list)
    """The blocks that wait for each one."""
    runs: list[list[int]] = field(default_factory=list)
    """For each block and device, the most runs of that device on any path from the block to the end."""


def _contract(graph: Graph, device: Sequence[int], devices: int) -> _Blocks:
    """Return the blocks: nodes of a device that wait for the same blocks, or for one block of that device."""
    blocks = _Blocks([])
    made: dict[str, int] = {}
    known: dict[tuple[int, frozenset[int]], int] = {}
    for node, where in zip(graph.nodes, device, strict=True):
        waits = frozenset(made[i] for i in node.inputs if i in made)
        block = next(iter(waits)) if len(waits) == 1 else -1
        if block < 0 or blocks.device[block] != where:
            block = known.setdefault((where, waits), len(blocks.device))
        if block == len(blocks.device):
            blocks.device.append(where)
            blocks.before.append(tuple(waits))
            blocks.after.append([])
            for b in waits:
                blocks.after[b].append(block)
        blocks.of.append(block)
        made.update((o, block) for o in node.outputs if o)
    blocks.runs = [[0] * devices for _ in blocks.device]
    for block in reversed(range(len(blocks.device))):
        where, runs = blocks.device[block], blocks.runs[block]
        runs[where] = 1
        for b in blocks.after[block]:
            ahead = blocks.runs[b].copy()
            ahead[where] += blocks.device[b] != where
            runs[:] = map(max, runs, ahead)
    return blocks


def _with_ends_joined(blocks: _Blocks) -> _Blocks:
    """Return the blocks with all final blocks of a device joined into one.

    That costs no turn: when the last of them is ready, all of them can run. There may be thousands (debug nodes), and
    every state would hold those that are ready.
    """
    ends: dict[int, int] = {}
    stand_in = list(range(len(blocks.device)))
    before = blocks.before.copy()
    waits: dict[int, set[int]] = {}
    for block, readers in enumerate(blocks.after):
        if not readers:
            stand_in[block] = ends.setdefault(blocks.device[block], block)
            waits.setdefault(stand_in[block], set()).update(blocks.before[block])
    for block, joined in waits.items():
        before[block] = tuple(joined)
    gone = [b for b, one in enumerate(stand_in) if one != b]
    for block in gone:
        before[block] = (block,)  # it waits for itself, so it never becomes ready
    after = [list(dict.fromkeys(stand_in[b] for b in readers)) for readers in blocks.after]
    return replace(blocks, before=before, after=after) if gone else blocks


@dataclass(slots=True)
class _State:
    """How far the execution is: the blocks at the border between done and not done."""

    key: int = 0
    """A hash of the blocks that are done."""
    done: int = 0
    """How many blocks are done."""
    ready: dict[int, list[int]] = field(default_factory=dict)
    """The blocks that are ready, by device."""
    needs: dict[int, list[int]] = field(default_factory=dict)
    """For the devices with ready blocks, the most runs of each device on any path from these to the end."""
    waits: dict[int, int] = field(default_factory=dict)
    """For blocks that wait for some blocks that are done and some that are not: how many are not."""

    def copy(self) -> _State:
        ready = {d: b.copy() for d, b in self.ready.items()}
        return _State(self.key, self.done, ready, {d: n.copy() for d, n in self.needs.items()}, self.waits.copy())

    def add(self, blocks: _Blocks, block: int) -> None:
        """Note that a block is ready."""
        where, runs = blocks.device[block], blocks.runs[block]
        self.ready.setdefault(where, []).append(block)
        self.needs[where] = list(map(max, self.needs.get(where, runs), runs))


def _start(blocks: _Blocks) -> _State:
    state = _State()
    for block, waits in enumerate(blocks.before):
        if not waits:
            state.add(blocks, block)
    return state


def _ways(state: _State) -> list[int]:
    """Return the devices with ready blocks, the preferred ones first."""
    return sorted(state.ready)


def _each_way(blocks: _Blocks, state: _State) -> Iterator[tuple[int, _State]]:
    """Yield each device that can have its turn, and the state after it; the given state is consumed."""
    *others, last = _ways(state)
    for turn in others:
        yield turn, _take(blocks, state.copy(), turn)
    yield last, _take(blocks, state, last)


def _take(blocks: _Blocks, state: _State, turn: int) -> _State:
    """Let a device run all blocks that it can, in the given state, and return that state."""
    todo = state.ready.pop(turn)
    del state.needs[turn]
    while todo:
        block = todo.pop()
        state.done += 1
        state.key ^= _mark(block)
        for b in blocks.after[block]:
            left = state.waits.get(b, len(blocks.before[b])) - 1
            if left:
                state.waits[b] = left
                continue
            state.waits.pop(b, None)
            if blocks.device[b] == turn:
                todo.append(b)
            else:
                state.add(blocks, b)
    return state


def _mark(block: int) -> int:
    """Return 64 bits that look random (splitmix64); combined by xor, those of all done blocks are a state's key."""
    mixed = (block + 1) * 0x9E3779B97F4A7C15 & _ALL
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & _ALL
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & _ALL
    return mixed ^ mixed >> 31


_ALL = (1 << 64) - 1


def _left(state: _State) -> int:
    """Return a lower bound of the turns left: for each device the most runs on any path to the end, summed up.

    A turn reduces the need of its own device by at most one and those of the others not at all. So the bound falls by
    at most one a turn, as A* requires.
    """
    return sum(map(max, zip(*state.needs.values(), strict=True)))


Turns = tuple[int, "Turns"] | None
"""The devices that had their turn, the last one first."""


def _turns(blocks: _Blocks, choices: int) -> list[int]:
    """Return the devices in the order of their turns, the fewest that were found."""
    found = _beam(blocks)
    if len(found) > _left(_start(blocks)):
        found = _search(blocks, len(found), choices) or found
    return found


def _beam(blocks: _Blocks) -> list[int]:
    """Return the turns that a beam search finds; it keeps the states of each turn with the lowest bound."""
    level: list[tuple[_State, Turns]] = [(_start(blocks), None)]
    while level[0][0].ready:
        after: dict[int, tuple[_State, Turns]] = {}
        for state, turns in level:
            for turn, reached in _each_way(blocks, state):
                after.setdefault(reached.key, (reached, (turn, turns)))
        level = list(after.values())
        if len(level) > 1:
            level = heapq.nsmallest(BEAM, level, key=lambda s: (_left(s[0]), -s[0].done))
    return _listed(level[0][1])


def _search(blocks: _Blocks, bound: int, choices: int) -> list[int] | None:
    """Return the fewest turns by A*, or None if they are no fewer than `bound` or not found within `choices`."""
    start = _start(blocks)
    cost, states = {start.key: 0}, FORCED * choices
    serial = count()
    heap: list[tuple[int, int, int, _State, Turns]] = [(_left(start), 0, next(serial), start, None)]
    while heap:
        _, minus, _, state, turns = heapq.heappop(heap)
        if not state.ready:
            return _listed(turns)
        if cost[state.key] < -minus:
            continue
        choices -= len(state.ready) > 1
        states -= 1
        if choices < 0 or states < 0:
            return None
        spent = 1 - minus
        for turn, reached in _each_way(blocks, state):
            total = spent + _left(reached)
            if total < bound and spent < cost.get(reached.key, bound):
                cost[reached.key] = spent
                heapq.heappush(heap, (total, -spent, next(serial), reached, (turn, turns)))
    return None


def _listed(turns: Turns) -> list[int]:
    out = []
    while turns:
        last, turns = turns
        out.append(last)
    return out[::-1]


def _place(blocks: _Blocks, turns: Sequence[int]) -> list[int]:
    """Return the turn of each block: the first of its device in which it is ready."""
    of_device: list[list[int]] = [[] for _ in range(1 + max(turns, default=0))]
    for k, turn in enumerate(turns):
        of_device[turn].append(k)
    place: list[int] = [0] * len(blocks.device)
    for block, where in enumerate(blocks.device):
        mine = of_device[where]
        place[block] = mine[bisect_left(mine, place[block])]
        for b in blocks.after[block]:
            place[b] = max(place[b], place[block] + (blocks.device[b] != where))
    return place


def _surroundings(graph: Graph, parts: Sequence[Sequence[Node]]) -> list[Graph]:
    """Return for each part a graph of the nodes that read from it: its output slots depend on no others."""
    readers: dict[str, list[Node]] = {}
    for node in graph.nodes:
        for i in node.inputs:
            readers.setdefault(i, []).append(node)
    results = set(graph.outputs)
    made = [[o for node in nodes for o in node.outputs if o] for nodes in parts]
    return [
        replace(
            graph,
            nodes=[n for o in own for n in readers.get(o, ())],
            outputs=[o for o in own if o in results],
        )
        for own in made
    ]
