"""Tuning of nodes that read or write parts of other values: a node by itself has the same problem as in its network."""

from __future__ import annotations

from itertools import count
from typing import Any

import numpy as np
import pytest

import weft
from tests.helpers.emulated_gpus import emulated_gpu
from tests.helpers.nets import Net
from weft.backends.gpu.tuning.tuner import tune_pipelines
from weft.core.graph.graph import Graph


def turned_product() -> Graph:
    net = Net()
    x = net.add("Relu", net.input("x", 2, 24, 32))
    return net.finish(net.add("MatMul", x, net.add("Transpose", x, perm=(0, 2, 1))))


def product_of_a_slice() -> Graph:
    net = Net()
    first = net.add("Split", net.add("Relu", net.input("b", 2, 32, 24)), np.array([8, 16]), axis=2, outputs=2)
    return net.finish(net.add("MatMul", net.input("a", 2, 16, 32), f"{first}.1"))


def attention_in_columns() -> Graph:
    net = Net()
    q, k, v = (net.add("Relu", net.input(name, 1, 2, 16, 20)) for name in "qkv")
    shares = net.add("Softmax", net.add("MatMul", net.add("Transpose", q, perm=(0, 1, 3, 2)), k), axis=-1)
    return net.finish(net.add("MatMul", v, net.add("Transpose", shares, perm=(0, 1, 3, 2))))


def groups_of_a_split() -> Graph:
    net = Net()
    read = net.pool(net.input("x", 2, 68, 9, 9))
    net.add("Split", read, np.array([4, 64]), axis=1, outputs=2, name="parts")
    return net.finish(net.conv("parts.1", 64, 3, group=2, kernel_shape=(3, 3)))


def groups_in_a_concat() -> Graph:
    net = Net()
    x = net.pool(net.input("x", 2, 64, 7, 7))
    beside = net.add("Relu", net.input("beside", 2, 4, 5, 5))
    return net.finish(net.add("Concat", beside, net.conv(x, 64, 3, group=2, kernel_shape=(3, 3)), axis=1))


@pytest.mark.parametrize(
    "make", [turned_product, product_of_a_slice, attention_in_columns, groups_of_a_split, groups_in_a_concat]
)
def test_candidates_are_tried_where_values_lie(make: object) -> None:
    assert callable(make)
    caps: dict[str, Any] = {"software": False, "compute_units": 132, "channels_last": True}
    with (
        emulated_gpu("opencl", **caps),
        weft.load(make(), "emulated", precision="low", fallback="error") as session,
    ):
        # A clock that counts how often it is asked: a few candidates are tried, however fast the machine is.
        (*_, row) = tune_pipelines(session.pipelines, budget=12, clock=count().__next__)
    assert row.tried and not row.failed
