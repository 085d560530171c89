"""Weights that several sessions hold once: arrays of equal bytes, as long as somebody uses them."""

from __future__ import annotations

import hashlib
import mmap
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress

import numpy as np

from weft.core.graph.layout import Array
from weft.core.host.dropped import Dropped
from weft.core.host.turns import Turns

SHARED_FROM = 64 << 10
"""Smaller constants, in bytes, are not worth a look at what others have."""
OWN_PAGES_FROM = 1 << 20
"""From how many bytes on an array has pages of its own, which the system gets back at once when it goes."""
_SAMPLES, _SAMPLE = 64, 64
"""How many pieces of a constant, and of how many bytes, tell it from others of its size."""

_LASTING = (bytes, mmap.mmap)
"""What holds memory that nobody changes: of the pages only this module and readers of files know."""

Key = tuple[int, bytes]
"""A size in bytes and a digest of samples: arrays that differ in it differ, and others must be compared."""


def sample_key(data: Array) -> Key:
    """Return the key of a flat array of bytes of at least `SHARED_FROM`."""
    digest = hashlib.blake2b(digest_size=16)
    for start in np.linspace(0, data.size - _SAMPLE, _SAMPLES, dtype=np.int64):
        digest.update(data[start : start + _SAMPLE].data)
    return data.size, digest.digest()


class SharedArrays:
    """Finds arrays in use by their content. They are read-only, and go with their last user."""

    def __init__(self) -> None:
        self._known: dict[Key, list[weakref.ref[Array]]] = {}
        self._gone = Dropped[tuple[Key, weakref.ref[Array]]]()
        """What is known and has no user any more."""
        self._lock = threading.Lock()
        self._making = Turns[Key]()
        """For arrays of a key, so that two threads do not make one twice."""

    def copy(self, data: Array) -> Array:
        """Return a read-only array of the bytes of a flat uint8 array: one that is in use, or a copy."""
        return self._find(data, lambda: _copy(data))

    def share(self, array: Array) -> Array:
        """Return a read-only array equal to one that nobody will change: one that is in use, or the array itself."""
        if not array.flags.c_contiguous:
            return _read_only(array)
        found = self._find(_bytes(array), lambda: array)
        return found if found is array else _read_only(_bytes(found).view(array.dtype).reshape(array.shape))

    def lasting(self, array: Array) -> Array:
        """Return an array of the value that an array has now: itself if nobody can change it, else a read-only copy."""
        if is_lasting(array) or array.dtype.hasobject:
            return array
        data = _bytes(np.ascontiguousarray(array))
        return _read_only(self.copy(data).view(array.dtype).reshape(array.shape))

    def _find(self, data: Array, make: Callable[[], Array]) -> Array:
        if data.size < SHARED_FROM:
            return _read_only(make())
        key = sample_key(data)
        with self._making.of(key):
            with self._lock:
                self._forget_gone()
                known = [array for ref in self._known.get(key, ()) if (array := ref()) is not None]
            for array in known:
                if _bytes(array).ctypes.data == data.ctypes.data or np.array_equal(_bytes(array), data):
                    return array
            made = _read_only(make())
            with self._lock:
                ref = weakref.ref(made, lambda ref: self._gone.add((key, ref)))
                self._known.setdefault(key, []).append(ref)
        return made

    def _forget_gone(self) -> None:
        for key, ref in self._gone.take():
            self._known[key].remove(ref)
            if not self._known[key]:
                del self._known[key]


def is_lasting(array: Array) -> bool:
    """Tell whether nobody can change an array: it is read-only, and so is the memory that it is a view of."""
    held: object = array
    while isinstance(held, np.ndarray):
        if held.flags.writeable:
            return False
        held = held.base
        if isinstance(held, memoryview):  # what numpy puts between an array and the object it was made from
            held = held.obj
    return held is None or isinstance(held, _LASTING)


def _bytes(array: Array) -> Array:
    return array.reshape(-1).view(np.uint8)


def _copy(data: Array) -> Array:
    if data.size < OWN_PAGES_FROM:
        return np.copy(data)
    private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
    try:
        pages = mmap.mmap(-1, data.size, **private)
    except OSError as e:
        raise MemoryError(f"there is none for {data.size:,} bytes of weights ({e.strerror})") from e
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a system may have been built without large pages, or refuse them
            pages.madvise(mmap.MADV_HUGEPAGE)
    made = np.frombuffer(pages, np.uint8)
    made[:] = data
    return made


def _read_only(array: Array) -> Array:
    array.setflags(write=False)
    return array


shared_arrays = SharedArrays()
