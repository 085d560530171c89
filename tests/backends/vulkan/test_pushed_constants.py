"""Constants that vary between shapes: pushed into one pipeline in place of a pipeline for each value."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from scripts import standard_kernels
from tests.helpers.run_length import is_long
from tests.helpers.vulkan_kernels import CONSTANTS, HEAD, SCALE, host, launch, run, values, whole
from weft.backends.gpu.device.device import LaunchCommand, MemoryKind
from weft.backends.vulkan.device import VulkanDevice
from weft.backends.vulkan.dialect import GlslDialect
from weft.backends.vulkan.pipeline_builder import Kernel
from weft.backends.vulkan.pipelines import PushedKernel
from weft.backends.vulkan.pushed_constants import pushable
from weft.backends.vulkan.pushed_numbers import MOST_BYTES, positions
from weft.backends.vulkan.spirv import spirv_for
from weft.core.graph.dtypes import DType
from weft.kernels.source import LOCAL_SIZE, Arg, ConstantKind, KernelCode, KernelSource
from weft.kernels.template import render

N, A = 3, 4
"""The positions of these constants."""


def kernel(body: str, before: str = "") -> KernelSource:
    """Return a kernel that fills `y`, with what stands before its main function."""
    text = f"""{HEAD}
layout(std430, set = 0, binding = 0) writeonly buffer Y {{ float y[]; }};
{before}
void main() {{
    int i = int(gl_GlobalInvocationID.x);
    {body}
}}
"""
    return KernelSource("fill", KernelCode(text), (Arg("y", DType.FLOAT32, "linear", written=True),), CONSTANTS)


def test_one_pipeline_serves_all_values_of_constants_that_vary(device: VulkanDevice) -> None:
    x, y = device.allocate(400, MemoryKind.UPLOAD), device.allocate(400, MemoryKind.DOWNLOAD)
    host(x)[:] = np.arange(100)
    for n, a in ((60, 2.0), (61, -0.5), (100, float("inf")), (1, 3.0)):
        host(y)[:] = 9
        made = device.compile_for_shapes(SCALE, values(n, a), frozenset({"N", "A"}))
        run(device, device.record([launch(made, x, y, n=100)]))
        with np.errstate(invalid="ignore"):
            assert np.array_equal(host(y)[:n], np.float32(a) * host(x)[:n], equal_nan=True)
        assert np.array_equal(host(y)[n:], np.full(100 - n, 9, np.float32))
    assert device.stats.compiles == 1


def test_launches_of_one_recording_have_their_own_values(device: VulkanDevice) -> None:
    x = device.allocate(400, MemoryKind.UPLOAD)
    results = [device.allocate(400, MemoryKind.DOWNLOAD) for _ in range(3)]
    host(x)[:] = 1
    known = device.compile(SCALE, values(100, 7.0))
    general = [device.compile_for_shapes(SCALE, values(100, a), frozenset({"A"})) for a in (2.0, 3.0)]
    steps = [launch(k, x, y, n=100) for k, y in zip((general[0], known, general[1]), results, strict=True)]
    run(device, device.record(steps))
    assert [float(host(y)[99]) for y in results] == [2.0, 7.0, 3.0]
    assert device.stats.compiles == 2


def test_other_values_of_what_does_not_vary_are_other_pipelines(device: VulkanDevice) -> None:
    for local in (32, 64):
        for a in (1.0, 2.0):
            for n in (5, 6):
                device.compile_for_shapes(SCALE, values(n, a, local), frozenset({"N", "LX"}))
    assert device.stats.compiles == 4, "a local size is never pushed"


def test_a_kernel_built_for_exactly_these_constants_serves_as_well(device: VulkanDevice) -> None:
    known = device.compile(SCALE, values(5))
    assert device.compile_for_shapes(SCALE, values(5), frozenset({"N"})) is known
    assert device.stats.compiles == 1
    device.compile_for_shapes(SCALE, values(6), frozenset({"N"}))
    exact = device.compile(SCALE, values(6))
    assert isinstance(exact, Kernel) and exact.pushed == b"", "one shape's kernel knows its sizes"
    assert device.stats.compiles == 3


@pytest.mark.parametrize(
    "source",
    [
        kernel("y[i] = held[i % N] + A;", "shared float held[N * 2 + 1];"),
        kernel("float held[N]; held[0] = A; y[i] = held[0];"),
        kernel("y[i] = count() * A;", "float count() { return float(N + 1); }"),
        kernel("const int half_ = N / 2; float held[half_ + 1]; held[0] = A; y[i] = held[0];"),
    ],
    ids=["shared array", "array", "another function", "array of a constant that follows"],
)
def test_what_must_be_known_when_a_pipeline_is_built_is_not_pushed(source: KernelSource, device: VulkanDevice) -> None:
    assert pushable(spirv_for(source), (N, A)) == (A,)
    y = device.allocate(256, MemoryKind.DOWNLOAD)
    for n in (2, 3):
        for a in (1.0, 5.0):
            made = device.compile_for_shapes(source, values(n, a), frozenset({"N", "A"}))
            run(device, device.record([LaunchCommand(made, (whole(y),), (1, 1, 1))]))
    assert device.stats.compiles == 2


def test_expressions_of_pushed_constants_are_computed_when_the_kernel_runs(device: VulkanDevice) -> None:
    body = """const int third = N / 3;
    const bool even = N % 2 == 0;
    const ivec2 pair = ivec2(third, N * 2 - 1);
    for (int k = 0; k < third; ++k) if (i == k) y[i] = even ? A : float(pair.y);
    switch (N) { case 7: y[63] = 70.0; break; default: y[63] = float(pair.x); }"""
    source, y = kernel(body), device.allocate(256, MemoryKind.DOWNLOAD)
    for n in (7, 12, 30, -5):
        host(y)[:] = 0
        made = device.compile_for_shapes(source, values(n, 0.5), frozenset({"N"}))
        run(device, device.record([LaunchCommand(made, (whole(y),), (1, 1, 1))]))
        third = int(n / 3)
        expected = np.zeros(64, np.float32)
        expected[: max(third, 0)] = 0.5 if n % 2 == 0 else 2 * n - 1
        expected[63] = 70.0 if n == 7 else third
        assert np.array_equal(host(y), expected), n
    assert device.stats.compiles == 1


def test_no_more_are_pushed_than_every_device_takes(device: VulkanDevice) -> None:
    names = [f"N{k}" for k in range(40)]
    constants: tuple[tuple[str, ConstantKind], ...] = (*CONSTANTS, *((n, "int") for n in names))
    declared = "".join(f"layout(constant_id = {k + 8}) const int {n} = 1;\n" for k, n in enumerate(names))
    source = kernel(f"y[i] = float({' + '.join(names)});", declared)
    source = replace(source, constants=constants)
    y = device.allocate(256, MemoryKind.DOWNLOAD)
    for k in (0, 5, 39):
        numbers = {**values(1), **{n: i + (i == k) for i, n in enumerate(names)}}
        made = device.compile_for_shapes(source, numbers, frozenset(names))
        assert isinstance(made, PushedKernel) and len(made.pushed) == MOST_BYTES == 128
        run(device, device.record([LaunchCommand(made, (whole(y),), (1, 1, 1))]))
        assert host(y)[0] == sum(range(40)) + 1
    assert device.stats.compiles == 2, "the last constants are still known when a pipeline is built"


def test_what_is_no_spirv_has_nothing_to_push() -> None:
    for blob in (b"", b"\x03\x02\x23\x07", bytes(64), b"\x07\x23\x02\x03" * 9):
        assert pushable(blob, (N, A)) == ()


def test_every_standard_kernel_can_take_all_of_its_sizes(device: VulkanDevice) -> None:
    kernels = {r.template: r for r in standard_kernels.standard_requests()}
    # In the short run llvmpipe compiles every third; the constants of each are found in any case.
    compiled = list(kernels)[:: 1 if is_long() else 3]
    for template, request in kernels.items():
        source = render(request, GlslDialect())
        known = positions(source)
        assert known == {k for k, (_, kind) in enumerate(source.constants) if kind == "float"}, template
        wanted = [k for k, (name, _) in enumerate(source.constants) if name not in LOCAL_SIZE and k not in known]
        room = MOST_BYTES - 4 * len(known)
        assert pushable(spirv_for(source), (*wanted, *known), room) == tuple(wanted[: room // 4]), template
        numbers = {name: 1 for name, _ in source.constants} | {"LX": 64}
        if template in compiled:
            device.compile_for_shapes(source, numbers, frozenset(numbers))
    assert device.stats.compiles == len(compiled)
