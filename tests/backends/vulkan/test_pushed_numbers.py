"""The float constants of kernels: no pipeline knows them, however many they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from tests.helpers.vulkan_kernels import host, run, whole
from weft.backends.gpu.device.device import LaunchCommand, MemoryKind
from weft.backends.vulkan.device import VulkanDevice
from weft.backends.vulkan.dialect import GlslDialect
from weft.backends.vulkan.pipelines import PushedKernel
from weft.backends.vulkan.pushed_numbers import MOST_BYTES
from weft.core.graph.dtypes import DType
from weft.core.graph.layout import Array
from weft.kernels.source import Arg, KernelSource
from weft.kernels.template import KernelRequest, render

N = 8


def product(count: int, dtype: DType = DType.FLOAT32) -> KernelSource:
    """Return the kernel that multiplies x by so many numbers, one after the other."""
    expr = "{0}"
    for k in range(count):
        expr = f"({expr} * {{{k + 1}}})"
    double = dtype is DType.FLOAT64
    args = (Arg("x0", dtype, "linear", double=double), Arg("y", dtype, "linear", written=True, double=double))
    variant: dict[str, Any] = {"expr": expr, "names": ("x0",), "rank": 0, "count": count + 1}
    variant |= {"wide": False, "fours": ()}
    floats = tuple(f"K{k + 1}" for k in range(count))
    return render(KernelRequest("elementwise", tuple(sorted(variant.items())), args, ("TOTAL",), floats), GlslDialect())


def computed(device: VulkanDevice, source: KernelSource, numbers: Mapping[str, float], x: Array) -> Array:
    """Return what the kernel makes of x."""
    given, made = (device.allocate(x.nbytes, kind) for kind in (MemoryKind.UPLOAD, MemoryKind.DOWNLOAD))
    host(given).view(x.dtype)[:] = x
    values = {"LX": 32, "LY": 1, "LZ": 1, "TOTAL": N} | {f"K{k + 1}": v for k, v in enumerate(numbers.values())}
    kernel = device.compile(source, values)
    run(device, device.record([LaunchCommand(kernel, (whole(given), whole(made)), (1, 1, 1))]))
    return np.array(host(made).view(x.dtype)[:N])


@pytest.mark.parametrize(("dtype", "count"), [("float32", 3), ("float32", 32), ("float32", 40), ("float64", 20)])
def test_one_pipeline_serves_all_numbers(dtype: str, count: int, device: VulkanDevice) -> None:
    source = product(count, DType(dtype))
    x = np.array([1, -2, 0, -0.0, np.inf, -np.inf, np.nan, 5], dtype)
    kernel = device.compile(source, dict.fromkeys((n for n, _ in source.constants), 1))
    assert isinstance(kernel, PushedKernel) and len(kernel.pushed) <= MOST_BYTES == 128
    built = device.stats.compiles
    for at in (0, 1, 2):
        for number in (0.0, np.inf, np.nan, 2.0):
            numbers = {f"{k}": number if k == at else 1.0 for k in range(count)}
            with np.errstate(invalid="ignore"):
                np.testing.assert_array_equal(computed(device, source, numbers, x), x * x.dtype.type(number))
    assert device.stats.compiles <= built + 1


@pytest.mark.parametrize(("dtype", "count"), [("float32", 40), ("float64", 20)])
def test_what_is_pushed_no_more_is_not_known_either(dtype: str, count: int, device: VulkanDevice) -> None:
    source = product(count, DType(dtype))
    x = np.array([1, -2, 0, -0.0, np.inf, -np.inf, np.nan, 5], dtype)
    for number in (0.0, -0.0, np.inf, 3.0):
        numbers = {f"{k}": number if k == count - 1 else 1.0 for k in range(count)}
        with np.errstate(invalid="ignore"):
            wanted = x * x.dtype.type(number)
        got = computed(device, source, numbers, x)
        np.testing.assert_array_equal(got, wanted)
        known = ~np.isnan(wanted)
        np.testing.assert_array_equal(np.signbit(got[known]), np.signbit(wanted[known]))


def test_numbers_beyond_the_type_are_infinite(device: VulkanDevice) -> None:
    assert np.isinf(computed(device, product(1), {"0": 1e300}, np.ones(N, np.float32))).all()
