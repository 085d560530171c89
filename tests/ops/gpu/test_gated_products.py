"""Two products of one value and the gate that makes one value of them: one launch, whatever kernel it is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from tests.helpers.cards import card
from tests.helpers.conv_problems import take
from tests.helpers.convolutions import launched_in_halves
from tests.helpers.emulated_gpus import APIS, emulated_gpu
from tests.helpers.gpu_plans import assert_plan_computes
from tests.helpers.launches import planned_kernels
from tests.helpers.nets import Net
from tests.helpers.null_gpu import null_gpu
from tests.helpers.random_nets import SLOW
from tests.helpers.run_length import examples
from weft.core.graph.dtypes import DType
from weft.core.graph.fused_op import RUNNING, Step, earlier
from weft.core.graph.graph import Graph
from weft.core.graph.tensor import TensorSpec
from weft.core.registry.backend_registry import registry
from weft.kernels.chooser import Algorithm
from weft.kernels.gate import BESIDE
from weft.ops.binary import Mul, Sub
from weft.ops.gpu.conv.gemm.split_k import InParts
from weft.ops.gpu.conv.gemm.tiles import GemmTile, TiledConv
from weft.ops.gpu.conv.matrix.staged import MatrixConv, MatrixTile
from weft.ops.gpu.conv.matrix.unstaged import UnstagedConv, UnstagedTile
from weft.ops.gpu.conv.matrix.wgmma import WgmmaConv, WgmmaTile
from weft.ops.gpu.matmul.gated import GatedProduct
from weft.ops.matmul import MatMul

HALF = np.array(0.5, np.float32)
ACTIVATIONS = ("silu", "gelu", "sigmoid", "relu", "cap", "none")


def activated(net: Net, value: str, activation: str) -> str:
    """Return an activation of a value, of one op or of several."""
    if activation == "silu":
        return net.add("Mul", value, net.add("Sigmoid", value))
    if activation == "cap":
        return net.add("Mul", net.add("Clip", value, np.array(-0.5, np.float32), HALF), HALF)
    names = {"gelu": "Gelu", "sigmoid": "Sigmoid", "relu": "Relu"}
    return net.add(names[activation], value) if activation in names else value


def product(net: Net, x: str, columns: int, *, bias: bool, gemm: bool, name: str = "") -> str:
    """Return a product with constant weights; as a Gemm, its matrix is transposed."""
    depth, more = net.shape(x)[-1], [net.random(columns)] if bias else []
    if gemm:
        return net.add("Gemm", x, net.random(columns, depth, scale=depth**-0.5), *more, transB=1, name=name)
    made = net.add("MatMul", x, net.random(depth, columns, scale=depth**-0.5), name=name)
    return net.add("Add", made, *more) if more else made


def gated(
    rows: tuple[int, ...], depth: int, columns: int, *, activation: str = "silu", halves: bool = False,
    swapped: bool = False, bias: bool = False, gemm: bool = False, after: bool = True,
) -> Graph:
    """Return a gated MLP: two products or the halves of one, of which the first, or the second, is activated."""
    net = Net(seed=1)
    x = net.input("x", *rows, depth)
    if halves:
        both = product(net, x, 2 * columns, bias=bias, gemm=gemm)
        first = net.add("Slice", both, *(np.array([v]) for v in (0, columns, -1)), name="first")
        second = net.add("Slice", both, *(np.array([v]) for v in (columns, 2 * columns, -1)), name="second")
    else:
        first, second = (product(net, x, columns, bias=bias, gemm=gemm, name=name) for name in ("first", "second"))
    if swapped:
        first, second = second, first
    y = net.add("Mul", activated(net, first, activation), second, name="y")
    return net.finish(product(net, y, depth, bias=True, gemm=gemm, name="z") if after else y)


def test_a_gate_is_one_launch_with_its_products() -> None:
    for halves in (False, True):
        assert planned_kernels(gated((1,), 16, 12, halves=halves)) == ["matmul_rows"] * 2
        assert planned_kernels(gated((40,), 16, 12, halves=halves)) == ["conv_gemm"] * 2


@given(
    rows=st.sampled_from([(1,), (3,), (5,), (2, 9)]), depth=st.integers(1, 9).map(lambda n: 4 * n),
    columns=st.integers(1, 9).map(lambda n: 4 * n), activation=st.sampled_from(ACTIVATIONS), halves=st.booleans(),
    swapped=st.booleans(), bias=st.booleans(), gemm=st.booleans(),
)
@settings(max_examples=examples(40), deadline=None, suppress_health_check=SLOW)
def test_any_gate_plays_right(
    rows: tuple[int, ...], depth: int, columns: int, activation: str, halves: bool, swapped: bool, bias: bool,
    gemm: bool,
) -> None:
    """The plan computes what the graph does, in one launch for the gate and one for what is behind it."""
    more = {"activation": activation, "halves": halves, "swapped": swapped, "bias": bias}
    graph = gated(rows, depth, columns, gemm=gemm and len(rows) == 1, **more)  # type: ignore[arg-type]
    assert len(planned_kernels(graph)) == 2
    assert_plan_computes(graph)


@pytest.mark.covering
@pytest.mark.parametrize("device", APIS)
@pytest.mark.parametrize("precision", ["high", "normal", "low"])
@pytest.mark.parametrize("rows", [(1,), (3,), (2, 33)])
@pytest.mark.parametrize(("activation", "halves", "swapped"), [("silu", False, False), ("gelu", True, True)])
@pytest.mark.parametrize("columns", [20, 48])
def test_a_device_computes_it(
    device: str, precision: str, rows: tuple[int, ...], activation: str, halves: bool, swapped: bool, columns: int
) -> None:
    graph = gated(rows, 36, columns, activation=activation, halves=halves, swapped=swapped, bias=halves)
    launched = launched_in_halves(graph, device, 4e-3 if precision == "low" else 2e-5, precision=precision)
    assert launched["matmul_rows"] + launched["conv_gemm"] == 2


@pytest.mark.parametrize("device", APIS)
def test_sums_in_parts_are_gated_once_they_are_whole(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    take(monkeypatch, TiledConv(), InParts(GemmTile(2, 1, 8, 8, 4), 3))
    launched = launched_in_halves(gated((18,), 96, 20, bias=True, after=False), device, 2e-5)
    assert set(launched) == {"conv_gemm", "sum_parts"}


@pytest.mark.parametrize("columns", [32, 12])  # sixteen bytes can be stored at once, or not
@pytest.mark.parametrize(
    ("algorithm", "tile", "kernel", "api"),
    [
        (WgmmaConv(), WgmmaTile(1, 16, 3), "conv_wgmma", "opencl"),
        (MatrixConv(), MatrixTile(2, 1, 2, 2), "conv_matrix", "opencl"),
        (UnstagedConv(), UnstagedTile(1, 1, 1, 4), "conv_unstaged", "vulkan"),
        (UnstagedConv(), UnstagedTile(2, 2, 4, 2), "conv_unstaged", "opencl"),
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_matrix_units_compute_it(
    columns: int, algorithm: Algorithm[Any, Any, Any], tile: Any, kernel: str, api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    take(monkeypatch, algorithm, tile)
    graph = gated((70,), 72, columns, bias=True, after=False)
    with emulated_gpu(api, channels_last=True, warpgroups=kernel == "conv_wgmma"):
        launched = launched_in_halves(graph, "emulated", 4e-3, precision="low")
    assert launched[kernel] == 1 and launched.keys() <= {kernel, "elementwise", "relayout"}


def is_gated(graph: Graph, api: str = "", precision: str = "high", **caps: Any) -> bool:
    """Tell whether a GPU that runs nothing, or a card without its driver, computes a gated product."""
    with null_gpu() as device:
        if api:
            card(device, api)
        device.caps = replace(device.caps, **caps)
        registry.find("null").runtime(0).trust()  # type: ignore[attr-defined]
        (part,) = weft.optimize(graph, "null", precision=precision, fallback="error").parts
        assert part.lowered is not None
        return any(node.op.type == "GatedProduct" for node in part.lowered.graph)


def test_what_no_kernel_gates_stays_two_launches() -> None:
    assert is_gated(gated((40,), 16, 12)) and is_gated(gated((1,), 16, 12))
    assert not is_gated(gated((40,), 16, 14))  # columns are no multiple of four
    assert not is_gated(gated((40,), 18, 12))
    for wrong in ("gated_product", "matmul_rows"):
        assert not is_gated(gated((1,), 16, 12), without=frozenset({wrong}))
    graph = gated((40,), 16, 12)
    graph.outputs.append("first")
    assert not is_gated(graph)


@pytest.mark.parametrize("kind", ["other value", "a number a column", "residual", "scaled", "thirds", "weights"])
def test_what_is_no_gate_of_two_products_stays_as_it_is(kind: str) -> None:
    net = Net()
    x, other = net.input("x", 40, 16), net.input("other", 40, 16)
    weight = net.add("Relu", net.input("w", 16, 12)) if kind == "weights" else net.random(16, 12)
    first = net.add("Gemm", x, weight, alpha=2.0 if kind == "scaled" else 1.0)
    second = net.add("MatMul", other if kind == "other value" else x, net.random(16, 12))
    if kind == "thirds":
        first = net.add("Split", net.add("MatMul", x, net.random(16, 36)), axis=1, num_outputs=3, outputs=3)
        second = f"{first}.1"
    gate = net.add("Sigmoid", net.add("Mul", first, net.random(12)) if kind == "a number a column" else first)
    y = net.add("Mul", gate, second)
    graph = net.finish(net.add("Add", y, net.input("z", 40, 12)) if kind == "residual" else y)
    assert not is_gated(graph)
    assert_plan_computes(graph)


@pytest.mark.parametrize("halves", [False, True])
def test_products_stay_apart_where_the_kernel_for_two_is_slow(halves: bool) -> None:
    """Whole work-groups multiply large matrices in half the time on Vulkan, and cannot store pairs."""
    large, small = (2048, 1024, 4096), (64, 256, 512)
    for sizes, api, joined in ((large, "vulkan", False), (large, "opencl", True), (small, "vulkan", True)):
        rows, depth, columns = sizes
        graph = gated((rows,), depth, columns, halves=halves, after=False)
        assert is_gated(graph, api, "low") is joined


def test_it_is_told_why_a_gate_is_a_launch() -> None:
    with null_gpu():
        (part,) = weft.optimize(gated((40,), 16, 14, halves=True), "null", fallback="error").parts
        assert part.lowered is not None
        told = "; ".join(part.lowered.why_apart().values())
    assert "the product of which it reads the halves does not compute it: its" in told and "14 columns" in told


def test_it_is_an_op_that_is_both() -> None:
    rng = np.random.default_rng(0)
    shapes = (2, 3, 6), (6, 4), (4,), (6, 4), ()
    x, first, bias, second, scale = (np.asarray(rng.standard_normal(shape), np.float32) for shape in shapes)
    steps = (Step(Mul(), (RUNNING, 5)), Step(Sub(), (RUNNING, BESIDE)), Step(Mul(), (RUNNING, earlier(0))))
    a, b = MatMul().reference(x, first) + bias, MatMul().reference(x, second)
    op, inputs = GatedProduct(False, steps), (x, first, bias, second, None, scale)
    np.testing.assert_array_equal(op.reference(*inputs), (a * scale - b) * a)
    specs = [None if i is None else TensorSpec(i.shape, DType.FLOAT32) for i in inputs]
    assert op.infer(specs, [None, *inputs[1:]]) == (TensorSpec((2, 3, 4), DType.FLOAT32),)
    assert op.flops([None if i is None else i.shape for i in inputs], [(2, 3, 4)]) == 24 * (2 * 2 * 6 + 3)
    whole = (x, np.concatenate([first, second], 1), np.concatenate([bias, 0 * bias]), None, None, scale)
    np.testing.assert_array_equal(op.reference(*whole), op.reference(*inputs))
    specs = [None if i is None else TensorSpec(i.shape, DType.FLOAT32) for i in whole]
    assert op.infer(specs, [None, *whole[1:]]) == (TensorSpec((2, 3, 4), DType.FLOAT32),)
    turned = (x, first.T, bias, second.T, None, scale)
    np.testing.assert_array_equal(GatedProduct(True, steps).reference(*turned), op.reference(*inputs))
