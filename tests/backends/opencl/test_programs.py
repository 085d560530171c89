"""Programs of the OpenCL device: constants, build options, what compilers say, and binaries kept on disk."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyopencl as cl
import pytest

from tests.helpers.opencl_kernels import HALF, NO_DIALECT, SCALE, SOURCE, free, run, values, whole
from weft.backends.gpu.device.device import LaunchCommand
from weft.backends.opencl import native, programs
from weft.backends.opencl.build_options import BUILD_OPTIONS
from weft.backends.opencl.constants import defines, header, literal
from weft.backends.opencl.device import OpenCLDevice, open_device
from weft.backends.opencl.discovery import raw_device
from weft.backends.opencl.native import NativeCalls
from weft.backends.opencl.programs import build_options, disk_key
from weft.core.graph.dtypes import DType
from weft.core.host.disk_cache import DiskCache
from weft.errors import CompileError
from weft.kernels.source import Arg, KernelCode, KernelSource


def test_a_kernel_that_is_refused_is_named_with_the_log_and_its_source_is_in_a_file(device: OpenCLDevice) -> None:
    broken = KernelSource(
        "scale", KernelCode(SCALE.replace("A *", "A * undeclared_thing *")), SOURCE.args, SOURCE.constants
    )
    with pytest.raises(CompileError) as caught:
        device.compile(broken, values(4))
    message = str(caught.value)
    assert "undeclared_thing" in message and ":4:" in message, "the log counts the source's lines"
    assert "__kernel" not in message and "#define" not in message
    held = Path(caught.value.where.rpartition(": ")[2])
    text = held.read_text()
    assert held.suffix == ".cl" and held.name in caught.value.fix
    assert "#define N 4" in text and f"#line 1\n{broken.text.rstrip()}" in text
    assert "undeclared_thing" in text.partition("The compiler said")[2]
    with pytest.raises(CompileError, match="no kernel of that name"):
        device.compile(KernelSource("other", KernelCode(SCALE), SOURCE.args, SOURCE.constants), values(4))


def test_constants_are_exact() -> None:
    assert [literal(v, "int") for v in (0, 7, -1)] == ["0", "7", "(-1)"]
    assert literal(-(1 << 31), "int") == "(-2147483647 - 1)"
    assert literal(-1.5, "float") == "(-1.50000000e+00f)" and literal(3, "float") == "3.00000000e+00f"
    assert literal(float("-inf"), "float") == "(-INFINITY)" and literal(float("nan"), "float") == "NAN"
    for bits in np.random.default_rng(0).integers(0, 0x7F800000, 500, dtype=np.uint32):
        value = bits.view(np.float32)
        assert np.float32(literal(float(value), "float").rstrip("f")) == value
    with pytest.raises(CompileError, match="32-bit"):
        literal(1 << 31, "int")
    with pytest.raises(CompileError, match="no value was given for N, A"):
        defines(SOURCE, {"LX": 1, "LY": 1, "LZ": 1})


def _result(device: OpenCLDevice, source: KernelSource = SOURCE) -> float:
    buffer, out = device.allocate(4), np.empty(1, np.float32)
    device.upload(buffer, 0, np.ones(1, np.float32))
    kernel = device.compile(source, values(1, 3.0))
    run(device, LaunchCommand(kernel, (whole(buffer), whole(buffer)), (1, 1, 1)))
    device.download(buffer, 0, out)
    device.free(buffer)
    return float(out[0])


def key_of(device: OpenCLDevice, source: KernelSource) -> str:
    """Return the key of the binary of `_result`'s kernel."""
    return disk_key(raw_device(device.info.index), source, header(source, values(1, 3.0), []))


def _fresh(source: KernelSource = SOURCE) -> tuple[float, int, int]:
    device = open_device(0, NO_DIALECT)
    result = _result(device, source)
    device.close()
    return result, device.programs.built_from_source, device.programs.loaded_from_disk


