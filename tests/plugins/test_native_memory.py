"""Contract row A19: memory and copies of native backends, on the library's buffers and on the host's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import weft
import weft_conformance
from tests.helpers.native_sources import VAULT, loaded, vault_in
from tests.helpers.nets import Net
from tests.helpers.plugins import ROOT, needs_compiler, write
from tests.helpers.run_length import is_long
from weft.backends.cpu.backend import CpuBackend
from weft.core.contract.backend import Backend, BackendInfo, StorageType
from weft.core.graph.dtypes import DType
from weft.core.graph.layout import Layout
from weft.core.graph.tensor import Tensor
from weft.core.host.host_backend import HostBackend
from weft.core.registry.backend_registry import registry
from weft.plugins.native_backend import NativeHostBackend

pytestmark = needs_compiler
EXAMPLE = ROOT / "examples" / "c_backend" / "acme_leaky_backend.c"
OWN_BUFFERS = ROOT / "tests" / "helpers" / "native_backend.c"


@pytest.fixture(params=["vault", "leaky"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    source = VAULT if request.param == "vault" else EXAMPLE.read_text()
    own = loaded(tmp_path, source, f"acme_{request.param}_backend.so")
    made = own.find(request.param).onCreate(BackendInfo(request.param))
    yield made
    made.close()
    own.close()


@pytest.mark.parametrize("dtype", list(DType))
def test_A19_all_element_types_are_stored(backend: Backend, dtype: DType) -> None:
    array = np.arange(2 * 5 * 3).reshape(2, 5, 3).astype(dtype.numpy)
    stored = Tensor("t", array.shape, dtype)
    backend.onAcquireBuffer(stored, StorageType.STATIC)
    backend.onCopyBuffer(Tensor.from_numpy(array), stored)
    assert stored.numpy().tobytes() == array.tobytes()  # by bytes: 0 is NaN in FLOAT8E8M0
    backend.onReleaseBuffer(stored, StorageType.STATIC)


@pytest.mark.parametrize("target", list(Layout))
@pytest.mark.parametrize("source", list(Layout))
def test_A19_copies_convert_layout_and_type(backend: Backend, source: Layout, target: Layout) -> None:
    array = np.arange(2 * 5 * 3 * 2, dtype=np.float32).reshape(2, 5, 3, 2)
    a, b = Tensor("a", array.shape, DType.FLOAT32, source), Tensor("b", array.shape, DType.FLOAT16, target)
    for each in (a, b):
        backend.onAcquireBuffer(each, StorageType.DYNAMIC_SEPERATE)
    backend.onCopyBuffer(Tensor.from_numpy(array), a)
    backend.onCopyBuffer(a, b)
    np.testing.assert_array_equal(b.numpy(), array)
    host = Tensor.empty(array.shape, DType.FLOAT32, target)
    backend.onCopyBuffer(b, host)
    np.testing.assert_array_equal(host.numpy(), array)
    if target is Layout.NC4HW4:
        assert not host.memory[:, 1, ..., 1:].any()


def test_A19_scalars_and_empty_tensors_are_stored(backend: Backend) -> None:
    for array in (np.array(3, np.float32), np.zeros((0, 4), np.float32)):
        stored = Tensor("t", array.shape, DType.FLOAT32)
        backend.onAcquireBuffer(stored, StorageType.DYNAMIC_SEPERATE)
        backend.onCopyBuffer(Tensor.from_numpy(array), stored)
        np.testing.assert_array_equal(stored.numpy(), array)


def test_A19_copies_between_a_native_device_and_a_gpu(tmp_path: Path) -> None:
    with vault_in(tmp_path) as vault:
        _copy_between(vault.backend())


def _copy_between(backend: Backend) -> None:
    (choice,) = registry.choose("opencl")
    gpu = choice.creator.onCreate(BackendInfo(choice.creator.id, choice.index))
    array = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    here, there, back = (Tensor(n, array.shape, DType.FLOAT32) for n in "abc")
    for owner, t in ((backend, here), (gpu, there), (backend, back)):
        owner.onAcquireBuffer(t, StorageType.DYNAMIC_SEPERATE)
    backend.onCopyBuffer(Tensor.from_numpy(array), here)
    backend.onCopyBuffer(here, there)
    backend.onCopyBuffer(there, back)
    np.testing.assert_array_equal(back.numpy(), array)
    with pytest.raises(weft.WeftError, match="cannot copy"):
        backend.onCopyBuffer(Tensor.from_numpy(array[:1]), here)
    gpu.close()
    backend.close()


def test_A19_storage_types(backend: Backend) -> None:
    static, dynamic, kept = (Tensor(n, (16,), DType.FLOAT32) for n in ("s", "d", "k"))
    backend.onAcquireBuffer(static, StorageType.STATIC)
    backend.onCopyBuffer(Tensor.from_numpy(np.full(16, 7, np.float32)), static)
    backend.onResizeBegin()
    backend.onAcquireBuffer(dynamic, StorageType.DYNAMIC)
    backend.onReleaseBuffer(dynamic, StorageType.DYNAMIC)
    later = Tensor("l", (16,), DType.FLOAT32)
    backend.onAcquireBuffer(later, StorageType.DYNAMIC)
    backend.onAcquireBuffer(kept, StorageType.DYNAMIC_SEPERATE)
    assert backend.onAllocateBuffer()
    assert backend.statistics() == {"arena_bytes": 64, "arena_live_peak": 64, "static_bytes": 64}
    backend.onCopyBuffer(Tensor.from_numpy(np.full(16, 1, np.float32)), later)
    backend.onCopyBuffer(Tensor.from_numpy(np.full(16, 2, np.float32)), kept)
    np.testing.assert_array_equal([t.numpy()[0] for t in (static, later, kept)], [7, 1, 2])
    backend.onClearBuffer()
    np.testing.assert_array_equal(static.numpy(), np.full(16, 7))
    assert backend.onReleaseBuffer(static, StorageType.STATIC)


ROWS = [
    pytest.param(["Relu", "LeakyRelu", "Not", "Add", "Softmax"], id="some rows"),
    pytest.param(["table"], id="all rows", marks=pytest.mark.long),
]
"""Rows of the ops that the libraries have, and of one that they refuse; they refuse the rest of the table, too."""


@pytest.mark.usefixtures("passes_unchecked")  # tests/conformance/test_our_backends.py has them checked
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("name", ["kept", "leaky"])
def test_A19_both_kinds_keep_the_device_contract(name: str, rows: list[str], tmp_path: Path) -> None:
    source = OWN_BUFFERS if name == "kept" else EXAMPLE
    # In the short run tests/conformance/test_kit_finds_native_faults.py has the check `native` of the first.
    left = {"table"} if is_long() or name != "kept" else {"table", "native"}
    checks = [each for each in weft_conformance.CHECKS if each not in left]
    write(tmp_path / f"acme_{name}_backend.so", source.read_text(), "-pthread", "-ldl")
    registry.rescan([tmp_path])
    try:
        report = weft_conformance.run(name, only=[*checks, *rows])
    finally:
        registry.rescan()
    assert report.ok, str(report)


class Spread(CpuBackend):
    """Its outputs lie with gaps between their elements."""

    def onAllocateBuffer(self) -> bool:
        done = super().onAllocateBuffer()
        for tensor in self._slots:
            tensor.memory = np.zeros((*tensor.shape, 2), tensor.dtype.numpy)[..., 0]
        return done


def test_A19_what_does_not_lie_densely_is_copied_in_place_of_an_import(tmp_path: Path) -> None:
    write(tmp_path / "acme_leaky_backend.so", EXAMPLE.read_text())
    net = Net()
    graph = net.finish(net.add("Relu", net.add("Tanh", net.input("x", "N", 3), name="v"), name="y"))
    with weft.Runtime(dynamic_backend_paths=[tmp_path]) as runtime:
        runtime.registry.insert("spread", Spread)
        with weft.load(graph, ["leaky", "spread"], runtime=runtime) as session:
            for rows in (2, 5, 5, 2):
                x = np.linspace(-2, 2, rows * 3, dtype=np.float32).reshape(rows, 3)
                np.testing.assert_allclose(session.run(x)[0], np.maximum(np.tanh(x), 0), rtol=1e-6)
            assert session.report.subgraphs == ("spread:0", "leaky:0") and session.report.copies == ()
            first, last = session.pipelines
            source, copy = first.tensor("v").memory, last.tensor("v").memory
            assert not source.flags.c_contiguous and copy.flags.c_contiguous
            np.testing.assert_array_equal(source, copy)


def test_A19_what_lies_densely_is_not_copied(tmp_path: Path) -> None:
    write(tmp_path / "acme_leaky_backend.so", EXAMPLE.read_text())
    net = Net()
    graph = net.finish(net.add("Relu", net.add("Tanh", net.input("x", 2, 3), name="v"), name="y"))
    runtime = weft.Runtime(dynamic_backend_paths=[tmp_path])
    with runtime, weft.load(graph, ["leaky", "cpu"], runtime=runtime) as session:
        first, last = session.pipelines
        assert isinstance(last.backend, HostBackend) and isinstance(last.backend, NativeHostBackend)
        assert last.tensor("v").memory is first.tensor("v").memory
