"""Families of portable kernels are tested by value; a wrong one gives way to its fallback or to another device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from scripts.update_standard_kernels import PROFILES as STANDARD
from tests.helpers.cards import OPENCL, VULKAN
from tests.helpers.null_gpu import NullDevice, null_gpu
from tests.helpers.op_rows import Net, run
from weft.backends.gpu.backend import GpuBackend
from weft.backends.gpu.creator import GpuCreator
from weft.backends.gpu.device.device import DeviceCaps, GpuDevice
from weft.backends.gpu.device.profiles import PROFILES as NAMED
from weft.backends.gpu.runtime import GpuRuntime
from weft.backends.gpu.selftest import value_check, verdict_store
from weft.backends.opencl.device import open_device as open_opencl
from weft.backends.opencl.dialect import OpenCLDialect
from weft.backends.vulkan.device import open_device as open_vulkan
from weft.backends.vulkan.dialect import GlslDialect
from weft.core.contract.backend import DeviceInfo
from weft.core.registry.backend_registry import registry
from weft.kernels.dialect import KernelParts
from weft.kernels.source import KernelCode
from weft.kernels.special import (
    KernelFamily,
    kernel_families,
    register_kernels,
    special_kernels,
)
from weft.kernels.template import SHADERS
from weft.kernels.verdict import Verdict
from weft.ops.attention import Attention
from weft.ops.binary import Add
from weft.ops.conv import Conv
from weft.ops.matmul import MatMul
from weft.ops.pool import AveragePool, MaxPool
from weft.ops.shape import Transpose
from weft.ops.softmax import Softmax
from weft.ops.unary import Relu

FAMILIES = {family.name: family for family in kernel_families()}


def _spoiled(parts: KernelParts, wrong: frozenset[str]) -> KernelParts:
    """Return a kernel, of the templates named, that stores numbers a thousandth too large, or else nothing."""
    if parts.entry not in wrong:
        return parts
    body = parts.body.replace("real _v = ", "real _v = 1.001 * ").replace("f32x4 _v = ", "f32x4 _v = 1.001 * ")
    return replace(parts, body=body if body != parts.body else "")


@dataclass(frozen=True)
class WrongOpenCL(OpenCLDialect):
    """OpenCL C of a compiler that errs on some kernels."""

    wrong: frozenset[str] = frozenset()
    reading: str = ""
    """The constant that those kernels read; "" for any."""

    def assemble(self, parts: KernelParts) -> KernelCode:
        """Return the kernel, spoiled if it is one of those."""
        reads = self.reading in ("", *(name for name, _ in parts.constants))
        return super().assemble(_spoiled(parts, self.wrong) if reads else parts)


@dataclass(frozen=True)
class WrongGlsl(GlslDialect):
    """GLSL of a compiler that errs on some kernels."""

    wrong: frozenset[str] = frozenset()

    def assemble(self, parts: KernelParts) -> KernelCode:
        """Return the kernel, spoiled if it is one of those."""
        return super().assemble(_spoiled(parts, self.wrong))


class FaultyCreator(GpuCreator):
    """A GPU in software on whose driver some templates compute wrong numbers."""

    id = "faulty"

    def __init__(self, api: str, wrong: frozenset[str]) -> None:
        super().__init__()
        self.api, self.wrong = api, wrong
        self.launched: set[str] = set()

    def devices(self) -> list[DeviceInfo]:
        return [DeviceInfo(self.id, 0, self.id, software=True)]

    def open(self, index: int) -> GpuDevice:
        if self.api == "opencl":
            return open_opencl(0, WrongOpenCL(self.wrong))
        return open_vulkan(0, WrongGlsl(self.wrong))


@pytest.fixture(params=["opencl", "vulkan"])
def api(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("WEFT_SELFTEST", "process")
    yield request.param
    if registry.is_registered("faulty"):
        registry.find("faulty").close()  # type: ignore[attr-defined]
        registry.remove("faulty")


def _shortened(family: KernelFamily) -> KernelFamily:
    return replace(family, cases=lambda: family.cases()[:1])


def faulty(api: str, names: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Register the device, with the templates of these families wrong, which alone are tested, by few cases."""
    every = [FAMILIES[name] for name in names.split()]
    chosen = [f if len(f.templates) > 1 else _shortened(f) for f in every]
    monkeypatch.setattr(verdict_store, "kernel_families", lambda: chosen)
    wrong = frozenset(t for family in chosen for t in family.templates)
    registry.insert("faulty", FaultyCreator(api, wrong))


