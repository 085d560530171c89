"""Divide an assigned graph into as few parts as possible, each of one device (A4).

Parts that run one after the other are a topological order of the nodes, cut wherever the device changes. The
fewest parts are therefore the fewest runs of one device that any topological order has. Once a device has its
turn it takes all that is ready for it: taking less never saves a run. What is left is the order of the turns.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import NamedTuple

from weft.core.graph import Graph, Node
from weft.core.optimized import Part
from weft.core.views import subgraph

CHOICES = 5_000
"""How many states with more than one way on the exact search may look at."""
BEAM = 16
"""How many states of each turn the first, inexact search keeps."""


def partition(
    graph: Graph, device: Mapping[str, str], order: Sequence[str] = (), *, choices: int = CHOICES
) -> list[Part]:
    """Return the fewest parts in an order of execution; `device` has the device of each node by its name.

    Every node is in exactly one part, and no part waits for itself through another. Equal graphs give equal
    parts. Between turns that look equally good, the device that comes first in `order` goes first, then the
    one that the graph names first; nodes of a part keep the graph's order.

    The number of parts is the least possible for up to two devices. For more the problem is hard (it contains
    the shortest common supersequence): it is solved exactly where that takes no more than `choices` states
    with more than one way on; beyond that the answer is the best that a beam search found.
    """
    ranks = {d: k for k, d in enumerate(dict.fromkeys([*order, *(device[n.name] for n in graph.nodes)]))}
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
    """Nodes that every order takes in the same turn, as one; numbers in place of names, sets as bits."""

    of: list[int]
    """The block of each node of the graph."""
    device: list[int] = field(default_factory=list)
    before: list[int] = field(default_factory=list)
    """The set of blocks that each one waits for."""
    after: list[list[int]] = field(default_factory=list)
    """The blocks that wait for each one."""
    runs: list[list[int]] = field(default_factory=list)
    """For each block and device, the most runs of that device on any way from the block to the end."""


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
            blocks.before.append(sum(1 << b for b in waits))
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
    """Return the blocks with one in the place of all of a device that nobody waits for.

    It costs no turn: the last of them decides when their device must have one, and then all can be done. But
    there may be thousands (debug nodes), of which every state would hold those that are ready.
    """
    ends: dict[int, int] = {}
    stand_in = list(range(len(blocks.device)))
    before = blocks.before.copy()
    for block, readers in enumerate(blocks.after):
        if not readers:
            stand_in[block] = ends.setdefault(blocks.device[block], block)
            before[stand_in[block]] |= blocks.before[block]
    gone = [b for b, one in enumerate(stand_in) if one != b]
    for block in gone:
        before[block] = 1 << block  # it waits for itself, forever
    after = [list(dict.fromkeys(stand_in[b] for b in readers)) for readers in blocks.after]
    return replace(blocks, before=before, after=after) if gone else blocks


class _State(NamedTuple):
    """How far the execution is: the blocks that are done, as bits, and those that are ready."""

    done: int
    ready: tuple[int, ...]


def _start(blocks: _Blocks) -> _State:
    return _State(0, tuple(b for b, waits in enumerate(blocks.before) if not waits))


def _ways(blocks: _Blocks, state: _State) -> list[int]:
    """Return the devices that something is ready for, the preferred ones first."""
    return sorted({blocks.device[b] for b in state.ready})


def _take(blocks: _Blocks, state: _State, turn: int) -> _State:
    """Return the state after a device has done all that it can."""
    done = state.done
    todo = [b for b in state.ready if blocks.device[b] == turn]
    ready = [b for b in state.ready if blocks.device[b] != turn]
    while todo:
        block = todo.pop()
        done |= 1 << block
        for b in blocks.after[block]:
            if blocks.before[b] & done == blocks.before[b]:
                (todo if blocks.device[b] == turn else ready).append(b)
    return _State(done, tuple(ready))


def _left(blocks: _Blocks, state: _State) -> int:
    """Return a number of turns that cannot do: what each device needs on its own worst way to the end.

    A turn lowers what its own device needs by one at most and leaves the others' needs, so the bound never
    falls by more than one a turn, which is what A* asks of it.
    """
    return sum(map(max, zip(*(blocks.runs[b] for b in state.ready), strict=True)))


Turns = tuple[int, "Turns"] | None
"""The devices that had their turn, the last one first."""


def _turns(blocks: _Blocks, choices: int) -> list[int]:
    """Return the devices in the order of their turns, the fewest that were found."""
    start = _start(blocks)
    found = _beam(blocks, start)
    if len(found) > _left(blocks, start):
        found = _search(blocks, start, len(found), choices) or found
    return found


def _beam(blocks: _Blocks, start: _State) -> list[int]:
    """Return turns to the end, keeping a turn's states with the least to do."""
    level: list[tuple[_State, Turns]] = [(start, None)]
    while level[0][0].ready:
        after: dict[int, tuple[_State, Turns]] = {}
        for state, turns in level:
            for turn in _ways(blocks, state):
                reached = _take(blocks, state, turn)
                after.setdefault(reached.done, (reached, (turn, turns)))
        level = heapq.nsmallest(
            BEAM, after.values(), key=lambda s: (_left(blocks, s[0]), -s[0].done.bit_count())
        )
    return _listed(level[0][1])


def _search(blocks: _Blocks, start: _State, bound: int, choices: int) -> list[int] | None:
    """Return the fewest turns if they are fewer than `bound` and found in time (A*), or None."""
    cost = {start.done: 0}
    serial = count()
    heap: list[tuple[int, int, int, _State, Turns]] = [(_left(blocks, start), 0, next(serial), start, None)]
    while heap:
        _, minus, _, state, turns = heapq.heappop(heap)
        if not state.ready:
            return _listed(turns)
        if cost[state.done] < -minus:
            continue
        ways = _ways(blocks, state)
        choices -= len(ways) > 1
        if choices < 0:
            return None
        spent = 1 - minus
        for turn in ways:
            reached = _take(blocks, state, turn)
            total = spent + _left(blocks, reached)
            if total < bound and spent < cost.get(reached.done, bound):
                cost[reached.done] = spent
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
    """Return for each part the nodes that read from it, as a graph: all of the whole that its slots depend on."""
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
