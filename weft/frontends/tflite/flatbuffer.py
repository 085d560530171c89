"""FlatBuffers, read without a schema's generated code: tables, vectors and texts, every offset checked."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from weft.core.graph.layout import Array
from weft.errors import ModelError

MOST_READS = 8
"""How often the whole of a file may be read as tables: a small file can name one table any number of times."""
ROOM = 1 << 20
_VECTOR = 4
"""The bytes of a vector's length."""


class FlatBuffer:
    """The bytes of a file. Positions in it come from the file, so nothing is read before it is known to lie inside."""

    def __init__(self, data: Array, label: str) -> None:
        self.data = data
        self._view = data.data
        self._label = label
        self._left = MOST_READS * data.size + ROOM

    def refuse(self, why: str) -> NoReturn:
        """Raise the ModelError for a damaged file."""
        raise ModelError(
            "the model's file is damaged", where=self._label, why=why,
            fix="get it again: it was cut off, or changed on its way",
        )

    def check(self, at: int, nbytes: int) -> None:
        """Raise ModelError unless so many bytes lie at that position."""
        if at < 0 or nbytes < 0 or at + nbytes > self.data.size:
            self.refuse(f"{nbytes} bytes at {at} are named, and it has {self.data.size}")
        self._left -= nbytes
        if self._left < 0:
            self.refuse("its tables name the same parts again and again")

    def number(self, at: int, code: str) -> int | float:
        """Return the number at a position; `code` is that of `struct`."""
        self.check(at, struct.calcsize(code))
        (value,) = struct.unpack_from(f"<{code}", self._view, at)
        return value  # type: ignore[no-any-return]

    def integer(self, at: int, code: str) -> int:
        """Return the integer at a position."""
        return int(self.number(at, code))

    def target(self, at: int) -> int:
        """Return where the offset at a position leads."""
        return at + self.integer(at, "I")

    def bytes_at(self, at: int, nbytes: int) -> Array:
        """Return bytes as a view, which does not read them."""
        if at < 0 or nbytes < 0 or at + nbytes > self.data.size:
            self.refuse(f"{nbytes} bytes at {at} are named, and it has {self.data.size}")
        return self.data[at : at + nbytes]

    def root(self) -> Table:
        """Return the table that the file begins with."""
        return Table(self, self.target(0))


@dataclass(frozen=True, slots=True)
class Table:
    """A table: fields by their number, each with a default for a file that does not have it."""

    of: FlatBuffer
    at: int

    def find(self, field: int) -> int:
        """Return the position of a field; 0 if the table does not have it."""
        of = self.of
        fields = self.at - of.integer(self.at, "i")
        size = of.integer(fields, "H")
        place = _VECTOR + 2 * field
        if place + 2 > size:
            return 0
        offset = of.integer(fields + place, "H")
        return self.at + offset if offset else 0

    def number(self, field: int, code: str, default: float = 0) -> int | float:
        """Return a number; `code` is that of `struct`."""
        at = self.find(field)
        return self.of.number(at, code) if at else default

    def integer(self, field: int, code: str, default: int = 0) -> int:
        """Return an integer."""
        return int(self.number(field, code, default))

    def table(self, field: int) -> Table | None:
        """Return a table; None if it is not there."""
        at = self.find(field)
        return Table(self.of, self.of.target(at)) if at else None

    def _vector(self, field: int) -> tuple[int, int]:
        """Return where the elements of a vector begin, and how many it has; (0, 0) if it is not there."""
        at = self.find(field)
        if not at:
            return 0, 0
        start = self.of.target(at)
        return start + _VECTOR, self.of.integer(start, "I")

    def count(self, field: int) -> int:
        """Return how many elements a vector has."""
        return self._vector(field)[1]

    def tables(self, field: int) -> list[Table]:
        """Return the tables of a vector."""
        start, count = self._vector(field)
        self.of.check(start, 4 * count)
        offsets = self.of.data[start : start + 4 * count].view("<u4").tolist() if count else []
        return [Table(self.of, start + 4 * k + offset) for k, offset in enumerate(offsets)]

    def array(self, field: int, dtype: str) -> Array | None:
        """Return a vector of numbers, copied; None if it is not there."""
        start, count = self._vector(field)
        if not start:
            return None
        nbytes = count * np.dtype(dtype).itemsize
        self.of.check(start, nbytes)
        return np.frombuffer(self.of.data[start : start + nbytes].tobytes(), dtype)

    def integers(self, field: int) -> tuple[int, ...]:
        """Return a vector of int32 as numbers of Python's; () if it is not there."""
        found = self.array(field, "<i4")
        return () if found is None else tuple(found.tolist())

    def data(self, field: int) -> Array | None:
        """Return a vector of bytes as a view; None if it is not there."""
        start, count = self._vector(field)
        return self.of.bytes_at(start, count) if start else None

    def text(self, field: int) -> str:
        """Return a text; "" if it is not there. Bytes that are no text of UTF-8 are replaced."""
        start, count = self._vector(field)
        if not start:
            return ""
        self.of.check(start, count)
        return self.of.data[start : start + count].tobytes().decode("utf-8", "replace")

    def texts(self, field: int) -> list[str]:
        """Return a vector of texts."""
        start, count = self._vector(field)
        self.of.check(start, 4 * count)
        found = []
        for k in range(count):
            at = self.of.target(start + 4 * k)
            size = self.of.integer(at, "I")
            self.of.check(at + _VECTOR, size)
            found.append(self.of.data[at + _VECTOR : at + _VECTOR + size].tobytes().decode("utf-8", "replace"))
        return found
