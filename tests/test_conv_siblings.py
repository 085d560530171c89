"""Convolutions of one image whose channels are joined, and that become one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from benchmarks.models import squeezenet1_1
from tests.core.gpu_plans import assert_plays
from tests.core.nets import Net, feeds, outputs
from tests.core.null_gpu import null_gpu
from tests.test_conv_planar import GPUS, kernels, planned_kernels
from tests.test_tuned_table import card
from weft.conformance.cases.table import tolerance
from weft.core.dtypes import DType
from weft.core.graph import Graph

BOTH = ["relayout", "conv_gemm", "relayout"]


LIMIT = "weft.backends.gpu.backend.products_in_vain"


@pytest.fixture
def cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let products in vain cost little on every device."""
    monkeypatch.setattr(LIMIT, lambda device: 1 << 23)


def fire(
    channels: int = 8,
    *,
    batch: int = 1,
    size: int = 9,
    axis: int = 1,
    relu: str = "Relu",
    again: bool = False,
    **more: object,
) -> Graph:
    """Return a 1 x 1 and a 3 x 3 convolution of one image, joined; `more` changes the second."""
    net = Net()
    x = net.input("x", batch, 5, size, size)
    a, b = net.conv(x, 12), net.conv(x, channels, **{"kernel": 3, "pads": (1,) * 4} | more)  # type: ignore[arg-type]
    a, b = (net.add("Relu", a), net.add(relu, b))
    y = net.add("Concat", a, b, axis=axis, name="y")
    return net.finish(y, *([net.add("Neg", a)] if again else []))


# -- where it is done ------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("cheap")
@pytest.mark.parametrize("precision", ["high", "low"])
def test_two_of_them_are_one_launch(precision: str) -> None:
    assert planned_kernels(fire(), precision) == BOTH
    assert_plays(fire(batch=2), precision, 0.05 if precision == "low" else 1e-5)


@pytest.mark.usefixtures("cheap")
@pytest.mark.parametrize(
    "graph",
    [
        fire(12, axis=2),
        fire(relu="Tanh"),
        fire(again=True),
        fire(strides=(2, 2), pads=(5,) * 4, kernel=3),
        fire(bias=False),
        fire(dilations=(2, 2), pads=(2,) * 4),
        fire(kernel=2, pads=(1, 1, 0, 0), group=5, channels=10),
        fire(pads=(0, 0, 2, 2), kernel=3, size=40, batch=32),
    ],
    ids=["axis", "steps", "read elsewhere", "strides", "bias", "gaps", "groups", "work"],
)
def test_others_stay_two(graph: Graph) -> None:
    assert len([k for k in planned_kernels(graph) if k.startswith("conv")]) == 2


@pytest.mark.usefixtures("cheap")
def test_a_window_beside_the_other_stays_outside() -> None:
    net = Net()
    x = net.input("x", 1, 4, 9, 9)
    a, b = net.conv(x, 4, 2, pads=(2, 1, 0, 1)), net.conv(x, 4, 3, pads=(0, 1, 3, 2))
    assert planned_kernels(net.finish(net.add("Concat", a, b, axis=1, name="y"))).count("conv_gemm") == 2


@pytest.mark.usefixtures("cheap")
def test_a_join_of_more_keeps_what_is_no_sibling() -> None:
    net = Net()
    x = net.input("x", 1, 4, 9, 9)
    pool = net.add("MaxPool", x, kernel_shape=(1, 1))
    made = [net.conv(x, 8), net.conv(x, 8, 3, pads=(1,) * 4), pool, net.conv(x, 4)]
    graph = net.finish(net.add("Concat", *made, axis=-3, name="y"))
    assert planned_kernels(graph).count("conv_gemm") == 2
    assert_plays(graph)


def test_on_a_cpu_nothing_is_multiplied_in_vain() -> None:
    same = fire(kernel=1, pads=(0,) * 4)
    with weft.load(fire(), "opencl") as session, weft.load(same, "opencl") as one:
        assert [kernels(s).count("conv_gemm") for s in (session, one)] == [2, 1]


@pytest.mark.parametrize(
    ("api", "precision", "launches"),
    [
        ("opencl", "high", 19), ("opencl", "normal", 19), ("opencl", "low", 20), ("vulkan", "high", 27),
        ("vulkan", "low", 28),
    ],
)  # fmt: skip
def test_where_launches_overlap_they_stay_two(
    api: str, precision: str, launches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_SELFTEST", "off")
    with null_gpu() as device:
        card(device, api)
        model = squeezenet1_1(1).SerializeToString()
        with weft.load(model, "null", precision=precision, fallback="error") as session:
            assert len(kernels(session)) == launches


# -- what comes of it -----------------------------------------------------------------------------------------

sizes, small = st.integers(1, 9), st.integers(1, 3)


@pytest.mark.parametrize("device", GPUS)
@settings(max_examples=15, deadline=None)
@given(
    st.tuples(small, st.integers(1, 9), sizes, sizes),
    st.lists(st.tuples(st.integers(1, 12), st.sampled_from([1, 3, 5])), min_size=2, max_size=3),
    small,
    st.booleans(),
    st.sampled_from(["Relu", "Clip", "Sigmoid"]),
)
def test_any_shape(
    device: str, shape: tuple[int, ...], parts: list[tuple[int, int]], stride: int, bias: bool, step: str
) -> None:
    net = Net()
    x = net.input("x", *shape)
    limits = [np.array(0.1, np.float32), np.array(0.6, np.float32)] if step == "Clip" else []
    made = []
    for channels, kernel in parts:
        y = net.conv(x, channels, kernel, bias=bias, pads=(kernel // 2,) * 4, strides=(stride, stride))
        made.append(net.add(step, y, *limits))
    graph = net.finish(net.add("Neg", net.add("Concat", *made, axis=1), name="y"))
    (want,) = outputs(graph, feeds(graph))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LIMIT, lambda device: 1 << 23)
        with weft.load(graph, device, precision="high", fallback="error") as session:
            assert kernels(session).count("conv_gemm") == 1
            (got,) = session.run(feeds(graph))
    np.testing.assert_allclose(got, want, *tolerance(DType.FLOAT32, "reduction"))
