"""The op table on every device: each row must run there and agree with its reference, or be refused for a reason.

`op_rows` says which it must be: a GPU that begins to refuse a row fails here, and so does one that takes a row
nobody expected it to take. Rows of float32 also run with precision "low", against the reference of the same row in
float16. `rows_together` says which rows run in the short run; with `--all` each does, by itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.helpers.op_rows import (
    GPUS,
    HALVED,
    ROWS,
    RUNS_ON_GPUS,
    SAMPLE,
    Net,
    assert_agree,
    reference,
    refusal,
    run,
)
from tests.helpers.rows_together import as_it_is, by_family, check_refused, check_rows
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph
from weft.core.graph.layout import Array
from weft.core.graph.op import op_types
from weft.ops.binary import Add, Mul, Pow
from weft.ops.concat import Concat
from weft.ops.conv import Conv
from weft.ops.gpu import elementwise
from weft.ops.pool import GlobalAveragePool, MaxPool
from weft.ops.unary import Cast, Relu, Sigmoid
from weft_conformance.cases.table import Case, comparable, tolerance
from weft_conformance.checks.table import feeds_of, graph_of, halved

DEVICES = ("cpu", *GPUS)
TAKEN = by_family(row for row in ROWS if refusal(row) is None)
REFUSED = by_family(row for row in ROWS if refusal(row) is not None)
LOW = by_family(HALVED)
SLOW_ON_LLVMPIPE = {"attention", "conv", "softmax"}
"""Families whose kernels take llvmpipe seconds to compile. In the short run it has their rows in fp32, and OpenCL in
fp16; in fp16 on Vulkan they run in networks (tests/networks)."""
AS_EXPONENTIALS = {row.op for row in ROWS if row.op.endswith("Attention")} - {"LinearAttention"}
"""Ops whose portable kernels are as exact as their exponentials. Of products, only those of tensor cores may err by the
class's bound: they round the powers to fp16."""


@pytest.mark.parametrize("family", by_family(ROWS))
def test_rows_on_the_cpu(family: str) -> None:
    check_rows(by_family(ROWS)[family], "cpu", as_it_is, assert_right)


@pytest.mark.usefixtures("sizes_are_pushed", "passes_unchecked")  # the rows run on the CPU above
@pytest.mark.parametrize("family", TAKEN)
@pytest.mark.parametrize("device", GPUS)
def test_rows(device: str, family: str) -> None:
    check_rows(TAKEN[family], device, as_it_is, assert_right)


def assert_right(row: Case, actual: list[Array]) -> None:
    expected = reference(row.make_op(), row.arrays())
    assert [a.dtype for a in actual] == [e.dtype for e in expected]
    assert_agree(actual, expected, row.make_op())
    if row.op in AS_EXPONENTIALS:
        for mine, theirs in zip(actual, expected, strict=True):
            bound = tolerance(DType.of(theirs.dtype), "transcendental")
            np.testing.assert_allclose(comparable(mine), comparable(theirs), *bound, equal_nan=True)


@pytest.mark.usefixtures("passes_unchecked")
@pytest.mark.parametrize("family", REFUSED)
@pytest.mark.parametrize("device", GPUS)
def test_rows_that_a_gpu_refuses(device: str, family: str) -> None:
    check_refused(REFUSED[family], device)


def _low() -> list[Any]:
    """Return each family on each device: in the short run on one of the two, those slow on llvmpipe on OpenCL."""
    taken = {
        family: "opencl" if family in SLOW_ON_LLVMPIPE or place % 2 else "vulkan" for place, family in enumerate(LOW)
    }
    return [
        pytest.param(device, family, marks=[pytest.mark.long] * (taken[family] != device))
        for device in GPUS
        for family in LOW
    ]


@pytest.mark.usefixtures("sizes_are_pushed", "passes_unchecked")
@pytest.mark.parametrize(("device", "family"), _low())
def test_rows_with_precision_low(device: str, family: str) -> None:
    """Run rows of float32, stored as float16, and compare with their references in float16.

    What is fed are halves: a step that is fused behind the conversion of an input sees it before it is rounded.
    """
    check_rows(LOW[family], device, of_halves, assert_right_as_halves, "low")


