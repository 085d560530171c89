"""The text by which kernels reach elements that lie in memory as an `IndexMap` says.

The text of a kernel depends on the number of axes only; sizes, steps, shifts and offsets are constants.
"""

from __future__ import annotations

from collections.abc import Iterable

from weft.core.graph.index_map import IndexMap
from weft.kernels.source import Arg, Through

Shifted = tuple[bool, ...]
"""For each axis of a stage whether it is shifted."""


def through_map(places: IndexMap) -> Through | None:
    """Return how kernels reach an argument whose elements lie as a map says; None if each lies at its own index."""
    stages = tuple(tuple(bool(axis.shift) for axis in stage.axes) for stage in places.stages)
    return Through(stages, places.keeps_together(4)) if stages else None


def map_constants(name: str, places: IndexMap) -> dict[str, int]:
    """Return the constants that kernels need to reach the argument `name` through a map."""
    out: dict[str, int] = {}
    for number, stage in enumerate(places.stages):
        numbers = {"O": stage.offset}
        for k, axis in enumerate(stage.axes):
            numbers |= {f"N{k}": axis.size, f"T{k}": axis.step, f"H{k}": axis.shift}
        shifted = tuple(bool(axis.shift) for axis in stage.axes)
        out |= {f"{name}_M{number}{part}": numbers[part] for part in _parts(shifted)}
    return out


def place(through: Through, name: str, index: str) -> str:
    """Return the expression of the place of element `index` of the argument `name`."""
    for number, shifted in enumerate(through.stages):
        index = f"{_name(shifted)}({', '.join([index, *(f'{name}_M{number}{part}' for part in _parts(shifted))])})"
    return index


def functions(args: Iterable[Arg]) -> tuple[str, ...]:
    """Return the functions that `place` calls, each once, in the part of C that all kernel languages have."""
    used = {shifted for arg in args if arg.through is not None for shifted in arg.through.stages}
    return tuple(map(_function, sorted(used)))


def _parts(shifted: Shifted) -> list[str]:
    """Return the numbers of a stage: its offset O, and of an axis the step T, the size N and the shift H."""
    parts = ["O"]
    for k, turned in enumerate(shifted):
        parts += [f"T{k}"] + [f"N{k}"] * (k > 0 or turned) + [f"H{k}"] * turned
    return parts


def _name(shifted: Shifted) -> str:
    return "place_" + "".join("h" if turned else "d" for turned in shifted)


def _function(shifted: Shifted) -> str:
    lines = []
    for k in reversed(range(len(shifted))):
        digit = f"i % n{k}" if k else "i"
        if shifted[k]:
            digit = f"({digit} + h{k}) % n{k}"
        lines.append(f"at += {digit} * t{k};" + (f" i /= n{k};" if k else ""))
    # Constants are macros in OpenCL C, and have capital letters.
    arguments = ", ".join(f"int {name.lower()}" for name in ["i", *_parts(shifted)])
    return f"int {_name(shifted)}({arguments}) {{ int at = o; {' '.join(lines)} return at; }}\n"