def test_binary_cache(cache: Path) -> None:
    assert _fresh() == (3.0, 1, 0)
    (entry,) = (cache / "opencl").iterdir()
    assert _fresh() == (3.0, 0, 1)
    entry.write_bytes(entry.read_bytes()[:-100])
    assert _fresh() == (3.0, 1, 0), "a truncated file counts as absent"
    assert _fresh() == (3.0, 0, 1), "and was replaced"


def test_where_the_library_is_not_known_pyopencl_builds(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "load", lambda device: None)
    assert _fresh() == (3.0, 1, 0) and _fresh() == (3.0, 0, 1)
    broken = replace(SOURCE, code=KernelCode(SCALE.replace("A *", "A * undeclared_thing *")))
    with pytest.raises(CompileError, match="undeclared_thing"):
        _fresh(broken)


def test_unloadable_binary_is_rebuilt(device: OpenCLDevice) -> None:
    DiskCache("opencl").put(key_of(device, SOURCE), b"\x00not a program\xff" * 50)
    assert _result(device) == 3.0
    assert device.programs.built_from_source == 1
    assert _fresh() == (3.0, 0, 1)


def test_binaries_that_changed_places_are_built_anew_in_the_same_start(cache: Path) -> None:
    other = replace(SOURCE, code=KernelCode(SCALE.replace("A *", "-A *")))
    for source in (SOURCE, other):
        device = open_device(0, NO_DIALECT)
        _result(device, source)
        device.close()
    a, b = (cache / "opencl").iterdir()
    first, second = a.read_bytes(), b.read_bytes()
    a.write_bytes(second)
    b.write_bytes(first)
    assert _fresh() == (3.0, 1, 0)
    assert _fresh(other) == (-3.0, 1, 0)
    assert _fresh() == (3.0, 0, 1) and _fresh(other) == (-3.0, 0, 1), "and they were replaced"


def test_a_cpu_holds_the_binary_of_what_it_compiled_without_what_the_compiler_made(device: OpenCLDevice) -> None:
    kernel = device.compile(SOURCE, values(1, 3.0))
    assert device.programs.built_from_source == 1
    assert kernel.built.program.get_info(cl.program_info.SOURCE) == ""
    assert _result(device) == 3.0


