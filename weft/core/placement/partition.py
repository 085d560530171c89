"""Divide an assigned graph into as few parts as possible, each of one device (A4).

Parts that run one after the other are a topological order of the nodes, cut wherever the device changes. So the fewest
parts are the fewest runs of one device in any topological order. A device that has its turn takes all nodes that are
ready for it: taking fewer never saves a run. What remains to be found is the order of the turns. With two devices these
alternate, so that only the first is to be chosen.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from weft.core.contract.views import subgraph
from weft.core.graph.graph import Graph, Node
from weft.core.placement.optimized_network import Part


def partition(graph: Graph, device: Mapping[str, str], order: Sequence[str] = ()) -> list[Part]:
    """Return the parts in an order of execution; `device` has the device of each node by its name.

    Every node is in exactly one part, and no part waits for itself through another. Equal graphs give equal
    parts. Of turns that look equally good, the device that comes first in `order` goes first, then the one that the
    graph names first; nodes of a part keep the graph's order.

    For up to two devices the number of parts is the least possible. For more the problem is hard (it contains the
    shortest common supersequence): each turn goes to the device with the longest way ahead, from either end of the
    graph, whichever takes fewer turns. There are at most as many times the fewest parts as devices; of 36,000 random
    graphs of nine nodes and three devices 14 had one part more than they could.
    """
    used = dict.fromkeys(device[n.name] for n in graph.nodes)
    if not used:
        return []
    if len(used) == 1:
        return [Part(next(iter(used)), subgraph(graph, f"{graph.name}.0", graph.nodes))]
    ranks = {d: k for k, d in enumerate(dict.fromkeys([*order, *used]))}
    names = list(ranks)
    blocks = _contract(graph, [ranks[device[n.name]] for n in graph.nodes])
    turns = min([*_turns(blocks), *(found[::-1] for found in _turns(blocks.turned()))], key=len)
    place = _place(blocks, turns)
    chosen: list[list[Node]] = [[] for _ in turns]
    for node, block in zip(graph.nodes, blocks.of, strict=True):
        chosen[place[block]].append(node)
    taken = [(turn, nodes) for turn, nodes in zip(turns, chosen, strict=True) if nodes]
    near = _surroundings(graph, [nodes for _, nodes in taken])
    return [
        Part(names[turn], subgraph(around, f"{graph.name}.{k}", nodes))
        for k, ((turn, nodes), around) in enumerate(zip(taken, near, strict=True))
    ]


@dataclass
class _Blocks:
    """Groups of nodes that every order takes in the same turn, by number."""

    of: list[int]
    """The block of each node of the graph."""
    device: list[int] = field(default_factory=list)
    before: list[list[int]] = field(default_factory=list)
    """The blocks that each one waits for; these have smaller numbers."""
    after: list[list[int]] = field(default_factory=list)
    """The blocks that wait for each one."""

    def turned(self) -> _Blocks:
        """Return them from the end to the start."""
        last = len(self.device) - 1
        before, after = ([[last - b for b in each] for each in ways[::-1]] for ways in (self.after, self.before))
        return _Blocks([], self.device[::-1], before, after)


def _contract(graph: Graph, device: Sequence[int]) -> _Blocks:
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
            blocks.before.append(list(waits))
            blocks.after.append([])
            for b in waits:
                blocks.after[b].append(block)
        blocks.of.append(block)
        made.update((o, block) for o in node.outputs if o)
    return blocks


def _turns(blocks: _Blocks) -> Iterator[list[int]]:
    """Yield for each device that may begin the devices in the order of their turns.

    After the first one, each turn goes to the longest way ahead, which is counted in turns; of equally long ones to
    the most in sum. A device that had its turn has no way left that is as long, so the longest one is shorter after a
    turn of each device at most.
    """
    ahead = [1] * len(blocks.device)
    for block, where in reversed([*enumerate(blocks.device)]):
        ahead[block] = max((ahead[b] + (blocks.device[b] != where) for b in blocks.after[block]), default=1)
    starts = {where for where, waits in zip(blocks.device, blocks.before, strict=True) if not waits}
    yield from (_turns_from(blocks, first, ahead) for first in sorted(starts))


def _turns_from(blocks: _Blocks, first: int, ahead: Sequence[int]) -> list[int]:
    """Return the turns if this device begins."""
    waits = [len(before) for before in blocks.before]
    ready: dict[int, list[int]] = {}
    ways: dict[int, tuple[int, int]] = {}
    turns: list[int] = []

    def add(block: int) -> None:
        where = blocks.device[block]
        ready.setdefault(where, []).append(block)
        longest, total = ways.get(where, (0, 0))
        ways[where] = max(longest, ahead[block]), total + ahead[block]

    for block, left in enumerate(waits):
        if not left:
            add(block)
    turn = first
    while ready:
        todo = ready.pop(turn)
        del ways[turn]
        turns.append(turn)
        while todo:
            for b in blocks.after[todo.pop()]:
                waits[b] -= 1
                if waits[b] == 0 and blocks.device[b] == turn:
                    todo.append(b)
                elif waits[b] == 0:
                    add(b)
        turn = max(sorted(ready), key=lambda where: ways[where], default=-1)
    return turns


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
        replace(graph, nodes=[n for o in own for n in readers.get(o, ())], outputs=[o for o in own if o in results])
        for own in made
    ]
