"""What is data can be pickled and copied; what holds devices refuses, and says what to do instead."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import numpy as np
import pytest

import weft
from tests.helpers.nets import Net, chain
from tests.helpers.saved_networks import as_saved
from weft.core.graph.graph import Graph
from weft.errors import CannotCopy, ModelError, OutOfMemory, Refusal, UnsupportedOps, ValueNeeded, WeftError

X = np.array([[-1, 2, -3], [4, -5, 6]], np.float32)
WAYS: dict[str, Callable[[object], object]] = {
    "pickled": lambda each: pickle.loads(pickle.dumps(each)), "copied": copy.copy, "deeply": copy.deepcopy
}


def weighted() -> Graph:
    net = Net()
    return net.finish(net.add("Gemm", net.input("x", 2, 3), np.ones((3, 4), np.float32), np.ones(4, np.float32)))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("device", ["cpu", "opencl"])
def test_a_session_is_neither_pickled_nor_copied(device: str, way: str) -> None:
    with weft.load(chain("Relu"), device) as session:
        with pytest.raises(CannotCopy, match="load the network") as caught:
            WAYS[way](session)
        assert isinstance(caught.value, TypeError)
        np.testing.assert_array_equal(session.run(X)[0], np.maximum(X, 0))


@pytest.mark.parametrize("way", WAYS)
def test_nor_are_its_methods_a_runtime_and_a_registry(way: str) -> None:
    with weft.load(chain("Relu"), "cpu") as session, weft.Runtime() as runtime:
        for each in (runtime, weft.registry, *([] if way == "copied" else [session.run, [session]])):
            with pytest.raises(CannotCopy):
                WAYS[way](each)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("device", ["cpu", "opencl"])
def test_an_optimised_network_is_data(device: str, way: str) -> None:
    network = weft.optimize(weighted(), device)
    made = WAYS[way](network)
    assert isinstance(made, weft.OptimizedNetwork)
    assert str(made) == str(as_saved(network) if way == "pickled" else network)
    with weft.load(network) as first, weft.load(made) as second:
        np.testing.assert_array_equal(first.run(X)[0], second.run(X)[0])


@pytest.mark.parametrize("way", WAYS)
def test_networks_reports_and_profiles_are_data(way: str) -> None:
    builder = weft.parse(weighted())
    for model in (weighted(), builder):
        with weft.load(model, "cpu") as first, weft.load(WAYS[way](model), "cpu") as second:
            np.testing.assert_array_equal(first.run(X)[0], second.run(X)[0])
    with weft.load(weighted(), "cpu", profile=True) as session:
        session.run(X)
        text, report, profile = str(session.report), WAYS[way](session.report), WAYS[way](session.profile)
    assert isinstance(report, weft.Report)
    assert str(report) == text
    assert isinstance(profile, weft.Profile)
    assert profile.events


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "error",
    [
        ModelError("it is wrong", where="here", why="it is odd", fix="make it even"),
        UnsupportedOps("it lacks ops", ("a", "b"), fix="go", refusals=(Refusal("n", "Relu", "cpu:0", "it is odd"),)),
        ValueNeeded("it is open", index=2), OutOfMemory("there is none"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_are_data(error: WeftError, way: str) -> None:
    made = WAYS[way](error)
    assert type(made) is type(error)
    assert (str(made), vars(made)) == (str(error), vars(error))
