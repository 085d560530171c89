"""Ops on values in the layouts of GPUs: rows behind pools and with channels last, broadcasting, networks of moves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.op_rows import (
    GPUS,
    HALVED,
    ROWS,
    SAMPLE,
    Net,
    assert_agree,
    reference,
    refusal,
)
from tests.helpers.rows_together import by_family, check_rows
from tests.helpers.run_length import examples
from weft.backends.gpu.lowering.target import Target
from weft.core.graph.graph import Graph, Node, infer_shapes
from weft.core.graph.layout import Array, Layout
from weft.core.graph.op import op_types
from weft.core.graph.tensor import TensorSpec
from weft.kernels.gpu_op import WantedLayout, find_gpu_op
from weft.ops.concat import Concat
from weft.ops.pool import MaxPool
from weft.ops.shape import Reshape, Transpose
from weft.ops.slicing import Slice
from weft_conformance.cases.table import Case
from weft_conformance.checks.table import feeds_of, graph_of, halved

pytestmark = pytest.mark.usefixtures("sizes_are_pushed")

PACKS = SAMPLE | frozenset(
    "Concat Pad Resize ReduceMean ReduceMax BatchNormalization InstanceNormalization GroupNormalization".split()
)
"""Ops that work in either layout."""


def is_image(spec: TensorSpec | None) -> bool:
    """Tell whether a value has channels and pixels."""
    return spec is not None and 3 <= len(spec.dims) <= 5 and spec.dtype.is_float and spec.size > 0


def behind_pools(row: Case) -> Graph:
    """Return the row's graph with its images taken from pools of one pixel, which leave them in NC4HW4.

    What comes out of the pools has a second reader, so nothing is fused into them.
    """
    graph = graph_of(row)
    (node,) = graph.nodes
    graph.nodes, renamed = [], {}
    for name in graph.inputs:
        if is_image(graph.specs[name]):
            pool = MaxPool((1,) * (len(graph.specs[name].dims) - 2))
            renamed[name], again = f"{name}.pooled", f"{name}.again"
            graph.nodes += [
                Node(name, pool, (name,), (renamed[name],)),
                Node(again, pool, (renamed[name],), (again,)),
            ]
            graph.outputs.append(again)
    graph.nodes.append(replace(node, inputs=tuple(renamed.get(i, i) for i in node.inputs)))
    return infer_shapes(graph)


PACKED = [
    row
    for row in ROWS
    if row.op in PACKS
    and refusal(row) is None
    and all(i is None or i.dtype in ("float32", "int64", "int32") for i in row.inputs)
    and any(is_image(s) for s, i in zip(row.specs(), row.inputs, strict=True) if i and not i.constant)
]


@pytest.mark.covering
@pytest.mark.parametrize("family", by_family(PACKED))
@pytest.mark.parametrize("precision", ["high", "low"])
@pytest.mark.parametrize("device", GPUS)
def test_rows_behind_pools(device: str, precision: str, family: str) -> None:
    """Run rows on inputs that lie in NC4HW4, for the kernels that read it as it is."""

    def setup(row: Case) -> tuple[Graph, dict[str, Array]]:
        return behind_pools(row), feeds_of(row, arrays_at(precision, row))

    def check(row: Case, outputs: list[Array]) -> None:
        assert_agree(outputs[:1], reference(row.make_op(), arrays_at(precision, row)), row.make_op())

    check_rows(by_family(PACKED)[family], device, setup, check, precision)


def arrays_at(precision: str, row: Case) -> list[Array | None]:
    """Return the arrays of a row, as the device stores them."""
    return halved(row) if precision == "low" else row.arrays()


IMAGES = [
    row
    for row in HALVED
    if row in PACKED or ((form := find_gpu_op(row.make_op())) and form.wanted_layout is WantedLayout.CHANNELS)
]
"""What may be told how images lie."""


@pytest.fixture
def channels_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let images lie in NHWC4, as they do in fp16 on devices with matrix units."""
    monkeypatch.setattr(Target, "packed_layout", Layout.NHWC4)


def image_row(row: Case) -> tuple[Graph, dict[str, Array]]:
    graph = behind_pools(row) if row in PACKED else graph_of(row)
    return graph, feeds_of(row, halved(row))


