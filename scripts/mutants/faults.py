"""The faults: where a source file can be changed, and how."""

from __future__ import annotations

import ast
import random
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypedDict

COMPARISONS = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==",
    "is": "is not", "is not": "is", "in": "not in", "not in": "in",
}
SIGNS = {
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "//"), ast.FloorDiv: ("//", "*"), ast.Mod: ("%", "//"),
}


class Place(TypedDict):
    """Where a mutant lies in one tree: the statement's lines, and the part of one line that is replaced."""

    path: str
    first: int
    last: int
    line: int
    start: int
    end: int


class Mutant(TypedDict):
    """One fault: its kind, the line without its indent, what is put in, and where in the two trees."""

    kind: str
    text: str
    put: str
    old: Place
    new: Place


class Span(NamedTuple):
    """A part of one line, in characters."""

    line: int
    start: int
    end: int


@dataclass(frozen=True)
class Change:
    """A change of one span; the lines from `first` to `last` are those of its statement."""

    kind: str
    first: int
    last: int
    span: Span
    put: str


class Finder:
    """Finds the changes that one source file allows, inside functions only."""

    def __init__(self, source: str) -> None:
        self.lines = source.split("\n")
        self._raw = [line.encode() for line in self.lines]
        self._tree = ast.parse(source)

    def changes(self) -> Iterator[Change]:
        """Return all changes."""
        yield from self._in(self._tree.body, inside=False)

    def text(self, span: Span) -> str:
        """Return the characters of a span."""
        return self.lines[span.line - 1][span.start : span.end]

    def _in(self, body: list[ast.stmt], inside: bool) -> Iterator[Change]:
        for stmt in body:
            blocks = _blocks(stmt)
            function = isinstance(stmt, ast.FunctionDef | ast.AsyncFunctionDef)
            if inside and not function and not isinstance(stmt, ast.ClassDef):
                last = max(stmt.lineno, blocks[0][0].lineno - 1) if blocks else stmt.end_lineno or stmt.lineno
                for kind, span, put in self._of_statement(stmt, blocks):
                    yield Change(kind, stmt.lineno, last, span, put)
            for block in blocks:
                yield from self._in(block, inside or function)

    def _of_statement(self, stmt: ast.stmt, blocks: list[list[ast.stmt]]) -> Iterator[tuple[str, Span, str]]:
        whole = self._span(stmt)
        if isinstance(stmt, ast.Expr) and isinstance(stmt.value, ast.Call) and whole:
            yield "call dropped", whole, "pass"
        if isinstance(stmt, ast.Return) and whole and not _is_none(stmt.value):
            yield "nothing returned", whole, "return None"
        if isinstance(stmt, ast.If) and (test := self._span(stmt.test)):
            yield "branch turned", test, f"not ({self.text(test)})"
        deeper = {id(node) for block in blocks for s in block for node in ast.walk(s)}
        for node in ast.walk(stmt):
            if id(node) not in deeper:
                yield from self._of_expression(node)

    def _of_expression(self, node: ast.AST) -> Iterator[tuple[str, Span, str]]:
        match node:
            case ast.Compare(left=left, ops=[_], comparators=[right]):
                if (span := self._between(left, right)) and (sign := self.text(span).strip()) in COMPARISONS:
                    yield "comparison", span, f" {COMPARISONS[sign]} "
            case ast.BoolOp(values=[left, right, *_]):
                if (span := self._between(left, right)) and (word := self.text(span).strip()) in (
                    "and",
                    "or",
                ):
                    yield "and, or", span, " or " if word == "and" else " and "
            case ast.BinOp(left=left, op=op, right=right) if type(op) in SIGNS and not _has_text(node):
                before, after = SIGNS[type(op)]
                if (span := self._between(left, right)) and self.text(span).strip() == before:
                    yield "sign", span, f" {after} "
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                if (span := self._span(node)) and (inner := self._span(operand)):
                    yield "not dropped", span, self.text(inner)
            case ast.Constant(value=bool() as value):
                if span := self._span(node):
                    yield "constant", span, str(not value)
            case ast.Constant(value=int() as value):
                if span := self._span(node):
                    yield "constant", span, str(value + 1)

    def _span(self, node: ast.expr | ast.stmt) -> Span | None:
        if node.lineno != node.end_lineno or node.end_col_offset is None:
            return None
        return Span(
            node.lineno,
            self._char(node.lineno, node.col_offset),
            self._char(node.lineno, node.end_col_offset),
        )

    def _between(self, left: ast.expr, right: ast.expr) -> Span | None:
        if left.end_lineno != right.lineno or left.end_col_offset is None:
            return None
        line = right.lineno
        return Span(line, self._char(line, left.end_col_offset), self._char(line, right.col_offset))

    def _char(self, line: int, byte: int) -> int:
        return len(self._raw[line - 1][:byte].decode())


