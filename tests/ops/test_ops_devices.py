"""The op table on every device: each row must run there and agree with its reference, or be refused for a reason.

`op_rows` says which it must be: a GPU that begins to refuse a row fails here, and so does one that takes a row
nobody expected it to take. Rows of float32 also run with precision "low", against the reference of the same row in
float16. Every row runs on the CPU and on OpenCL; Vulkan loads every row and runs each kernel once, all rows with
`--all`.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers.op_rows import (
    GPUS,
    HALVED,
    ROW_BY_ROW,
    ROWS,
    RUNS_ON_GPUS,
    SAMPLE,
    Net,
    assert_agree,
    assert_refused,
    by_op,
    each_kernel_once,
    reference,
    refusal,
    run,
)
from weft.conformance.cases.table import Case
from weft.conformance.checks.table import feeds_of, graph_of, halved
from weft.core.graph.layout import Array
from weft.core.graph.op import op_types
from weft.ops.gpu import elementwise
from weft.ops.pool import MaxPool


@pytest.mark.parametrize("row", ROWS, ids=str)
@pytest.mark.parametrize("device", ["cpu", *ROW_BY_ROW])
def test_row(device: str, row: Case) -> None:
    """Run the row, or see it refused."""
    piece = refusal(row) if device in GPUS else None
    if piece is not None:
        assert_refused(row, device, piece)
        return
    assert_right(row, run(graph_of(row), feeds_of(row, row.arrays()), device))


def assert_right(row: Case, actual: list[Array]) -> None:
    expected = reference(row.make_op(), row.arrays())
    assert [a.dtype for a in actual] == [e.dtype for e in expected]
    assert_agree(actual, expected, row.make_op())


TAKEN = by_op(row for row in ROWS if refusal(row) is None and any(i and not i.constant for i in row.inputs))


@pytest.mark.parametrize("op", [op for op in TAKEN if op not in ("Shape", "Size")])
def test_each_kernel_of_an_op_on_vulkan(op: str) -> None:
    """Load all rows of an op, and run those that need another kernel than the rows before."""
    each_kernel_once(TAKEN[op], "vulkan", lambda row: (graph_of(row), feeds_of(row, row.arrays())), assert_right)


@pytest.mark.parametrize("row", [row for row in ROWS if refusal(row) is not None], ids=str)
def test_row_that_vulkan_refuses(row: Case) -> None:
    assert_refused(row, "vulkan", refusal(row) or "")


@pytest.mark.parametrize("row", HALVED, ids=str)
@pytest.mark.parametrize("device", ROW_BY_ROW)
def test_row_with_precision_low(device: str, row: Case) -> None:
    """Run a row of float32, stored as float16, and compare with its reference in float16.

    What is fed are halves: a step that is fused behind the conversion of an input sees it before it is rounded.
    """
    actual = run(graph_of(row), feeds_of(row, halved(row.arrays())), device, precision="low")
    assert_right_as_halves(row, actual)


def assert_right_as_halves(row: Case, actual: list[Array]) -> None:
    assert_agree(actual, reference(row.make_op(), halved(row.arrays())), row.make_op())


@pytest.mark.parametrize("op", by_op(HALVED))
def test_each_kernel_of_an_op_on_vulkan_with_precision_low(op: str) -> None:
    each_kernel_once(
        by_op(HALVED)[op],
        "vulkan",
        lambda row: (graph_of(row), feeds_of(row, halved(row.arrays()))),
        assert_right_as_halves,
        "low",
    )


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


def test_every_op_of_the_list_has_a_row() -> None:
    """Name the ops that are listed and never tried."""
    assert set(RUNS_ON_GPUS) - {row.op for row in ROWS} == set()


FOURS = [row for row in HALVED if row.op in SAMPLE | {"Sum", "Mean", "Cast", "Gelu"}]


@pytest.mark.parametrize("row", FOURS, ids=str)
@pytest.mark.parametrize("device", GPUS)
def test_row_with_four_elements_an_item(monkeypatch: pytest.MonkeyPatch, device: str, row: Case) -> None:
    """Run an element-wise row as on devices that are no CPU: in vectors of four where sizes allow it."""
    monkeypatch.setattr(elementwise, "prefers_fours", lambda caps: True)
    actual = run(graph_of(row), feeds_of(row, halved(row.arrays())), device, precision="low")
    assert_agree(actual, reference(row.make_op(), halved(row.arrays())), row.make_op())


@pytest.mark.parametrize("shapes", [((6, 8), (8,)), ((3, 4, 8), (4, 1)), ((2, 3, 4), (2, 1, 4)), ((4, 6), (4, 6))])
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