def assert_image_is_right(row: Case, outputs: list[Array]) -> None:
    expected = reference(row.make_op(), halved(row))
    assert_agree(outputs[: len(expected)], expected, row.make_op())


@pytest.mark.covering
@pytest.mark.parametrize("family", by_family(IMAGES))
@pytest.mark.parametrize("device", GPUS)
def test_rows_with_channels_last(channels_last: None, device: str, family: str) -> None:
    check_rows(by_family(IMAGES)[family], device, image_row, assert_image_is_right, "low")


FEW = settings(max_examples=examples(30), derandomize=True, deadline=None, database=None)
SIZES = st.integers(1, 3)


@FEW
@given(st.data())
@pytest.mark.parametrize("device", GPUS)
def test_broadcasting_in_both_layouts(device: str, data: st.DataObject) -> None:
    """Subtract operands, computed or constant, packed or not, that repeat along some axes or lack some."""
    shape = data.draw(st.tuples(SIZES, st.integers(1, 9), SIZES, SIZES))
    net = Net()
    operands: list[str] = []
    for _ in range(2):
        kept = data.draw(st.tuples(*(st.sampled_from((1, size)) for size in shape)))
        part = kept[data.draw(st.sampled_from((0, 0, 0, 1, 3, 4))) :]
        if len(operands) == 1 and data.draw(st.booleans()):
            operands.append(net.numbers(part))
        else:
            fed = net.feed(part)
            operands.append(
                net.add(MaxPool((1, 1)), fed) if len(part) == 4 and data.draw(st.booleans()) else fed
            )
    order = data.draw(st.permutations(operands))
    net.check(device, [net.add(op_types()["Sub"](), *order)])


def grow(net: Net, values: list[str], data: st.DataObject) -> str:
    """Add a random node on some of the values, all of them images."""
    value = data.draw(st.sampled_from(values))
    n, c, h, w = net.shapes[value]
    kind = data.draw(
        st.sampled_from(("pool", "relu", "scale", "add", "concat", "concat", "slice", "transpose", "turn"))
    )
    if kind == "relu":
        return net.add(op_types()["Relu"](), value)
    if kind == "scale":
        return net.add(op_types()["Mul"](), value, net.numbers((c, 1, 1)))
    if kind == "add":
        others = [v for v in values if net.shapes[v] == (n, c, h, w)]
        return net.add(op_types()["Add"](), value, data.draw(st.sampled_from(others)))
    if kind == "concat":
        fitting = [v for v in values if net.shapes[v][0] == n and net.shapes[v][2:] == (h, w)]
        parts = data.draw(st.lists(st.sampled_from(fitting), min_size=1, max_size=3))
        if data.draw(st.booleans()):
            parts.append(net.numbers((n, data.draw(st.integers(1, 5)), h, w)))
        return net.add(Concat(1), *data.draw(st.permutations([value, *parts])))
    if kind == "slice":
        start = data.draw(st.integers(0, c - 1))
        end = data.draw(st.integers(start + 1, c))
        return net.add(Slice(), value, *(net.constant(np.array([v])) for v in (start, end, 1)))
    if kind == "transpose":
        return net.add(
            Transpose(data.draw(st.sampled_from(((0, 2, 3, 1), (0, 3, 1, 2), (0, 1, 3, 2))))), value
        )
    if kind == "turn":
        return net.add(Reshape(), value, net.constant(np.array([n, h * w, 1, c])))
    return net.add(MaxPool((1, 1)), value)


@FEW
@given(st.data())
@pytest.mark.parametrize("device", GPUS)
def test_random_networks_of_moves(device: str, data: st.DataObject) -> None:
    """Run random networks that move images between layouts and into one another, and compare with the CPU."""
    net = Net()
    n, h, w = data.draw(st.tuples(SIZES, SIZES, SIZES))
    values = []
    for _ in range(data.draw(st.integers(1, 3))):
        fed = net.feed((n, data.draw(st.integers(1, 9)), h, w))
        values.append(net.add(MaxPool((1, 1)), fed))
    for _ in range(data.draw(st.integers(1, 8))):
        values.append(grow(net, values, data))
    others = data.draw(st.lists(st.sampled_from(values), max_size=2))
    net.check(device, [values[-1], *others])
