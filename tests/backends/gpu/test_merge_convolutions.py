"""Convolutions of one image whose channels are joined, and that become one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from benchmarks.models import squeezenet1_1
from tests.helpers.cards import card
from tests.helpers.device_figures import set_figures
from tests.helpers.gpu_plans import assert_plan_computes
from tests.helpers.launches import kernels, planned_kernels
from tests.helpers.nets import Net, feeds
from tests.helpers.null_gpu import null_gpu
from tests.helpers.op_rows import GPUS
from tests.helpers.python_calls import python_calls
from tests.helpers.rewrites import gpu_fuses
from tests.helpers.run_length import examples
from weft.backends.gpu.lowering.rewrites.merge_convolutions import MergeFigures, merge_siblings
from weft.backends.gpu.lowering.target import Target
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph
from weft.core.graph.interpreter import outputs
from weft.core.graph.layout import Layout
from weft.core.passes.fuse import fuse_epilogues
from weft_conformance.cases.table import tolerance

BOTH = ["relayout", "conv_gemm", "relayout"]


LIMIT = "weft.backends.gpu.lowering.rewrites.merge_convolutions.cheap_zero_products"


@pytest.fixture
def cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let products with padding cost little on every device."""
    let_them_merge(monkeypatch, 1 << 23)


def let_them_merge(patch: pytest.MonkeyPatch, most: int) -> None:
    patch.setattr(LIMIT, lambda device: most)
    set_figures(patch, MergeFigures, reused_pixels=0)


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


def stepped(kind: str, *operands: object) -> Graph:
    """Return two equal convolutions, joined, with a step behind each; the operands are of one and of the other."""
    net = Net()
    x = net.input("x", 1, 5, 9, 9)
    made = [net.add(kind, net.conv(x, 8), np.array(value, np.float32)) for value in operands]
    return net.finish(net.add("Concat", *made, axis=1, name="y"))


def assert_become(count: int, net: Net, *made: str, axis: int = 1) -> None:
    """Fail unless the join of these values has so many convolutions, and is right."""
    graph = net.finish(net.add("Concat", *made, axis=axis, name="y"))
    assert planned_kernels(graph).count("conv_gemm") == count
    assert_plan_computes(graph)


# -- where it is done ------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("cheap")
@pytest.mark.parametrize("precision", ["high", "low"])
def test_two_of_them_are_one_launch(precision: str) -> None:
    assert planned_kernels(fire(), precision) == BOTH
    assert_plan_computes(fire(batch=2), precision, 0.05 if precision == "low" else 1e-5)


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
        stepped("Clip", 0.25, 0.5),
        stepped("Div", 0.0, -0.0),
        stepped("Mul", np.arange(8).reshape(8, 1, 1), np.arange(8).reshape(8, 1, 1)),
    ],
    ids=[
        "axis", "steps", "read elsewhere", "strides", "bias", "gaps", "groups", "work", "limits", "signs of zero",
        "a number for each channel",
    ],
)
def test_others_stay_two(graph: Graph) -> None:
    assert len([k for k in planned_kernels(graph) if k.startswith("conv")]) == 2


@pytest.mark.usefixtures("cheap")
def test_windows_beside_each_other_lie_in_one_around_both() -> None:
    net = Net()
    x = net.input("x", 1, 4, 9, 9)
    assert_become(1, net, net.conv(x, 4, 2, pads=(2, 1, 0, 1)), net.conv(x, 4, 3, pads=(0, 1, 3, 2)))


