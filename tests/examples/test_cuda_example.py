"""The CUDA device of the examples: its source everywhere, its kernels if NVRTC is there, its results on a GPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from enum import IntEnum
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import weft
from scripts.standard_kernels import standard_requests
from tests.core.session import test_steady_state as steady
from tests.helpers import op_rows as rows
from tests.helpers.examples import EXAMPLES, load_example
from tests.helpers.nets import Net
from tests.helpers.null_gpu import null_gpu
from tests.helpers.rows_together import by_family, joined, planned
from tests.helpers.run_length import is_long
from tests.networks import test_fused_networks as fused
from tests.networks import test_light_networks as light
from tests.networks import test_real_models as real
from tests.ops import test_ops_devices as ops
from tests.ops import test_ops_layouts as layouts
from tests.ops.gpu import test_conv_tiles as conv_tiles
from weft.backends.gpu.device.device import Binding, LaunchCommand, MemoryKind
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph
from weft.core.graph.layout import Array
from weft.core.registry.backend_registry import registry
from weft.errors import ClosedError, CompileError, DeviceError, DeviceLost, NoDevice, OutOfMemory
from weft.kernels.device_caps import DeviceCaps
from weft.kernels.source import Arg, KernelCode, KernelSource
from weft.kernels.template import SHADERS, render
from weft.ops.gpu.conv.gemm.tiles import SOFTWARE_TILE, TILES, GemmTile
from weft.ops.gpu.conv.gemm.wide_tiles import WIDE_TILES
from weft_conformance.checks import table

H200 = DeviceCaps(
    max_local_items=1024,
    max_local_size=(1024, 1024, 64),
    max_grid=((1 << 31) - 1, 65535, 65535),
    local_memory=48 << 10,
    max_buffer_range=140 << 30,
    max_allocation=140 << 30,
    fp16_storage=True,
    int8_storage=True,
    doubles=True,
    compute_units=132,
)


example = load_example("cuda_device")
ABSENT: str | None = example.CudaCreator().absent()


# -- anywhere ----------------------------------------------------------------------------------------------


def test_the_file_knows_no_other_api() -> None:
    text = (EXAMPLES / "cuda_device.py").read_text(encoding="utf-8")
    assert not [name for name in ("opencl", "vulkan", "glsl") if name in text.lower()]


class Code(IntEnum):
    """Some of the driver's answers."""

    CUDA_SUCCESS = 0
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_NO_DEVICE = 100
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_ILLEGAL_ADDRESS = 700


def answering(code: Code, count: int = 0) -> SimpleNamespace:
    """Return a driver whose initialisation ends with a code."""

    def cuInit(flags: int) -> tuple[Code]:
        return (code,)

    return SimpleNamespace(
        CUresult=Code,
        cuInit=cuInit,
        cuDeviceGetCount=lambda: (Code.CUDA_SUCCESS, count),
        cuGetErrorString=lambda given: (Code.CUDA_SUCCESS, b"no CUDA-capable device is detected"),
    )


@pytest.fixture
def creator() -> Iterator[Any]:
    """Give a creator that is registered for the time of the test, beside one that may have found a GPU."""
    made = example.CudaCreator()
    registry.insert("other_cuda", made)
    yield made
    registry.remove("other_cuda")


NVRTC = SimpleNamespace(nvrtcVersion=lambda: (Code.CUDA_SUCCESS, 12, 9))
ABSENCES: dict[str, tuple[Any, Any, str]] = {
    "no bindings": (None, None, "pip install cuda-bindings"),
    "no driver": (answering(Code.CUDA_ERROR_NO_DEVICE), NVRTC, "no CUDA-capable device is detected (CUDA_ERROR_NO"),
    "no device": (answering(Code.CUDA_SUCCESS), NVRTC, "shows no device"),
    "no compiler": (answering(Code.CUDA_SUCCESS, 1), SimpleNamespace(), "NVRTC cannot be used"),
}