def test_a_cpu_holds_what_it_compiled_if_the_driver_refuses_the_binary(
    device: OpenCLDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    build, built = NativeCalls.build, []

    def refuse(self: NativeCalls, program: int, *rest: Any) -> int:
        built.append(program)
        return -42 if len(built) == 2 else build(self, program, *rest)  # CL_INVALID_BINARY

    monkeypatch.setattr(NativeCalls, "build", refuse)
    assert _result(device) == 3.0
    assert len(built) == 2 and device.programs.built_from_source == 1


@pytest.mark.parametrize("why", ["another entry", "more arguments"])
def test_a_binary_that_does_not_fit_is_built_anew_in_the_same_start(why: str, cache: Path) -> None:
    if why == "another entry":
        other = replace(SOURCE, entry="other", code=KernelCode(SCALE.replace("scale", "other")))
    else:
        text = SCALE.replace("global float* y", "global float* y, global float* z")
        args = (*SOURCE.args, Arg("z", DType.FLOAT32, "linear", written=True))
        other = replace(SOURCE, code=KernelCode(text), args=args)
        assert other.text != SOURCE.text
    device = open_device(0, NO_DIALECT)
    device.compile(other, values(1, 3.0))
    disk = DiskCache("opencl")
    binary = disk.get(key_of(device, other))
    assert binary is not None
    disk.put(key_of(device, SOURCE), binary)
    device.close()
    assert _fresh() == (3.0, 1, 0)
    assert _fresh() == (3.0, 0, 1)


def test_cache_can_be_off(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE", "0")
    assert _fresh() == _fresh() == (3.0, 1, 0)
    assert not list(cache.iterdir())


def test_half_storage(device: OpenCLDevice) -> None:
    n = 77
    args = (Arg("x", DType.FLOAT16, "linear"), Arg("y", DType.FLOAT16, "linear", written=True))
    source = KernelSource("half_scale", KernelCode(HALF), args, SOURCE.constants)
    data = np.random.default_rng(1).standard_normal(n).astype(np.float16)
    x, y = device.allocate(2 * n), device.allocate(2 * n)
    device.upload(x, 0, data)
    kernel = device.compile(source, values(n, 0.3))
    run(device, LaunchCommand(kernel, (whole(x), whole(y)), (-(-n // 32), 1, 1)))
    out = np.empty(n, np.float16)
    device.download(y, 0, out)
    np.testing.assert_array_equal(out, (data.astype(np.float32) * np.float32(0.3)).astype(np.float16))
    free(device, x, y)


def test_nvidia_is_told_how_many_registers_an_item_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYOPENCL_BUILD_OPTIONS", "")
    assert build_options("Portable Computing Language", SOURCE, (32, 4, 4)) == BUILD_OPTIONS
    assert build_options("NVIDIA CUDA", SOURCE, (32, 4, 2)) == BUILD_OPTIONS
    assert build_options("NVIDIA CUDA", SOURCE, (32, 4, 4))[-1] == "-cl-nv-maxrregcount=128"
    assert build_options("NVIDIA CUDA", SOURCE, (384, 1, 1))[-1] == "-cl-nv-maxrregcount=168", "170 would be 176"
    monkeypatch.setenv("PYOPENCL_BUILD_OPTIONS", "-cl-opt-disable  -g")
    assert build_options("Portable Computing Language", SOURCE, (32, 4, 4)) == (*BUILD_OPTIONS, "-cl-opt-disable", "-g")


VARYING = """
int twice(int v) { return 2 * v; }
__kernel __attribute__((reqd_work_group_size(LX, LY, LZ)))
void fill(__global float* restrict y LATE_CONSTANTS) {
  if (get_global_id(0) == 0) y[0] = A * (twice(N) + M + FIXED);
}
"""


def test_constants_that_vary_become_arguments_of_one_program(device: OpenCLDevice) -> None:
    names = ("N", "M", "FIXED")
    constants = (*SOURCE.constants[:3], *((n, "int") for n in names), ("A", "float"))
    source = KernelSource("fill", KernelCode(VARYING, late=True), (replace(SOURCE.args[1]),), constants)  # type: ignore[arg-type]
    buffer, out = device.allocate(4), np.empty(1, np.float32)
    context = buffer.handle.context
    chosen = programs.Programs(context, context.devices[0], all_late=False)

    def filled(n: int, m: int, fixed: int, a: float, varying: str) -> float:
        numbers = {"LX": 1, "LY": 1, "LZ": 1, "N": n, "M": m, "FIXED": fixed, "A": a}
        kernel = chosen.get(source, numbers, frozenset(varying.split()))
        run(device, LaunchCommand(kernel, (whole(buffer),), (1, 1, 1)))
        device.download(buffer, 0, out)
        return float(out[0])

    assert [filled(n, 3, 5, a, "N A") for n, a in ((1, 2.0), (7, -0.5), (-4, 1.0))] == [20.0, -11.0, 0.0]
    assert chosen.built == 1
    assert filled(1, 4, 5, 2.0, "N A") == 22.0 and chosen.built == 2, "M is a macro"
    assert filled(1, 3, 5, 2.0, "") == 20.0 and chosen.built == 3
    assert filled(1, 3, 5, 2.0, "N A") == 20.0 and chosen.built == 3, "the kernel that knows them serves as well"
    assert filled(1, 3, 6, 2.0, "N A FIXED LX") == 22.0 and chosen.built == 4, "what functions beside it read is known"
    assert filled(2, 3, 6, 2.0, "N A FIXED LX") == 26.0 and chosen.built == 4
    device.free(buffer)
