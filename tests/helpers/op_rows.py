"""The rows of the op table with what GPUs must take of them, networks of a few ops, and how both run and are compared.

`RUNS_ON_GPUS` and `REFUSED` say which rows a GPU must run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import pytest

import weft
from tests.helpers.opened import opened
from weft.conformance.cases.table import Case, all_cases, tolerance
from weft.conformance.checks.table import feeds_of, graph_of
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph, Node
from weft.core.graph.interpreter import evaluate
from weft.core.graph.layout import Array
from weft.core.graph.op import Op
from weft.core.graph.tensor import TensorSpec
from weft.errors import UnsupportedOps
from weft.kernels.source import KernelSource
from weft.ops.elementwise import Elementwise

GPUS = ("opencl", "vulkan")
ROW_BY_ROW = ("opencl", pytest.param("vulkan", marks=pytest.mark.long))
"""Where a table of rows runs row by row. llvmpipe compiles a kernel for each size: `each_kernel_once` spares that."""
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


@contextmanager
def kernels_asked_for(device: str) -> Iterator[set[str]]:
    """Collect the digests of the kernel sources that a device compiles while a block runs."""
    asked, compile_kernel = set[str](), opened(device).compile

    def compile_and_note(source: KernelSource, values: Mapping[str, int | float]) -> Any:
        asked.add(source.digest)
        return compile_kernel(source, values)

    with mock.patch.object(opened(device), "compile", compile_and_note):
        yield asked


def each_kernel_once(
    rows: Iterable[Case],
    device: str,
    setup: Callable[[Case], tuple[Graph, dict[str, Array]]],
    check: Callable[[Case, list[Array]], None],
    precision: str = "high",
) -> None:
    """Load every row on the device; run the first, and those that need a kernel that none before needed, and check."""
    known, ran = set[str](), False
    for row in rows:
        try:
            graph, feeds = setup(row)
            with (
                kernels_asked_for(device) as asked,
                weft.load(graph, device, precision=precision, fallback="error") as session,
            ):
                assert set(session.report.placement.values()) <= {device}
                if ran and asked <= known:
                    continue
                known, ran = known | asked, True
                outputs = session.run(feeds)
            check(row, outputs)
        except Exception as error:
            raise AssertionError(f"{row.id} on {device} at precision {precision}: {error}") from error


def by_op(rows: Iterable[Case]) -> dict[str, list[Case]]:
    """Return the rows of each op."""
    found: dict[str, list[Case]] = {}
    for row in rows:
        found.setdefault(row.op, []).append(row)
    return found


def reference(op: Op, arrays: list[Array | None]) -> list[Array]:
    """Return the outputs of an op by its own reference."""
    return list(evaluate(op, arrays))


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


SAMPLE = frozenset("Add Mul Sub PRelu Clip Sigmoid Erf Max Mod Pow Round Where Equal".split())
"""Element-wise ops that stand for all, which share a kernel: compiling every one again takes minutes on a CPU."""

HALVED = [
    row
    for row in ROWS
    if refusal(row) is None
    and any(i and i.dtype == "float32" for i in row.inputs)
    and (row.op in SAMPLE or not isinstance(row.make_op(), Elementwise))
]

Shape = tuple[int, ...]


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