@pytest.mark.usefixtures("cheap")
def test_a_stride_that_is_never_taken_may_be_any() -> None:
    net = Net()
    x = net.input("x", 1, 4, 5, 9)
    made = [net.conv(x, 4, k, strides=(s, 2), pads=(0, k // 2, p, k // 2)) for k, s, p in ((3, 3, 0), (5, 9, 4))]
    assert_become(1, net, *made)


@pytest.mark.usefixtures("cheap")
def test_a_join_of_more_keeps_what_is_no_sibling() -> None:
    net = Net()
    x = net.input("x", 1, 4, 9, 9)
    pool = net.pool(x)
    assert_become(2, net, net.conv(x, 8), net.conv(x, 8, 3, pads=(1,) * 4), pool, net.conv(x, 4), axis=-3)


@pytest.mark.usefixtures("cheap")
def test_equal_steps_and_a_missing_limit_are_no_hindrance() -> None:
    for graph in (stepped("Mul", 0.5, 0.5), missing_limit()):
        assert planned_kernels(graph) == BOTH
        assert_plan_computes(graph)


def missing_limit() -> Graph:
    net = Net()
    x = net.input("x", 1, 5, 9, 9)
    made = [net.add("Clip", net.conv(x, n, 3, pads=(1,) * 4), "", np.array(0.5, np.float32)) for n in (4, 12)]
    return net.finish(net.add("Concat", *made, axis=1, name="y"))


@pytest.mark.parametrize("kind", ["Conv", "Concat", "Fused"])
def test_what_a_creator_makes_is_left_to_it(kind: str) -> None:
    graph = fuse_epilogues(stepped("Mul", 0.5, 0.5), gpu_fuses)
    assert len(merge_siblings(graph, lambda op: False, 1 << 23).nodes) == 1
    assert len(merge_siblings(graph, lambda op: op.type == kind, 1 << 23).nodes) == len(graph.nodes)


def test_as_many_as_pay_become_one(monkeypatch: pytest.MonkeyPatch) -> None:
    let_them_merge(monkeypatch, 2 * 4 * 4 * 8 * 81)
    net = Net()
    x = net.input("x", 1, 4, 9, 9)
    made = [net.conv(x, 4, k, pads=(k // 2,) * 4) for k in (1, 1, 3, 5)]
    assert_become(2, net, *made)


def test_many_of_them_take_steps_in_proportion() -> None:
    """Not to their square: the window around all, and the zeros in it, grow with each."""

    def join(count: int) -> Graph:
        net = Net()
        x = net.input("x", 1, 2, 5, 5)
        made = [net.conv(x, 2, k % 2 * 2 + 1, pads=(k % 2,) * 4) for k in range(count)]
        return net.finish(net.add("Concat", *made, axis=1))

    few, many = join(50), join(200)
    assert len(merge_siblings(many, lambda op: False, 1 << 40).nodes) == 1
    merge = partial(merge_siblings, is_custom=lambda op: False, most=1 << 40)
    assert python_calls(lambda: merge(many)) < 5 * python_calls(lambda: merge(few))


def test_weights_that_few_pixels_read_are_not_read_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LIMIT, lambda device: 1 << 23)
    assert [planned_kernels(fire(size=n)).count("conv_gemm") for n in (7, 8)] == [2, 1]


def test_the_work_is_that_of_what_it_was_made_of(monkeypatch: pytest.MonkeyPatch) -> None:
    flops = list[int]()
    for most in (None, 1 << 23):
        monkeypatch.setattr(LIMIT, lambda device, most=most: most)
        with null_gpu(), weft.load(fire(batch=2), "null", fallback="error", profile=True) as session:
            flops.append(sum(w.flops for w in session.pipelines[0].backend.recording.work.values()))  # type: ignore[attr-defined]
    assert flops[0] == flops[1] > 0


def test_on_a_cpu_nothing_is_multiplied_in_vain() -> None:
    same = fire(kernel=1, pads=(0,) * 4)
    with weft.load(fire(), "opencl") as session, weft.load(same, "opencl") as one:
        assert [kernels(s).count("conv_gemm") for s in (session, one)] == [2, 1]
    with weft.load(same, "opencl", memory="limit") as session:
        assert kernels(session).count("conv_gemm") == 2


@pytest.mark.parametrize(
    ("api", "precision", "launches"),
    [
        ("opencl", "high", 19), ("opencl", "normal", 19), ("opencl", "low", 19), ("vulkan", "high", 27),
        ("vulkan", "low", 27),
    ],
)
def test_where_launches_overlap_they_stay_two(
    api: str, precision: str, launches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_SELFTEST", "off")
    with null_gpu() as device:
        card(device, api)
        model = squeezenet1_1(1).SerializeToString()
        with weft.load(model, "null", precision=precision, fallback="error") as session:
            assert sum(each != "sum_parts" for each in kernels(session)) == launches  # these belong to convolutions


# -- what comes of it -----------------------------------------------------------------------------------------

small = st.integers(1, 3)


@st.composite
def siblings(draw: st.DrawFn) -> Callable[[], Graph]:
    """Return convolutions of an image of one to three dimensions, joined.

    Each has the pads with which all have as many outputs; some have more at the beginning and less at the end.
    """
    rank, n, ci = draw(st.integers(1, 3)), draw(small), draw(st.integers(1, 9))
    net = Net()
    x = net.input("x", n, ci, *draw(st.tuples(*[st.integers(5, 9)] * rank)))
    strides, bias = draw(st.tuples(*[small] * rank)), draw(st.booleans())
    first, last = (draw(st.tuples(*[st.integers(0, 2)] * rank)) for _ in range(2))
    auto = draw(st.sampled_from(["", "", "SAME_UPPER", "SAME_LOWER"])) if set(strides) == {1} else ""
    limits = [np.array(0.1, np.float32), np.array(0.6, np.float32)] if draw(st.booleans()) else []
    made, windows = [], [(5,) * rank]
    windows += draw(st.lists(st.tuples(*[st.sampled_from([1, 3, 5])] * rank), min_size=1, max_size=2))
    for kernel in draw(st.permutations(windows)):
        moved = draw(st.tuples(*[st.integers(-(k // 2), k // 2) for k in kernel]))
        begin = [k // 2 + more + m for k, more, m in zip(kernel, first, moved, strict=True)]
        end = [k // 2 + more - m for k, more, m in zip(kernel, last, moved, strict=True)]
        pads = {"pads": (*begin, *end)}
        w = net.random(draw(st.integers(1, 12)), ci, *kernel, scale=(ci * np.prod(kernel)) ** -0.5)
        placed = {"auto_pad": auto} if auto else pads
        y = net.add("Conv", x, w, *([net.random(len(w))] if bias else []), strides=strides, **placed)
        made.append(net.add("Clip", y, *limits) if limits else net.add("Relu", y))
    graph = net.finish(net.add("Neg", net.add("Concat", *made, axis=1), name="y"))
    return lambda: graph


@pytest.mark.alike
@pytest.mark.covering
@pytest.mark.parametrize("precision", ["high", "low"])
@pytest.mark.parametrize("device", GPUS)
@settings(max_examples=examples(12), deadline=None)
@given(siblings())
def test_any_shape(device: str, precision: str, made: Callable[[], Graph]) -> None:
    graph = made()
    for numbers in (graph.constants, fed := feeds(graph)):
        numbers.update({name: a.astype(np.float16).astype(np.float32) for name, a in numbers.items()})
    (want,) = outputs(graph, fed)
    with pytest.MonkeyPatch.context() as patch:
        let_them_merge(patch, 1 << 40)
        with weft.load(graph, device, precision=precision, fallback="error") as session:
            assert [k for k in kernels(session) if k.startswith("conv")] == ["conv_gemm"]
            (got,) = session.run(fed)
    kind = DType.FLOAT32 if precision == "high" else DType.FLOAT16
    np.testing.assert_allclose(got, want, *tolerance(kind, "reduction"))


def fires_on_an_image() -> Graph:
    """Return an image, a convolution, a max pool, a 1 x 1 convolution and two that are joined: three launches."""
    net = Net()
    x = net.add("Relu", net.conv(net.input("x", 1, 3, 19, 17), 12, 3, strides=(2, 2)))
    pool = net.add("MaxPool", x, kernel_shape=(3, 3), strides=(2, 2), ceil_mode=1)
    squeezed = net.add("Relu", net.conv(pool, 8))
    made = [net.add("Relu", net.conv(squeezed, n, k, pads=(k // 2,) * 4)) for n, k in ((12, 1), (20, 3))]
    return net.finish(net.add("GlobalAveragePool", net.add("Concat", *made, axis=1), name="y"))


@pytest.mark.alike
@pytest.mark.covering
@pytest.mark.parametrize("precision", ["high", "low"])
@pytest.mark.parametrize("device", GPUS)
def test_channels_may_lie_last(device: str, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Target, "packed_layout", Layout.NHWC4)
    let_them_merge(monkeypatch, 1 << 23)
    graph = fires_on_an_image()
    (want,) = outputs(graph, feeds(graph))
    with weft.load(graph, device, precision=precision, fallback="error") as session:
        assert kernels(session)[:3] == ["conv_gemm"] * 3 and "pool" not in kernels(session)
        (got,) = session.run(feeds(graph))
    kind = DType.FLOAT32 if precision == "high" else DType.FLOAT16
    np.testing.assert_allclose(got, want, *tolerance(kind, "reduction"))
