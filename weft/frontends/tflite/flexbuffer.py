"""FlexBuffers: values that tell their own types. Custom ops of TensorFlow Lite have their options in such a map."""

from __future__ import annotations

import struct

from weft.errors import ModelError

Flex = None | bool | int | float | str | bytes | list["Flex"] | dict[str, "Flex"]

_NULL, _INT, _UINT, _FLOAT, _KEY, _STRING, _IND_INT, _IND_UINT, _IND_FLOAT, _MAP, _VECTOR = range(11)
_TYPED = {11: _INT, 12: _UINT, 13: _FLOAT, 14: _KEY, 15: _STRING, 36: 26}
"""The types of vectors whose elements are all of one type, by their numbers."""
_FIXED = {n: (_INT + (n - 16) % 3, 2 + (n - 16) // 3) for n in range(16, 25)}
"""The types of vectors of two to four numbers: the type of the elements, and how many there are."""
_BLOB, _BOOL = 25, 26
_CODES = {_INT: "bhiq", _UINT: "BHIQ", _FLOAT: " efd"}
MOST_VALUES = 10_000
MOST_READS = 8
"""How many times its size the texts of a buffer may have together: many elements may name the same one."""
DEEPEST = 16


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.left, self.bytes_left = data, MOST_VALUES, MOST_READS * len(data)

    def number(self, at: int, kind: int, log: int) -> int | float:
        code = _CODES[kind][log]
        if code == " " or at < 0 or at + (1 << log) > len(self.data):
            raise _damaged(f"it names {1 << log} bytes at {at}, and has {len(self.data)}")
        (value,) = struct.unpack_from(f"<{code}", self.data, at)
        return value  # type: ignore[no-any-return]

    def size(self, at: int, log: int) -> int:
        return int(self.number(at, _UINT, log))

    def target(self, at: int, log: int) -> int:
        """Return where the offset at a position leads: back, unlike in FlatBuffers."""
        return at - self.size(at, log)

    def key(self, at: int) -> str:
        end = self.data.find(b"\0", at) if 0 <= at < len(self.data) else -1
        if end < 0:
            raise _damaged("a key does not end")
        return self.text(at, end).decode("utf-8", "replace")

    def text(self, at: int, end: int) -> bytes:
        self.bytes_left -= end - at
        if self.bytes_left < 0:
            raise _damaged("it names the same texts again and again")
        return self.data[at:end]

    def value(self, at: int, parent: int, kind: int, log: int, depth: int = 0) -> Flex:
        """Return a value in a parent of elements of 2 ** `parent` bytes; what it leads to has 2 ** `log`."""
        self.left -= 1
        if self.left < 0 or depth > DEEPEST:
            raise _damaged("it has too many values")
        if kind == _NULL:
            return None
        if kind == _BOOL:
            return bool(self.number(at, _UINT, parent))
        if kind in (_INT, _UINT, _FLOAT):
            return self.number(at, kind, parent)
        there = self.target(at, parent)
        if kind in (_IND_INT, _IND_UINT, _IND_FLOAT):
            return self.number(there, kind - _IND_INT + _INT, log)
        if kind == _KEY:
            return self.key(there)
        if kind in (_STRING, _BLOB):
            size = self.size(there - (1 << log), log)
            if there + size > len(self.data):
                raise _damaged("a text goes beyond its end")
            held = self.text(there, there + size)
            return held.decode("utf-8", "replace") if kind == _STRING else held
        if kind in _FIXED:
            each, count = _FIXED[kind]
            return [self.number(there + (k << log), each, log) for k in range(count)]
        if kind not in (_MAP, _VECTOR, *_TYPED):
            raise _damaged(f"it has a value of the unknown type {kind}")
        count = self.size(there - (1 << log), log)
        if count > self.left:
            raise _damaged(f"a vector has {count} elements")
        values = [self._element(there, k, count, kind, log, depth) for k in range(count)]
        return dict(zip(self._keys(there, log, count), values, strict=True)) if kind == _MAP else values

    def _element(self, there: int, k: int, count: int, kind: int, log: int, depth: int) -> Flex:
        at = there + (k << log)
        if kind in _TYPED:
            return self.value(at, log, _TYPED[kind], 0, depth + 1)
        packed = self.size(there + (count << log) + k, 0)
        return self.value(at, log, packed >> 2, packed & 3, depth + 1)

    def _keys(self, there: int, log: int, count: int) -> list[str]:
        keys = self.target(there - (3 << log), log)
        width = self.size(there - (2 << log), log)
        if width not in (1, 2, 4, 8):
            raise _damaged(f"its keys are {width} bytes wide")
        wide = width.bit_length() - 1
        return [self.key(self.target(keys + k * width, wide)) for k in range(count)]


def read_flexbuffer(data: bytes) -> Flex:
    """Return the value in a FlexBuffer; ModelError if it is damaged."""
    if len(data) < 3:
        raise _damaged(f"it has {len(data)} bytes")
    packed, width = data[-2], data[-1]
    if width not in (1, 2, 4, 8):
        raise _damaged(f"its root is {width} bytes wide")
    return _Reader(data).value(len(data) - 2 - width, width.bit_length() - 1, packed >> 2, packed & 3)


def _damaged(why: str) -> ModelError:
    return ModelError("the options of a custom op are damaged", why=why, fix="get the file again")
