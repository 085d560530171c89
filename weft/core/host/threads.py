"""Work on many arrays in several threads: numpy releases the GIL while it computes."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeVar

import numpy as np

from weft.core.host.background import Background
from weft.core.host.parallel_copy import Copier, cores

T = TypeVar("T")
R = TypeVar("R")

WORTH = 4 << 20
"""Below this many bytes in all, threads cost more than they save."""


def in_threads(function: Callable[[T], R], items: Sequence[T], nbytes: int) -> list[R]:
    """Return the function's result for each item, in order; `nbytes` is the size of all items' arrays together.

    The function must not write what other calls read.
    """
    threads = min(cores(), len(items))
    if threads < 2 or nbytes < WORTH:
        return [function(item) for item in items]
    with Background(threads, "weft-arrays") as pool:
        return list(pool.map(function, items))


# -- the threads of one run ------------------------------------------------------------------------------------

DIVIDED = 1 << 18
"""Below this many bytes one thread is done with a value before another is awake."""
_run = threading.local()
"""How many threads compute what this thread is running."""


def use_threads(count: int) -> None:
    """Have what this thread computes from now on, block by block, computed by so many threads."""
    _run.threads = count


def is_divided(nbytes: int) -> bool:
    """Tell whether a value of this size is worth several threads, and there are several."""
    return nbytes >= DIVIDED and getattr(_run, "threads", 1) > 1


def each_block(work: Callable[[T], object], blocks: Sequence[T], *, blas: bool = False) -> None:
    """Call a function with each block, in the threads of the run; numpy's warnings are off in the others.

    The function must not write what other calls read. If it multiplies matrices (`blas`), the library that does it has
    one thread meanwhile; where that cannot be set, blocks are computed in turn by all threads that the library has.
    """
    threads = getattr(_run, "threads", 1)
    if threads < 2 or len(blocks) < 2 or (blas and not can_limit_blas()):
        for block in blocks:
            work(block)
        return

    def quiet(block: T) -> None:
        with np.errstate(all="ignore"):
            work(block)

    if blas:
        with _one_blas_thread():
            _workers(threads).each(quiet, blocks)
    else:
        _workers(threads).each(quiet, blocks)


@cache
def _workers(threads: int) -> Copier:
    return Copier(threads)


@cache
def can_limit_blas() -> bool:
    """Tell whether the package threadpoolctl is there, which sets the threads of numpy's library for products."""
    return find_spec("threadpoolctl") is not None


@cache
def _libraries() -> Sequence[Any]:
    controller = import_module("threadpoolctl").ThreadpoolController()
    found: Sequence[Any] = controller.select(user_api="blas").lib_controllers
    return found


_lock = threading.Lock()
_limiting = 0
"""How many runs need the library to have one thread now."""
_before: list[int] = []


@contextmanager
def _one_blas_thread() -> Iterator[None]:
    """Have numpy's library for products compute with one thread during the block; runs at once share that."""
    global _limiting
    with _lock:
        if not _limiting:
            _before[:] = [library.get_num_threads() for library in _libraries()]
            for library in _libraries():
                library.set_num_threads(1)
        _limiting += 1
    try:
        yield
    finally:
        with _lock:
            _limiting -= 1
            if not _limiting:
                for library, count in zip(_libraries(), _before, strict=True):
                    library.set_num_threads(count)


def _begin_in_child() -> None:
    """Have threads of its own in a forked process, and the library as it is while nothing runs."""
    global _lock, _limiting
    _workers.cache_clear()
    _lock = threading.Lock()
    if _limiting:
        _limiting = 0
        for library, count in zip(_libraries(), _before, strict=True):
            library.set_num_threads(count)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_in_child)
