"""The importers of builtin and custom ops, by name; users add those of custom ops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from weft.errors import ConfigError
from weft.frontends.tflite.node import Importer
from weft.frontends.tflite.schema import OPS

F = TypeVar("F", bound=Importer)


@dataclass(frozen=True)
class Entry:
    """How an op is read. One that `moves` does not compute, and takes integers as they are if all have one scale."""

    read: Importer
    moves: bool
    of_complex: bool = False
    """Whether it reads or makes complex tensors, as pairs of numbers."""


BUILTIN: dict[str, Entry] = {}
CUSTOM: dict[str, Entry] = {}


def importer(*ops: str, moves: bool = False, of_complex: bool = False) -> Callable[[F], F]:
    """Return a decorator that registers a function for builtin ops."""

    def register(function: F) -> F:
        for op in ops:
            assert op in OPS and op not in BUILTIN, op
            BUILTIN[op] = Entry(function, moves, of_complex)
        return function

    return register


def tflite_op(name: str, *, moves: bool = False, replace: bool = False) -> Callable[[F], F]:
    """Return a decorator that registers a function for a custom op of TensorFlow Lite files; docs/tflite.md has one.

    The function gets a `TFLiteNode`, adds nodes to its graph, and returns the value of each output. `moves` is for an
    op that only moves elements: it then gets integers as they are, where the inputs and outputs have one scale. Else
    integers with a scale are seen as the numbers that they stand for. ConfigError if another function has the name,
    unless it is to be replaced.
    """

    def register(function: F) -> F:
        if name in CUSTOM and not replace:
            raise ConfigError(
                f"the custom op {name!r} has an importer already", why=f"it is {CUSTOM[name].read.__qualname__}",
                fix="pass replace=True to put another in its place",
            )
        CUSTOM[name] = Entry(function, moves)
        return function

    return register
