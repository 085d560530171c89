"""A cross-section of the tests on a second OpenCL driver, of another vendor than the one that the rest runs on.

What two drivers compute alike owes nothing to one of them. One row of each op, a network, the copies, the self-test
of kernels and the order of callbacks; the quicker driver, `opencl:0`, has all tests.
"""

from __future__ import annotations

from contextlib import closing
from itertools import product
from typing import Any

import numpy as np
import pytest

import weft
from scripts import scenes
from tests.helpers.op_rows import ROWS, SAMPLE, assert_agree, reference, refusal, run
from tests.helpers.rows_together import by_family
from weft import models
from weft.backends.gpu.selftest.verdict_store import verify
from weft.backends.opencl.creator import OpenCLCreator
from weft.core.contract.backend import BackendConfig, StorageType
from weft.core.graph.dtypes import DType
from weft.core.graph.layout import Layout, to_storage
from weft.core.graph.tensor import Tensor
from weft.core.registry.backend_registry import registry
from weft.ops.elementwise import Elementwise
from weft_conformance import Case
from weft_conformance import run as run_kit
from weft_conformance.checks.table import feeds_of, graph_of


def _one_an_op() -> list[Any]:
    """Return the first row of each op that computes something; a sample of element-wise ops, which share a kernel.

    The driver takes half a second to compile each: in the short run it has those of one op of every third family.
    """
    first: dict[str, Case] = {}
    for row in ROWS:
        computed = any(i is not None and not i.constant for i in row.inputs)
        sampled = row.op in SAMPLE or not isinstance(row.make_op(), Elementwise)
        if computed and sampled and refusal(row) is None:
            first.setdefault(row.op, row)
    quick = {rows[0].op for rows in [*by_family(first.values()).values()][::3]}
    return [pytest.param(row, marks=[pytest.mark.long] * (op not in quick)) for op, row in first.items()]


@pytest.fixture(scope="module")
def other() -> str:
    """Return the first OpenCL device of another driver than the first one's; the only one, where there is one alone."""
    devices = [d for d in weft.devices() if d.id == "opencl"]
    platforms = [d.details["platform"] for d in devices]
    index = next((i for i, platform in enumerate(platforms) if platform != platforms[0]), 0)
    return f"opencl:{devices[index].index}" if index else "opencl"


@pytest.mark.parametrize("row", _one_an_op(), ids=str)
def test_one_row_of_each_op(other: str, row: Case) -> None:
    actual = run(graph_of(row), feeds_of(row, row.arrays()), other)
    assert_agree(actual, reference(row.make_op(), row.arrays()), row.make_op())


@pytest.mark.parametrize("precision", ["high", pytest.param("low", marks=pytest.mark.long)])
def test_a_network(other: str, precision: str) -> None:
    picture, labels = scenes.batch(1, 1)
    truth = scenes.targets(labels)[0]
    shapes = {"image": picture.shape}
    path = models.path("shapes")
    with weft.load(path, other, precision=precision, shapes=shapes, fallback="error") as session:
        (y,) = session.run(picture)
    with weft.load(path, "cpu", shapes=shapes) as cpu:
        (expected,) = cpu.run(picture)
    np.testing.assert_allclose(y, expected, atol=2e-5 if precision == "high" else 2e-2)
    assert (y[0].argmax(axis=0) == truth).mean() > 0.95


FORMS = [(Layout.NCHW, DType.FLOAT32), (Layout.NHWC, DType.FLOAT32), (Layout.NC4HW4, DType.FLOAT16)]


@pytest.mark.covering
@pytest.mark.parametrize(("source", "target"), list(product(FORMS, FORMS)))
def test_M10_copies_to_the_device_inside_it_and_back(
    other: str, source: tuple[Layout, DType], target: tuple[Layout, DType]
) -> None:
    x = np.arange(1, 211, dtype=np.float32).reshape(2, 5, 3, 7)
    with closing(registry.choose(other)[0].open(BackendConfig())) as backend:
        held = [Tensor("t", x.shape, dtype, layout) for layout, dtype in (source, target)]
        assert all(backend.onAcquireBuffer(t, StorageType.DYNAMIC) for t in held)
        backend.onCopyBuffer(Tensor.from_numpy(x), held[0])
        backend.onCopyBuffer(*held)
        back = Tensor.empty(x.shape, target[1], target[0])
        backend.onCopyBuffer(held[1], back)
    np.testing.assert_array_equal(back.memory, to_storage(x.astype(target[1].numpy), target[0]))


def test_M11_the_order_of_callbacks(other: str) -> None:
    report = run_kit(other, only=["order"])
    assert report.ok, report


def test_no_kernel_family_is_found_wrong(other: str) -> None:
    creator = registry.find("opencl")
    assert isinstance(creator, OpenCLCreator)
    runtime = creator.runtime(int(other.partition(":")[2] or 0))
    verify(runtime)
    assert runtime.notes == []
