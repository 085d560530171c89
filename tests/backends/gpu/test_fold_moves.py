"""Moves that no kernel need do: values lie where they come from or where they go."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

import weft
from tests.helpers.attention_of_images import Form, forms
from tests.helpers.decoders import split
from tests.helpers.gpu_plans import assert_plan_computes
from tests.helpers.launches import kernels, planned_kernels
from tests.helpers.moving_nets import moving_networks
from tests.helpers.nets import Net, feeds
from tests.helpers.python_calls import python_calls
from tests.helpers.random_nets import SLOW
from tests.helpers.run_length import examples
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph
from weft.core.graph.interpreter import outputs
from weft.core.graph.layout import Array, Layout
from weft_conformance.cases.table import tolerance

GPUS = ("opencl", "vulkan")


@given(graph=moving_networks(10))
@settings(max_examples=examples(150), deadline=None, suppress_health_check=SLOW)
def test_a_plan_with_moves_gives_the_numbers_of_the_network(graph: Graph) -> None:
    assert_plan_computes(graph, drawn=True)


@given(graph=moving_networks(8))
@settings(max_examples=examples(50), deadline=None, suppress_health_check=SLOW)
def test_a_plan_in_fp16_gives_them_too(graph: Graph) -> None:
    assert_plan_computes(graph, "low", 0.05, drawn=True)


def _swapped(count: int) -> Graph:
    """Return a chain in which two halves change places again and again: all parts are of the value before them all."""
    net = Net()
    x = net.add("Tanh", net.input("x", 2, 6, 8))
    for k in range(count):
        first, second = split(net, x, 2, 1 + k % 2)
        x = net.add("Concat", second, first, axis=1 + k % 2)
    return net.finish(net.add("Tanh", x))


def test_a_plan_of_a_long_chain_of_moves_takes_as_much_for_each_of_them() -> None:
    short, long = _swapped(25), _swapped(100)
    planned_kernels(short)  # the first plan imports
    assert python_calls(lambda: planned_kernels(long)) < 5 * python_calls(lambda: planned_kernels(short))


# -- what remains ------------------------------------------------------------------------------------------


def _norm_between(net: Net) -> str:
    """Channels are normalized as in ConvNeXt: they are moved to the end and back."""
    x = net.add("Relu", net.input("x", 1, 6, 4, 4))
    last = net.add("Transpose", x, perm=(0, 2, 3, 1))
    return net.add("Transpose", net.add("LayerNormalization", last, net.random(6), axis=-1), perm=(0, 3, 1, 2))


def _windows(net: Net, shift: int) -> str:
    """Windows of a shifted image meet weights, as in Swin."""
    x = net.add("LayerNormalization", net.input("x", 1, 8, 8, 4), net.random(4), axis=-1)
    if shift:
        for axis in (1, 2):
            ends = [net.add("Slice", x, *map(np.array, ([a], [b], [axis]))) for a, b in ((shift, 8), (0, shift))]
            x = net.add("Concat", *ends, axis=axis)
    x = net.add("Transpose", net.add("Reshape", x, np.array([1, 2, 4, 2, 4, 4])), perm=(0, 1, 3, 2, 4, 5))
    return net.add("MatMul", net.add("Reshape", x, np.array([4, 16, 4])), net.random(4, 8))


def _plain_windows(net: Net) -> str:
    return _windows(net, 0)


def _shifted_windows(net: Net) -> str:
    return _windows(net, 2)


def _patches(net: Net) -> str:
    """Each second pixel, four times, as channels."""
    x = net.add("Relu", net.input("x", 1, 4, 4, 6))
    parts = [
        net.add("Slice", x, *map(np.array, ([i, j], [4, 4], [1, 2], [2, 2]))) for j in (0, 1) for i in (0, 1)
    ]
    return net.add("LayerNormalization", net.add("Concat", *parts, axis=-1), net.random(24), axis=-1)


def _heads(net: Net) -> str:
    """Queries, keys and values are taken out of one product and turned."""
    x = net.add("MatMul", net.input("x", 2, 5, 8), net.random(8, 24))
    x = net.add("Transpose", net.add("Reshape", x, np.array([2, 5, 3, 2, 4])), perm=(2, 0, 3, 1, 4))
    q, k, v = (net.add("Gather", x, np.array(n), axis=0) for n in range(3))
    scores = net.add("MatMul", q, net.add("Transpose", k, perm=(0, 1, 3, 2)))
    return net.add("MatMul", net.add("Softmax", scores, axis=-1), v)


def _rows_and_images(net: Net) -> str:
    """Rows of channels become the image of a convolution, as in ConvNeXt."""
    rows = net.add("LayerNormalization", net.input("x", 2, 6, 6, 8), net.random(8), axis=-1)
    image = net.add("Transpose", rows, perm=(0, 3, 1, 2))
    back = net.add("Transpose", net.conv(image, 8, 3, group=8, pads=(1, 1, 1, 1)), perm=(0, 2, 3, 1))
    return net.add("Add", net.add("MatMul", net.add("Softmax", back, axis=-1), net.random(8, 8)), rows)


def _joined(net: Net) -> str:
    """A sum and a softmax write into what joins them."""
    x = net.input("x", 3, 5)
    y = net.add("Concat", net.add("Softmax", x, axis=-1), net.add("Add", x, x), axis=1)
    return net.add("MatMul", y, net.random(10, 4))


def _growing(net: Net) -> str:
    """Each layer reads all before it, as in DenseNet."""
    parts = [net.conv(net.input("x", 2, 8, 6, 6), 8)]
    for _ in range(3):
        parts.append(net.conv(net.add("Concat", *parts, axis=1), 4))
    return net.conv(net.add("Concat", *parts, axis=1), 4)


def _two_paths(net: Net) -> str:
    """Half of the channels pass a layer, and are joined with both halves, as in YOLO."""
    x = net.conv(net.input("x", 2, 8, 6, 6), 16)
    second = net.add("Slice", x, *map(np.array, ([8], [16], [1])))
    first = net.add("Slice", x, *map(np.array, ([0], [8], [1])))
    return net.conv(net.add("Concat", first, second, net.conv(second, 8), axis=1), 4)


def _zipped(net: Net) -> str:
    """Neighbours are rotated; where they lie they have more digits than steps, but in the value before they do not."""
    x = net.add("Relu", net.input("x", 2, 5, 3 * 16))
    parts = net.add("Transpose", net.add("Reshape", x, np.array([2, 5, 3, 2, 8])), perm=(2, 0, 3, 1, 4))
    two = net.add("Slice", parts, *map(np.array, ([0], [2], [0])))
    heads = net.add("Reshape", two, np.array([4, 2, 5, 8]))
    ends = [net.add("Slice", heads, *map(np.array, ([at], [8], [3], [2]))) for at in (1, 0)]
    ends = [net.add("Unsqueeze", each, np.array([-1])) for each in ends]
    around = net.add("Reshape", net.add("Concat", *ends, axis=4), np.array([4, 2, 5, 8]))
    return net.add("Mul", net.add("Softmax", heads, axis=-1), around)


REMAINS: dict[Callable[[Net], str], list[str]] = {
    _norm_between: ["elementwise", "normalize_lines"],
    _plain_windows: ["normalize_lines", "conv_gemm"],
    _shifted_windows: ["normalize_lines", "conv_gemm"],
    _patches: ["elementwise", "normalize_rows"],
    _heads: ["conv_gemm", "attention"],
    _growing: ["relayout", *["conv_gemm"] * 5, "relayout"],
    _two_paths: ["relayout", *["conv_gemm"] * 3, "relayout"],
    _rows_and_images: ["normalize_lines", "conv_depthwise_tile", "softmax", "conv_gemm"],
    _joined: ["softmax", "elementwise", "matmul_rows"],
    _zipped: ["elementwise", "softmax"],
}


@pytest.mark.parametrize("make", REMAINS)
def test_no_kernel_moves_what_others_can_reach(make: Callable[[Net], str]) -> None:
    net = Net()
    assert sorted(planned_kernels(net.finish(make(net)))) == sorted(REMAINS[make])


@pytest.mark.alike
@pytest.mark.parametrize("device", GPUS)
@pytest.mark.parametrize("make", REMAINS)
def test_kernels_reach_moved_values(make: Callable[[Net], str], device: str) -> None:
    net = Net()
    graph = net.finish(make(net))
    fed = feeds(graph)
    with weft.load(graph, device, fallback="error") as session:
        got = session.run(fed)
        assert set(session.report.nodes_by_device) == {device}
        assert "move" not in kernels(session)
    for mine, known in zip(got, outputs(graph, fed), strict=True):
        rtol, atol = tolerance(DType.FLOAT32, "reduction")
        np.testing.assert_allclose(mine, known, rtol=rtol, atol=atol)


@pytest.mark.alike
@pytest.mark.parametrize("device", GPUS)
@pytest.mark.parametrize("axis", [0, 1, 2, 3])
def test_parts_of_images_along_each_axis_change_places(axis: int, device: str) -> None:
    net = Net()
    image = net.conv(net.input("x", 2, 4, 4, 3), 8)
    size = net.shape(image)[axis]
    ends = [net.add("Slice", image, *map(np.array, ([a], [b], [axis]))) for a, b in ((1, size), (0, 1))]
    graph = net.finish(net.conv(net.add("Concat", *ends, axis=axis), 4))
    assert_plan_computes(graph)
    fed = feeds(graph)
    with weft.load(graph, device, fallback="error") as session:
        got = session.run(fed)
    rtol, atol = tolerance(DType.FLOAT32, "reduction")
    np.testing.assert_allclose(got[0], outputs(graph, fed)[0], rtol=rtol, atol=atol)


@pytest.mark.parametrize("device", ["null", *GPUS])
def test_parts_that_are_outputs_are_joined_in_the_memory_of_the_whole(device: str) -> None:
    """The parts are copies, so nothing lies in the whole until they are joined there; meanwhile, nobody takes it."""
    net = Net()
    whole = net.add("Relu", net.input("x", 4, 64))
    first, second = (net.add("Slice", whole, *map(np.array, ([a], [b], [1]))) for a, b in ((32, 64), (0, 32)))
    joined = net.add("Concat", first, second, axis=1)
    of_its_size = net.add("Softmax", net.add("Pad", net.add("Neg", first), np.array([0, 32, 0, 0])), axis=-1)
    graph = net.finish(net.add("Softmax", joined, axis=-1), first, second, of_its_size)
    if device == "null":
        assert_plan_computes(graph)
        return
    fed = feeds(graph)
    with weft.load(graph, device, fallback="error") as session:
        got = session.run(fed)
        assert kernels(session).count("move") == 2, "the concat moves nothing"
    rtol, atol = tolerance(DType.FLOAT32, "reduction")
    for mine, known in zip(got, outputs(graph, fed), strict=True):
        np.testing.assert_allclose(mine, known, rtol=rtol, atol=atol)


def test_a_moved_output_of_the_network_lies_side_by_side() -> None:
    net = Net()
    x = net.input("x", 2, 3, 4)
    turned = net.add("Transpose", net.add("Relu", x), name="y", perm=(2, 0, 1))
    graph = net.finish(turned, net.add("Softmax", turned, axis=-1))
    assert planned_kernels(graph).count("move") == 0
    assert_plan_computes(graph)


def test_an_input_of_the_network_stays_where_the_caller_put_it() -> None:
    net = Net()
    turned = net.add("Transpose", net.input("x", 6, 8), perm=(1, 0))
    graph = net.finish(net.add("MatMul", turned, net.random(6, 4)))
    assert planned_kernels(graph).count("move") == 1


def test_without_fusing_each_move_is_a_launch() -> None:
    net = Net()
    graph = net.finish(_norm_between(net))
    with weft.load(graph, "opencl", fusing=False) as session:
        assert kernels(session).count("move") == 2


def test_where_a_moved_value_lies_is_told() -> None:
    net = Net()
    graph = net.finish(_norm_between(net))
    network = weft.optimize(graph, "opencl")
    told = str(network.why("n_transpose1"))
    assert "needs no memory of its own" in told and "size:step" in told


def test_a_network_from_a_file_moves_as_little(tmp_path: Path) -> None:
    net = Net()
    network = weft.optimize(net.finish(_shifted_windows(net)), "opencl")
    network.save(tmp_path / "windows.weft")
    with weft.load(tmp_path / "windows.weft") as session:
        (mine,), (read,) = network.parts, session.optimized.parts
        assert read.listing == mine.listing
        assert "shifted by" in str(read.listing)


# -- attention over pixels -----------------------------------------------------------------------------------


def _attends(form: Form, more: bool = False) -> Graph:
    """One convolution makes Q, K and V of an image, and another reads the result, as it is or with values added."""
    net = Net()
    x = net.input("x", form.batch, 8, *form.image)
    y = form.add(net, net.conv(x, form.channels))
    return net.finish(net.conv(net.add("Add", y, net.conv(x, form.heads * form.width)) if more else y, 8))


IN_ROWS = {
    "heads apart": Form(scale="q and k", bias="a constant", product="turned behind"),
    "Q, K and V apart": Form(source="slices of channels", width=12),
    "one head": Form(heads=1),
    "two images": Form(batch=2, heads=3, depth=4),
}


@pytest.mark.parametrize("precision", ["high", "low"])
@pytest.mark.parametrize("form", IN_ROWS)
def test_attention_reads_and_writes_rows_of_channels_of_images(form: str, precision: str) -> None:
    found = planned_kernels(_attends(IN_ROWS[form]), precision)
    assert found.count("attention") == 1
    assert len(found) == 5 and found.count("relayout") == 2, "only the input and the output of the network are moved"


@pytest.mark.parametrize("device", GPUS)
@pytest.mark.parametrize("more", [False, True], ids=["alone", "with a sum"])
@pytest.mark.parametrize("form", IN_ROWS)
def test_attention_in_rows_of_channels_gives_the_numbers(form: str, more: bool, device: str) -> None:
    graph = _attends(IN_ROWS[form], more)
    with weft.load(graph, device, precision="high", fallback="error") as session:
        assert kernels(session).count("attention") == 1
        (found,) = session.run(feeds(graph))
    np.testing.assert_allclose(found, outputs(graph, feeds(graph))[0], rtol=1e-4, atol=1e-5)


def test_an_image_that_gains_nothing_by_rows_stays_in_blocks() -> None:
    """Products read their operands anywhere: blocks of channels, which the device prefers, do."""
    net = Net()
    x = net.conv(net.input("x", 1, 8, 4, 4), 8)
    rows = net.add("Reshape", x, np.array([1, 8, 16]))
    graph = net.finish(net.add("MatMul", net.add("Transpose", rows, perm=(0, 2, 1)), rows))
    lowered = weft.optimize(graph, "opencl", precision="high", fallback="error").parts[0].lowered
    assert lowered is not None
    assert [layout for layout in lowered.graph.layouts.values() if layout.packed] == [Layout.NC4HW4] * 2


def test_a_result_that_would_be_scattered_is_converted() -> None:
    """Its vectors of four would fall apart."""
    net = Net()
    x = net.add("Softmax", net.input("x", 1, 8, 5, 5), axis=-1)
    assert planned_kernels(net.finish(net.conv(x, 8))).count("relayout") == 2


def _columns(net: Net, sizes: tuple[int, int], turned: str) -> str:
    """Attention to inputs of which those in `turned` have a column for each pixel, so that rows are side by side."""
    (depth, width), parts = sizes, list[str]()
    for name, rows, size in (("q", 37, depth), ("k", 70, depth), ("v", 70, width)):
        shape = (size, rows) if name in turned else (rows, size)
        part = net.input(name, 2, 3, *shape)
        parts.append(net.add("Transpose", part, perm=(0, 1, 3, 2)) if name in turned else part)
    q, k, v = parts
    scores = net.add("MatMul", q, net.add("Transpose", k, perm=(0, 1, 3, 2)))
    scores = net.add("Mul", scores, np.full((), 0.25, np.float32))
    mixed = net.add("MatMul", net.add("Softmax", net.add("Add", scores, net.random(37, 70)), axis=-1), v)
    return net.add("Transpose", mixed, perm=(0, 1, 3, 2)) if "y" in turned else mixed


@pytest.mark.parametrize("device", GPUS)
@pytest.mark.parametrize(
    "turned, sizes", [("qkvy", (8, 12)), ("qkvy", (5, 7)), ("k", (8, 8)), ("qy", (8, 8)), ("v", (64, 20))]
)
def test_attention_reads_and_writes_columns(turned: str, sizes: tuple[int, int], device: str) -> None:
    net = Net()
    graph = net.finish(net.add("Relu", _columns(net, sizes, turned)))
    with weft.load(graph, device, precision="high", fallback="error") as session:
        assert kernels(session) == ["attention"]
        (found,) = session.run(feeds(graph))
    np.testing.assert_allclose(found, outputs(graph, feeds(graph))[0], rtol=1e-4, atol=1e-5)


@given(form=forms())
@settings(max_examples=examples(60), deadline=None, suppress_health_check=SLOW)
def test_attention_over_pixels_in_any_form_gives_the_numbers_of_the_network(form: Form) -> None:
    assert_plan_computes(_attends(form), drawn=True)


@pytest.mark.alike
@pytest.mark.parametrize("device", GPUS)
@pytest.mark.parametrize("precision", ["high", "low"])
@pytest.mark.parametrize("residual", ["as it lies", "turned", "for each element", "for each head", "a number"])
def test_attention_with_a_sum_is_right_wherever_its_result_goes(residual: str, precision: str, device: str) -> None:
    """Its kernel stores at places in memory, so what is added must lie as the result does."""
    net = Net()
    q, k, v = (net.add("Tanh", net.input(name, 1, 2, 32, 24)) for name in "qkv")
    scores = net.add("Mul", net.add("MatMul", q, net.add("Transpose", k, perm=(0, 1, 3, 2))), np.array(0.2, np.float32))
    mixed = net.add("MatMul", net.add("Softmax", scores, axis=-1), v)
    added: dict[str, Callable[[], str | Array]] = {
        "as it lies": lambda: q,
        "turned": lambda: net.add("Transpose", net.add("Sin", net.input("z", 1, 32, 2, 24)), perm=(0, 2, 1, 3)),
        "for each element": lambda: net.random(24),
        "for each head": lambda: net.random(2, 1, 1),
        "a number": lambda: np.array(0.5, np.float32),
    }
    rows = net.add("Transpose", net.add("Add", mixed, added[residual]()), perm=(0, 2, 1, 3))
    rows = net.add("Reshape", rows, np.array([1, 32, 48]))
    graph = net.finish(net.add("MatMul", rows, net.random(48, 16, scale=0.2)))
    (want,) = outputs(graph, feeds(graph))
    with weft.load(graph, device, precision=precision, fallback="error") as session:
        (got,) = session.run(feeds(graph))
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-2 if precision == "low" else 1e-5)
