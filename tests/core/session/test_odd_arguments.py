"""Whatever is handed to a session in the place of inputs and outputs is right or an InputError (section 4, F9)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.lib import stride_tricks

import weft
from tests.helpers.nets import Net
from tests.helpers.waits import ended
from weft.core.graph.graph import Graph
from weft.core.graph.layout import Shape
from weft.core.session.arguments import overlaps_itself
from weft.errors import ClosedError, InputError, OutOfMemory

as_strided: Any = stride_tricks.as_strided
masked: Any = np.ma.array
X = np.arange(6, dtype=np.float32).reshape(2, 3) - 2
Y = np.maximum(X, 0)


def network(rows: int | str = "N") -> Graph:
    net = Net()
    graph = net.finish(net.add("Relu", net.input("x", rows, 3), name="y"))
    graph.name = "small"
    return graph


@pytest.fixture(scope="module", params=["cpu", "opencl", "vulkan"])
def session(request: pytest.FixtureRequest) -> Iterator[weft.Session]:
    with weft.load(network(), request.param, fallback="error") as made:
        yield made


def strided(shape: tuple[int, ...], strides: tuple[int, ...], first: int = 0) -> np.ndarray:
    """Return a view into 4000 bytes of its own."""
    view: np.ndarray = as_strided(np.zeros(1000, np.float32)[first:], shape, strides)
    return view


# -- inputs ----------------------------------------------------------------------------------------------------


class Sub(np.ndarray):
    """An array of another class."""


class Unconvertible:
    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise TypeError("it is on another device")


BAD_INPUTS: dict[str, tuple[Any, str]] = {
    "a number": (5, "rank 0 instead of 2"),
    "nothing": (None, "element type object"),
    "objects": (np.full((2, 3), None), "element type object"),
    "masked": (masked(X, mask=X > 0), "masked elements"),
    "what does not convert": (Unconvertible(), "it is on another device"),
    "a ragged list": ([[1, 2], [3]], "is not an array"),
    "a record": (np.zeros(2, [("a", "f4")]), "element type"),
    "text": ("abc", "element type"),
    "more integers than memory": (np.broadcast_to(np.int32(1), (1 << 50, 3)), "no memory"),
}


@pytest.mark.parametrize("what", BAD_INPUTS)
def test_4_an_odd_input_is_refused_and_the_session_goes_on(session: weft.Session, what: str) -> None:
    given, why = BAD_INPUTS[what]
    for call in (session.run, session.submit):
        with pytest.raises(InputError) as caught:
            call(given)
        assert why in caught.value.why and caught.value.fix, str(caught.value)
    np.testing.assert_array_equal(session.run(X)[0], Y)


@pytest.mark.parametrize("wrong", [(2, 3, 1), (3,), (2, 4)])
@pytest.mark.parametrize("length", ["n", 2])
def test_4_an_input_of_another_rank_or_size_is_refused_after_sizes_changed(length: str | int, wrong: Shape) -> None:
    net = Net()
    graph = net.finish(net.add("Relu", net.input("x", length, 3)))
    with weft.load(graph, "cpu") as session:
        for rows in (2, 3, 4, 5) if length == "n" else (2, 2):
            session.run(np.ones((rows, 3), np.float32))
        with pytest.raises(InputError) as caught:
            session.run(np.ones(wrong, np.float32))
        assert "'x'" in str(caught.value)
        np.testing.assert_array_equal(session.run(X)[0], Y)


def backwards(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x[::-1, ::-1])[::-1, ::-1]


GOOD_INPUTS: dict[str, Callable[[np.ndarray], Any]] = {
    "another byte order": lambda x: x.astype(">f4"),
    "a subclass": lambda x: x.view(Sub),
    "a masked array without masked elements": masked,
    "negative strides": backwards,
    "columns first": np.asfortranarray,
    "one row many times": lambda x: np.broadcast_to(x[:1], x.shape),
    "overlapping windows": lambda x: as_strided(x, (2, 3), (4, 4)),
    "far apart": lambda x: np.repeat(np.repeat(x, 50, 0), 50, 1)[::50, ::50],
    "not aligned": lambda x: np.frombuffer(b"." + x.tobytes(), np.uint8)[1:].view(np.float32).reshape(x.shape),
    "read-only": lambda x: np.frombuffer(x.tobytes(), np.float32).reshape(x.shape),
    "lists": lambda x: x.tolist(),
}


@pytest.mark.parametrize("what", GOOD_INPUTS)
def test_an_input_lies_as_it_likes(session: weft.Session, what: str) -> None:
    given = GOOD_INPUTS[what](X)
    np.testing.assert_array_equal(session.run(given)[0], np.maximum(np.asarray(given, np.float32), 0))


# -- outputs ---------------------------------------------------------------------------------------------------

NO_LISTS = [5, 0, True, "y", b"y", {1}, object(), list, (None for _ in range(1))]
BAD_OUTPUTS: dict[str, tuple[Any, str]] = {
    "too many": ([None, None], "the network has 1"),
    "too few": ([], "the network has 1"),
    "another name": ({"z": None}, "no output 'z'"),
    "no name": ({5: None}, "no output 5"),
    "a bare array": (np.zeros((2, 3), np.float32), "one output each"),
    "a number": ([np.float32(1)], "a float32"),
    "a list": ([[[0] * 3] * 2], "a list"),
    "another type": ([np.zeros((2, 3))], "float64[2x3]"),
    "another byte order": ([np.zeros((2, 3), ">f4")], ">f4"),
    "another shape": ([np.zeros((3, 2), np.float32)], "float32[3x2]"),
    "read-only": ([np.frombuffer(X.tobytes(), np.float32).reshape(2, 3)], "read-only"),
    "masked": ([masked(np.zeros((2, 3), np.float32))], "MaskedArray"),
    "broadcast": ([strided((2, 3), (0, 4))], "share memory"),
    "overlapping rows": ([strided((2, 3), (8, 4))], "share memory"),
    "overlapping rows, backwards": ([strided((2, 3), (-8, 4), 4)], "share memory"),
    "elements that overlap by halves": ([strided((2, 3), (100, 2))], "share memory"),
}


TAKES_OUTPUTS: list[Callable[[weft.Session, Any], object]] = [lambda s, o: s.run(X, outputs=o), lambda s, o: s.wait(o)]


@pytest.mark.parametrize("given", NO_LISTS, ids=lambda o: type(o).__name__)
def test_F9_what_is_no_list_of_outputs_is_refused(session: weft.Session, given: Any) -> None:
    session.submit(X)
    for call in TAKES_OUTPUTS:
        with pytest.raises(InputError, match="holds no arrays") as caught:
            call(session, given)
        assert caught.value.where == "network 'small'" and "a list of 1" in caught.value.fix
    np.testing.assert_array_equal(session.wait()[0], Y)


@pytest.mark.parametrize("what", BAD_OUTPUTS)
def test_F9_an_output_that_does_not_fit_is_refused(session: weft.Session, what: str) -> None:
    given, why = BAD_OUTPUTS[what]
    session.submit(X)
    for call in TAKES_OUTPUTS:
        with pytest.raises(InputError) as caught:
            call(session, given)
        assert why in caught.value.why and caught.value.where == "network 'small'" and caught.value.fix
    np.testing.assert_array_equal(session.wait()[0], Y)


GOOD_OUTPUTS: dict[str, Callable[[], np.ndarray]] = {
    "backwards": lambda: np.zeros((2, 3), np.float32)[::-1, ::-1],
    "columns first": lambda: np.zeros((2, 3), np.float32, "F"),
    "far apart": lambda: strided((2, 3), (400, 40)),
    "interleaved": lambda: strided((2, 3), (12, 8)),
    "not aligned": lambda: np.zeros(25, np.uint8)[1:].view(np.float32).reshape(2, 3),
    "a subclass": lambda: np.zeros((2, 3), np.float32).view(Sub),
}


@pytest.mark.parametrize("what", GOOD_OUTPUTS)
def test_F9_an_output_lies_as_it_likes(session: weft.Session, what: str) -> None:
    given = GOOD_OUTPUTS[what]()
    (y,) = session.run(X, outputs=[given])
    assert y is given
    np.testing.assert_array_equal(np.asarray(y), Y)


def test_4_a_list_of_inputs_is_told_apart_and_long_lists_are_cut() -> None:
    net = weft.Network("many")
    names = [net.add_input(f"x{k}", (2,)) for k in range(20)]
    net.add_output("y", net.add_layer("Sum", *names))
    with weft.load(net, "cpu") as session, pytest.raises(InputError) as caught:
        session.run([np.zeros(2, np.float32)] * 20)  # type: ignore[arg-type]
    said = str(caught.value)
    assert "run(*arrays)" in said and "'x7'" in said and "'x8'" not in said and "and 12 more" in said


def test_F9_an_output_may_be_written_over_the_input(session: weft.Session) -> None:
    for step in (1, -1):
        x = X.copy()
        np.testing.assert_array_equal(session.run(x, outputs=[x[::step, ::step]])[0], Y)
        x = X.copy()
        session.submit(x)
        np.testing.assert_array_equal(session.wait([x[::step, ::step]])[0], Y)


def test_overlaps_are_found_as_by_trying() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        shape = tuple(int(n) for n in rng.integers(0, 4, rng.integers(0, 4)))
        strides = tuple(int(n) for n in rng.integers(-9, 10, len(shape)))
        array = as_strided(np.zeros(4000, np.uint8)[2000:2004].view(np.float32), shape, strides)
        places = [sum(i * s for i, s in zip(index, strides, strict=True)) for index in np.ndindex(shape)]
        bytes_ = [p + k for p in places for k in range(4)]
        assert overlaps_itself(array) == (len(set(bytes_)) < len(bytes_)), (shape, strides)


# -- calls from callbacks ----------------------------------------------------------------------------------------


CALLS: dict[str, Callable[[weft.Session], object]] = {
    "close": lambda s: s.close(),
    "run": lambda s: s.run(X),
    "submit": lambda s: s.submit(X),
    "wait": lambda s: s.wait(),
    "resize": lambda s: s.resize({"x": (5, 3)}),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("start", ["run", "submit"])
def test_4_a_debug_callback_cannot_use_the_session_that_calls_it(start: str, call: str) -> None:
    armed: list[weft.Session] = []

    def sink(_: object) -> None:
        if armed:
            CALLS[call](armed.pop())

    with weft.load(network(), "cpu", debug=sink) as session:
        np.testing.assert_array_equal(session.run(X)[0], Y)
        armed.append(session)
        with pytest.raises(InputError, match=f"cannot {call} here") as caught:
            getattr(session, start)(X)
        assert caught.value.where == "network 'small'", "what a callback raises comes out as it is"
        assert f"during its {start}" in caught.value.why and caught.value.fix
        np.testing.assert_array_equal(session.run(X)[0], Y)


def test_4_progress_cannot_use_the_session_either_and_another_session_can_be_used() -> None:
    armed: list[weft.Session] = []
    with weft.load(network(), "cpu") as other:

        def progress(*_: int) -> None:
            np.testing.assert_array_equal(other.run(X)[0], Y)
            if armed:
                armed.pop().close()

        with weft.load(network(), "cpu", progress=progress) as session:
            np.testing.assert_array_equal(session.run(X)[0], Y)
            armed.append(session)
            with pytest.raises(InputError, match="cannot close here"):
                session.resize({"x": (4, 3)})
            np.testing.assert_array_equal(session.run(X)[0], Y)


def test_a_close_in_another_thread_waits_for_the_run_and_later_runs_say_so() -> None:
    inside, closing = threading.Event(), threading.Event()

    def sink(_: object) -> None:
        inside.set()
        closing.wait(10)

    session = weft.load(network(), "cpu", debug=sink, shapes={"x": (2, 3)})

    def close() -> None:
        inside.wait(10)
        closing.set()
        session.close()

    thread = threading.Thread(target=close)
    thread.start()
    np.testing.assert_array_equal(session.run(X)[0], Y)
    ended(thread)
    with pytest.raises(ClosedError):
        session.run(X)


def test_more_than_there_is_memory_for_is_an_error_and_the_session_goes_on() -> None:
    with weft.load(network(), "cpu") as session:
        for rows in (1 << 40, 1 << 62, 10**30):
            with pytest.raises(OutOfMemory):
                session.resize({"x": (rows, 3)})
            np.testing.assert_array_equal(session.run(X)[0], Y)
