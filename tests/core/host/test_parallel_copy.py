"""Copies by several threads: the same bytes as an assignment, whatever the arrays look like."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.run_length import examples
from weft.core.graph.layout import Array
from weft.core.host import parallel_copy
from weft.core.host.parallel_copy import Copier, copy_into

LARGE = (3, 700, 301)
"""A shape whose fp32 array is copied in pieces that do not come out even."""


@pytest.fixture(scope="module")
def copier() -> Iterator[Copier]:
    made = Copier(4)
    yield made
    made.close()


@pytest.fixture
def tiny_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let arrays of a few bytes be divided."""
    for name, value in {"SMALLEST": 1, "PIECE": 24, "LEAST_PIECE": 8, "LINE": 8}.items():
        monkeypatch.setattr(parallel_copy, name, value)


def numbers(shape: tuple[int, ...], dtype: str = "float32") -> Array:
    return np.arange(np.prod(shape, dtype=int)).astype(dtype).reshape(shape)


@st.composite
def views(draw: st.DrawFn, shape: tuple[int, ...], dtype: str) -> Array:
    """Return a view of the shape, of an array that may be larger, turned and walked backwards."""
    steps = [draw(st.sampled_from([1, 1, 2, -1])) for _ in shape]
    order = draw(st.permutations(range(len(shape))))
    whole = numbers(tuple(shape[i] * abs(steps[i]) for i in order), dtype)
    turned = whole.transpose([order.index(i) for i in range(len(shape))]) if shape else whole
    index: tuple[Any, ...] = (..., *(slice(None, None, s) for s in steps))
    view: Array = turned[index]
    return view


@st.composite
def assignments(draw: st.DrawFn) -> tuple[Array, Array]:
    """Return a target and a source that an assignment takes, mostly of one shape and type."""
    shape = tuple(draw(st.lists(st.integers(0, 6), max_size=4)))
    dtypes = ["float32", "float16", "int8", "int64", "bool", "complex64", "S3", ">f4"]
    dtype = draw(st.sampled_from(dtypes))
    other = draw(st.sampled_from([dtype, dtype, dtype, "float32"])) if dtype != "S3" else dtype
    taken = tuple(draw(st.sampled_from([n, n, n, 1])) for n in shape)[draw(st.integers(0, 1)) * (len(shape) > 1) :]
    source = draw(views(taken, other))
    target = draw(views(shape, dtype)) if draw(st.booleans()) else np.zeros(shape, dtype)
    return target, source


@pytest.mark.usefixtures("tiny_pieces")
@settings(max_examples=examples(300), deadline=None)
@given(data=st.data())
@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")
def test_copy_is_an_assignment(copier: Copier, data: st.DataObject) -> None:
    target, source = data.draw(assignments())
    want = target.copy()
    want[...] = source
    copier.copy(target, source)
    assert target.tobytes() == want.tobytes()


@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("turn", [(0, 1, 2), (2, 1, 0)], ids=["contiguous", "turned"])
def test_progress_comes_in_order_and_only_of_what_is_done(threads: int, turn: tuple[int, ...]) -> None:
    copier, seen = Copier(threads), [0]
    source = np.ascontiguousarray(numbers(LARGE).transpose(turn)).transpose(np.argsort(turn))
    target = np.full(LARGE, -1, np.float32)
    flat, want = target.reshape(-1).view(np.uint8), source.tobytes()

    def progress(nbytes: int) -> None:
        assert threading.current_thread() is here
        assert nbytes > seen[-1]
        assert flat[seen[-1] : nbytes].tobytes() == want[seen[-1] : nbytes]
        seen.append(nbytes)

    here = threading.current_thread()
    copier.copy(target, source, progress)
    copier.close()
    assert seen[-1] == target.nbytes and (threads > 1 or len(seen) > 2)


def test_small_copies_report_once(copier: Copier) -> None:
    seen: list[int] = []
    copier.copy(np.zeros(3, np.float32), np.ones(3, np.float32), seen.append)
    assert seen == [12]


