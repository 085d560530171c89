"""The op table on every device: each row must run there and agree with its reference, or be refused for a reason.

`RUNS_ON_GPUS` and `REFUSED` say which it must be: a GPU that begins to refuse a row fails here, and so does one
that takes a row nobody expected it to take. Rows of float32 also run with precision "low", against the reference
of the same row in float16.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from weft.backends.gpu.backend import GpuBackend
from weft.conformance.cases.table import Case, all_cases, tolerance
from weft.conformance.checks.table import feeds_of, graph_of, halved
from weft.core.dtypes import DType
from weft.core.graph import Graph, Node, infer_shapes
from weft.core.layout import Array, Layout
from weft.core.op import Op, op_types
from weft.core.tensor import TensorSpec
from weft.errors import UnsupportedOps
from weft.kernels.launch import Placement, find_gpu_op
from weft.ops.concat import Concat
from weft.ops.elementwise import Elementwise
from weft.ops.gpu import elementwise
from weft.ops.pool import MaxPool
from weft.ops.shape import Reshape, Transpose
from weft.ops.slicing import Slice

GPUS = ("opencl", "vulkan")
FLOATS = frozenset({"float32", "float16"})
ANY = frozenset(t.value for t in DType)
INTEGERS = frozenset({"int64", "int32", "int8", "uint8"})


def _each(names: str, types: frozenset[str]) -> dict[str, frozenset[str]]:
    return dict.fromkeys(names.split(), types)


RUNS_ON_GPUS: dict[str, frozenset[str]] = {
    **_each(
        "Acos Acosh Asin Asinh Atan Atanh Ceil Celu Cos Cosh Elu Erf Exp Floor Gelu HardSigmoid", FLOATS
    ),
    **_each("HardSwish LeakyRelu Log Mish Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin Sinh", FLOATS),
    **_each("Softplus Softsign Sqrt Swish Tan Tanh ThresholdedRelu IsNaN IsInf", FLOATS),
    **_each("Div Sum Mean Mod Pow PRelu SwiGLU Clip", FLOATS),
    **_each("Abs Neg Add Sub Mul Max Min", FLOATS | INTEGERS),
    **_each("Less LessOrEqual Greater GreaterOrEqual", FLOATS | INTEGERS),
    **_each("Cast Equal", FLOATS | INTEGERS | {"bool"}),
    **_each("And Or Xor Not", FLOATS | {"bool"}),
    **_each("MatMul Gemm Conv ConvTranspose Softmax LogSoftmax weft::Attention", FLOATS),
    **_each("MaxPool AveragePool LpPool GlobalAveragePool GlobalMaxPool", FLOATS),
    **_each("ReduceSum ReduceMean ReduceProd ReduceL1 ReduceL2 ReduceSumSquare ReduceLogSum", FLOATS),
    **_each("ReduceLogSumExp ReduceMax ReduceMin ArgMax ArgMin CumSum CumProd", FLOATS),
    **_each("BatchNormalization InstanceNormalization GroupNormalization LayerNormalization", FLOATS),
    **_each("RMSNormalization LpNormalization MeanVarianceNormalization LRN", FLOATS),
    **_each(
        "Reshape Flatten Squeeze Unsqueeze Identity Dropout Transpose Expand Tile Slice Split Concat", ANY
    ),
    **_each("DepthToSpace SpaceToDepth Pad Gather GatherElements GatherND Where Resize", ANY),
}
"""The ops with a GPU form, and the element types of computed inputs that it must take."""

REFUSED = {
    r"Conv-f32\[2x3x8x8\]-f32": "computed at run time",
    r"MaxPool-.*-outputs=2": "int64",
    r"Dropout-.*-outputs=2": "mask",
    r"Cast-.*-to=(uint16|uint32|uint64|int16|float64)$": "compute in float32",
}
"""Rows of types that fit which GPUs must refuse all the same, by a pattern, with a piece of the reason."""

ROWS = all_cases()


def refusal(row: Case) -> str | None:
    """Return a piece of the reason for which GPUs must refuse the row, None if they must run it."""
    listed = [why for pattern, why in REFUSED.items() if re.match(pattern, row.id)]
    if listed:
        return listed[0]
    types = {i.dtype for i in row.inputs if i is not None and not i.constant}
    if not types or row.op in ("Shape", "Size"):
        return None  # Known when the network is loaded: nothing is left to run.
    return None if types <= RUNS_ON_GPUS.get(row.op, frozenset()) else "GPU"


def run(graph: Graph, feeds: dict[str, Array], device: str, precision: str = "high") -> list[Array]:
    """Return what the device computes, and see that nothing was computed elsewhere."""
    with weft.load(graph, device, precision=precision, fallback="error") as session:
        outputs = session.run(feeds)
        assert set(session.report.placement.values()) <= {device}
    return outputs


def reference(op: Op, arrays: list[Array | None]) -> list[Array]:
    """Return the outputs of an op by its own reference."""
    out = op.reference(*arrays)
    return list(out) if isinstance(out, tuple) else [out]


def assert_agree(actual: list[Array], expected: list[Array], op: Op) -> None:
    """Fail unless the arrays have equal shapes, and values within the tolerance for the type of `expected`."""
    assert len(actual) == len(expected)
    for mine, theirs in zip(actual, expected, strict=True):
        assert mine.shape == theirs.shape
        rtol, atol = tolerance(DType.of(theirs.dtype), op.op_class)
        np.testing.assert_allclose(mine, theirs.astype(mine.dtype), rtol, atol, equal_nan=True)


def assert_refused(row: Case, device: str, piece: str) -> None:
    """Fail unless the device refuses the row with a sentence that holds `piece`."""
    with pytest.raises(UnsupportedOps) as caught:
        run(graph_of(row), feeds_of(row, row.arrays()), device)
    (problem,) = caught.value.problems
    reason = problem.partition(f"{device}:0: ")[2]
    assert piece in reason and len(reason.split()) > 3


@pytest.mark.parametrize("row", ROWS, ids=str)
@pytest.mark.parametrize("device", ["cpu", *GPUS])
def test_row(device: str, row: Case) -> None:
    """Run the row, or see it refused."""
    piece = refusal(row) if device in GPUS else None
    if piece is not None:
        assert_refused(row, device, piece)
        return
    actual = run(graph_of(row), feeds_of(row, row.arrays()), device)
    expected = reference(row.make_op(), row.arrays())
    assert [a.dtype for a in actual] == [e.dtype for e in expected]
    assert_agree(actual, expected, row.make_op())


SAMPLE = frozenset("Add Mul Sub PRelu Clip Sigmoid Erf Max Mod Pow Round Where Equal".split())
"""Element-wise ops that stand for all, which share a kernel: compiling every one again takes minutes on a CPU."""

HALVED = [
    row
    for row in ROWS
    if refusal(row) is None
    and any(i and i.dtype == "float32" for i in row.inputs)
    and (row.op in SAMPLE or not isinstance(row.make_op(), Elementwise))
]


@pytest.mark.parametrize("row", HALVED, ids=str)
@pytest.mark.parametrize("device", GPUS)
def test_row_with_precision_low(device: str, row: Case) -> None:
    """Run a row of float32, stored as float16, and compare with its reference in float16.

    What is fed are halves: a step that is fused behind the conversion of an input sees it before it is rounded.
    """
    actual = run(graph_of(row), feeds_of(row, halved(row.arrays())), device, precision="low")
    assert_agree(actual, reference(row.make_op(), halved(row.arrays())), row.make_op())


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


@pytest.mark.parametrize("row", PACKED, ids=str)
@pytest.mark.parametrize("precision", ["high", "low"])
@pytest.mark.parametrize("device", GPUS)
def test_row_behind_pools(device: str, precision: str, row: Case) -> None:
    """Run a row on inputs that lie in NC4HW4, for the kernels that read it as it is."""
    arrays = halved(row.arrays()) if precision == "low" else row.arrays()
    outputs = run(behind_pools(row), feeds_of(row, arrays), device, precision)
    assert_agree(outputs[:1], reference(row.make_op(), arrays), row.make_op())


IMAGES = [
    row
    for row in HALVED
    if row in PACKED or ((form := find_gpu_op(row.make_op())) and form.placement is Placement.CHANNELS)
]
"""What may be told how images lie."""


@pytest.mark.parametrize("row", IMAGES, ids=str)
@pytest.mark.parametrize("device", GPUS)
def test_row_with_channels_last(monkeypatch: pytest.MonkeyPatch, device: str, row: Case) -> None:
    """Run a row on images that lie in NHWC4, as they do in fp16 on devices with matrix units."""
    monkeypatch.setattr(GpuBackend, "packed_layout", lambda self: Layout.NHWC4)
    arrays = halved(row.arrays())
    graph = behind_pools(row) if row in PACKED else graph_of(row)
    outputs = run(graph, feeds_of(row, arrays), device, "low")
    expected = reference(row.make_op(), arrays)
    assert_agree(outputs[: len(expected)], expected, row.make_op())


Shape = tuple[int, ...]
FEW = settings(max_examples=30, derandomize=True, deadline=None, database=None)
SIZES = st.integers(1, 3)


class Net:
    """A graph under construction, with what its values have drawn so far."""

    def __init__(self) -> None:
        self.graph = Graph("random", [], [])
        self.feeds: dict[str, Array] = {}
        self.shapes: dict[str, Shape] = {}
        self._rng = np.random.default_rng(0)

    def feed(self, shape: Shape) -> str:
        """Add an input and return its name."""
        name = f"x{len(self.feeds)}"
        self.feeds[name] = self._rng.uniform(-2, 2, shape).astype(np.float32)
        self.graph.inputs.append(name)
        self.graph.specs[name] = TensorSpec(shape, DType.FLOAT32)
        self.shapes[name] = shape
        return name

    def constant(self, value: Array) -> str:
        """Add a constant and return its name."""
        name = f"c{len(self.graph.constants)}"
        self.graph.constants[name] = value
        self.graph.specs[name] = TensorSpec(value.shape, DType.of(value.dtype))
        return name

    def numbers(self, shape: Shape) -> str:
        """Add a constant of random numbers and return its name."""
        return self.constant(self._rng.uniform(-2, 2, shape).astype(np.float32))

    def add(self, op: Op, *inputs: str) -> str:
        """Add a node and return the name of its output."""
        name = f"v{len(self.graph.nodes)}"
        (spec,) = op.infer(
            [self.graph.specs[i] for i in inputs], [self.graph.constants.get(i) for i in inputs]
        )
        self.graph.specs[name] = spec
        self.graph.nodes.append(Node(name, op, inputs, (name,)))
        self.shapes[name] = spec.dims
        return name

    def check(self, device: str, outputs: list[str]) -> None:
        """Run on the device and on the CPU and compare."""
        self.graph.outputs = list(dict.fromkeys(outputs))
        expected = run(self.graph, self.feeds, "cpu")
        for mine, theirs in zip(run(self.graph, self.feeds, device), expected, strict=True):
            np.testing.assert_allclose(mine, theirs, *tolerance(DType.FLOAT32, "arithmetic"))


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
