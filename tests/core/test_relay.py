"""A batch in parts: results, uneven parts, what does not fit, and what is left after an error."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import weft
from tests.core.nets import Net
from weft.core.graph import Graph
from weft.errors import InputError

DEVICES = ("cpu", "opencl", "vulkan")


def network(batch: int | str = "n") -> Graph:
    """Return two outputs of a batch: a convolution, and the rows' sums with a second input."""
    net = Net()
    x, z = net.input("x", batch, 3, 6, 5), net.input("z", batch, 4)
    weight = np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype(np.float32)
    y = net.add("Conv", x, weight, kernel_shape=(3, 3), pads=(1, 1, 1, 1))
    pooled = net.add("Flatten", net.add("GlobalAveragePool", y), axis=1)
    return net.finish(net.add("Relu", y, name="y"), net.add("Add", pooled, z, name="s"))


def feed(batch: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(batch)
    return {"x": rng.standard_normal((batch, 3, 6, 5), np.float32), "z": rng.standard_normal((batch, 4), np.float32)}


@pytest.fixture(params=DEVICES)
def relay(request: pytest.FixtureRequest) -> Iterator[weft.Relay]:
    with weft.Relay([weft.load(network(), request.param, fallback="error") for _ in range(3)]) as made:
        yield made


@pytest.mark.parametrize("batch", [3, 7, 6])
def test_a_batch_in_parts_is_what_a_session_makes_of_it(relay: weft.Relay, batch: int) -> None:
    given = feed(batch)
    with weft.load(network(), "cpu") as session:
        expected = session.run(given)
    for _ in range(2):
        for mine, theirs in zip(relay.run(given), expected, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-5)
    by_order = relay.run(given["x"], given["z"])
    np.testing.assert_array_equal(by_order[0], relay.run(given)[0])


def test_networks_of_a_fixed_batch_take_their_parts() -> None:
    given = feed(4)
    with weft.Relay([weft.load(network(2), "cpu") for _ in range(2)]) as relay, weft.load(network(4), "cpu") as session:
        for mine, theirs in zip(relay.run(given), session.run(given), strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("rows", [(2, 2), (4, 3), (0, 0)])
def test_what_is_no_batch_is_refused(relay: weft.Relay, rows: tuple[int, int]) -> None:
    given = {"x": feed(5)["x"][: rows[0]], "z": feed(5)["z"][: rows[1]]}
    with pytest.raises(InputError, match="no batch for 3 sessions"):
        relay.run(given)


def test_an_output_that_is_not_of_the_batch_is_refused() -> None:
    net = Net()
    graph = net.finish(net.add("Flatten", net.input("x", "n", 3), axis=0, name="y"))
    relay = weft.Relay([weft.load(graph, "cpu") for _ in range(2)])
    with relay, pytest.raises(InputError, match="'y' is not of the inputs' batch"):
        relay.run(np.zeros((4, 3), np.float32))


def test_after_a_part_that_failed_nothing_runs_and_the_next_run_is_right(
    relay: weft.Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise InputError("no")

    with monkeypatch.context() as patched:
        patched.setattr(relay.sessions[1], "submit", refuse)
        with pytest.raises(InputError, match="no"):
            relay.run(feed(6))
    for session in relay.sessions:
        with pytest.raises(InputError, match="no run to wait for"):
            session.wait()
    assert relay.run(feed(6))[0].shape == (6, 4, 6, 5)


def test_threads_get_their_own_results(relay: weft.Relay) -> None:
    given = {n: feed(n) for n in (3, 4, 5)}
    expected = {n: relay.run(x) for n, x in given.items()}

    def work(n: int) -> bool:
        return all(
            np.array_equal(mine, theirs)
            for _ in range(20)
            for mine, theirs in zip(relay.run(given[n]), expected[n], strict=True)
        )

    with ThreadPoolExecutor(3) as pool:
        assert all(pool.map(work, given))


def test_all_sessions_are_closed_even_if_one_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    relay = weft.Relay([weft.load(network(), "cpu") for _ in range(2)])

    def refuse() -> None:
        raise InputError("no")

    monkeypatch.setattr(relay.sessions[0], "close", refuse)
    with pytest.raises(InputError, match="no"):
        relay.close()
    with pytest.raises(weft.WeftError, match="closed"):
        relay.sessions[1].run(feed(2))


def test_sessions_are_different_and_of_one_network() -> None:
    net = Net()
    other = net.finish(net.add("Relu", net.input("x", 2, 2), name="y"))
    with weft.load(network(), "cpu") as session, weft.load(other, "cpu") as another:
        for wrong, why in (([], "0 were given"), ([session, session], "2 were given, 1 of them different")):
            with pytest.raises(InputError, match=why):
                weft.Relay(wrong)
        with pytest.raises(InputError, match="different names"):
            weft.Relay([session, another])