def test_what_an_assignment_refuses_is_refused_alike(copier: Copier) -> None:
    target, source = np.zeros(LARGE, np.float32), numbers(LARGE)
    with pytest.raises(ValueError, match="could not broadcast input array"):
        copier.copy(target, source[:, :-1])
    target.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        copier.copy(target, source)


def test_overlapping_arrays_are_copied_as_if_the_source_came_first(copier: Copier) -> None:
    array = numbers((1 << 20,))
    want = array[:-1].copy()
    copier.copy(array[1:], array[:-1])
    np.testing.assert_array_equal(array[1:], want)


def test_objects_are_assigned(copier: Copier) -> None:
    target = np.zeros(1 << 18, object)
    copier.copy(target, np.array([{}] * len(target), object))
    assert target[-1] == {}


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt])
def test_nobody_writes_any_more_when_a_copy_fails(copier: Copier, kind: type[BaseException]) -> None:
    def fail(nbytes: int) -> None:
        raise kind("no more")

    source = numbers((8 << 20,))
    for _ in range(5):
        target = np.zeros_like(source)
        with pytest.raises(kind, match="no more"):
            copier.copy(target, source, fail)
        then = target.copy()
        copier.copy(np.empty_like(source), source)  # the helpers go on with something else
        np.testing.assert_array_equal(target, then)


def test_an_error_of_a_helper_is_raised_where_the_copy_was_asked_for() -> None:
    class Stuck:
        def __setitem__(self, where: object, value: object) -> None:
            raise MemoryError("in a helper")

    pieces: list[Any] = [(np.zeros(4), np.ones(4)), (np.zeros(4), np.ones(4))]
    job = parallel_copy._Job(pieces, parallel_copy._copy_piece)
    job._todo.appendleft((0, (Stuck(), None)))  # type: ignore[arg-type]
    job.help()
    with pytest.raises(MemoryError, match="in a helper"):
        job.run()


def test_many_threads_share_the_helpers(copier: Copier) -> None:
    def work(seed: int) -> bool:
        source = np.random.default_rng(seed).standard_normal(LARGE).astype(np.float32)
        targets = [np.empty_like(source) for _ in range(10)]
        for target in targets:
            copier.copy(target, source)
        return all(np.array_equal(target, source) for target in targets)

    others = set(threading.enumerate())  # the devices' helpers have the same name
    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(work, range(12)))
    came = [t for t in threading.enumerate() if t.name == "weft-copy" and t not in others]
    assert len(came) <= 3 + parallel_copy.default_threads() - 1


def test_without_new_threads_the_caller_copies_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    target = np.zeros(LARGE, np.float32)
    Copier(4).copy(target, numbers(LARGE))
    np.testing.assert_array_equal(target, numbers(LARGE))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_copies() -> None:
    source = numbers(LARGE)
    copy_into(np.empty_like(source), source)
    child = os.fork()
    if child == 0:
        target = np.zeros_like(source)
        copy_into(target, source)
        os._exit(0 if np.array_equal(target, source) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_copies_at_the_interpreters_end_and_it_ends() -> None:
    code = """
import atexit, numpy as np
from weft.core.host.parallel_copy import Copier
a = np.ones(1 << 20, np.float32)
copier, late = Copier(4), Copier(4)
def last(c):
    b = np.zeros_like(a); c.copy(b, a); print(b.sum() == a.sum())
atexit.register(last, late)
atexit.register(last, copier)
last(copier)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout.split(), done.stderr) == (["True"] * 3, "")


def test_set_threads_changes_who_copies() -> None:
    before = parallel_copy._copier.threads
    try:
        for count in (1, 3):
            parallel_copy.set_threads(count)
            target = np.zeros(LARGE, np.float32)
            copy_into(target, numbers(LARGE))
            np.testing.assert_array_equal(target, numbers(LARGE))
    finally:
        parallel_copy.set_threads(before)
