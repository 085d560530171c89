"""What callbacks write to stdout and stderr, which are the user's."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Hears = Callable[[str, str], None]
"""Called with the name of the stream and what is written to it."""


class _Heard:
    """A stream that passes everything on, and reports what is written."""

    def __init__(self, stream: Any, name: str, hears: Hears) -> None:
        self._stream, self._name, self._hears = stream, name, hears

    def write(self, text: str) -> Any:
        """Report the text, and write it."""
        self._hears(self._name, text)
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def heard(hears: Hears) -> Iterator[None]:
    """Report what Python code writes to `sys.stdout` and `sys.stderr` while the block runs."""
    before = sys.stdout, sys.stderr
    given = _Heard(before[0], "stdout", hears), _Heard(before[1], "stderr", hears)
    streams: Any = sys
    streams.stdout, streams.stderr = given
    try:
        yield
    finally:
        if sys.stdout is given[0]:  # a stream that somebody else put there stays
            sys.stdout = before[0]
        if sys.stderr is given[1]:
            sys.stderr = before[1]
