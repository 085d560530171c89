"""Computes how many bytes an array of work-group memory takes, from its type and its size expression.

A size is an integer expression of the kernel's constants, such as `LZ > 1 ? (LZ - 1) * 64 : 1`, in the part of C
that all kernel languages share. It is parsed and never executed as code, because it may come from a cache on disk.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

TYPE_BYTES = {
    "f32": 4, "float": 4, "i32": 4, "int": 4, "uint": 4, "half": 2, "ushort": 2, "uchar": 1, "ulong": 8, "double": 8,
    "float16_t": 2, "uvec2": 8, "uint2": 8, "f16vec4": 8, "f32x4": 16, "float4": 16, "uvec4": 16, "uint4": 16,
    "u32x4": 16,
}
"""Bytes of the types that work-group arrays may have, in all languages."""
LONGEST, DEEPEST = 400, 40
"""Longest expression in characters, and deepest nesting."""
Constants = Mapping[str, int | float]
Evaluate = Callable[[Constants], int]


class SizeError(ValueError):
    """The type or the size of a work-group array is not understood; the text says why."""


def shared_bytes(kind: str, size: str, values: Constants) -> int:
    """Return the bytes of an array of that type and size with these constants; SizeError if it is not understood."""
    if kind not in TYPE_BYTES:
        raise SizeError(f"{kind!r} is none of the types of work-group memory: {', '.join(sorted(TYPE_BYTES))}")
    count = parse(size)(values)
    if count < 0:
        raise SizeError(f"{size!r} is {count}")
    return TYPE_BYTES[kind] * count


@lru_cache(maxsize=1024)
def parse(text: str) -> Evaluate:
    """Return the function that evaluates an expression for given constants; SizeError if it does not parse.

    It has integers, names, parentheses, + - * / %, comparisons, and `a ? b : c`, with C's precedence.
    """
    if len(text) > LONGEST:
        raise SizeError(f"an expression of {len(text)} characters is too long")
    tokens = [match[0].strip() for match in _TOKEN.finditer(text)]
    if "".join(tokens) != "".join(text.split()):
        raise SizeError(f"{text!r} has characters that a size cannot have")
    parser = _Parser(text, [*tokens, ""])
    made = parser.choice()
    if parser.lookahead:
        raise SizeError(f"{text!r} is no size: {parser.lookahead!r} is out of place")
    return made


_TOKEN = re.compile(r"\s*(?:[A-Za-z_]\w*|[0-9]+|[<>=!]=|[-+*/%()<>?:])", re.ASCII)
_RANKS: tuple[Mapping[str, Callable[[int, int], int]], ...] = (
    {"==": operator.eq, "!=": operator.ne},
    {"<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge},
    {"+": operator.add, "-": operator.sub},
    {"*": operator.mul, "/": lambda a, b: _divide(a, b), "%": lambda a, b: a - b * _divide(a, b)},
)
"""Binary operators; the first bind least."""


def _divide(a: int, b: int) -> int:
    """Return the quotient, rounded toward zero as in C."""
    if b == 0:
        raise SizeError("it divides by zero")
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


@dataclass
class _Parser:
    """A recursive-descent parser: one method a precedence; each returns a function that evaluates its part."""

    text: str
    tokens: list[str]
    """The last one is empty."""
    at: int = 0
    depth: int = 0

    @property
    def lookahead(self) -> str:
        return self.tokens[self.at]

    def take(self, *wanted: str) -> str:
        """Return the next token and advance; SizeError if it is none of those wanted."""
        token = self.lookahead
        if wanted and token not in wanted:
            found = repr(token) if token else "its end"
            raise SizeError(f"{self.text!r} has {found} where {' or '.join(map(repr, wanted))} belongs")
        self.at += 1
        return token

    def choice(self) -> Evaluate:
        """Parse a conditional, or an expression without one."""
        self.depth += 1
        if self.depth > DEEPEST:
            raise SizeError(f"{self.text!r} is nested more than {DEEPEST} deep")
        test = self.joined(0)
        if self.lookahead == "?":
            self.take()
            then = self.choice()
            self.take(":")
            other = self.choice()
            test = _chosen(test, then, other)
        self.depth -= 1
        return test

    def joined(self, rank: int) -> Evaluate:
        """Parse operands of one precedence, from left to right."""
        if rank == len(_RANKS):
            return self.operand()
        left = self.joined(rank + 1)
        while self.lookahead in _RANKS[rank]:
            left = _applied(_RANKS[rank][self.take()], left, self.joined(rank + 1))
        return left

    def operand(self) -> Evaluate:
        """Parse a number, a name, a part in parentheses, or the negative of one of these."""
        negative = self.lookahead == "-"
        if negative:
            self.take()
        token = self.take()
        if token == "(":
            made = self.choice()
            self.take(")")
        elif token.isdecimal():
            made = _constant(int(token))
        elif token.isidentifier():
            made = _named(token)
        else:
            found = repr(token) if token else "its end"
            raise SizeError(f"{self.text!r} has {found} where a number or a name belongs")
        return _applied(operator.sub, _constant(0), made) if negative else made


def _constant(value: int) -> Evaluate:
    return lambda values: value


def _named(name: str) -> Evaluate:
    def value(values: Constants) -> int:
        try:
            return operator.index(values[name])  # type: ignore[arg-type]  # a float raises TypeError
        except (KeyError, TypeError):
            raise SizeError(f"{name!r} is no integer constant of the kernel") from None

    return value


def _applied(function: Callable[[int, int], int], left: Evaluate, right: Evaluate) -> Evaluate:
    return lambda values: int(function(left(values), right(values)))


def _chosen(test: Evaluate, then: Evaluate, other: Evaluate) -> Evaluate:
    return lambda values: then(values) if test(values) else other(values)
