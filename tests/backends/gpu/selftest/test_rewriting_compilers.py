"""Compilers that rewrite float arithmetic: the self-test finds them, and networks are right on them nevertheless."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest

import weft
from tests.helpers.launches import kernels, most_buffers
from tests.helpers.nets import Net
from weft.backends.gpu.creator import GpuCreator
from weft.backends.gpu.device.device import GpuDevice
from weft.backends.gpu.selftest import verdict_store
from weft.backends.opencl.device import open_device as open_opencl
from weft.backends.opencl.dialect import OpenCLDialect
from weft.backends.vulkan.device import open_device as open_vulkan
from weft.backends.vulkan.dialect import GlslDialect
from weft.core.contract.backend import DeviceInfo
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph
from weft.core.registry.backend_registry import registry
from weft.kernels.dialect import KernelParts
from weft.kernels.source import KernelCode
from weft.kernels.special import kernel_families

MAGIC = np.array(12582912, np.float32)
X = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32) * 5
SPECIAL = np.array([1, -2, 0, np.inf, -np.inf, np.nan], np.float32)


@dataclass(frozen=True)
class GlslOfZeros(GlslDialect):
    """GLSL whose numbers are zeros that the compiler knows."""

    def assemble(self, parts: KernelParts) -> KernelCode:
        """Return the kernel with constants in place of push constants."""
        code = super().assemble(parts)
        block = re.search(r"layout\(push_constant.*\{(.*)\};", code.start)
        if block is None:
            return code
        known = re.sub(r"float (\w+);", r"const float \1 = 0.0;", block[1])
        return replace(code, start=code.start.replace(block[0], known), late=False)


@dataclass(frozen=True)
class ContractingOpenCL(OpenCLDialect):
    """OpenCL C whose compiler makes one instruction of a product and a sum."""

    plus_product: ClassVar[str] = "f32 plus_product(f32 sum, f32 a, f32 b) { return fma(a, b, sum); }\n"


class RewritingCreator(GpuCreator):
    """A GPU in software with a compiler of that kind."""

    id = "rewriting"

    def __init__(self, opened: Callable[[], GpuDevice]) -> None:
        super().__init__()
        self._opened_by = opened

    def devices(self) -> list[DeviceInfo]:
        return [DeviceInfo(self.id, 0, self.id, software=True)]

    def open(self, index: int) -> GpuDevice:
        return self._opened_by()


Register = Callable[[str, Callable[[], GpuDevice]], None]


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Iterator[Register]:
    """Return what registers the device; of all families of kernels only the one named is tested."""
    monkeypatch.setenv("WEFT_SELFTEST", "process")

    def register(family: str, opened: Callable[[], GpuDevice]) -> None:
        chosen = [each for each in kernel_families() if each.name == family]
        monkeypatch.setattr(verdict_store, "kernel_families", lambda: chosen)
        registry.insert("rewriting", RewritingCreator(opened))

    yield register
    registry.find("rewriting").close()  # type: ignore[attr-defined]
    registry.remove("rewriting")


def rounding() -> Graph:
    net = Net()
    return net.finish(net.add("Sub", net.add("Add", net.input("x", 4, 8), MAGIC), MAGIC))


def test_fast_mathematics_of_opencl_are_found_and_steps_computed_apart(
    register: Register, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYOPENCL_BUILD_OPTIONS", "-cl-fast-relaxed-math")
    register("fused_steps", lambda: open_opencl(0, OpenCLDialect()))
    with weft.load(rounding(), "rewriting", fallback="error") as session:
        (note,) = (n for n in session.report.notes if "are not used" in n)
        assert "fused steps are not used, kernels of single nodes are" in note and "was wrong by" in note
        assert kernels(session) == ["elementwise", "elementwise"]
        assert np.array_equal(session.run(X)[0], (X + MAGIC) - MAGIC)


def test_zeros_that_a_compiler_knows_are_found_and_read_from_memory(register: Register) -> None:
    register("scalar_constants", lambda: open_vulkan(0, GlslOfZeros(), ptx=False))
    net = Net()
    scaled = net.add("LeakyRelu", net.input("x", 6), alpha=0.0)
    graph = net.finish(net.add("Mul", scaled, np.zeros(1, np.float32)))
    with weft.load(graph, "rewriting", fallback="error") as session:
        (note,) = (n for n in session.report.notes if "are not used" in n)
        assert "scalar constants of element-wise kernels are not used, constants in memory are" in note
        assert kernels(session) == ["elementwise", "elementwise"] and most_buffers(session) == 3
        with np.errstate(invalid="ignore"):
            wanted = np.where(SPECIAL < 0, SPECIAL * np.float32(0), SPECIAL) * np.float32(0)
        np.testing.assert_array_equal(session.run(SPECIAL)[0], wanted)


def test_products_that_are_not_rounded_are_found_and_integers_interpolated_elsewhere(register: Register) -> None:
    register("rounded_products", lambda: open_opencl(0, ContractingOpenCL()))
    net = Net()
    x = net.input("x", 1, 1, 7, 5, dtype=DType.UINT8)
    graph = net.finish(net.add("Resize", x, "", "", np.array([1, 1, 13, 9]), mode="linear"))
    image = np.random.default_rng(2).integers(0, 256, (1, 1, 7, 5)).astype(np.uint8)
    with weft.load(graph, "cpu") as session:
        (wanted,) = session.run(image)
    with weft.load(graph, "rewriting") as session:
        (reason,) = (each["rewriting:0"] for each in session.report.refusals.values())
        assert "rounds a product and a sum once" in reason
        assert set(session.report.placement.values()) == {"cpu"}
        assert np.array_equal(session.run(image)[0], wanted)


@pytest.mark.parametrize("device", ["opencl", "vulkan"])
def test_our_devices_pass(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_SELFTEST", "process")
    names = ("fused_steps", "scalar_constants", "rounded_products")
    chosen = [each for each in kernel_families() if each.name in names]
    assert len(chosen) == len(names)
    creator = registry.find(device)
    assert isinstance(creator, GpuCreator)
    runtime = creator.runtime(0)
    for family in chosen:
        found = verdict_store.verdict(family, runtime)
        assert found.why is None and found.ran
