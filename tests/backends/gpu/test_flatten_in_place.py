"""Images that are flattened for a product, as at the end of LeNet: the weights are moved, not the image."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import weft
from tests.helpers.emulated_gpus import APIS, emulated_gpu
from tests.helpers.launches import kernels, planned_kernels
from tests.helpers.nets import Net, assert_near, feeds, kinds, op
from tests.helpers.op_rows import GPUS
from tests.helpers.rewrites import assert_same
from weft.backends.gpu.lowering.layout import flatten_in_place as module
from weft.backends.gpu.lowering.layout.flatten_in_place import flatten_in_place
from weft.core.graph.graph import Graph
from weft.core.graph.interpreter import outputs
from weft.core.graph.layout import Layout

LAYOUTS = [Layout.NC4HW4, Layout.NHWC4]
PRODUCTS = ["Gemm", "Gemm of transposed weights", "MatMul"]


ENDS = {"pool": ("Relu", "MaxPool"), "step": ("Relu",), "two steps": ("Tanh", "Abs")}


def head(product: str = "MatMul", *, images: int | str = 1, channels: int = 8, end: str = "pool") -> Graph:
    """Return an image that a convolution, an activation or a pool makes, flattened for a product with a step."""
    net = Net()
    image = net.add("Conv", net.input("x", images, 3, 6, 4), net.random(channels, 3, 3, 3), pads=(1,) * 4)
    for kind in ENDS[end]:
        image = net.add(op(kind, kernel_shape=(3, 3), pads=(1,) * 4) if kind == "MaxPool" else kind, image)
    size = channels * 24
    flat = net.add("Reshape", net.add("Flatten", image), np.array([-1, size]))
    w, bias = net.random(size, 5, scale=size**-0.5), net.random(5)
    if product == "MatMul":
        y = net.add("Add", net.add("MatMul", flat, w), bias)
    else:
        turned = product != "Gemm"
        y = net.add("Gemm", flat, np.ascontiguousarray(w.T) if turned else w, bias, transB=int(turned))
    return net.finish(net.add("Sigmoid", y))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("end", ENDS)
def test_weights_are_moved_to_the_order_of_memory(product: str, end: str, layout: Layout) -> None:
    for images in (1, 3):
        graph = head(product, images=images, end=end)
        after = flatten_in_place(graph, lambda op: False, layout)
        assert "Transpose" in kinds(after) and "Flatten" not in kinds(after)
        assert flatten_in_place(after, lambda op: False, layout) is after
        assert_same(graph, after)


@pytest.mark.parametrize("precision", ["high", "low"])
@pytest.mark.parametrize("end", ["pool", "step"])
def test_the_image_is_not_copied(end: str, precision: str) -> None:
    for images in (1, 2):
        assert not {"move", "relayout"} & set(planned_kernels(head(images=images, end=end), precision)[1:])


@pytest.mark.parametrize("last", [False, True], ids=["planes", "channels last"])
@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("precision", ["high", "low"])
def test_both_layouts_are_right(precision: str, api: str, last: bool) -> None:
    for product in PRODUCTS:
        graph = head(product, images=2)
        with (
            emulated_gpu(api, channels_last=last),
            weft.load(graph, "emulated", precision=precision, fallback="error") as session,
        ):
            assert "move" not in kernels(session) and kernels(session).count("relayout") <= 1
            fed = feeds(graph)
            assert_near(session.run(fed)[0], outputs(graph, fed)[0], 1e-5 if precision == "high" else 1e-2)


@pytest.mark.alike
@pytest.mark.parametrize("device", GPUS)
def test_an_open_batch_runs_at_each_size(device: str) -> None:
    graph = head("Gemm", images="n")
    with weft.load(graph, device, shapes={"x": (2, 3, 6, 4)}, fallback="error") as session:
        for images in (1, 4, 2):
            same = head("Gemm", images=images)
            fed = feeds(same)
            assert_near(session.run(fed)[0], outputs(same, fed)[0], 1e-5)
            assert not {"move", "relayout"} & set(kernels(session)[1:])


Build = Callable[[Net, str], str]


def _read_twice(net: Net, flat: str) -> str:
    return net.add("Concat", net.add("MatMul", flat, net.random(48, 5)), flat, axis=1)


def _by_a_result(net: Net, flat: str) -> str:
    return net.add("MatMul", flat, net.add("Relu", net.input("w", 48, 5)))


def _as_weights(net: Net, flat: str) -> str:
    return net.add("Gemm", flat, net.random(2, 5), transA=1)


@pytest.mark.parametrize("build", [_read_twice, _by_a_result, _as_weights])
def test_other_readers_keep_rows_in_nchw(build: Build) -> None:
    net = Net()
    flat = net.add("Flatten", net.conv(net.input("x", 2, 3, 3, 2), 8))
    graph = net.finish(build(net, flat))
    assert flatten_in_place(graph, lambda op: False, Layout.NHWC4) is graph


def test_part_blocks_large_weights_and_custom_ops_keep_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def same(graph: Graph, custom: str = "") -> bool:
        return flatten_in_place(graph, lambda op: op.type == custom, Layout.NC4HW4) is graph

    assert same(head(channels=6)) and not same(head())
    assert same(head(), "MatMul") and same(head(), "MaxPool")
    monkeypatch.setattr(module, "MOST_BYTES", 100)
    assert same(head())