def of_halves(row: Case) -> tuple[Graph, dict[str, Array]]:
    return graph_of(row), feeds_of(row, halved(row))


def assert_right_as_halves(row: Case, actual: list[Array]) -> None:
    assert_agree(actual, reference(row.make_op(), halved(row)), row.make_op())


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("device", GPUS)
def test_floats_are_rounded_to_the_nearest_half(device: str, packed: bool) -> None:
    """Store every kind of float32 as float16: halves, those between two of them, and those beside them."""
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    between = (halves[1:] + halves[:-1]) / 2
    edges = np.array([65519.996, 65520, 1e5, np.inf, np.nan], np.float32)
    near = [np.nextafter(between, np.float32(limit)) for limit in (0, np.inf)]
    every = np.concatenate([halves, between, *near, edges])
    x = np.concatenate([every, -every])
    x = np.pad(x, (0, -len(x) % 12)).reshape(1, 12, -1)
    net = Net()
    net.graph.outputs = [net.add(MaxPool((1,)) if packed else op_types()["Neg"](), net.feed(x.shape))]
    (y,) = run(net.graph, {"x0": x}, device, "low")
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(y if packed else -y, x.astype(np.float16).astype(np.float32))


@pytest.mark.parametrize("device", GPUS)
def test_doubles_are_computed_as_they_are_and_rounded_once(device: str) -> None:
    """At precision low: sums just beside what lies between two halves, which float32 would put between them."""
    near = np.array([1 + 2.0**-11, 1 + 3 * 2.0**-11, 65520, 2.0**-25, 1e300, np.inf, np.nan])
    x = np.concatenate([near, -near])
    net = Net()
    read = [net.feed(each.shape, each) for each in (x, x * 2.0**-40)]
    net.graph.outputs = [net.add(Cast(to=DType.FLOAT16), net.add(Add(), *read))]
    (y,) = run(net.graph, net.feeds, device, "low")
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(y, (x + x * 2.0**-40).astype(np.float16))


def test_powers_of_doubles_are_right_to_two_ulp() -> None:
    """Compare with 64 bits of precision or more, on Vulkan: OpenCL allows its own function 16 ulp."""
    rng = np.random.default_rng(0)
    base = np.concatenate([rng.uniform(0.7, 1.5, 20000), 10.0 ** rng.uniform(-300, 300, 20000)])
    exponent = rng.uniform(-700, 709, len(base)) / np.log(base)
    exact = np.power(base.astype(np.longdouble), exponent.astype(np.longdouble))
    net = Net()
    net.graph.outputs = [net.add(Pow(), *(net.feed(each.shape, each) for each in (base, exponent)))]
    (y,) = run(net.graph, net.feeds, "vulkan")
    assert np.finfo(np.longdouble).nmant >= 63
    assert np.all(np.abs(y - exact) <= 2 * np.spacing(exact.astype(np.float64)))


@pytest.mark.parametrize("device", ["cpu", "opencl"])  # llvmpipe's logarithm of NaN is a number
@pytest.mark.parametrize("count", [1, 4])
def test_powers_of_what_is_no_finite_number(device: str, count: int) -> None:
    """The values are those of C's `pow`; one exponent for all or each its own."""
    nan, inf = np.nan, np.inf
    base = np.array([nan, inf, -inf, -0.0], np.float32)
    powers: dict[float, list[float]] = {
        0.5: [nan, inf, inf, 0], -0.5: [nan, 0, 0, inf], 2.5: [nan, inf, inf, 0], 3: [nan, inf, -inf, -0.0],
        -1: [nan, 0, -0.0, -inf], 0: [1, 1, 1, 1],
    }
    for exponent, want in powers.items():
        net = Net()
        exponents = np.full(count, exponent, np.float32)
        net.graph.outputs = [net.add(Pow(), *(net.feed(each.shape, each) for each in (base, exponents)))]
        (y,) = run(net.graph, net.feeds, device)
        np.testing.assert_array_equal(y, np.array(want, np.float32))
        np.testing.assert_array_equal(np.signbit(y[1:]), np.signbit(want[1:]))


