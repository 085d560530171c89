"""What a user does with a session: feed, read, resize, submit, close."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import weft
from tests.helpers.nets import Net, branching, chain, feeds
from tests.helpers.opened import held
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph
from weft.core.graph.interpreter import outputs
from weft.core.graph.layout import Array
from weft.errors import ClosedError, InputError

DEVICES = ("cpu", "opencl", "vulkan")


def two_by_two() -> Graph:
    """Return a network with two inputs and two outputs: a + b and a - b."""
    net = Net()
    a, b = net.input("a", 2, 3), net.input("b", 2, 3)
    return net.finish(net.add("Add", a, b, name="sum"), net.add("Sub", a, b, name="difference"))


A, B = np.arange(6, dtype=np.float32).reshape(2, 3), np.ones((2, 3), np.float32)


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def session(device: str) -> Iterator[weft.Session]:
    with weft.load(two_by_two(), device=device, fallback="error") as made:
        yield made


# -- inputs ----------------------------------------------------------------------------------------------


def assert_sums(results: list[Array], a: Any = A, b: Any = B) -> None:
    assert [r.dtype for r in results] == [np.float32, np.float32]
    np.testing.assert_array_equal(results[0], np.asarray(a) + b)
    np.testing.assert_array_equal(results[1], np.asarray(a) - b)


def test_F6_inputs_by_position_and_by_name(session: weft.Session) -> None:
    assert_sums(session.run(A, B))
    assert_sums(session.run({"b": B, "a": A}))


@pytest.mark.parametrize("kind", ["float64", "float16", "int32", "int64", "uint8"])
def test_F6_inputs_of_other_element_types_are_converted(session: weft.Session, kind: str) -> None:
    assert_sums(session.run(A.astype(kind), B))


FORMS: dict[str, Any] = {
    "a list": A.tolist(),
    "strided": np.repeat(A, 2, axis=1)[:, ::2],
    "reversed": A[::-1, ::-1].copy()[::-1, ::-1],
    "in Fortran order": np.asfortranarray(A),
}


@pytest.mark.parametrize("form", FORMS)
def test_F6_inputs_may_lie_in_memory_as_they_like(session: weft.Session, form: str) -> None:
    assert_sums(session.run(FORMS[form], B))


def test_F6_inputs_are_not_changed_and_may_be_read_only(session: weft.Session) -> None:
    a = A.copy()
    a.flags.writeable = False
    assert_sums(session.run(a, B))
    np.testing.assert_array_equal(a, A)


def test_F6_results_belong_to_the_caller(session: weft.Session) -> None:
    first = session.run(A, B)
    kept = [r.copy() for r in first]
    session.run(9 * A, B)
    for mine, before in zip(first, kept, strict=True):
        np.testing.assert_array_equal(mine, before)
        mine[...] = 0


def test_F6_integers_are_taken_where_they_fit() -> None:
    net = Net()
    graph = net.finish(net.add("Add", net.input("x", 3, dtype=DType.INT32), np.ones(3, np.int32), name="y"))
    with weft.load(graph, device="cpu") as session:
        for kind in (np.int64, np.int8, np.uint16, np.int32):
            (y,) = session.run(np.array([1, 2, 3], kind))
            assert y.dtype == np.int32
            np.testing.assert_array_equal(y, [2, 3, 4])
        with pytest.raises(InputError, match="does not hold all"):
            session.run(np.array([1, 2, 1 << 40]))
        with pytest.raises(InputError, match="element type float32 and int32"):
            session.run(np.array([1, 2, 3], np.float32))


def test_F6_integer_and_boolean_inputs_run_on_every_device(device: str) -> None:
    net = Net()
    i, b = net.input("i", 2, 3, dtype=DType.INT64), net.input("b", 2, 3, dtype=DType.BOOL)
    graph = net.finish(net.add("Transpose", i, name="it", perm=(1, 0)), net.add("Transpose", b, name="bt", perm=(1, 0)))
    ints, bools = np.array([[1, -2, 1 << 40], [4, 5, -(1 << 62)]]), np.array([[True, False, True], [False] * 3])
    with weft.load(graph, device=device) as session:
        it, bt = session.run(ints, bools)
    np.testing.assert_array_equal(it, ints.T)
    np.testing.assert_array_equal(bt, bools.T)


# -- outputs ---------------------------------------------------------------------------------------------


def test_F9_caller_owned_outputs_are_written_in_place(session: weft.Session) -> None:
    mine = [np.empty((2, 3), np.float32) for _ in range(2)]
    results = session.run(A, B, outputs=mine)
    assert all(r is m for r, m in zip(results, mine, strict=True))
    assert_sums(mine)
    only = np.empty((2, 3), np.float32)
    results = session.run(A, B, outputs=[None, only])
    assert results[1] is only
    assert_sums(results)
    results = session.run(A, B, outputs={"sum": only})
    assert results[0] is only
    assert_sums(results)


def test_F9_caller_owned_outputs_need_not_be_contiguous(session: weft.Session) -> None:
    wide = np.full((4, 9), 7, np.float32)
    mine = [wide[::2, ::3], np.full((3, 2), 7, np.float32).T]
    assert_sums(session.run(A, B, outputs=mine))
    assert (wide[1::2] == 7).all() and (wide[:, 1::3] == 7).all()


def test_F9_caller_owned_outputs_may_lie_between_each_other(session: weft.Session) -> None:
    both = np.empty((2, 6), np.float32)
    assert_sums(session.run(A, B, outputs=[both[:, ::2], both[:, 1::2]]))
    assert_sums([both[:, ::2], both[:, 1::2]])


def test_F9_an_input_may_be_an_output(session: weft.Session) -> None:
    a = A.copy()
    results = session.run(a, B, outputs=[a, None])
    assert results[0] is a
    assert_sums(results)


def read_only() -> Array:
    array = np.empty((2, 3), np.float32)
    array.flags.writeable = False
    return array


def windows(*strides: int) -> Array:
    return np.lib.stride_tricks.as_strided(np.empty(100, np.float32), (2, 3), strides)


GOOD = np.empty((2, 3), np.float32)
LONG = np.empty(8, np.float32)
SHARED = "'sum' and 'difference' need arrays of their own"
BAD_OUTPUTS: dict[str, tuple[Any, str]] = {
    "another shape": ([np.empty((3, 2), np.float32), None], r"'sum' needs .*float32\[2x3\]; given is float32\[3x2\]"),
    "another type": ([None, np.empty((2, 3))], r"'difference' .*given is float64"),
    "a read-only one": ([read_only(), None], "a read-only one"),
    "a list": ([[[0] * 3] * 2, None], "given is a list"),
    "too few": ([GOOD], r"1 array\(s\) were given"),
    "too many": ([GOOD, GOOD, GOOD], r"3 array\(s\) were given"),
    "an unknown name": ({"product": GOOD}, "there is no output 'product'"),
    "one twice": ([GOOD, GOOD], SHARED),
    "one twice by name": ({"sum": GOOD, "difference": GOOD[:]}, SHARED),
    "pieces that overlap": ([LONG[:6].reshape(2, 3), LONG[2:].reshape(2, 3)], SHARED),
    "one row for all": ([windows(0, 4), None], "'sum' needs .*whose elements share memory"),
    "one column for all": ([None, windows(12, 0)], "'difference' needs .*whose elements share memory"),
    "two at once": ([np.empty(1), np.empty(2)], "'sum' .*'difference'"),
}


@pytest.mark.parametrize("case", BAD_OUTPUTS)
def test_F9_arrays_that_do_not_fit_are_refused(session: weft.Session, case: str) -> None:
    given, message = BAD_OUTPUTS[case]
    with pytest.raises(InputError, match=message):
        session.run(A, B, outputs=given)
    session.submit(A, B)
    with pytest.raises(InputError, match=message):
        session.wait(outputs=given)
    assert_sums(session.wait())


# -- outputs that no node makes ----------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["high", "low"])
def test_F6_an_output_may_be_an_input_a_constant_or_named_twice(device: str, precision: str) -> None:
    net = Net()
    x = net.input("x", 2, 3)
    k = net.constant(np.array([1 / 3, 2], np.float32), "k")
    y = net.add("Relu", x, name="y")
    graph = net.finish(x, k, y, y, x)
    with weft.load(graph, device=device, precision=precision) as session:
        mine = [np.empty((2, 3), np.float32) for _ in range(3)]
        results = session.run(-A, outputs=[mine[0], None, mine[1], mine[2], None])
        one = np.empty((2, 3), np.float32)
        np.testing.assert_array_equal(session.run(-A, outputs={"y": one})[3], 0 * A)
    assert results[0] is mine[0] and results[2] is mine[1] and results[3] is mine[2]
    for result, expected in zip(results, [-A, np.array([1 / 3, 2], np.float32), 0 * A, 0 * A, -A], strict=True):
        np.testing.assert_array_equal(result, expected)


def test_F6_an_output_that_is_an_input_is_the_array_as_it_was_given(device: str) -> None:
    net = Net()
    x = net.input("x", 2, 3)
    graph = net.finish(net.add("Neg", x, name="y"), x)
    with weft.load(graph, device=device) as session:
        a = A.copy()
        y, same = session.run(a, outputs=[a, None])
        np.testing.assert_array_equal(y, -A)
        np.testing.assert_array_equal(same, A)
        a = A.copy()
        session.submit(a)
        a[...] = 99
        np.testing.assert_array_equal(session.wait()[1], A)


def test_F6_a_network_that_is_constant_has_no_nodes_left(device: str) -> None:
    net = Net()
    x = net.input("x", 2, 3)
    shape = net.add("Shape", x, name="shape")
    twice = net.add("Add", shape, shape, name="twice")
    graph = net.finish(twice, net.add("Exp", np.zeros(2, np.float32), name="one"))
    with weft.load(graph, device=device) as session:
        assert session.report.nodes_by_device == {} and session.report.memory_bytes == 0
        twice_, one = session.run(A)
    np.testing.assert_array_equal(twice_, [4, 6])
    np.testing.assert_array_equal(one, [1, 1])


def test_F6_a_network_without_inputs_runs(device: str) -> None:
    net = Net()
    graph = net.finish(net.add("Exp", np.zeros(2, np.float32), name="one"))
    with weft.load(graph, device=device) as session:
        np.testing.assert_array_equal(session.run()[0], [1, 1])
        np.testing.assert_array_equal(session.run({})[0], [1, 1])


def test_F6_an_input_that_nobody_reads_is_taken(device: str) -> None:
    net = Net()
    x = net.input("x", 2)
    net.input("unused", 5)
    graph = net.finish(net.add("Relu", x, name="y"))
    with weft.load(graph, device=device) as session:
        np.testing.assert_array_equal(session.run(np.array([-1, 2]), np.zeros(5))[0], [0, 2])


def test_F6_an_intermediate_value_may_be_an_output_too(device: str) -> None:
    graph = branching(8)
    graph.outputs = ["stem_relu", "y", "both", "total"]
    with weft.load(graph, device=device, fallback="error") as session:
        for got, expected in zip(session.run(feeds(graph)), outputs(graph, feeds(graph)), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("batch", [0, 1])
def test_F6_dimensions_may_be_zero(device: str, batch: int) -> None:
    net = Net()
    x = net.input("x", "N", 3)
    relu = net.add("Relu", x, name="r")
    graph = net.finish(net.add("Concat", relu, net.add("Exp", relu, name="e"), name="y", axis=1))
    fed = np.ones((batch, 3), np.float32)
    with weft.load(graph, device=device) as session:
        (y,) = session.run(fed)
    np.testing.assert_allclose(y, np.concatenate([fed, np.exp(fed)], 1), rtol=1e-6)


def test_F6_scalars_are_values_like_others(device: str) -> None:
    net = Net()
    graph = net.finish(net.add("Exp", net.input("x"), name="y"))
    with weft.load(graph, device=device, fallback="error") as session:
        (y,) = session.run(1.0)  # type: ignore[arg-type]
    assert y.shape == () and float(y) == pytest.approx(np.e)


# -- runs in flight, and the end ---------------------------------------------------------------------------


def test_F6_submit_and_wait_are_a_run_in_two_steps(session: weft.Session) -> None:
    with pytest.raises(InputError, match="no run to wait for"):
        session.wait()
    session.submit(A, B)
    assert_sums(session.wait())
    session.submit(5 * A, B)
    session.submit({"a": 2 * A, "b": B})
    assert_sums(session.wait(), 2 * A)
    with pytest.raises(InputError, match="none was submitted since outputs were last taken"):
        session.wait()


def test_F6_a_run_or_a_resize_ends_what_was_submitted(session: weft.Session) -> None:
    session.submit(A, B)
    assert_sums(session.run(2 * A, B), 2 * A)
    with pytest.raises(InputError, match="outputs were last taken"):
        session.wait()
    session.submit(A, B)
    session.resize({"a": A.shape, "b": B.shape})
    with pytest.raises(InputError, match="or the session was resized"):
        session.wait()
    assert_sums(session.run(A, B))


def test_F6_a_caller_may_change_the_inputs_after_submit(session: weft.Session) -> None:
    a = A.copy()
    session.submit(a, B)
    a[...] = 99
    assert_sums(session.wait())


def test_F6_a_session_can_be_closed_in_flight(device: str) -> None:
    before = held(device)
    session = weft.load(two_by_two(), device=device)
    session.submit(A, B)
    session.close()
    assert held(device) == before
    with pytest.raises(ClosedError):
        session.wait()


def test_F6_a_with_block_closes_the_session_also_on_an_error(device: str) -> None:
    with pytest.raises(KeyError, match="mine"), weft.load(two_by_two(), device=device) as session:
        raise KeyError("mine")
    with pytest.raises(weft.WeftError, match="closed"):
        session.run(A, B)


def test_F6_a_closed_session_shows_nothing_of_its_network(device: str) -> None:
    with weft.load(two_by_two(), device=device) as session:
        taken = session.optimized
    for ask in ("optimized", "report", "pipelines", "profile"):
        with pytest.raises(ClosedError, match="the session is closed"):
            getattr(session, ask)
    with weft.load(taken) as again:
        assert_sums(again.run(A, B))


def test_F6_the_first_use_is_two_lines(tmp_path: Any) -> None:
    from benchmarks import models

    path = tmp_path / "model.onnx"
    path.write_bytes(models.squeezenet1_1(image=32, width=0.125, classes=3).SerializeToString())
    x = np.zeros((1, 3, 32, 32), np.float32)
    session = weft.load(path, device="cpu")
    (y,) = session.run(x)
    assert y.shape == (1, 3)
    assert weft.load(path.read_bytes(), device="cpu").run(x)[0].shape == (1, 3)


def test_F6_the_report_reads_well(device: str) -> None:
    with weft.load(branching(8), device=device) as session:
        text, shown = str(session.report), repr(session.report)
    assert "#define" not in shown and len(shown) < 100_000, "a debugger would print the source of every kernel"
    assert text.startswith(f"nodes: {device} ") and "precision: HIGH" in text and "arena_bytes" in text


@pytest.mark.parametrize("device", ["cpu", "opencl"])
def test_what_a_load_takes_is_logged(device: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "weft")
    with weft.load(chain("Relu", n="n"), device) as session:
        assert not [r for r in caplog.records if r.name == "weft.session"]
        session.resize({"x": (2, 3)})
    (record,) = [r for r in caplog.records if r.name == "weft.session"]
    said = r"network 'net' on (\w+):0: (read .* s, )?rewritten .* s, planned in \S+ s, compiled .* s"
    assert re.fullmatch(said, record.getMessage())
