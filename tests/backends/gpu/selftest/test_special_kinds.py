"""The cases by which kernels for special hardware are tested launch those kernels, and none of another kind instead."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.helpers.cards import CHAINED, KINDS, VULKAN, alone
from tests.helpers.null_gpu import null_gpu
from weft.backends.gpu.runtime import GpuRuntime
from weft.backends.gpu.selftest import value_check
from weft.backends.opencl.dialect import OpenCLDialect
from weft.backends.vulkan.dialect import GlslDialect
from weft.kernels.special import SpecialKernel

HERE = [("opencl", name) for name in KINDS if KINDS[name].present(alone(KINDS[name], CHAINED))]
HERE += [("vulkan", name) for name in KINDS if KINDS[name].present(alone(KINDS[name], VULKAN))]


def launched(kind: SpecialKernel, api: str, units: int) -> list[list[str]]:
    """Return the templates that each case launches on a device with that many multiprocessors, which runs nothing.

    Of kinds with a marker only those whose text has it.
    """
    caps = replace(CHAINED if api == "opencl" else VULKAN, compute_units=units)
    with null_gpu() as device:
        device.dialect = OpenCLDialect() if api == "opencl" else GlslDialect()
        device.caps = alone(kind, caps)
        runtime = GpuRuntime(device)
        runtime.trust()
        cases = []
        for case in kind.cases():
            made = value_check.ready(case, runtime)
            cases.append(made.templates if any(kind.marker in text for text in made.texts) else [])
            made.close()
        return cases


@pytest.mark.covering
@pytest.mark.parametrize("units", [114, 132])
@pytest.mark.parametrize(("api", "name"), HERE)
def test_the_cases_of_a_kind_launch_its_kernel(api: str, name: str, units: int) -> None:
    templates = launched(KINDS[name], api, units)
    meant = [KINDS[name].template in each for each in templates]
    assert sum(meant) >= len(meant) / 2, templates


def test_copies_are_tested_with_sums_in_parts() -> None:
    assert ["conv_gemm", "sum_parts"] in launched(KINDS["conv_wide_copied"], "opencl", 132)


def test_kernels_of_another_kind_prove_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(value_check, "apart", lambda *_: 0.0)
    kind = KINDS["conv_wide_copied"]
    with null_gpu() as device:
        device.dialect, device.caps = OpenCLDialect(), replace(CHAINED, asynchronous_copies=False)
        with pytest.raises(value_check.NotRun, match=r"none of its cases ran on such kernels \(END_OF_COPIES;\)"):
            value_check.check(kind, GpuRuntime(device))
        device.caps = CHAINED
        assert value_check.check(kind, GpuRuntime(device)) is None


def test_every_kind_is_tried_here() -> None:
    assert {name for _, name in HERE} == set(KINDS)


@pytest.mark.parametrize("name", KINDS)
def test_a_kind_that_is_refused_is_gone(name: str) -> None:
    for caps in (CHAINED, VULKAN):
        assert not KINDS[name].present(KINDS[name].disable(caps))
