"""The work of nodes, and its share of a device's roofline."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from tests.helpers.nets import Net
from weft.cli.roofline import analysed, whole
from weft.core.contract.backend import Precision
from weft.core.contract.profile import Event, Work
from weft.core.graph.dtypes import DType
from weft.core.graph.fused_op import Fused, Step
from weft.core.graph.layout import Layout
from weft.core.graph.op import Op
from weft.core.graph.tensor import Tensor
from weft.kernels.device_model import Peaks, peaks_of
from weft.ops.attention import Attention
from weft.ops.binary import Add
from weft.ops.concat import Concat
from weft.ops.conv import Conv, ConvTranspose
from weft.ops.gather import Gather
from weft.ops.matmul import Gemm, MatMul
from weft.ops.pool import GlobalAveragePool, MaxPool
from weft.ops.reduce import ReduceSum
from weft.ops.relayout import Relayout
from weft.ops.shape import Transpose
from weft.ops.unary import Relu


@pytest.mark.parametrize(
    ("op", "inputs", "output", "flops"),
    [
        (Conv(kernel_shape=(3, 3)), [(1, 8, 10, 10), (16, 8, 3, 3)], (1, 16, 8, 8), 2 * 16 * 64 * 72),
        (Conv(group=8), [(1, 8, 10, 10), (8, 1, 3, 3), (8,)], (1, 8, 8, 8), 2 * 8 * 64 * 9),
        (ConvTranspose(), [(1, 8, 4, 4), (8, 3, 2, 2)], (1, 3, 5, 5), 2 * 8 * 16 * 12),
        (MatMul(), [(2, 5, 7), (7, 3)], (2, 5, 3), 2 * 30 * 7),
        (MatMul(), [(7,), (7,)], (), 2 * 7),
        (Gemm(), [(5, 7), (7, 3), None], (5, 3), 2 * 15 * 7),
        (Gemm(transA=1), [(7, 5), (7, 3)], (5, 3), 2 * 15 * 7),
        (Attention(), [(6, 9, 8), (6, 11, 8), (6, 11, 4)], (6, 9, 4), 2 * 6 * 9 * 11 * 12),
        (Attention(heads=2, packed=1), [(1, 12, 48)], (1, 12, 16), 2 * 2 * 12 * 12 * 16),
        (Relu(), [(2, 3)], (2, 3), 6),
        (MaxPool(kernel_shape=(2, 2)), [(1, 4, 8, 8)], (1, 4, 4, 4), 64 * 4),
        (GlobalAveragePool(), [(1, 4, 8, 8)], (1, 4, 1, 1), 256),
        (ReduceSum(), [(3, 4), None], (3, 1), 12),
        (Concat(axis=1), [(3, 4), (3, 4)], (3, 8), 0),
        (Transpose(), [(3, 4)], (4, 3), 0),
        (Gather(), [(1000, 8), (4,)], (4, 8), 0),
        (Relayout(Layout.NCHW, DType.FLOAT16), [(3, 4)], (3, 4), 0),
        (Fused(Concat(axis=0), 2, (Step(Relu(), (-1,)),)), [(2, 3), (2, 3)], (4, 3), 12),
        (Fused(MatMul(), 2, (Step(Relu(), (-1,)), Step(Add(), (-1, 2)))), [(2, 3), (3, 4), (4,)], (2, 4), 48 + 16),
    ],
    ids=lambda value: value.type if isinstance(value, Op) else None,
)
def test_operations_of(
    op: Op, inputs: list[tuple[int, ...] | None], output: tuple[int, ...], flops: int
) -> None:
    assert op.flops(inputs, [output]) == flops


def tensor(name: str, *shape: int, dtype: type = np.float32) -> Tensor:
    return Tensor.from_numpy(np.zeros(shape, dtype), name=name)


def test_bytes_are_read_once_and_written_once() -> None:
    x, w, y = tensor("x", 5, 7, dtype=np.float16), tensor("w", 7, 3, dtype=np.float16), tensor("y", 5, 3)
    assert Work.of("n", MatMul(), [x, w, None], [y]) == Work("n", 210, 2 * (35 + 21) + 4 * 15)
    assert Work.of("n", Add(), [y, y], [tensor("z", 5, 3)]).nbytes == 4 * (15 + 15)


def test_of_a_table_only_the_rows_that_are_taken_are_read() -> None:
    table, rows, y = tensor("table", 1000, 8), tensor("rows", 4, dtype=np.int64), tensor("y", 4, 8)
    assert Work.of("n", Gather(), [table, rows], [y]).nbytes == 4 * 32 + 8 * 4 + 4 * 32


def test_shares_are_of_the_nearer_bound_and_of_all_launches_of_a_node() -> None:
    peaks = {"gpu:0": Peaks(fp32=1e12, fp16=10e12, bandwidth=1e11)}
    events = [
        Event("gpu:0", "a/gemm", 1.5e-3, Work("a", 10**9, 1000)),
        Event("gpu:0", "a/sum", 0.5e-3, Work("a", 10**9, 1000)),
        Event("gpu:0", "b/add", 4e-3, Work("b", 1000, 10**8)),
        Event("gpu:0", "upload x", 1e-3),
        Event("cpu:0", "c", 1e-3, Work("c", 10**6, 10**6)),
    ]
    rows = analysed(events, peaks, Precision.HIGH)
    assert [row.get("share") for row in rows] == pytest.approx([0.5, None, 0.25, None, None])
    assert [row.get("flops") for row in rows] == [10**9, None, 1000, None, 10**6], "once for each node"
    assert rows[1] == {"device": "gpu:0", "name": "a/sum", "us": pytest.approx(500), "node": "a"}
    assert rows[0]["launches"] == 2 and rows[0]["node_us"] == pytest.approx(2000)
    (_, longest) = analysed(events[1::-1], peaks, Precision.HIGH)
    assert longest["name"] == "a/gemm" and "flops" in longest
    assert rows[0]["flops_per_s"] == pytest.approx(5e11) and rows[4]["bytes_per_s"] == pytest.approx(1e9)
    assert whole(rows) is None, "what the CPU could do is not known"
    assert whole(rows[:4]) == pytest.approx((1e-3 + 1e-3) / 6e-3)
    assert analysed(events, peaks, Precision.LOW)[0]["share"] == pytest.approx(0.05)
    assert whole([]) is None


@pytest.mark.parametrize(
    ("name", "bandwidth"),
    [
        ("NVIDIA H200", 4.8e12),
        ("NVIDIA H100 80GB HBM3", 3.35e12),
        ("NVIDIA H100 PCIe", 2.0e12),
        ("NVIDIA A100-SXM4-40GB", 1.555e12),
        ("NVIDIA A100-SXM4-80GB", 2.0e12),
        ("NVIDIA GeForce RTX 4090", 1.008e12),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA GH200 480GB", None),
        ("llvmpipe", None),
    ],
)
def test_devices_are_known_by_name(name: str, bandwidth: float | None) -> None:
    peaks = peaks_of(name)
    assert (peaks.bandwidth if peaks else None) == bandwidth


@pytest.mark.parametrize("device", ["cpu", "opencl", "vulkan"])
def test_events_of_a_run_name_their_work(device: str) -> None:
    net = Net()
    x = net.input("x", 2, 24, 64)
    y = net.add("Relu", net.add("MatMul", x, np.ones((64, 32), np.float32)), name="y")
    with weft.load(net.finish(y), device, profile=True, fallback="error") as session:
        session.run(np.ones((2, 24, 64), np.float32))
        works = {e.work for e in session.profile.events if e.work is not None}
        copies = [e for e in session.profile.events if e.name.startswith(("upload", "download"))]
    product, relu = 2 * 2 * 24 * 64 * 32, 2 * 24 * 32
    assert max(w.flops for w in works) in (product, product + relu), "fused or not"
    assert all(e.work is None for e in copies) and all(w.nbytes > 0 for w in works)
