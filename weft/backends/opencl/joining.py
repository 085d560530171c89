"""Joins the sources of several kernels to one program, in which each kernel and function has a name of its own.

A source is joined only if all it declares outside functions is functions, and macros, which end with its text. Of a
source of any other kind, `JoinableSource.of` returns None: it is compiled alone. What extensions it enables holds for
the rest of the program, so that only sources that enable the same ones belong in one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_COMMENT_OR_STRING = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)
_DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*$", re.MULTILINE)
_ATTRIBUTE = re.compile(r"__attribute__\s*\(\((?:[^()]|\([^()]*\))*\)\)")
_INNERMOST = re.compile(r"\{[^{}]*\}")
_BODY = "@"
"""Stands for a function's body; it is no character of the language."""
_FUNCTION = re.compile(rf"[\w\s*]*?[\s*](\w+)\s*\([^(){{}};{_BODY}]*\)\s*{_BODY}")
_MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)", re.MULTILINE)
_EXTENSION = re.compile(
    r"^[ \t]*#[ \t]*pragma[ \t]+OPENCL[ \t]+EXTENSION[ \t]+(\w+)[ \t]*:[ \t]*enable[ \t]*$", re.MULTILINE
)
_TYPE = re.compile(r"\b(?:struct|union|enum|typedef)\b")
_PRAGMA = re.compile(r"^[ \t]*#[ \t]*pragma\b", re.MULTILINE)
"""Outside a function it may hold for the rest of the program; within one, `FP_CONTRACT` ends with its block."""


@dataclass(frozen=True)
class JoinableSource:
    """The source of a kernel, with its constants, and what it declares."""

    entry: str
    text: str
    functions: tuple[str, ...]
    macros: tuple[str, ...]
    extensions: tuple[str, ...] = ()
    """Extensions of the language that it enables."""

    @classmethod
    def of(cls, entry: str, text: str) -> JoinableSource | None:
        """Return what a source declares; None if it must be compiled alone."""
        bare = _COMMENT_OR_STRING.sub(" ", text)
        if _TYPE.search(bare) or _PRAGMA.search(_without_bodies(_EXTENSION.sub("", bare))):
            return None
        outside = _without_bodies(_ATTRIBUTE.sub(" ", _DIRECTIVE.sub("", bare)))
        functions = {found[1] for found in _FUNCTION.finditer(outside)}
        if entry not in functions or _FUNCTION.sub("", outside).strip():
            return None
        named = (sorted(set(names)) for names in (functions, _MACRO.findall(bare), _EXTENSION.findall(bare)))
        return cls(entry, text, *map(tuple, named))

    def name(self, place: int) -> str:
        """Return the name of the kernel in the program in which this source is at `place`."""
        return _named(self.entry, place)

    def renamed(self, place: int) -> str:
        """Return the text with the names that it has at `place`; its macros end with it."""
        own = re.compile(rf"\b(?:{'|'.join(self.functions)})\b")
        text = own.sub(lambda found: _named(found[0], place), self.text)
        return text + "".join(f"\n#undef {name}" for name in self.macros) + "\n"


def joined(sources: Sequence[JoinableSource]) -> str:
    """Return the source of a program with all of these."""
    return "".join(each.renamed(place) for place, each in enumerate(sources))


def _without_bodies(text: str) -> str:
    """Return a text with a mark in the place of each outermost pair of braces."""
    more = 1
    while more:
        text, more = _INNERMOST.subn(_BODY, text)
    return text


def _named(name: str, place: int) -> str:
    return f"{name}_of_{place}"
