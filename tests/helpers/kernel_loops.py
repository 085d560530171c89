"""How often the loops of a rendered kernel go round, as far as its constants tell."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

GRID_STEPS = ("GLOBAL_SIZE", "GROUPS_X")
"""What loops that share the work among all items or groups step by."""
DEFINED = re.compile(r"\bconst int (\w+ = [^;]+);")


@dataclass(frozen=True)
class Loop:
    """A loop, with what is in it; `turns` is None where the constants do not tell how often it goes round."""

    head: str
    turns: int | None
    inner: tuple[Loop, ...]

    @property
    def shares(self) -> bool:
        """Tell whether it only shares the work among all items."""
        return any(step in self.head for step in GRID_STEPS)

    def rounds(self) -> int:
        """Return how often it and those in it go round in all; one that is unknown counts as once."""
        return (1 if self.turns is None else self.turns) * (1 + sum(loop.rounds() for loop in self.inner))

    def words(self) -> list[str]:
        """Return the names in its head."""
        return re.findall(r"[A-Za-z_]\w*", self.head)

    def walk(self) -> Iterator[Loop]:
        """Yield it and those in it."""
        yield self
        for loop in self.inner:
            yield from loop.walk()


def loops_of(text: str, constants: Mapping[str, float], grid: tuple[int, int, int]) -> tuple[Loop, ...]:
    """Return the loops of a kernel in GLSL, as work-item 0 of group 0 runs them."""
    body = re.sub(r"//[^\n]*", "", text[text.index("void main()") :])
    names: dict[str, float | str] = dict.fromkeys(("LOCAL_X", "LOCAL_Y", "LOCAL_Z", "GROUP_X", "GROUP_Y", "GROUP_Z"), 0)
    names |= {"GLOBAL_ID": 0, "GLOBAL_SIZE": grid[0] * constants["LX"], "GROUPS_X": grid[0], **constants}
    for found in DEFINED.findall(body):
        for each in _parts(found, ","):
            name, equals, value = each.partition(" = ")
            if equals and name.strip() not in names:
                names[name.strip()] = value
    return _loops(body, names)


def _loops(text: str, names: Mapping[str, float | str]) -> tuple[Loop, ...]:
    loops, at = [], 0
    while found := re.compile(r"\b(for|while) \(").search(text, at):
        head, after = _inside(text, found.end() - 1)
        rest = text[after:].lstrip()
        start = len(text) - len(rest)
        body, at = _inside(text, start) if rest.startswith("{") else _statement(text, start)
        mine = dict(names)
        turns = None
        if found[1] == "for":
            init, condition, step = (part.strip() for part in _parts(head, ";"))
            name, _, first = init.rpartition("int ")[2].partition(" = ")
            mine[name] = first
            turns = _turns(name, first, condition, step, names)
        loops.append(Loop(head, turns, _loops(body, mine)))
    return tuple(loops)


def _turns(name: str, first: str, condition: str, step: str, names: Mapping[str, float | str]) -> int | None:
    """Return the least number that a condition that can be told allows, None if there is no such condition."""
    if span := re.fullmatch(rf"{name} < {re.escape(first)} \+ (\d+)", condition):
        return int(span[1])
    begin = _value(first, names)
    if begin is None:
        return None
    if halving := re.fullmatch(rf"{name} (/|\*)= 2", step):
        most = begin if halving[1] == "/" else names.get("LX", 0)
        return int(most).bit_length() if isinstance(most, (int, float)) else None
    by = 1.0 if "++" in step else _value(step.partition("+=")[2], names)
    least = None
    for part in condition.split("&&"):
        found = re.fullmatch(rf"\s*{name}( [*+] \w+)? (<=?) (.+?)\s*", part)
        end = _value(found[3], names) if found else None
        if found is None or end is None or not by:
            continue
        scale = _value(found[1].strip()[1:], names) if found[1] and "*" in found[1] else 1
        turns = int(-(-(end / (scale or 1) + (found[2] == "<=") - begin) // by))
        least = max(turns, 0) if least is None else min(least, max(turns, 0))
    return least


def _value(expression: str, names: Mapping[str, float | str], depth: int = 0) -> float | None:
    """Return what an expression of constants and names is; None if a name is unknown."""
    text = re.sub(r"(?<=\d)u\b", "", expression).strip()
    if choice := re.fullmatch(r"\(?(.+?) \? (.+?) : (.+?)\)?", text):
        either = [_value(part, names, depth + 1) for part in choice.groups()[1:]]
        known = [value for value in either if value is not None]
        is_least = choice[1] == f"{choice[2]} < {choice[3]}"
        return (min if is_least else max)(known) if len(known) == 2 else None
    words = {word: names.get(word) for word in re.findall(r"[A-Za-z_]\w*", text) if word not in ("min", "max")}
    values: dict[str, float] = {}
    for word, value in words.items():
        number = _value(value, names, depth + 1) if isinstance(value, str) and depth < 9 else value
        if not isinstance(number, (int, float)):
            return None
        values[word] = number
    try:
        return float(eval(text.replace("/", "//"), {"__builtins__": {}, "min": min, "max": max}, values))
    except (SyntaxError, TypeError, ZeroDivisionError):
        return None


def _inside(text: str, at: int) -> tuple[str, int]:
    """Return what is within the bracket at a place, and the place behind it."""
    opening = text[at]
    closing, depth = {"(": ")", "{": "}"}[opening], 0
    for place in range(at, len(text)):
        depth += (text[place] == opening) - (text[place] == closing)
        if depth == 0:
            return text[at + 1 : place], place + 1
    raise ValueError(f"no {closing} in {text[at:]}")


def _statement(text: str, at: int) -> tuple[str, int]:
    """Return the statement at a place: up to a semicolon, or to the end of its block."""
    depth = 0
    for place in range(at, len(text)):
        depth += (text[place] in "({") - (text[place] in ")}")
        if depth == 0 and text[place] in ";}":
            return text[at : place + 1], place + 1
    raise ValueError(f"no statement in {text[at:]}")


def _parts(text: str, separator: str) -> list[str]:
    """Return the parts of a text between separators outside of brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == separator and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts
