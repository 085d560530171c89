"""Loops that a driver would cut short: ops whose kernels would loop for longer are refused, with the reason.

llvmpipe counts the rounds of all loops of a kernel together: when 65,535 are over, it ends every loop, and goes on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import weft
from tests.helpers.kernel_loops import Loop, loops_of
from tests.helpers.nets import Net
from tests.helpers.op_rows import ROWS, refusal
from tests.helpers.rows_together import joined
from weft.backends.gpu.lowering.layout.layouts import base_inputs, base_op
from weft.backends.gpu.lowering.lower import GpuPlan
from weft.core.graph.described import describe
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph
from weft.errors import UnsupportedOps
from weft.kernels.device_caps import DeviceCaps
from weft.kernels.gpu_op import find_gpu_op
from weft_conformance.cases.table import Case
from weft_conformance.checks.table import graph_of

SLACK = 32
"""Rounds that no op need declare: those of a tree, and of tiles that are loaded for few elements."""
LIKE_LLVMPIPE = DeviceCaps(1024, (1024, 1024, 1024), local_memory=1 << 15, max_rounds=65535, software=True)
DIVIDES_ITSELF = "recurrent"
"""A kernel of which the op launches several so that none loops too long; `test_recurrent.py` holds that."""
EACH = 4
"""Rows of an op of which the loops are counted: those with the most elements."""
LONG: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "MaxPool": ((1, 1, 300, 300), {"kernel_shape": (300, 300)}),
    "AveragePool": ((1, 1, 300, 300), {"kernel_shape": (300, 300)}),
    "LpPool": ((1, 1, 300, 300), {"kernel_shape": (300, 300)}),
    "GlobalAveragePool": ((1, 1, 2100, 2100), {}),
    "GlobalMaxPool": ((1, 1, 2100, 2100), {}),
    "Softmax": ((25000, 1024), {"axis": 0}),
    "LogSoftmax": ((1500000,), {}),
    "ReduceSum": ((4500000,), {}),
    "ReduceLogSumExp": ((2200000,), {}),
    "ArgMax": ((4500000,), {}),
    "LpNormalization": ((2200000,), {}),
    "weft::L2Normalization": ((2200000,), {}),
    "weft::SumNormalization": ((2200000,), {}),
    "weft::GroupDeviation": ((1, 1, 1200, 1200), {"num_groups": 1}),
    "MeanVarianceNormalization": ((1, 1, 1200, 1200), {}),
    "LRN": ((1, 20000, 2, 2), {"size": 20001}),
    "Det": ((41, 41), {}),
}


IN_PARTS = ("weft::L2Normalization", "weft::SumNormalization", "weft::GroupDeviation")
"""Ops that run in parts where they are refused, in float32."""


@pytest.mark.parametrize("op", LONG)
def test_long_loops_are_refused(op: str) -> None:
    shape, attributes = LONG[op]
    dtype = DType.FLOAT64 if op in IN_PARTS else DType.FLOAT32
    net = Net()
    refuse(net.finish(net.add(op, net.input("x", *shape, dtype=dtype), **attributes)))


def test_long_windows_of_integer_convolutions_are_refused() -> None:
    net = Net()
    x, w = (net.input(name, 1, 1, 300, 300, dtype=DType.UINT8) for name in "xw")
    refuse(net.finish(net.add("ConvInteger", x, w)))


def test_what_takes_several_inputs_is_refused() -> None:
    """Plan what none of the others stands for."""
    net = Net()
    heads = (net.input(name, 1, 8, rows, 16) for name, rows in (("q", 2), ("k", 60000), ("v", 60000)))
    ends = [net.add("weft::Attention", *heads)]
    image, empty = net.input("image", 1, 1, 600, 600), np.zeros(0, np.float32)
    sizes = np.array([1, 1, 2, 2])
    ends.append(net.add("Resize", image, empty, empty, sizes, mode="linear", antialias=1))
    channels = net.input("channels", 1, 2, 270, 270)
    ends.append(net.add("Conv", channels, np.ones((2, 1, 270, 270), np.float32), group=2))
    boxes, scores = net.input("boxes", 1, 8000, 4), net.input("scores", 1, 1, 8000)
    limit = net.input("limit", 1, dtype=DType.INT64)
    ends.append(net.add("NonMaxSuppression", boxes, scores, limit, bounded=True, outputs=2))
    ends.append(net.add("NonZero", net.input("all", 6000000), bounded=True, outputs=2))
    refuse(net.finish(*ends), len(ends))


def refuse(graph: Graph, nodes: int = 1) -> None:
    with pytest.raises(UnsupportedOps) as error:
        weft.optimize(graph, "vulkan", fallback="error")
    told = [each.reason for each in error.value.refusals]
    assert len(told) == nodes and all("silently ends loops after 65535" in reason for reason in told), told


def test_every_op_declares_the_loops_of_its_kernels() -> None:
    """Count the loops in each kernel's text and hold them against `GpuOp.rounds`; plan rows of all ops, run none."""
    by_op: dict[str, list[Case]] = {}
    for row in ROWS:
        if refusal(row) is None:
            by_op.setdefault(row.op, []).append(row)
    rows = [row for each in by_op.values() for row in sorted(each, key=_elements)[-EACH:]]
    network = weft.optimize(joined([graph_of(row) for row in rows]), "vulkan", fallback="error")
    wrong = {}
    for part in network.parts:
        if part.lowered is None or not isinstance(part.lowered.plan, GpuPlan):
            continue
        graph = part.lowered.graph
        for node in graph.nodes:
            plans = part.lowered.plan.nodes.get(next(o for o in node.outputs if o), ())
            op, form = base_op(node.op), find_gpu_op(node.op)
            inputs = [describe(graph, i) if i else None for i in node.inputs]
            for launch in (launch for plan in plans for launch in plan.launches):
                if form is None or launch.label.endswith(f"/{DIVIDES_ITSELF}"):
                    continue
                declared = form.rounds(op, base_inputs(node.op, inputs), LIKE_LLVMPIPE)
                loops = loops_of(launch.source.text, launch.values, launch.grid)
                counted = sum(loop.rounds() for loop in loops)
                walks = any(_walks(loop, launch.values) for outer in loops for loop in outer.walk())
                if counted > declared + 1 + SLACK or (walks and not declared):
                    wrong[launch.label, op.type] = f"{counted} rounds, and its op declares {declared}"
    assert not wrong, "\n".join(f"{where}: {what}" for where, what in wrong.items())


def _elements(row: Case) -> int:
    return sum(int(np.prod(i.shape)) for i in row.inputs if i is not None)


def _walks(loop: Loop, constants: Mapping[str, float]) -> bool:
    """Tell whether sizes, or the data, decide how often a loop goes round for an item's share."""
    sizes = set(constants) - {"LX", "LY", "LZ"}
    return not loop.shares and (loop.turns is None or any(word in sizes for word in loop.words()))
