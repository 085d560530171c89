"""Hints: the devices on which a user wants nodes to run (A3)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import translate

from weft.core.graph.graph import Graph, Node
from weft.errors import ConfigError

_WILD = frozenset("*?[")


class Hints:
    """Devices by node name or pattern ("block3/*"). A node's own name goes first, then the patterns in order."""

    def __init__(self, hints: Mapping[str, str]) -> None:
        self._names = dict(hints)
        self._patterns = [(re.compile(translate(p)), p, d) for p, d in hints.items() if not _WILD.isdisjoint(p)]

    @classmethod
    def of(cls, hints: Mapping[str, str] | Hints | None) -> Hints:
        """Return `Hints` for an argument that may be `Hints`, a mapping or None."""
        return hints if isinstance(hints, Hints) else cls(hints or {})

    def device(self, node: str) -> str | None:
        """Return the device that the hints want for a node."""
        found = self._names.get(node)
        return found or next((d for pattern, _, d in self._patterns if pattern.match(node)), None)

    def carry(self, node: str, parts: Iterable[str]) -> None:
        """Pass the hint of a node to the nodes that replace it."""
        device = self.device(node)
        if device is not None:
            self._names.update((part, device) for part in parts if part not in self._names)

    def unused(self, nodes: Iterable[Node]) -> list[str]:
        """Return the names and patterns that match none of the nodes."""
        names = {n.name for n in nodes}
        fitting = {p for pattern, p, _ in self._patterns if any(map(pattern.match, names))}
        return [p for p in self._names if p not in names and p not in fitting]


def check_hints(graph: Graph, hints: Mapping[str, str], devices: Iterable[str]) -> None:
    """Raise ConfigError with every hint that names no node, or a device that is not in the order of preference."""
    known = list(devices)
    problems = [f"no node is called {pattern!r}" for pattern in Hints(hints).unused(graph.nodes)]
    problems += [f"{d!r}, for {pattern!r}, is not in the order" for pattern, d in hints.items() if d not in known]
    if problems:
        raise ConfigError(
            "some hints cannot be followed",
            why="; ".join(problems),
            fix=f"the order is {', '.join(known)}; 'weft inspect --nodes' prints the names of nodes",
        )


def lost_hints(graph: Graph, hints: Mapping[str, str]) -> list[str]:
    """Return a note for each hint whose nodes the passes removed."""
    return [
        f"hint {p!r}: no node of that name is left after the passes; it was folded or merged into another node, "
        "whose own hint counts ('weft inspect --passes' shows which pass did it)"
        for p in Hints(hints).unused(graph.nodes)
    ]
