"""A convolution that reads an image of few channels as it comes, in NCHW, instead of having it packed before."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from benchmarks.cards import CARDS
from benchmarks.models import squeezenet1_1
from tests.helpers.cards import card
from tests.helpers.gpu_plans import assert_plan_computes
from tests.helpers.launches import kernels, planned_kernels
from tests.helpers.nets import Net, feeds
from tests.helpers.null_gpu import null_gpu
from tests.helpers.op_rows import GPUS
from tests.helpers.run_length import examples
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph
from weft.core.graph.interpreter import outputs
from weft_conformance.cases.table import tolerance


def image(channels: int, *, batch: int = 1, readers: int = 1, add: bool = False, kernel: int = 3) -> Graph:
    net = Net()
    x = net.input("x", batch, channels, 9, 8)
    made = [net.conv(x, channels if add else 8, kernel, pads=(kernel // 2,) * 4) for _ in range(readers)]
    summed = net.add("Add", made[0], x) if add else made[0]
    return net.finish(net.add("GlobalAveragePool", net.add("Relu", summed), name="y"), *made[1:])


# -- where it is done ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["high", "low"])
@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_an_image_that_one_convolution_reads_is_not_packed(channels: int, precision: str) -> None:
    assert planned_kernels(image(channels), precision)[0] == "conv_gemm"
    assert_plan_computes(image(channels, batch=2), precision, 0.05 if precision == "low" else 1e-5)


@pytest.mark.parametrize(
    "graph",
    [image(5), image(3, readers=2), image(4, add=True)],
    ids=["of more channels", "of two readers", "that is added, too"],
)
def test_another_image_is_packed(graph: Graph) -> None:
    assert planned_kernels(graph)[:2] == ["relayout", "conv_gemm"]
    assert_plan_computes(graph)


def test_groups_and_three_dimensions_are_packed() -> None:
    net = Net()
    x = net.input("x", 1, 4, 6, 6)
    grouped = net.finish(net.conv(x, 4, 3, group=2, name="y"))
    assert planned_kernels(grouped)[0] == "relayout"
    net = Net()
    deep = net.finish(net.add("Conv", net.input("x", 1, 3, 4, 5, 6), net.random(4, 3, 2, 2, 2), name="y"))
    assert planned_kernels(deep)[0] == "relayout"


@pytest.mark.alike
@pytest.mark.covering(2)
@pytest.mark.parametrize(
    ("batch", "precision", "first"),
    [
        (1, "high", "conv_gemm"),
        (32, "high", "conv_gemm"),
        (1, "normal", "conv_gemm"),
        (32, "normal", "relayout"),
        (1, "low", "conv_gemm"),
        (32, "low", "relayout"),
    ],
)
@pytest.mark.parametrize("api", list(CARDS))
def test_kernels_on_matrix_units_get_packed_images(
    api: str, batch: int, precision: str, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_SELFTEST", "off")
    with null_gpu() as device:
        card(device, api)
        model = squeezenet1_1(batch).SerializeToString()
        with weft.load(model, "null", precision=precision, fallback="error") as session:
            assert kernels(session)[0] == first
        device.caps = replace(device.caps, matrices=())
        with weft.load(model, "null", precision=precision, fallback="error") as session:
            assert kernels(session)[0] == "conv_gemm"


# -- what comes of it -----------------------------------------------------------------------------------------


sizes, small = st.integers(1, 12), st.integers(1, 3)


@pytest.mark.parametrize("device", ["opencl", pytest.param("vulkan", marks=pytest.mark.long)])
@settings(max_examples=examples(12), deadline=None)
@given(
    st.tuples(small, st.integers(1, 4), sizes, sizes),
    st.integers(1, 9),
    st.tuples(small, small),
    st.tuples(small, small),
    st.tuples(small, small),
    st.tuples(*[st.integers(0, 3)] * 4),
)
def test_any_shape(
    device: str,
    shape: tuple[int, ...],
    co: int,
    kernel: tuple[int, ...],
    strides: tuple[int, ...],
    dilations: tuple[int, ...],
    pads: tuple[int, ...],
) -> None:
    n, ci, h, w = shape
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    size = (max(h, reach[0] - pads[0] - pads[2]), max(w, reach[1] - pads[1] - pads[3]))
    net = Net()
    x = net.input("x", n, ci, *size)
    weight, bias = net.random(co, ci, *kernel), net.random(co)
    y = net.add("Conv", x, weight, bias, strides=strides, dilations=dilations, pads=pads)
    graph = net.finish(net.add("Relu", net.add("Add", y, net.input("r", *net.shape(y))), name="y"))
    fed = feeds(graph)
    (want,) = outputs(graph, fed)
    with weft.load(graph, device, fallback="error") as session:
        assert kernels(session).count("relayout") <= 2, "of the residual and of the output, if they have to be moved"
        (got,) = session.run(fed)
    np.testing.assert_allclose(got, want, *tolerance(DType.FLOAT32, "reduction"))


@pytest.mark.alike
@pytest.mark.parametrize(("precision", "stored"), [("high", DType.FLOAT32), ("low", DType.FLOAT16)])
@pytest.mark.parametrize("device", GPUS)
def test_an_fp32_image_is_read_at_both_precisions(device: str, precision: str, stored: DType) -> None:
    graph = image(3, batch=2)
    (want,) = outputs(graph, feeds(graph))
    with weft.load(graph, device, precision=precision, fallback="error") as session:
        assert kernels(session)[0] == "conv_gemm"
        (got,) = session.run(feeds(graph))
    np.testing.assert_allclose(got, want, *tolerance(stored, "reduction"))


@pytest.mark.parametrize(
    ("device", "batch"),
    [
        ("opencl", 2),
        pytest.param("opencl", 1, marks=pytest.mark.long),
        pytest.param("vulkan", 1, marks=pytest.mark.long),
        pytest.param("vulkan", 2, marks=pytest.mark.long),
    ],
)
def test_a_network_has_a_launch_less(device: str, batch: int) -> None:
    """On one device in the short run: its plan is the same on both, and llvmpipe runs the first layers above."""
    model = squeezenet1_1(batch, image=63, width=0.25, classes=12).SerializeToString()
    x = np.random.default_rng(0).standard_normal((batch, 3, 63, 63), np.float32)
    with weft.load(model, "cpu") as session:
        (want,) = session.run(x)
    with weft.load(model, device, fallback="error") as session:
        assert kernels(session).count("relayout") == 0
        (got,) = session.run(x)
    np.testing.assert_allclose(got, want, *tolerance(DType.FLOAT32, "reduction"))
