"""Values that overflow at precision LOW are found in the first run, and are float32 from then on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

import weft
from tests.helpers.nets import Net, assert_near
from tests.helpers.onnx_models import make_model
from tests.helpers.staged_models import FLOAT, branch, node
from weft.core.graph.graph import Graph
from weft.core.graph.layout import Array

DEVICES = ("cpu", "opencl", "vulkan")
ROWS = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)
IMAGE = np.random.default_rng(1).standard_normal((1, 4, 8, 8)).astype(np.float32)
HEADS = np.random.default_rng(2).standard_normal((1, 2, 8, 16)).astype(np.float32)


def number(value: float) -> Array:
    return np.array(value, np.float32)


def squares(net: Net, x: str) -> str:
    large = net.add("Mul", net.add("MatMul", x, net.random(8, 8)), number(1000))
    return net.add("Mul", net.add("MatMul", net.add("Mul", large, large), net.random(8, 8)), number(1e-5))


def norm_of_large_values(net: Net, x: str) -> str:
    large = net.add("MatMul", net.add("Mul", x, number(3000)), net.random(8, 8, scale=50))
    return net.add("LayerNormalization", large, np.ones(8, np.float32), np.zeros(8, np.float32))


def convolutions(net: Net, x: str) -> str:
    large = net.add("Mul", net.conv(x, 8, 3, pads=(1, 1, 1, 1)), number(30000))
    larger = net.conv(large, 8, 3, pads=(1, 1, 1, 1))
    return net.add("Sigmoid", net.add("Conv", larger, net.random(4, 8, 1, 1, scale=2e-5)))


def hidden(net: Net, x: str) -> str:
    """Overflow where the outputs do not show it: the hyperbolic tangent of infinity is 1."""
    total = net.add("MatMul", net.add("Abs", x), np.full((8, 1), 3e4, np.float32))
    return net.add("Tanh", net.add("MatMul", total, np.full((1, 8), 1e-5, np.float32)))


def scores(net: Net, x: str) -> str:
    large = net.add("Mul", x, number(300))
    both = net.add("Add", net.add("MatMul", large, net.add("Transpose", large, perm=(0, 1, 3, 2))), net.random(8, 8))
    small = net.add("MatMul", both, np.eye(8, dtype=np.float32) * 1e-5)
    return net.add("MatMul", net.add("Softmax", small), x)


def residual_stream(net: Net, x: str) -> str:
    ones, zeros = np.ones(8, np.float32), np.zeros(8, np.float32)
    for _ in range(6):
        layer = net.add("MatMul", net.add("LayerNormalization", x, ones, zeros), net.random(8, 8, scale=9000))
        x = net.add("Add", x, layer)
    return net.add("LayerNormalization", x, ones, zeros)


def joined(net: Net, x: str) -> str:
    """Join what overflows to what does not: GPUs store both in one piece of memory."""
    large = net.conv(net.add("Mul", net.conv(x, 4), number(40000)), 4)
    both = net.add("Concat", large, net.conv(x, 4), axis=1)
    return net.add("Conv", both, net.random(4, 8, 1, 1, scale=1e-4))


CASES: Mapping[str, tuple[Callable[[Net, str], str], Array]] = {
    "squares": (squares, ROWS),
    "layer norm": (norm_of_large_values, ROWS),
    "convolutions": (convolutions, IMAGE),
    "hidden": (hidden, ROWS),
    "scores": (scores, HEADS),
    "residual stream": (residual_stream, ROWS),
    "joined": (joined, IMAGE),
}


def network(build: Callable[[Net, str], str], x: Array) -> Graph:
    net = Net()
    made = build(net, net.input("x", *x.shape))
    return net.finish(net.add("Identity", made, name="y"))


def notes_on_overflow(session: weft.Session) -> list[str]:
    return [note for note in session.report.notes if "overflowed" in note]


@pytest.mark.alike
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", CASES)
def test_what_overflows_is_computed_in_float32(name: str, device: str, caplog: pytest.LogCaptureFixture) -> None:
    build, x = CASES[name]
    graph = network(build, x)
    with weft.load(graph, "cpu") as high:
        (expected,) = high.run(x)
    with weft.load(graph, device, precision="low", overflow_check=False) as wrong:
        assert not np.allclose(wrong.run(x)[0], expected, rtol=0.05, atol=0.05 * np.abs(expected).max())
    with weft.load(graph, device, precision="low", fallback="error") as session:
        for _ in range(2):
            assert_near(session.run(x)[0], expected, 4e-3)
        assert len(notes_on_overflow(session)) == 1
        assert {*session.report.placement.values()} == {device}
    assert [r.message for r in caplog.records if "overflowed float16" in r.message]


@pytest.mark.parametrize("device", DEVICES)
def test_networks_in_range_stay_as_they_are(device: str, caplog: pytest.LogCaptureFixture) -> None:
    """Overflow is not what a network makes infinite at any precision, and not what it reads."""
    net = Net()
    x = net.input("x", 4, 8)
    net.add("Log", net.add("Relu", net.add("MatMul", x, np.eye(8, dtype=np.float32))), name="y")
    net.add("Softmax", net.add("Where", ROWS > 0, x, number(-np.inf)), name="z")
    values = ROWS.copy()
    values[0, 0] = np.inf
    with weft.load(net.finish("y", "z"), device, precision="low") as session:
        before = session.optimized
        for given in (ROWS, values, ROWS):
            session.run(given)
        assert not notes_on_overflow(session)
        assert str(session.optimized) == str(before)
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]


@pytest.mark.parametrize("device", ["cpu", "opencl"])
def test_later_runs_are_checked_by_their_outputs(device: str) -> None:
    graph = network(norm_of_large_values, ROWS)
    with weft.load(graph, "cpu") as high, weft.load(graph, device, precision="low") as session:
        small = ROWS / 1000
        assert_near(session.run(small)[0], high.run(small)[0], 4e-3)
        assert not notes_on_overflow(session)
        assert_near(session.run(ROWS)[0], high.run(ROWS)[0], 4e-3)
        assert notes_on_overflow(session)


@pytest.mark.parametrize("device", ["cpu", "opencl"])
def test_submitted_runs_given_arrays_and_other_shapes_are_right(device: str) -> None:
    net = Net()
    x = net.input("x", "rows", 8)
    ones, zeros = np.ones(8, np.float32), np.zeros(8, np.float32)
    large = net.add("MatMul", net.add("Mul", x, number(3000)), net.random(8, 8, scale=50))
    graph = net.finish(net.add("LayerNormalization", large, ones, zeros, name="y"))
    with weft.load(graph, "cpu") as high, weft.load(graph, device, precision="low") as session:
        given = ROWS.copy()
        session.submit(given)
        given[:] = 0
        assert_near(session.wait()[0], high.run(ROWS)[0], 4e-3)
        for rows in (3, 4, 1, 3):
            out = np.empty((rows, 8), np.float32)
            assert session.run(ROWS[:rows], outputs=[out])[0] is out
            assert_near(out, high.run(ROWS[:rows])[0], 4e-3)
        assert notes_on_overflow(session)


def test_what_was_found_is_saved(tmp_path: Path) -> None:
    graph = network(squares, ROWS)
    with weft.load(graph, "cpu") as high, weft.load(graph, "opencl", precision="low") as session:
        (expected,) = high.run(ROWS)
        session.run(ROWS)
        session.optimized.save(tmp_path / "n.weft")
    with weft.load(tmp_path / "n.weft") as saved:
        assert_near(saved.run(ROWS)[0], expected, 4e-3)


def test_an_optimised_network_stays_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    with weft.load(weft.optimize(network(squares, ROWS), "cpu", precision="low")) as session:
        assert not np.isfinite(session.run(ROWS)[0]).all()
    assert [r.message for r in caplog.records if "an optimised network" in r.message]


@pytest.mark.parametrize("odd", [np.nan, np.inf])
def test_an_odd_input_is_no_overflow_of_an_optimised_network(odd: float, caplog: pytest.LogCaptureFixture) -> None:
    net = Net()
    x = net.input("x", 3)
    graph = net.finish(net.add("Mul", net.add("Mul", x, x), number(1e-3)))
    with weft.load(weft.optimize(graph, "cpu", precision="low")) as session:
        session.run(np.array([1, odd, 2], np.float32))
        assert not caplog.records
        session.run(np.array([1, 3000, 2], np.float32))
    assert [r.message for r in caplog.records if "an optimised network" in r.message]


def test_parts_on_several_devices_are_watched() -> None:
    net = Net()
    large = net.add("MatMul", net.add("Mul", net.input("x", 4, 8), number(1000)), net.random(8, 8), name="large")
    larger = net.add("MatMul", large, net.random(8, 8, scale=100), name="larger")
    graph = net.finish(net.add("Mul", net.add("MatMul", larger, net.random(8, 8)), number(1e-5), name="y"))
    devices = ["opencl", "vulkan", "cpu"]
    hints = {"n_large": "cpu", "n_larger": "vulkan"}
    with weft.load(graph, "cpu") as high, weft.load(graph, devices, precision="low", hints=hints) as session:
        assert_near(session.run(ROWS)[0], high.run(ROWS)[0], 4e-3)
        assert session.report.placement["n_larger"] == "vulkan" and notes_on_overflow(session)


@pytest.mark.parametrize("device", ["cpu", "opencl"])
def test_later_stages_are_watched(device: str) -> None:
    """Overflow in a branch that a run chooses, and behind it."""
    nodes = [
        node("ReduceSum", "x", "total", keepdims=0),
        node("Greater", "total zero", "positive"),
        node(
            "If", "positive", "chosen",
            then_branch=branch("then", node("MatMul", "x weights", "large"), node("MatMul", "large weights", "out")),
            else_branch=branch("else", node("Neg", "x", "out")),
        ),
        node("MatMul", "chosen small", "y"),
    ]
    rng = np.random.default_rng(3)
    constants = {
        "zero": number(0),
        "weights": rng.standard_normal((8, 8)).astype(np.float32) * 300,
        "small": rng.standard_normal((8, 8)).astype(np.float32) * 1e-4,
    }
    model = make_model(nodes, {"x": (FLOAT, (4, 8))}, ["y"], constants)
    x = np.abs(ROWS)
    with weft.load(model, "cpu") as high, weft.load(model, device, precision="low") as session:
        assert_near(session.run(x)[0], high.run(x)[0], 4e-3)


@pytest.mark.parametrize("device", DEVICES)
def test_what_an_input_holds_that_is_not_finite_hides_nothing(device: str) -> None:
    net = Net()
    large = net.add("MatMul", net.input("x", 2, 4), np.full((4, 4), 100, np.float32))
    graph = net.finish(net.add("MatMul", large, np.full((4, 2), 1e-3, np.float32)))
    x = np.array([[300] * 4, [np.inf] * 4], np.float32)
    with weft.load(graph, device, precision="low") as session:
        wanted = np.array([[480, 480], [np.inf, np.inf]], np.float32)
        np.testing.assert_allclose(session.run(x)[0], wanted, rtol=2e-3)
        assert session.report.nodes_by_device.keys() == {device}


@pytest.mark.parametrize("odd", [np.nan, np.inf])
@pytest.mark.parametrize("runs", [("odd",), ("small", "odd"), ("odd", "odd")])
def test_an_odd_input_does_not_end_the_check(runs: tuple[str, ...], odd: float) -> None:
    net = Net()
    x = net.input("x", 3)
    graph = net.finish(net.add("Mul", net.add("Mul", x, x), number(1e-3)))
    given = {"odd": np.array([1, odd, 2], np.float32), "small": np.array([1, 2, 3], np.float32)}
    with weft.load(graph, "cpu", precision="low") as session:
        for name in runs:
            session.run(given[name])
        assert not notes_on_overflow(session)
        np.testing.assert_allclose(session.run(np.array([1, 3000, 2], np.float32))[0], [1e-3, 9e3, 4e-3], rtol=2e-3)


def test_outputs_that_are_never_finite_are_not_checked_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    net = Net()
    session = weft.load(net.finish(net.add("Log", net.input("x", 2))), "cpu", precision="low")
    with session, caplog.at_level(logging.INFO, "weft.session"):
        for _ in range(6):
            assert session.run(np.array([0, 1], np.float32))[0].tolist() == [-np.inf, 0]
    assert ["not checked for overflow" in r.message for r in caplog.records].count(True) == 1


@pytest.mark.parametrize("device", ["cpu", "opencl"])
def test_an_input_that_is_overwritten_by_the_output_is_read_before(device: str) -> None:
    net = Net()
    x = net.input("x", 4, 8)
    large = net.add("MatMul", net.add("Mul", x, number(3000)), net.random(8, 8, scale=50))
    graph = net.finish(net.add("LayerNormalization", large, np.ones(8, np.float32), np.zeros(8, np.float32)))
    with weft.load(graph, "cpu") as high, weft.load(graph, device, precision="low") as session:
        state: Array = np.multiply(ROWS, 1e-3, dtype=np.float32)
        (expected,) = high.run(state)
        assert_near(session.run(state, outputs=[state])[0], expected, 4e-3)  # the first run, which is watched
        state = ROWS.copy()
        assert_near(session.run(state, outputs=[state])[0], high.run(ROWS)[0], 4e-3)  # this overflows
        assert notes_on_overflow(session)


def test_fp16_arrays_that_hold_too_little_do_not_end_the_check() -> None:
    net = Net()
    x, other = net.input("x", 2), net.input("other", 2)
    net.add("Mul", x, x, name="y")
    net.add("Mul", net.add("Mul", other, other), number(1e-3), name="z")
    with weft.load(net.finish("y", "z"), "cpu", precision="low") as session:
        outputs, large = session.output_arrays(), np.array([300, 1], np.float32)
        for _ in range(5):
            assert session.run(large, large / 100, outputs=outputs)[0].tolist() == [np.inf, 1]
        np.testing.assert_allclose(session.run(large, large, outputs=outputs)[1], [90, 1e-3], rtol=2e-3)


@pytest.mark.parametrize("device", DEVICES)
def test_fp16_arrays_of_before_are_written_after_an_overflow(device: str, recwarn: pytest.WarningsRecorder) -> None:
    net = Net()
    x = net.input("x", 4)
    graph = net.finish(net.add("Mul", x, x))
    with weft.load(graph, device, precision="low") as session:
        inputs, outputs = session.input_arrays(), session.output_arrays()
        assert {a.dtype for a in (*inputs.values(), *outputs.values())} == {np.dtype(np.float16)}
        inputs["x"][:] = [1, 2, 300, 4]
        for _ in range(2):
            (made,) = session.run(inputs, outputs=outputs)
            assert made is outputs[session.outputs[0]]
            assert made.tolist() == [1, 4, np.inf, 16]
        assert notes_on_overflow(session)
        assert session.run(inputs)[0].tolist() == [1, 4, 90000, 16]
        session.submit(inputs, outputs=outputs)
        assert session.wait()[0].tolist() == [1, 4, np.inf, 16]
        session.submit(inputs)
        assert session.wait(outputs)[0].tolist() == [1, 4, np.inf, 16]
    assert not [w for w in recwarn if issubclass(w.category, RuntimeWarning)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("limit", [2e5, 3.4e38])
@pytest.mark.parametrize("kind", ["Min", "Clip"])
def test_limits_beyond_float16_limit_nothing_below_them(kind: str, limit: float, device: str) -> None:
    net = Net()
    large = net.add("Mul", net.input("x", 2), number(1000))
    limits = [number(limit)] if kind == "Min" else [number(-limit), number(limit)]
    graph = net.finish(net.add("Mul", net.add(kind, large, *limits), number(1e-4)))
    with weft.load(graph, device, precision="low") as session:
        np.testing.assert_allclose(session.run(np.array([100, 1], np.float32))[0], [10, 0.1], rtol=2e-3)
        assert session.report.nodes_by_device.keys() == {device}
