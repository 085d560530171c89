"""A network with two inputs and two outputs, its arrays and its results, for tests of what sessions read and write."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers.nets import Net
from tests.helpers.opened import opened
from weft.backends.gpu.recording import chunked_upload, pipeline_recording
from weft.core.graph.graph import Graph
from weft.core.graph.layout import Array

DEVICES = ("cpu", "opencl", "vulkan")
GPUS = DEVICES[1:]
SHAPE = (2, 4, 6, 5)


def upload(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Upload with the run, "directly" from the caller's array before it, or in "chunks" before it.

    GPUs do so with large inputs.
    """
    monkeypatch.setattr(chunked_upload, "LEAST", 64)
    monkeypatch.setattr(chunked_upload, "CHUNK", 100)
    monkeypatch.setattr(pipeline_recording, "LEAST_DIRECT", 1)
    for device in GPUS:
        monkeypatch.setattr(opened(device), "uploads_directly", way == "directly")
        monkeypatch.setattr(opened(device), "sends_ahead", way == "chunks")


def network(batch: int | str = SHAPE[0]) -> Graph:
    """Return a network with two inputs and two outputs, of which one is read by the other."""
    net = Net()
    a, b = net.input("a", batch, *SHAPE[1:]), net.input("b", batch, *SHAPE[1:])
    both = net.add("Mul", net.add("Relu", a), b, name="y")
    return net.finish(both, net.add("Softmax", net.add("Tanh", both), axis=1, name="z"))


def random(seed: int, shape: tuple[int, ...] = SHAPE) -> Array:
    """Return numbers for an input."""
    return np.asarray(np.random.default_rng(seed).standard_normal(shape), np.float32)


def wanted(a: Array, b: Array) -> dict[str, Array]:
    """Return the outputs for these inputs."""
    y = np.maximum(a.astype(np.float64), 0) * b
    e = np.exp(np.tanh(y))
    return {"y": y, "z": e / e.sum(axis=1, keepdims=True)}


def check(given: dict[str, Array], a: Array, b: Array, precision: str = "high") -> None:
    """Compare outputs with those for these inputs."""
    for name, value in wanted(a, b).items():
        np.testing.assert_allclose(given[name], value, atol=1e-5 if precision == "high" else 2e-2, err_msg=name)