@pytest.mark.parametrize("case", ABSENCES)
def test_what_is_absent_is_said(case: str, creator: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    driver, nvrtc, words = ABSENCES[case]
    monkeypatch.setattr(example, "driver", driver)
    monkeypatch.setattr(example, "nvrtc", nvrtc)
    assert words in registry.absent()["other_cuda"]
    assert creator.devices() == []
    with pytest.raises(NoDevice, match="other_cuda cannot be used here"):
        weft.load(table.graph_of(rows.ROWS[0]), "other_cuda")


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (Code.CUDA_ERROR_OUT_OF_MEMORY, OutOfMemory),
        (Code.CUDA_ERROR_ILLEGAL_ADDRESS, DeviceLost),
        (Code.CUDA_ERROR_INVALID_VALUE, DeviceError),
    ],
)
def test_codes_are_told_apart(code: Code, error: type[DeviceError], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(example, "driver", answering(code))
    with pytest.raises(DeviceError) as caught:
        example.call(example.driver.cuInit, 0)
    assert type(caught.value) is error
    assert "cuInit" in caught.value.what and code.name in caught.value.why


def test_constants_are_exact() -> None:
    constants = (("N", "int"), ("least", "int"), *((name, "float") for name in ("tenth", "huge", "nan")))
    source = KernelSource("k", KernelCode(""), (), constants)  # type: ignore[arg-type]
    values = {"N": 7, "least": -(1 << 31), "tenth": 0.1, "huge": 1e40, "nan": math.nan}
    lines = dict(line.split(" ", 2)[1:] for line in example.defines(source, values).splitlines())
    assert (lines["N"], lines["least"]) == ("(7)", "(-2147483648)")
    assert lines["tenth"] == f"__int_as_float({int(np.float32(0.1).view(np.uint32)):#x})"
    assert lines["huge"] == "__int_as_float(0x7f800000)"
    assert lines["nan"] == "__int_as_float(0x7fc00000)"


def test_elements_are_read_and_written_as_what_they_are() -> None:
    dialect = example.CudaDialect()
    half, packed = Arg("x", DType.FLOAT16, "linear"), Arg("x", DType.FLOAT16, "c4")
    assert dialect.load(half, "i") == "widen(x[i])"
    assert dialect.load4(packed, "i") == "widen(x[i])"
    assert dialect.load_lane(packed, "i", "1") == "widen(((const half_bits*)x)[(i) * 4 + 1])"
    assert dialect.store(half, "i", "v") == "x[i] = narrow(v);"
    assert dialect.load(Arg("x", DType.FLOAT32, "linear"), "i") == "x[i]"
    assert dialect.load(Arg("x", DType.INT64, "raw"), "i") == "(int)x[i].x"
    assert dialect.load(Arg("x", DType.INT64, "linear"), "i") == "(int)x[i]"


# -- all kernels -------------------------------------------------------------------------------------------


def large_norm() -> Graph:
    """Return a norm of one image that is so large that work-groups share it."""
    net = Net()
    x = net.conv(net.input("x", 1, 3, 90, 90), 8)
    return net.finish(net.add("GroupNormalization", x, net.random(8), net.random(8), num_groups=1))


@cache
def kernels() -> Mapping[str, list[tuple[str, str]]]:
    """Return the kernels of the op table, of fused nodes and of common networks, by template: entry and source."""
    found: dict[str, tuple[str, str]] = {}

    def note(source: KernelSource, values: Mapping[str, int | float]) -> None:
        found.setdefault(source.text, (source.entry, example.defines(source, values)))

    def plan(graph: Graph, precision: str) -> None:
        """Note what a network launches; it is not loaded, which would take as long again."""
        for _, launch in planned(weft.optimize(graph, "null", precision=precision, fallback="error")):
            note(launch.source, launch.values)

    with null_gpu() as device:
        device.caps, device.dialect = H200, example.CudaDialect()
        taken = [row for row in rows.ROWS if rows.refusal(row) is None]
        for precision in ("high", "low") if is_long() else ("low",):  # which has kernels of fp32 as well
            graphs = [table.graph_of(row) for row in taken]
            graphs += map(layouts.behind_pools, layouts.PACKED)
            for graph in (joined(graphs), large_norm(), *(make() for make in fused.FUSED.values())):
                plan(graph, precision)
        device.caps = replace(H200, software=True)  # which has a kernel of its own
        plan(joined([table.graph_of(row) for row in taken if row.op == "MatMul"]), "low")
    for request in standard_requests():
        source = render(request, example.CudaDialect())
        note(source, {name: 2 for name, _ in source.constants})
    out: dict[str, list[tuple[str, str]]] = {}
    for text, (entry, constants) in found.items():
        out.setdefault(entry, []).append((entry, constants + text))
    return out


TEMPLATES = sorted(f.stem for f in SHADERS.glob("*.mako") if "." not in f.stem)


@pytest.mark.long
def test_every_template_is_rendered() -> None:
    assert sorted(kernels()) == TEMPLATES
    texts = [text for group in kernels().values() for _, text in group]
    foreign = ("__kernel", "__global const", "get_global_id", "gl_", "vload", "layout(std430", "barrier(")
    assert not [word for word in foreign if any(word in text for text in texts)]
    assert all('extern "C" __global__ void __launch_bounds__(LX * LY * LZ)' in text for text in texts)
    assert any("  __shared__ f32x4 As[" in text for text in texts)


@cache
def without_compiler() -> str | None:
    """Return why NVRTC cannot compile here, or None."""
    if example.nvrtc is None:
        return "cuda.bindings is not installed"
    try:
        example.nvrtc.nvrtcVersion()
    except Exception as e:  # of the loader's own type
        return f"NVRTC cannot be loaded: {e}"
    return None


@pytest.mark.parametrize("template", TEMPLATES)
def test_every_kernel_compiles(template: str) -> None:
    """Compile to machine code, which needs no GPU."""
    if reason := without_compiler():
        pytest.skip(reason)
    for entry, text in kernels()[template]:
        assert example.build(entry, text, "sm_90").startswith(b"\x7fELF")


def test_a_kernel_that_does_not_compile_is_named_with_the_log() -> None:
    if reason := without_compiler():
        pytest.skip(reason)
    with pytest.raises(CompileError) as caught:
        example.build("broken", "int a;\nint b = wrong;\n", "sm_90")
    assert 'identifier "wrong" is undefined' in caught.value.why
    assert "int b = wrong;" in Path(caught.value.where.rpartition(": ")[2]).read_text()


# -- on a GPU ----------------------------------------------------------------------------------------------


def on_gpu(values: Iterable[Any]) -> list[Any]:
    """Return the parameters of a test that needs a GPU; where there is none, one, which is skipped."""
    if ABSENT is None:
        return list(values)
    return [pytest.param(None, marks=pytest.mark.skip(reason=f"there is no CUDA device: {ABSENT}"), id="none")]


@pytest.fixture(scope="module")
def cuda() -> Iterator[str]:
    """Give the name of the device, which is registered for these tests."""
    registry.insert("cuda", example.CudaCreator())
    yield "cuda"
    registry.remove("cuda")


@pytest.mark.parametrize("family", on_gpu(ops.TAKEN))
def test_rows(cuda: str, family: str) -> None:
    """Run the rows on the GPU, all of them; `rows.run` sees to it that no node runs elsewhere."""
    ops.test_rows(cuda, family)


@pytest.mark.parametrize("family", on_gpu(ops.REFUSED))
def test_rows_that_a_gpu_refuses(cuda: str, family: str) -> None:
    ops.test_rows_that_a_gpu_refuses(cuda, family)


@pytest.mark.parametrize("family", on_gpu(ops.LOW))
def test_rows_with_precision_low(cuda: str, family: str) -> None:
    ops.test_rows_with_precision_low(cuda, family)


@pytest.mark.parametrize("precision", ["high", "low"])
@pytest.mark.parametrize("family", on_gpu(by_family(layouts.PACKED)))
def test_rows_behind_pools(cuda: str, precision: str, family: str) -> None:
    layouts.test_rows_behind_pools(cuda, precision, family)


@pytest.mark.parametrize("precision", ["high", "low"])
@pytest.mark.parametrize("name", on_gpu(fused.FUSED))
def test_a_fused_network_is_what_the_cpu_computes(cuda: str, name: str, precision: str) -> None:
    fused.test_a_fused_network_is_what_the_cpu_computes(name, cuda, precision)


@pytest.mark.parametrize("tile", on_gpu([*TILES, SOFTWARE_TILE, *WIDE_TILES]), ids=str)
def test_every_tile_computes_the_convolution(cuda: str, tile: GemmTile, monkeypatch: pytest.MonkeyPatch) -> None:
    conv_tiles.test_every_tile_computes_the_convolution(cuda, tile, monkeypatch)


@pytest.mark.parametrize(("precision", "error"), [("high", 1e-5), ("low", 5e-3)])
@pytest.mark.parametrize("name", on_gpu(["squeezenet.onnx", "squeezenet_fp16.onnx"]))
def test_the_kitten_is_a_tabby(cuda: str, name: str, precision: str, error: float) -> None:
    """Classify a picture; `real.classify` sees to it that every node runs on the GPU."""
    got = real.classify(name, cuda, precision)
    error = max(error, 5e-3 if "fp16" in name else 0)
    np.testing.assert_allclose(got, real.expected("squeezenet.onnx")[0].reshape(-1), rtol=0, atol=error)


@pytest.mark.parametrize("name", on_gpu(light.NETWORKS))
def test_a_light_network_runs_whole(cuda: str, name: str) -> None:
    light.test_a_light_network_runs_whole_on_every_device(cuda, name)


CHECKS: dict[str, Callable[[str], None]] = {
    "fp16 is rounded to nearest": partial(ops.test_floats_are_rounded_to_the_nearest_half, packed=False),
    "packed fp16 is rounded to nearest": partial(ops.test_floats_are_rounded_to_the_nearest_half, packed=True),
    "operands are broadcast": lambda device: layouts.test_broadcasting_in_both_layouts(device=device),
    "a run allocates nothing": partial(
        steady.test_a_run_allocates_no_device_memory_and_compiles_nothing, memory="normal"
    ),
    "a thrifty run allocates nothing": partial(
        steady.test_a_run_allocates_no_device_memory_and_compiles_nothing, memory="limit"
    ),
    "a resize compiles nothing": steady.test_a_resize_to_shapes_of_before_compiles_nothing,
    "sessions leave nothing behind": partial(steady.test_sessions_leave_nothing_behind, once=steady.use, window=50),
    "forgotten sessions leave nothing behind": partial(
        steady.test_sessions_leave_nothing_behind, once=steady.drop, window=50
    ),
    "a close frees the memory": steady.test_what_a_session_had_on_the_device_is_free_after_its_close,
    "two threads, two sessions": steady.test_two_sessions_on_one_device_from_two_threads_give_the_right_answers,
    "two threads, one session": steady.test_one_session_in_two_threads_gives_each_its_own_answers,
    "sessions come and go": steady.test_sessions_may_come_and_go_while_others_run,
    "a close waits for the run": steady.test_a_close_from_another_thread_waits_for_the_run,
}


@pytest.mark.parametrize("check", on_gpu(CHECKS))
def test_what_every_device_must_do(cuda: str, check: str) -> None:
    CHECKS[check](cuda)


@pytest.mark.parametrize("index", on_gpu([0]))
def test_a_view_of_host_memory_outlives_its_device(index: int) -> None:
    device = example.CudaDevice(index)
    buffer = device.allocate(8, MemoryKind.DOWNLOAD)
    view: Array = buffer.host
    assert not view.any()
    device.free(buffer)
    device.free(buffer)
    device.close()
    device.close()
    view[:] = 1
    assert view.sum() == 8
    assert (device.stats.live_buffers, device.stats.live_bytes) == (0, 0)
    with pytest.raises(ClosedError):
        device.allocate(8)


@pytest.mark.parametrize("index", on_gpu([0]))
def test_too_much_memory_is_refused_with_numbers(index: int) -> None:
    device = example.CudaDevice(index)
    with pytest.raises(OutOfMemory, match=f"{1 << 50:,} bytes cannot be allocated") as caught:
        device.allocate(1 << 50)
    assert "bytes are free" in caught.value.why
    device.close()


@pytest.mark.parametrize("index", on_gpu([0]))
def test_a_kernel_is_taken_from_the_disk_the_second_time(index: int, monkeypatch: pytest.MonkeyPatch) -> None:
    text = f'extern "C" __global__ void put(int* y) {{ y[threadIdx.x] = WHAT; }} // {id(object())}'
    source = KernelSource("put", KernelCode(text), (Arg("y", DType.INT32, "linear", True),), (("WHAT", "int"),))
    for _ in range(2):
        device = example.CudaDevice(index)
        kernel = device.compile(source, {"WHAT": 7, "LX": 4, "LY": 1, "LZ": 1})
        buffer, y = device.allocate(16), np.zeros(4, np.int32)
        recording = device.record([LaunchCommand(kernel, (Binding(buffer, 0, 16),), (1, 1, 1))])
        device.submit(recording)
        device.wait(recording)
        device.download(buffer, 0, y)
        assert list(y) == [7] * 4
        device.release(recording)
        device.close()
        monkeypatch.setattr(example, "build", None)