def conv_net(net: Net, group: int = 1, channels: int = 6) -> str:
    x = net.feed((1, channels, 7, 9))
    w = net.numbers((channels, channels // group, 3, 3))
    return net.add(Conv(kernel_shape=(3, 3), strides=(2, 1), pads=(1, 1, 1, 1), group=group), x, w)


def net_of(name: str) -> tuple[Net, str]:
    """Return a network that wants kernels of a family, and the template that runs in their place, if one does."""
    net = Net()
    if name == "conv_gemm":
        return net, conv_net(net)
    if name == "conv_depthwise_tile":
        return net, conv_net(net, group=6)
    if name == "conv_grouped":
        return net, conv_net(net, group=2, channels=8)
    if name == "matmul_rows":
        return net, net.add(MatMul(), net.feed((2, 37)), net.numbers((37, 5)))
    if name == "rows_in_teams":
        return net, net.add(Softmax(), net.feed((7, 40)))
    if name == "attention":
        return net, net.add(Attention(scale=0.5), *(net.feed((1, 2, 9, 8)) for _ in range(3)))
    if name == "elementwise_c4":
        pooled = net.add(MaxPool(kernel_shape=(2, 2)), net.feed((1, 6, 7, 9)))
        return net, net.add(Add(), pooled, net.feed((1, 6, 1, 1)))  # which is not fused
    if name in ("pool", "relayout"):
        return net, net.add(Relu(), net.add(AveragePool(kernel_shape=(2, 2)), net.feed((1, 6, 7, 9))))
    assert name == "move"
    return net, net.add(Transpose(perm=(1, 0)), net.feed((5, 7)))


@pytest.mark.covering
@pytest.mark.parametrize(
    ("name", "fallback"),
    [
        ("conv_gemm", "conv_direct"),
        ("conv_depthwise_tile", "conv_depthwise"),
        ("conv_grouped", "conv_direct"),
        ("matmul_rows", "matmul"),
        ("rows_in_teams", "softmax"),
        ("attention", "softmax"),
        ("elementwise_c4", "elementwise"),
    ],
)
def test_a_wrong_family_is_replaced_by_its_fallback(
    name: str, fallback: str, api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    net, out = net_of(name)
    net.graph.outputs = [out]
    expected = run(net.graph, net.feeds, "cpu")
    faulty(api, name, monkeypatch)
    with weft.load(net.graph, "faulty", fallback="error") as session:
        (note,) = [n for n in session.report.notes if "are not used" in n]
        assert f"{FAMILIES[name].title} are not used, {FAMILIES[name].fallback} are" in note and "was wrong by" in note
        backends = [p.backend for p in session.pipelines if isinstance(p.backend, GpuBackend)]
        launched = {launch.label.rpartition("/")[2] for b in backends for launch in b.recording.run.rest}
        found = session.run(net.feeds)
    assert fallback.removesuffix("_rows") in {t.removesuffix("_rows") for t in launched}
    assert not launched & set(FAMILIES[name].templates)
    np.testing.assert_allclose(found[0], expected[0], 1e-4, 1e-5)


@pytest.mark.covering
@pytest.mark.parametrize("names", ["pool", "relayout", "move", "conv_gemm conv_direct"])
def test_nodes_of_a_wrong_family_without_a_fallback_go_to_the_next_device(
    names: str, api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    net, out = net_of(names.split()[0])
    net.graph.outputs = [out]
    expected = run(net.graph, net.feeds, "cpu")
    faulty(api, names, monkeypatch)
    with weft.load(net.graph, "faulty") as session:
        (reason,) = (each["faulty:0"] for each in session.report.refusals.values())
        assert "the self-test found wrong on this device" in reason and names.split()[-1] in reason
        np.testing.assert_allclose(session.run(net.feeds)[0], expected[0], 1e-4, 1e-5)


def test_untested_the_same_device_computes_wrong_numbers(api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault is one that shows: this is what the tests save users from."""
    net, out = net_of("conv_gemm")
    net.graph.outputs = [out]
    expected = run(net.graph, net.feeds, "cpu")
    faulty(api, "conv_gemm", monkeypatch)
    monkeypatch.setenv("WEFT_SELFTEST", "off")
    found = run(net.graph, net.feeds, "faulty")
    assert np.abs(found[0] - expected[0]).max() > 1e-4 * np.abs(expected[0]).max()


def test_verdicts_are_kept_with_the_driver_and_asked_for_again_only_when_told(
    api: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    faulty(api, "matmul_rows", monkeypatch)
    creator = registry.find("faulty")
    assert isinstance(creator, FaultyCreator)
    runtime = creator.runtime(0)
    tested: list[str] = []
    own = verdict_store.verdict

    def noted(kind: KernelFamily, *rest: object) -> Verdict:
        tested.append(kind.name)
        return own(kind, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(verdict_store, "verdict", noted)
    key = verdict_store.key_of(runtime.device)
    assert runtime.device.info.driver in key and runtime.device.info.name in key
    for again, times in ((False, 1), (False, 1), (True, 2)):
        caps = runtime.device.caps
        ((_, verdict),) = verdict_store.examine(runtime, families=True, again=again)
        runtime.device.caps = caps
        assert verdict.why is not None and len(tested) == times


def test_software_is_tested_only_if_that_is_asked_for(api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    faulty(api, "matmul_rows", monkeypatch)
    creator = registry.find("faulty")
    assert isinstance(creator, FaultyCreator)
    runtime = creator.runtime(0)
    for mode, tested in {"process": True, "child": True, "auto": False, "": False, "off": False}.items():
        monkeypatch.setenv("WEFT_SELFTEST", mode)
        assert verdict_store.tests_families(runtime) is tested, mode


def test_every_template_belongs_to_a_family_or_to_special_hardware() -> None:
    named = {f.name.partition(".")[0] for f in SHADERS.glob("*.mako")}
    helpers = {f.name.partition(".")[0] for f in SHADERS.glob("*.parts.mako")}
    helpers -= {f.stem for f in SHADERS.glob("*.mako")}
    others = {"prelude", "math", "angles", "doubles", "hyperbolic", "ptx", "async_copies", "pieces"}
    others |= {"probe", "probe_matrix", "matrices", "staged_matrices", "attention", *helpers}
    special = {kind.template for kind in special_kernels()} | {"workgroup_gemm", "conv_split_wgmma", "conv_wgmma"}
    covered = {t for family in kernel_families() for t in family.templates}
    assert named - others - special - covered == set()


def test_a_name_is_registered_once() -> None:
    with pytest.raises(weft.WeftError, match="a family of kernels has that name"):
        register_kernels(FAMILIES["scan"])


def _kernels(family: KernelFamily, caps: DeviceCaps, device: NullDevice) -> tuple[set[str], set[object]]:
    """Return the templates that a family's cases launch on a device that runs nothing, and the texts of its kernels."""
    device.caps, device.kernels = caps, set()
    runtime, launched = GpuRuntime(device), set[str]()
    runtime.trust()
    for case in family.cases():
        ready = value_check.ready(case, runtime)
        launched.update(ready.templates)
        ready.close()
    return launched, {digest for digest, _ in device.kernels}


DEVICES = {
    **STANDARD,
    **{f"as {name}": each.apply(STANDARD["large"]) for name, each in NAMED.items()},
    **{f"{name} in software": each.apply(STANDARD["llvmpipe"]) for name, each in NAMED.items()},
    "two units": replace(STANDARD["llvmpipe"], compute_units=2),
    "few units": replace(STANDARD["unknown"], compute_units=3),
    "matrix units, OpenCL": OPENCL,
    "matrix units, Vulkan": VULKAN,
    "matrix units, unknown": replace(VULKAN, compute_units=1),
    "matrix units, many": replace(OPENCL, compute_units=512, max_local_items=1024),
}


def _devices() -> list[Any]:
    """Return the devices, those long that differ from another by their count of units or by being software."""
    alike = {f"{name} in software" for name in NAMED} | {"few units", "matrix units, many"}
    return [pytest.param(name, marks=[pytest.mark.long] * (name in alike)) for name in DEVICES]


@pytest.mark.parametrize("name", _devices())
def test_the_cases_of_each_family_launch_its_kernels_on_any_device(name: str) -> None:
    """And of a family that shares its templates with others: kernels that are not there without it."""
    with null_gpu() as device:
        for family in FAMILIES.values():
            if not family.present(DEVICES[name]):
                continue
            caps = family.forced(value_check.without_others(DEVICES[name], family, special_kernels()))
            launched, texts = _kernels(family, caps, device)
            assert launched >= set(family.templates), family.name
            if not family.whole and not family.disable(caps).without <= caps.without:
                assert texts - _kernels(family, family.disable(caps), device)[1], family.name


@pytest.mark.parametrize("device", ["opencl", pytest.param("vulkan", marks=pytest.mark.long)])
@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_each_family_is_right_on_a_right_device(name: str, device: str) -> None:
    creator = registry.find(device)
    assert isinstance(creator, GpuCreator)
    verdict = verdict_store.verdict(FAMILIES[name], creator.runtime(0))
    assert verdict.why is None


@pytest.mark.parametrize("name", ["matmul_rows", "matmul_thin"])
def test_a_kernel_that_is_wrong_only_where_sizes_change_is_found(name: str) -> None:
    """Only the form for several shapes reads the number of rows, M."""
    device = open_opencl(0, WrongOpenCL(frozenset({name}), "M"))
    try:
        wrong = value_check.check(FAMILIES[name], GpuRuntime(device), special_kernels())
    finally:
        device.close()
    assert wrong is not None and " after (" in wrong and "was wrong by" in wrong