def _blocks(stmt: ast.stmt) -> list[list[ast.stmt]]:
    found = [getattr(stmt, name, None) for name in ("body", "orelse", "finalbody")]
    parts = [*getattr(stmt, "handlers", ()), *getattr(stmt, "cases", ())]
    return [block for block in (*found, *(part.body for part in parts)) if isinstance(block, list) and block]


def _is_none(value: ast.expr | None) -> bool:
    return value is None or (isinstance(value, ast.Constant) and value.value is None)


def _has_text(node: ast.AST) -> bool:
    return any(
        isinstance(n, ast.JoinedStr) or (isinstance(n, ast.Constant) and isinstance(n.value, str))
        for n in ast.walk(node)
    )


def apply(text: str, mutant: Mutant, at: Place) -> str:
    """Return the text of a file with the fault in it."""
    lines = text.split("\n")
    line = lines[at["line"] - 1]
    if line.strip() != mutant["text"]:
        raise ValueError(f"{at['path']}:{at['line']} is not the line that was chosen: {line.strip()!r}")
    lines[at["line"] - 1] = line[: at["start"]] + mutant["put"] + line[at["end"] :]
    return "\n".join(lines)


def choose(old: Path, new: Path, count: int, seed: int) -> list[Mutant]:
    """Return faults on random lines that each of two trees has exactly once, one fault a line."""
    before, after = _package(old), _package(new)
    places_before, places_after = _places(before), _places(after)
    on_line: dict[tuple[str, int], list[Mutant]] = defaultdict(list)
    for path, source in before.items():
        finder = Finder(source)
        for change in finder.changes():
            full = finder.lines[change.span.line - 1]
            text = full.strip()
            if len(text) < 8 or len(places_before[text]) != 1 or len(places_after.get(text, ())) != 1:
                continue
            there, line = places_after[text][0]
            shift = _indent(after[there].split("\n")[line - 1]) - _indent(full)
            moved = line - change.span.line
            span = change.span
            mutant = Mutant(
                kind=change.kind,
                text=text,
                put=change.put,
                old=Place(
                    path=path,
                    first=change.first,
                    last=change.last,
                    line=span.line,
                    start=span.start,
                    end=span.end,
                ),
                new=Place(
                    path=there,
                    first=change.first + moved,
                    last=change.last + moved,
                    line=line,
                    start=span.start + shift,
                    end=span.end + shift,
                ),
            )
            on_line[path, span.line].append(mutant)
    print(
        f"{sum(map(len, on_line.values()))} faults on {len(on_line)} lines that both trees have",
        file=sys.stderr,
    )
    rng = random.Random(seed)
    lines = sorted(on_line)
    rng.shuffle(lines)
    chosen: list[Mutant] = []
    for key in lines:
        mutant = rng.choice(on_line[key])
        was, now = mutant["old"], mutant["new"]
        if _compiles(before[was["path"]], mutant, was) and _compiles(after[now["path"]], mutant, now):
            chosen.append(mutant)
        if len(chosen) == count:
            break
    return chosen


def _package(tree: Path) -> dict[str, str]:
    return {str(path.relative_to(tree)): path.read_text() for path in sorted((tree / "weft").rglob("*.py"))}


def _places(files: dict[str, str]) -> dict[str, list[tuple[str, int]]]:
    found: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for path, source in files.items():
        for number, line in enumerate(source.split("\n"), 1):
            found[line.strip()].append((path, number))
    return found


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _compiles(source: str, mutant: Mutant, at: Place) -> bool:
    try:
        ast.parse(apply(source, mutant, at))
    except SyntaxError:
        return False
    return True
