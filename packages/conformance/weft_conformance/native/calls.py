"""Calls the functions of a library as Weft does, and notes the rules that a call breaks."""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import POINTER, c_void_p
from types import FrameType
from typing import Any

from weft.plugins.native_abi import CBackend, Message

GUARD = b"\xfe" * Message.SIZE
FILL = b"\xff"
"""A byte that UTF-8 never has: a message that holds it did not end with a NUL."""


class Broken(Exception):
    """A rule is broken; the message says which function broke it and how."""


class Room:
    """`size` bytes for a message, between guards."""

    def __init__(self, size: int = Message.SIZE) -> None:
        self.size = size
        self._bytes = ctypes.create_string_buffer(GUARD + b"\0" + FILL * (size - 1) + GUARD)
        self.arguments = (ctypes.addressof(self._bytes) + len(GUARD), size)

    def content(self) -> bytes:
        """Return all bytes, guards included."""
        return self._bytes.raw

    def text(self) -> str:
        """Return the message."""
        return self._written().partition(b"\0")[0].decode("utf-8", "replace")

    def problem(self) -> str:
        """Return the rule that the message breaks, "" if none."""
        raw = self.content()
        if raw[: len(GUARD)] != GUARD or not raw[len(GUARD) + self.size :].startswith(GUARD):
            return f"wrote a message beyond the {self.size} bytes that it was given; use snprintf"
        text, end, _ = self._written().partition(b"\0")
        if not end or FILL in text:
            return f"wrote a message without a NUL at its end into {self.size} bytes; use snprintf"
        try:
            text.decode()
        except UnicodeDecodeError:
            # A short buffer may cut a character in two.
            return "wrote a message that is not UTF-8" if self.size == Message.SIZE else ""
        return ""

    def _written(self) -> bytes:
        return self.content()[len(GUARD) : len(GUARD) + self.size]


class Pointer:
    """Memory for one pointer that a function sets, between guards."""

    _GUARD = 0x5AFE5AFE

    def __init__(self) -> None:
        self._room = (c_void_p * 3)(self._GUARD, None, self._GUARD)
        self.argument = ctypes.cast(ctypes.addressof(self._room) + ctypes.sizeof(c_void_p), POINTER(c_void_p))

    @property
    def value(self) -> int | None:
        """Return what was written there."""
        return self._room[1]

    def is_whole(self) -> bool:
        """Tell whether nothing was written beside it."""
        return self._room[0] == self._GUARD == self._room[2]


class Calls:
    """The functions of a table. `tell` is called with the name of each before it is called."""

    def __init__(self, table: CBackend, tell: Callable[[str], None]) -> None:
        self._table, self._tell = table, tell
        self.problems: dict[str, None] = {}
        self._rooms: list[tuple[str, Room, bytes]] = []
        self.under_way: tuple[str, float] | None = None
        """The function that is being called, and since when."""
        self._inside = ""
        self._hears = False

    def listen(self) -> None:
        """Note calls back into Python from now on; the hook stays until the interpreter ends."""
        self._hears = True
        sys.addaudithook(lambda event, _: self._heard())

    def has(self, name: str) -> bool:
        """Tell whether the table has a function."""
        return bool(getattr(self._table, name))

    def broken(self, problem: str) -> None:
        """Note that a rule is broken."""
        self.problems[problem] = None

    def plain(self, name: str, *arguments: Any) -> Any:
        """Call a function that writes no message and return what it returns."""
        self._tell(name)
        function = getattr(self._table, name)
        self.under_way = name, time.monotonic()
        try:
            return self._heard_calls(name, function, arguments) if self._hears else function(*arguments)
        finally:
            self.under_way = None

    def _heard_calls(self, name: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """Call a function and note what it calls of Python."""
        sys.setprofile(self._profile)
        self._inside = name  # setprofile itself is an event
        try:
            return function(*arguments)
        finally:
            self._inside = ""
            sys.setprofile(None)

    def message(self, name: str, *arguments: Any, size: int = Message.SIZE) -> tuple[int, str]:
        """Call a function with room for a message of `size` bytes; return its status and the message."""
        room = Room(size)
        status = int(self.plain(name, *arguments, *room.arguments))
        problem = room.problem()
        if problem:
            self.broken(f"{name} {problem}")
        self._rooms.append((name, room, room.content()))
        return status, room.text()

    def must(self, name: str, *arguments: Any) -> None:
        """Call a function that must succeed; Broken if it does not."""
        status, text = self.message(name, *arguments)
        if status:
            raise Broken(f"{name} returned {status}, which is a failure: {text or 'it wrote no message'}")

    def end(self) -> None:
        """Note which messages were written to after their call had returned, and forget them."""
        for name, room, content in self._rooms:
            if room.content() != content:
                self.broken(f"the message of {name} was written to after {name} had returned")
        self._rooms.clear()

    @contextmanager
    def several_threads(self) -> Iterator[None]:
        """Ignore calls into Python while the block runs: other threads of the kit make them."""
        heard, self._hears = self._hears, False
        try:
            yield
        finally:
            self._hears = heard

    def _profile(self, frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            self._heard()

    def _heard(self) -> None:
        if self._inside and self._hears:
            self.broken(f"{self._inside} called back into Python")
