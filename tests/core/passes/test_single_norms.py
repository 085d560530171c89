"""Norms of single elements, which are their shift: what is computed once, what stays, and the numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.helpers.nets import Net, kinds
from tests.helpers.rewrites import assert_same
from weft.core.graph.graph import Graph
from weft.core.passes import run_passes
from weft.core.passes.single_norms import fold_single_norms

Build = Callable[[Net], str]


def layer_norm(net: Net, *dims: int, shifted: bool = True, **attributes: Any) -> str:
    axis = attributes.get("axis", -1)
    given = [net.random(*dims[axis:]) for _ in range(1 + shifted)]
    return net.add("LayerNormalization", net.input("x", *dims), *given, **attributes)


def of_images(net: Net, kind: str, *dims: int, **attributes: Any) -> str:
    return net.add(kind, net.input("x", *dims), net.random(dims[1]), net.random(dims[1]), **attributes)


def in_parts(net: Net, *dims: int, axes: tuple[int, ...] = (-1,)) -> str:
    x = net.input("x", *dims)
    centred = net.add("Sub", x, net.add("ReduceMean", x, np.array(axes)))
    variance = net.add("ReduceMean", net.add("Mul", centred, centred), np.array(axes))
    root = net.add("Sqrt", net.add("Add", variance, np.asarray(1e-5, np.float32)))
    return net.add("Add", net.add("Mul", net.add("Div", centred, root), net.random(1)), net.random(1))


FOLDED: list[Build] = [
    lambda net: layer_norm(net, 2, 5, 1),
    lambda net: layer_norm(net, 2, 5, 1, shifted=False),
    lambda net: layer_norm(net, 5, 1, 1, axis=-2),
    lambda net: of_images(net, "InstanceNormalization", 2, 5, 1, 1),
    lambda net: of_images(net, "GroupNormalization", 2, 6, 1, 1, num_groups=6),
    lambda net: in_parts(net, 2, 5, 1),
    lambda net: in_parts(net, 2, 1, 1, 4, axes=(1, 2)),
]


def graph_of(build: Build) -> Graph:
    net = Net()
    y = net.add("Sigmoid", build(net))
    return net.finish(net.add("Add", y, net.input("z", *net.shape(y))))


@pytest.mark.parametrize("number", range(len(FOLDED)))
def test_what_follows_from_a_shift_is_computed_once(number: int) -> None:
    graph = graph_of(FOLDED[number])
    after = fold_single_norms(graph)
    assert kinds(after) == ["Add"]
    assert fold_single_norms(after) is after
    assert_same(graph, after, 1e-6)
    assert kinds(run_passes(graph)) == ["Add"]


STAYS: list[Build] = [
    lambda net: layer_norm(net, 2, 5, 2),
    lambda net: layer_norm(net, 2, 2, 1, axis=-2),
    lambda net: layer_norm(net, 2, 5, 1, epsilon=0.0),
    lambda net: of_images(net, "InstanceNormalization", 2, 5, 1, 2),
    lambda net: of_images(net, "GroupNormalization", 2, 6, 1, 1, num_groups=3),
    lambda net: net.add("RMSNormalization", net.input("x", 2, 5, 1), net.random(1)),
    lambda net: net.add("LayerNormalization", net.input("x", 2, 5, 1), net.input("scale", 1)),
    lambda net: net.add("LayerNormalization", net.input("x", 2, 1), np.array([np.inf], np.float32)),
    lambda net: in_parts(net, 2, 5, 2),
    lambda net: net.add("Sub", net.input("x", 2, 1), net.add("ReduceMean", net.input("w", 2, 1), np.array([1]))),
]


@pytest.mark.parametrize("number", range(len(STAYS)))
def test_others_stay(number: int) -> None:
    graph = graph_of(STAYS[number])
    assert fold_single_norms(graph) is graph


def test_a_norm_that_is_an_output_is_a_constant() -> None:
    net = Net()
    graph = net.finish(layer_norm(net, 2, 5, 1))
    after = fold_single_norms(graph)
    assert not after.nodes and after.outputs == graph.outputs
    assert_same(graph, after, 0)
