"""RMS norms in parts: each form before and after, what stays, the numbers, and launches on GPUs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest

import weft
from tests.helpers.launches import planned_kernels
from tests.helpers.nets import Net, feeds, kinds
from tests.helpers.norms import DIVISORS, number, rms_norm, scaled, weight
from tests.helpers.onnx_models import assert_right_for_open_sizes
from tests.helpers.rewrites import assert_same
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph
from weft.core.graph.interpreter import outputs
from weft.core.graph.layout import Array
from weft.core.passes import PASSES, run_passes
from weft.core.passes.patterns import fuse_rms_norm

FOUND = "RMSNormalization"
FLOATS = (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64)


def exact(x: Array, scale: Array, axis: int = -1, epsilon: float = 1e-5) -> Array:
    """Return an RMS norm in float64."""
    wide = x.astype(np.float64)
    mean = np.square(wide).mean(axis=tuple(range(axis, 0)), keepdims=True)
    return np.asarray(wide / np.sqrt(mean + epsilon) * scale.astype(np.float64))


def only_norm(graph: Graph) -> Graph:
    """Return the graph after the pass, which must be a norm alone."""
    after = fuse_rms_norm(graph)
    assert kinds(after) == [FOUND]
    assert fuse_rms_norm(after) is after
    return after


def test_the_pass_runs_behind_that_of_layer_norms() -> None:
    names = [p.name for p in PASSES]
    assert names.index("fuse_layer_norm") < names.index("fuse_rms_norm") < names.index("fuse_attention")


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("product", [False, True])
@pytest.mark.parametrize("divisor", DIVISORS)
def test_each_form_is_found(divisor: str, product: bool, swapped: bool) -> None:
    net = Net()
    x = net.input("x", 2, 3, 8)
    y = rms_norm(net, x, divisor=divisor, product=product, swapped=swapped)
    graph = net.finish(scaled(net, y, 8, swapped=swapped))
    after = only_norm(graph)
    assert str(after.nodes[0].op).startswith("RMSNormalization(axis=-1, epsilon=9.99")
    assert_same(graph, after)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("divisor", DIVISORS)
def test_each_float_type_is_found(divisor: str, dtype: DType) -> None:
    net = Net()
    graph = net.finish(scaled(net, rms_norm(net, net.input("x", 2, 3, 8, dtype=dtype), divisor=divisor), 8))
    tolerance = {DType.FLOAT16: 4e-3, DType.BFLOAT16: 3e-2, DType.FLOAT32: 1e-6, DType.FLOAT64: 1e-15}[dtype]
    assert_same(graph, only_norm(graph), tolerance)


@pytest.mark.parametrize("axes", [(-1,), (1, 2), (0, 1, 2)])
def test_the_last_axes_may_be_several(axes: tuple[int, ...]) -> None:
    net = Net()
    x = net.input("x", 2, 3, 8)
    graph = net.finish(scaled(net, rms_norm(net, x, axes), *net.shape(x)[axes[0] :]))
    after = only_norm(graph)
    assert after.nodes[0].op.attributes()["axis"] == (axes[0] if axes[0] < 0 else axes[0] - 3)
    assert_same(graph, after)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1), (8,), (1, 8), (1, 1, 8), (3, 8), (3, 1)])
def test_a_scale_may_vary_along_the_axes_of_the_mean(shape: tuple[int, ...]) -> None:
    for axes, stays in (((-1,), shape in [(3, 8), (3, 1)]), ((-2, -1), False)):
        net = Net()
        graph = net.finish(scaled(net, rms_norm(net, net.input("x", 2, 3, 8), axes), *shape))
        after = fuse_rms_norm(graph)
        assert kinds(after) == ([FOUND, "Mul"] if stays else [FOUND])
        assert_same(graph, after)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1)])
def test_an_epsilon_may_have_any_shape(shape: tuple[int, ...]) -> None:
    net = Net()
    graph = net.finish(rms_norm(net, net.input("x", 2, 3, 8), epsilon=0.25, shape=shape))
    assert only_norm(graph).nodes[0].op.attributes()["epsilon"] == 0.25


def test_an_epsilon_that_was_left_out_is_0() -> None:
    net = Net()
    graph = net.finish(scaled(net, rms_norm(net, net.input("x", 2, 3, 8), epsilon=None), 8))
    after = only_norm(graph)
    assert after.nodes[0].op.attributes()["epsilon"] == 0
    assert_same(graph, after)


def test_without_a_constant_scale_that_is_1() -> None:
    net = Net()
    x, gate = net.input("x", 2, 3, 8), net.input("gate", 2, 3, 8)
    y = rms_norm(net, x)
    graph = net.finish(net.add("Mul", y, gate), y)
    after = fuse_rms_norm(graph)
    assert kinds(after) == [FOUND, "Mul"]
    (scale,) = (after.constants[n.inputs[1]] for n in after.nodes if n.op.type == FOUND)
    assert (scale.shape, float(scale)) == ((), 1.0)
    assert_same(graph, after)


def test_a_norm_of_heads_is_found_behind_a_reshape() -> None:
    net = Net()
    heads = net.add("Reshape", net.input("x", 2, 5, 24), np.array([2, 5, 3, 8]))
    y = scaled(net, rms_norm(net, net.add("Transpose", heads, perm=(0, 2, 1, 3))), 8)
    graph = net.finish(y)
    after = run_passes(graph)
    assert sorted(kinds(after)) == [FOUND, "Reshape", "Transpose"]
    assert_same(graph, after)


# -- casts -------------------------------------------------------------------------------------------------


def cast(net: Net, x: str, to: DType) -> str:
    return net.add("Cast", x, to=to)


def scale_behind(net: Net, x: str, dtype: DType) -> str:
    """Cast to float32, and back before the product: Llama, T5."""
    return scaled(net, cast(net, rms_norm(net, cast(net, x, DType.FLOAT32)), dtype), 8)


def two_casts(net: Net, x: str, dtype: DType) -> str:
    """Cast for the squares, and again for the product with the inverse."""
    wide, again = (cast(net, x, DType.FLOAT32) for _ in range(2))
    return scaled(net, cast(net, rms_norm(net, again, squared=wide), dtype), 8)


def scale_before(net: Net, x: str, dtype: DType) -> str:
    """Cast back behind the product with a scale that the type of x holds: `torch.nn.RMSNorm`."""
    y = rms_norm(net, cast(net, x, DType.FLOAT32))
    factor = weight(net, y, 8).astype(dtype.numpy).astype(np.float32)
    return cast(net, net.add("Mul", y, factor), dtype)


def no_scale(net: Net, x: str, dtype: DType) -> str:
    """Cast back, and no product: norms of queries and keys, OLMo."""
    return cast(net, rms_norm(net, cast(net, x, DType.FLOAT32)), dtype)


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16])
@pytest.mark.parametrize("build", [scale_behind, two_casts, scale_before, no_scale])
def test_casts_go_where_the_op_computes_in_float32(build: Callable[[Net, str, DType], str], dtype: DType) -> None:
    net = Net()
    graph = net.finish(build(net, net.input("x", 3, 5, 8, dtype=dtype), dtype))
    after = only_norm(graph)
    fed = feeds(graph)
    got, before = (outputs(g, fed)[0] for g in (after, graph))
    want = exact(fed["x"], after.constants[after.nodes[0].inputs[1]])
    ulp = float(np.finfo(np.float16).eps if dtype is DType.FLOAT16 else 2.0**-7) * 2 ** np.floor(np.log2(abs(want)))
    assert (abs(got.astype(np.float64) - want) <= 0.502 * ulp).all(), "it is rounded once"
    assert (abs(got.astype(np.float64) - before.astype(np.float64)) <= 1.001 * ulp).all()


def test_a_scale_that_the_type_of_x_does_not_hold_keeps_the_casts() -> None:
    """1 + w in float32: Gemma."""
    net = Net()
    y = scaled(net, rms_norm(net, cast(net, net.input("x", 3, 8, dtype=DType.FLOAT16), DType.FLOAT32)), 8)
    graph = net.finish(cast(net, y, DType.FLOAT16))
    after = fuse_rms_norm(graph)
    assert kinds(after) == ["Cast", FOUND, "Cast"]
    for got, want in zip(outputs(after, feeds(graph)), outputs(graph, feeds(graph)), strict=True):
        np.testing.assert_allclose(got, want, rtol=2.0**-10)


@pytest.mark.parametrize(
    ("source", "wide"),
    [(DType.FLOAT32, DType.FLOAT64), (DType.FLOAT16, DType.FLOAT64), (DType.FLOAT64, DType.FLOAT32)],
)
def test_a_cast_that_is_not_from_16_bits_to_float32_stays(source: DType, wide: DType) -> None:
    net = Net()
    x = net.input("x", 3, 8, dtype=source)
    graph = net.finish(cast(net, rms_norm(net, cast(net, x, wide)), source))
    after = fuse_rms_norm(graph)
    assert kinds(after) == ["Cast", FOUND, "Cast"]
    assert_same(graph, after, 1e-3 if source is DType.FLOAT16 else 1e-6)


def test_a_cast_of_x_that_others_read_stays_for_them() -> None:
    net = Net()
    x = net.input("x", 3, 8, dtype=DType.FLOAT16)
    wide = cast(net, x, DType.FLOAT32)
    y = cast(net, rms_norm(net, wide), DType.FLOAT16)
    graph = net.finish(y, net.add("Relu", wide))
    after = fuse_rms_norm(graph)
    assert sorted(kinds(after)) == ["Cast", FOUND, "Relu"]
    assert next(n for n in after.nodes if n.op.type == FOUND).inputs[0] == "x"
    assert_same(graph, after, 2.0**-10)


def test_large_numbers_of_float16_overflow_no_longer() -> None:
    net = Net()
    graph = net.finish(rms_norm(net, net.input("x", 3, 8, dtype=DType.FLOAT16)))
    x = feeds(graph)["x"] * np.float16(1000)
    with np.errstate(over="ignore"):
        assert not outputs(graph, {"x": x})[0].any(), "each is divided by infinity"
    (got,) = outputs(only_norm(graph), {"x": x})
    np.testing.assert_allclose(got, exact(x, np.ones(())), rtol=2.0**-10)


def test_large_numbers_overflow_no_longer_on_a_gpu_in_fp16() -> None:
    net = Net()
    graph = net.finish(scaled(net, rms_norm(net, net.input("x", 3, 40)), 40))
    x = feeds(graph)["x"] * 1000
    (want,) = outputs(graph, {"x": x})
    with weft.load(graph, "opencl", precision="low", fallback="error") as session:
        np.testing.assert_allclose(session.run({"x": x})[0], want, rtol=2e-3, atol=2e-3)


# -- what stays --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("read", ["reducemean", "add", "sqrt", "reciprocal"])
def test_what_is_read_elsewhere_keeps_the_parts(read: str) -> None:
    net = Net()
    y = rms_norm(net, net.input("x", 2, 3, 8))
    (value,) = (o for n in net.graph.nodes for o in n.outputs if o.rstrip("0123456789") == read)
    graph = net.finish(y, value)
    assert fuse_rms_norm(graph) is graph


def test_a_dead_reader_keeps_nothing() -> None:
    net = Net()
    y = rms_norm(net, net.input("x", 2, 3, 8))
    net.add("Relu", next(n.outputs[0] for n in net.graph.nodes if n.op.type == "Sqrt"))
    assert kinds(fuse_rms_norm(net.finish(y))) == [FOUND]


def test_squares_that_are_read_elsewhere_stay_for_their_readers() -> None:
    net = Net()
    y = rms_norm(net, net.input("x", 2, 3, 8), product=True)
    graph = net.finish(y, net.graph.nodes[0].outputs[0])
    after = fuse_rms_norm(graph)
    assert sorted(kinds(after)) == ["Mul", FOUND]
    assert_same(graph, after)


def _other_axes(net: Net, x: str) -> str:
    return rms_norm(net, x, (-2,))


def _of_another_value(net: Net, x: str) -> str:
    return rms_norm(net, x, squared=net.input("z", 2, 3, 8))


def _another_power(net: Net, x: str) -> str:
    mean = net.add("ReduceMean", net.add("Pow", x, number(net, 4, x)), np.array([-1]))
    return net.add("Div", x, net.add("Sqrt", mean))


def _another_root(net: Net, x: str) -> str:
    mean = net.add("ReduceMean", net.add("Mul", x, x), np.array([-1]))
    return net.add("Mul", x, net.add("Pow", mean, number(net, -0.25, x)))


def _a_power_of_a_constant(net: Net, x: str) -> str:
    mean = net.add("ReduceMean", net.add("Mul", x, x), np.array([-1]))
    return net.add("Mul", x, net.add("Pow", number(net, -0.5, x), mean))


def _root_over_x(net: Net, x: str) -> str:
    return net.add("Div", net.add("Sqrt", net.add("ReduceMean", net.add("Mul", x, x), np.array([-1]))), x)


def _two_over_the_root(net: Net, x: str) -> str:
    root = net.add("Sqrt", net.add("ReduceMean", net.add("Mul", x, x), np.array([-1])))
    return net.add("Mul", x, net.add("Div", number(net, 2, x), root))


def _an_epsilon_of_each_row(net: Net, x: str) -> str:
    mean = net.add("ReduceMean", net.add("Mul", x, x), np.array([-1]))
    return net.add("Div", x, net.add("Sqrt", net.add("Add", mean, weight(net, x, 3, 1))))


def _an_epsilon_that_adds_an_axis(net: Net, x: str) -> str:
    return rms_norm(net, x, shape=(1, 1, 1, 1))


def _a_mean_without_axes(net: Net, x: str) -> str:
    mean = net.add("ReduceMean", net.add("Mul", x, x), np.array([-1]), keepdims=0)
    return net.add("Div", x, net.add("Sqrt", net.add("Reshape", mean, np.array([2, 1, 3]))))


STAYS = [
    _other_axes,
    _of_another_value,
    _another_power,
    _another_root,
    _a_power_of_a_constant,
    _root_over_x,
    _two_over_the_root,
    _an_epsilon_of_each_row,
    _an_epsilon_that_adds_an_axis,
]


@pytest.mark.parametrize("build", STAYS)
def test_what_is_nearly_an_rms_norm_stays(build: Callable[[Net, str], str]) -> None:
    net = Net()
    graph = net.finish(build(net, net.input("x", 2, 3, 8)))
    assert fuse_rms_norm(graph) is graph


def test_a_mean_that_drops_its_axes_stays() -> None:
    net = Net()
    graph = net.finish(_a_mean_without_axes(net, net.input("x", 2, 3, 3)))
    assert fuse_rms_norm(graph) is graph


# -- open sizes and devices --------------------------------------------------------------------------------


NORM = """
<ir_version: 8, opset_import: ["" : 18]>
net (float[n, rows, 8] x) => (float[n, rows, 8] y)
<float two = {2}, float epsilon = {0.01}, int64[1] axes = {-1}, float[8] w = {1, 2, 3, 4, 5, 6, 7, 8}>
{
  squares = Pow(x, two)
  mean = ReduceMean(squares, axes)
  sum = Add(mean, epsilon)
  root = Sqrt(sum)
  inverse = Reciprocal(root)
  normed = Mul(x, inverse)
  y = Mul(w, normed)
}
"""


@pytest.mark.parametrize("device", ["cpu", "opencl", "vulkan"])
def test_a_model_of_open_sizes_computes_what_onnx_does(device: str) -> None:
    assert_right_for_open_sizes(onnx.parser.parse_model(NORM), device)


@pytest.mark.parametrize("shape", [None, (), (1,), (40,), (1, 40), (40, 40)])
@pytest.mark.parametrize("axes", [(-1,), (-2, -1)])
def test_a_norm_is_one_launch_on_a_gpu(axes: tuple[int, ...], shape: tuple[int, ...] | None) -> None:
    net = Net()
    y = rms_norm(net, net.input("x", 2, 40, 40), axes)
    graph = net.finish(y if shape is None else scaled(net, y, *shape))
    for precision in ("high", "low"):
        assert len([k for k in planned_kernels(graph, precision) if k.startswith("normalize")]) == 1
    assert len(planned_kernels(graph)) == 1, "a scale along more axes is applied as the norm is stored"
    with weft.load(graph, "opencl", precision="high", fallback="error") as session:
        (want,) = outputs(graph, feeds(graph))
        np.testing.assert_allclose(session.run(feeds(graph))[0], want, rtol=1e-5, atol=1e-5)