@pytest.mark.parametrize("device", GPUS)
def test_steps_behind_a_power_see_the_power_alone(device: str) -> None:
    """Fuse steps into a power whose exponent is converted first: they must leave the exponent as it is."""
    net = Net()
    power = net.add(Pow(), net.feed((3, 4), np.linspace(0.5, 3, 12, dtype=np.float32).reshape(3, 4)),
                    net.feed((4,), np.array([0, 1, 2, 3])))
    net.check(device, [net.add(Mul(), net.add(Relu(), power), net.constant(np.array([-2], np.float32)))])


@pytest.mark.parametrize("device", GPUS)
def test_what_packed_kernels_join_runs_apart_in_doubles(device: str) -> None:
    """Pool and convolve float64 as kernels of float32 do in one launch: a pool or steps before, two pixels' layers."""
    rng = np.random.default_rng(0)
    net = Net()

    def weights(*shape: int) -> str:
        return net.constant(rng.standard_normal(shape))

    x = net.feed((2, 3, 9, 7), rng.standard_normal((2, 3, 9, 7)))
    first = net.add(Conv(pads=(1,) * 4), net.add(MaxPool((3, 3), strides=(2, 2)), x), weights(8, 3, 3, 3), weights(8))
    halves = [net.add(Conv(), net.add(Relu(), first), weights(4, 8, 1, 1)) for _ in range(2)]
    whole = net.add(Concat(axis=1), *halves)
    gate = net.add(Conv(), net.add(GlobalAveragePool(), whole), weights(2, 8, 1, 1), weights(2))
    gate = net.add(Sigmoid(), net.add(Conv(), net.add(Relu(), gate), weights(8, 2, 1, 1)))
    last = net.add(Conv(), net.add(Mul(), whole, gate), weights(5, 8, 1, 1))
    net.graph.outputs = [net.add(Add(), last, weights(1, 5, 1, 1))]
    (expected,) = run(net.graph, net.feeds, "cpu")
    for precision in ("high", "low"):
        (y,) = run(net.graph, net.feeds, device, precision)
        np.testing.assert_allclose(y, expected, *tolerance(DType.FLOAT64, "reduction"))


def test_every_op_of_the_list_has_a_row() -> None:
    """Name the ops that are listed and never tried."""
    assert set(RUNS_ON_GPUS) - {row.op for row in ROWS} == set()


FOURS = [row for row in HALVED if row.op in SAMPLE | {"Sum", "Mean", "Cast", "Gelu"}]


@pytest.mark.usefixtures("sizes_are_pushed")
@pytest.mark.parametrize("device", GPUS)
def test_rows_with_four_elements_an_item(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    """Run element-wise rows as on devices that are no CPU: in vectors of four where sizes allow it."""
    monkeypatch.setattr(elementwise, "prefers_fours", lambda caps: True)
    check_rows(FOURS, device, of_halves, assert_right_as_halves, "low")


@pytest.mark.covering
@pytest.mark.parametrize(
    "shapes", [((6, 8), (8,)), ((3, 4, 8), (4, 1)), ((2, 3, 4), (2, 1, 4)), ((4, 6), (4, 6))]
)
@pytest.mark.parametrize("device", GPUS)
def test_fused_steps_with_four_elements_an_item(
    monkeypatch: pytest.MonkeyPatch, device: str, shapes: tuple[tuple[int, ...], ...]
) -> None:
    """Fuse a constant that repeats within a vector, and a value, behind operands that repeat along some axes."""
    monkeypatch.setattr(elementwise, "prefers_fours", lambda caps: True)
    net = Net()
    base = net.add(op_types()["Sub"](), *(net.feed(shape) for shape in shapes))
    repeated = net.add(op_types()["Mul"](), base, net.numbers(shapes[0][-1:]))
    last = net.add(op_types()["Add"](), repeated, net.feed(shapes[0]))
    net.check(device, [net.add(op_types()["Neg"](), last)])
