"""A CUDA device in one file: every kernel of Weft, as it is, on an NVIDIA GPU.

A dialect writes the kernels in CUDA C, a device compiles and runs them, a creator finds the GPUs. A recording
becomes a CUDA graph. Nothing in Weft itself knows CUDA:

    pip install cuda-bindings nvidia-cuda-nvrtc-cu12
    weft.insertExtraBackendCreator("cuda", CudaCreator())
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar

import numpy as np

import weft
from weft import DType
from weft.extend import (
    Arg,
    Array,
    ClosedError,
    Command,
    CopyCommand,
    DeviceCaps,
    DeviceError,
    DeviceLost,
    Dialect,
    DiskCache,
    GpuBuffer,
    GpuCreator,
    GpuDevice,
    KernelCode,
    KernelParts,
    KernelSource,
    LaunchCommand,
    MemoryKind,
    OutOfMemory,
    Profiled,
    Reason,
    cut_to_bits,
    extended,
    from_bits,
    is_coded,
    kernel_refused,
    to_bits,
    with_suffix,
)

driver: Any = None
nvrtc: Any = None
with suppress(ImportError):  # `absent` says so
    driver = import_module("cuda.bindings.driver")
    nvrtc = import_module("cuda.bindings.nvrtc")

PRELUDE = """\
#define f32 float
#define f32x4 float4
#define i32 int
#define uint unsigned int
#define u32x4 uint4
#define F4(a, b, c, d) make_float4((a), (b), (c), (d))
#define TO_F32(a) ((float)(a))
#define TO_REAL(a) ((real)(a))
#define TO_I32(a) ((int)(a))
#define LOCAL_X ((int)threadIdx.x)
#define LOCAL_Y ((int)threadIdx.y)
#define LOCAL_Z ((int)threadIdx.z)
#define GROUP_X ((int)blockIdx.x)
#define GROUP_Y ((int)blockIdx.y)
#define GROUP_Z ((int)blockIdx.z)
#define GROUPS_X ((int)gridDim.x)
#define GLOBAL_ID (GROUP_X * LX + LOCAL_X)
#define GLOBAL_SIZE (GROUPS_X * LX)
#define BARRIER __syncthreads()
#define INFINITY_F __int_as_float(0x7f800000)
#define NAN_F __int_as_float(0x7fc00000)
#define is_nan(x) isnan(x)
#define is_inf(x) isinf(x)
f32x4 SPLAT(f32 a) { return F4(a, a, a, a); }
#define ARITHMETIC(op) \\
  f32x4 operator op(f32x4 a, f32x4 b) { return F4(a.x op b.x, a.y op b.y, a.z op b.z, a.w op b.w); } \\
  f32x4 operator op(f32x4 a, f32 b) { return a op SPLAT(b); } \\
  f32x4 operator op(f32 a, f32x4 b) { return SPLAT(a) op b; } \\
  f32x4& operator op##=(f32x4& a, f32x4 b) { return a = a op b; } \\
  f32x4& operator op##=(f32x4& a, f32 b) { return a = a op SPLAT(b); }
ARITHMETIC(+)
ARITHMETIC(-)
ARITHMETIC(*)
ARITHMETIC(/)
// fp16 is storage only. Two instructions do it, so that no header of CUDA need be found.
typedef unsigned short half_bits;
f32 widen(half_bits h) { f32 x; asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(h)); return x; }
half_bits narrow(f32 x) { half_bits h; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x)); return h; }
f32x4 widen(ushort4 h) { return F4(widen(h.x), widen(h.y), widen(h.z), widen(h.w)); }
ushort4 narrow(f32x4 v) { return make_ushort4(narrow(v.x), narrow(v.y), narrow(v.z), narrow(v.w)); }
// NaN wins, as in numpy and ONNX; the language's own forms drop it.
real nan_max(real a, real b) { return (a > b || a != a) ? a : b; }
real nan_min(real a, real b) { return (a < b || a != a) ? a : b; }
#define round_near(x) ((x) + 12582912.0f - 12582912.0f)
#define fmax(a, b) nan_max((a), (b))
#define fmin(a, b) nan_min((a), (b))
f32x4 first_lanes(f32x4 v, int n) {
  return F4(n > 0 ? v.x : 0.0f, n > 1 ? v.y : 0.0f, n > 2 ? v.z : 0.0f, n > 3 ? v.w : 0.0f);
}
"""

_VECTORS = {DType.FLOAT32: "f32x4", DType.FLOAT16: "ushort4"}
_RAW = {1: "unsigned char", 2: "unsigned short", 4: "unsigned int", 8: "uint2", 16: "uint4"}
_TYPES = {
    "float32": "f32", "float16": "half_bits", "bfloat16": "unsigned short", "float64": "uint2",
    "int64": "long long", "int32": "int", "int16": "short", "int8": "signed char",
    "uint64": "unsigned long long", "uint32": "uint", "uint16": "unsigned short",
}


@dataclass(frozen=True)
class CudaDialect(Dialect):
    """CUDA C++ as NVRTC takes it. All constants are macros."""

    name: ClassVar[str] = "cuda"
    dot4: ClassVar[str] = "int DOT4(uint a, uint b, int sum) { return __dp4a((int)a, (int)b, sum); }\n"
    reinterprets: ClassVar[tuple[str, str, str]] = ("__float_as_uint(v)", "__uint_as_float(v)", "((uint)(v))")

    def prelude_text(self) -> str:
        """Return the names that bodies use."""
        return PRELUDE

    def assemble(self, parts: KernelParts) -> KernelCode:
        """Return prelude, signature, shared arrays and body, whose literals are of the type it computes in."""
        params = ", ".join(f"{'' if a.written else 'const '}{self._element(a)}* {a.name}" for a in parts.args)
        shared = "\n".join(f"  __shared__ {s.type} {s.name}[{s.size}];" for s in parts.shared)
        head = f'extern "C" __global__ void __launch_bounds__(LX * LY * LZ) {parts.entry}({params})'
        real, body = ("double", parts.body) if parts.computes_double else ("float", with_suffix(parts.body, "f"))
        before = f"#define real {real}\n{parts.prelude}{with_suffix(''.join(self.formats(parts)), 'f')}"
        return KernelCode(f"{before}{head} {{\n{shared}\n{body}\n}}\n")

    def _element(self, arg: Arg) -> str:
        if arg.in_fours and arg.dtype in _VECTORS:
            return _VECTORS[arg.dtype]
        if arg.double:
            return "double"
        return _RAW[arg.raw_bytes] if arg.raw_bytes else _TYPES.get(arg.dtype.value, "unsigned char")

    def load(self, arg: Arg, index: str) -> str:
        """Return an element as f32, double, i32 or f32x4; of an int64 the low half."""
        element = f"{arg.name}[{index}]"
        if is_coded(arg.dtype):
            return from_bits(arg.dtype, element)
        if arg.dtype is DType.FLOAT64 and not arg.double:
            return f"from_float64({element}.x, {element}.y)"
        if arg.dtype.is_float:
            return f"widen({element})" if arg.dtype is DType.FLOAT16 else element
        if arg.kind == "raw" and arg.dtype.itemsize == 8:
            return f"(int){element}.x"
        return extended(arg.dtype, f"(int){element}")

    def store(self, arg: Arg, index: str, value: str) -> str:
        """Return the statement that stores an element, or four."""
        if arg.dtype is DType.FLOAT64 and not arg.double:
            return f"{arg.name}[{index}] = make_uint2(low_of_float64({value}), high_of_float64({value}));"
        if arg.dtype in _VECTORS:
            return f"{arg.name}[{index}] = {'narrow' if arg.dtype is DType.FLOAT16 else ''}({value});"
        stored = to_bits(arg.dtype, value) if is_coded(arg.dtype) else cut_to_bits(arg.dtype, value, "(int)")
        return f"{arg.name}[{index}] = {stored};"

    def load4(self, arg: Arg, index: str) -> str:
        """Return four elements: C++ tells them from one by the type, where there is a type for four."""
        return self.load(arg, index) if arg.dtype in _VECTORS else self.load_quad(arg, index)

    def store4(self, arg: Arg, index: str, value: str) -> str:
        """Return the statement that stores four elements."""
        if arg.dtype in _VECTORS:
            return self.store(arg, index, value)
        return f"{{ const f32x4 _w = {value}; {self.store_quad(arg, index, '_w')} }}"

    def store2(self, arg: Arg, index: str, first: str, second: str) -> str:
        """Return the statements that store two elements."""
        kind, narrow = ("half_bits", "narrow") if arg.dtype is DType.FLOAT16 else ("f32", "")
        places = zip((f"({index}) * 2", f"({index}) * 2 + 1"), (first, second), strict=True)
        return " ".join(f"(({kind}*){arg.name})[{at}] = {narrow}({value});" for at, value in places)

    def shared_number(self, array: str, index: str) -> str:
        """Return a number of an array of float4."""
        return f"((f32*){array})[{index}]"

    def load_lane(self, arg: Arg, index: str, lane: str) -> str:
        """Return one lane of four in memory."""
        if arg.dtype not in _VECTORS:
            return self.load(arg, f"({index}) * 4 + {lane}")
        lanes = f"((const {_TYPES[arg.dtype.value]}*){arg.name})"
        return f"{'widen' if arg.dtype is DType.FLOAT16 else ''}({lanes}[({index}) * 4 + {lane}])"


def defines(source: KernelSource, values: Mapping[str, int | float]) -> str:
    """Return the constants of a kernel as macros, floats by their bits."""
    lines = []
    for name, kind in source.constants:
        number = values[name]
        if kind == "int":
            value = f"({int(number)})"
        elif kind == "float":
            value = f"__int_as_float({ctypes.c_uint32.from_buffer(ctypes.c_float(number)).value:#x})"
        else:
            value = f"__longlong_as_double({ctypes.c_uint64.from_buffer(ctypes.c_double(number)).value:#x})"
        lines.append(f"#define {name} {value}\n")
    return "".join(lines)


def build(entry: str, text: str, architecture: str) -> bytes:
    """Return the machine code of a kernel for "sm_90" or the like; NVRTC needs no GPU for it."""
    program = call(nvrtc.nvrtcCreateProgram, text.encode(), f"{entry}.cu".encode(), 0, [], [])
    options = [f"--gpu-architecture={architecture}".encode(), b"--device-as-default-execution-space"]
    try:
        (code,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        if code.value:
            log = bytes(call(nvrtc.nvrtcGetProgramLogSize, program))
            call(nvrtc.nvrtcGetProgramLog, program, log)
            said = log.decode(errors="replace").strip(chr(0)) or code.name
            raise kernel_refused(entry, text, said, where=f"NVRTC for {architecture}", suffix=".cu")
        image = bytes(call(nvrtc.nvrtcGetCUBINSize, program))
        call(nvrtc.nvrtcGetCUBIN, program, image)
        return image
    finally:
        call(nvrtc.nvrtcDestroyProgram, program)


LOST = {4, 46, 214, 220, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 999}  # no call works after these


def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call the driver or NVRTC; return what stands behind the error code, or raise what the code means."""
    code, *results = function(*arguments)
    if not code.value:
        return results[0] if results else None
    what, why, kind, fix = f"{function.__name__} failed", code.name, DeviceError, ""
    if isinstance(code, driver.CUresult):
        why = f"{(driver.cuGetErrorString(code)[1] or b'unknown').decode()} ({code.name})"
        kind = OutOfMemory if code.name == "CUDA_ERROR_OUT_OF_MEMORY" else kind
        if code.value in LOST:
            kind, fix = DeviceLost, "restart the process: CUDA does not recover in it"
    raise kind(what, where="CUDA", why=why, fix=fix)


def describe(index: int) -> tuple[weft.DeviceInfo, DeviceCaps]:
    """Return the facts about a device, and what kernels may ask of it."""
    device, version = call(driver.cuDeviceGet, index), call(driver.cuDriverGetVersion)
    names = "COMPUTE_CAPABILITY_MAJOR COMPUTE_CAPABILITY_MINOR MULTIPROCESSOR_COUNT MAX_SHARED_MEMORY_PER_BLOCK"
    asked = (getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}") for name in names.split())
    major, minor, units, shared = (int(call(driver.cuDeviceGetAttribute, which, device)) for which in asked)
    memory, name = int(call(driver.cuDeviceTotalMem, device)), call(driver.cuDeviceGetName, 128, device)
    details = {"architecture": f"sm_{major}{minor}", "memory": memory}
    driven = f"CUDA {version // 1000}.{version % 1000 // 10}"
    caps = DeviceCaps(
        max_local_items=1024, max_local_size=(1024, 1024, 64), max_grid=((1 << 31) - 1, 65535, 65535),
        local_memory=shared, max_buffer_range=memory, max_allocation=memory, compute_units=units,
        fp16_storage=True, int8_storage=True, doubles=True,
    )
    return weft.DeviceInfo("cuda", index, name.partition(b"\0")[0].decode(), driven, details=details), caps


class Owned:
    """A thing of the driver, given back with the last reference to it: a numpy view may be the one."""

    def __init__(self, value: Any, give_back: Callable[[Any], Any], context: Owned | None = None) -> None:
        self.value = value
        weakref.finalize(self, self._give_back, value, give_back, context)

    @staticmethod
    def _give_back(value: Any, function: Callable[[Any], Any], context: Owned | None) -> None:
        if context is not None:
            driver.cuCtxSetCurrent(context.value)
        function(value)  # a lost device has nothing to give back: what it answers does not matter


@dataclass(eq=False)
class Recording:
    """A CUDA graph, and what it must find alive."""

    graph: Any
    held: list[Owned]


class CudaDevice(GpuDevice):
    """A GPU with one stream: each command sees what all before it wrote, whichever thread they came from."""

    def __init__(self, index: int) -> None:
        super().__init__(*describe(index), CudaDialect())
        self.launches_overlap = False
        self._where, device = f"cuda:{index} ({self.info.name})", call(driver.cuDeviceGet, index)
        context = call(driver.cuDevicePrimaryCtxRetain, device)
        self._context = Owned(context, lambda _: driver.cuDevicePrimaryCtxRelease(device))
        call(driver.cuCtxSetCurrent, context)
        streams = [call(driver.cuStreamCreate, driver.CUstream_flags.CU_STREAM_NON_BLOCKING) for _ in range(2)]
        self._stream, self._pen = (Owned(stream, driver.cuStreamDestroy, self._context) for stream in streams)
        self._disk, self._closed = DiskCache("cuda"), False
        self._kernels: dict[str, tuple[Owned, Any, tuple[int, ...]]] = {}
        self._lock, self._making = threading.Lock(), threading.Lock()

    def allocate(self, nbytes: int, kind: MemoryKind = MemoryKind.DEVICE) -> GpuBuffer:
        """Return device memory, or pinned memory of the host, which starts as zeros."""
        self._use()
        pair = (driver.cuMemAlloc, driver.cuMemFree)
        take, give = pair if kind is MemoryKind.DEVICE else (driver.cuMemAllocHost, driver.cuMemFreeHost)
        try:
            memory = Owned(int(call(take, max(nbytes, 16))), give, self._context)  # 0 bytes are refused
        except OutOfMemory as e:
            free, total = driver.cuMemGetInfo()[1:]
            why = f"{free:,} of {total:,} bytes are free, {self.stats.live_bytes:,} are held by Weft; {e.why}"
            raise OutOfMemory(f"{nbytes:,} bytes cannot be allocated", where=self._where, why=why) from e
        buffer = GpuBuffer(nbytes, kind, memory)
        if kind is not MemoryKind.DEVICE:
            raw: Any = (ctypes.c_ubyte * nbytes).from_address(memory.value)
            raw.owner = memory  # as long as a numpy view is alive
            buffer.host = np.ctypeslib.as_array(raw)
            buffer.host[:] = 0
        with self._lock:
            self.stats.allocations += 1
            self.stats.live_buffers += 1
            self.stats.live_bytes += nbytes
        return buffer

    def free(self, buffer: GpuBuffer) -> None:
        """Drop the buffer's hold on its memory; a second time does nothing."""
        with self._lock:
            if buffer.handle is not None:
                self.stats.live_buffers -= 1
                self.stats.live_bytes -= buffer.nbytes
            buffer.handle = buffer.host = None

    def upload(self, buffer: GpuBuffer, offset: int, data: Array) -> None:
        """Copy an array to the device and wait, so that the caller may change it."""
        self._copy(self._address(buffer, offset, data.nbytes), data.ctypes.data, data.nbytes)

    def download(self, buffer: GpuBuffer, offset: int, out: Array) -> None:
        """Copy from the device into a contiguous array, after everything that was submitted before."""
        self._copy(out.ctypes.data, self._address(buffer, offset, out.nbytes), out.nbytes)

    def _copy(self, target: int, source: int, nbytes: int) -> None:
        self._use()
        if nbytes:
            call(driver.cuMemcpyAsync, target, source, nbytes, self._stream.value)
        call(driver.cuStreamSynchronize, self._stream.value)

    def compile(self, source: KernelSource, values: Mapping[str, int | float]) -> Any:
        """Return the kernel with these constants, from memory, from the disk cache, or freshly built."""
        self._use()
        text, architecture = defines(source, values) + source.text, str(self.info.details["architecture"])
        with self._making:
            if text not in self._kernels:
                key = f"{architecture} {nvrtc.nvrtcVersion()[1:]}\n{text}"
                image = self._disk.get(key)
                if image is None:
                    image = build(source.entry, text, architecture)
                    self._disk.put(key, image)
                module = Owned(call(driver.cuModuleLoadData, image), driver.cuModuleUnload, self._context)
                function = call(driver.cuModuleGetFunction, module.value, source.entry.encode())
                self._kernels[text] = (module, function, tuple(int(values[size]) for size in ("LX", "LY", "LZ")))
                self.stats.compiles += 1
            return self._kernels[text]

    def record(self, commands: Sequence[Command], profile: Profiled = False) -> Recording:
        """Return the commands as a graph. They run in order, so barriers are left out."""
        self._use()
        held, mode = list[Owned](), driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        with self._making:  # there is one stream to write graphs with
            call(driver.cuStreamBeginCapture, self._pen.value, mode)
            try:
                for command in commands:
                    self._put(command, held)
            finally:
                graph = Owned(call(driver.cuStreamEndCapture, self._pen.value), driver.cuGraphDestroy)
        ready = Owned(call(driver.cuGraphInstantiate, graph.value, 0), driver.cuGraphExecDestroy, self._context)
        with self._lock:
            self.stats.live_recordings += 1
        return Recording(ready, held)

    def _put(self, command: Command, held: list[Owned]) -> None:
        """Write a command into the graph that is being captured."""
        bindings: tuple[Any, ...] = (command.target, command.source) if isinstance(command, CopyCommand) else ()
        bindings = command.bindings if isinstance(command, LaunchCommand) else bindings
        addresses = tuple(self._address(b.buffer, b.offset, b.nbytes) for b in bindings)
        held += [b.buffer.handle for b in bindings]
        if isinstance(command, CopyCommand) and command.source.nbytes:
            call(driver.cuMemcpyAsync, *addresses, command.source.nbytes, self._pen.value)
        elif isinstance(command, LaunchCommand) and 0 not in command.grid:
            module, function, local = command.kernel
            held.append(module)
            given = (addresses, (ctypes.c_void_p,) * len(addresses))
            call(driver.cuLaunchKernel, function, *command.grid, *local, 0, self._pen.value, given, 0)

    def submit(self, recording: Recording) -> None:
        """Launch the graph and return."""
        self._use()
        call(driver.cuGraphLaunch, recording.graph.value, self._stream.value)
        with self._lock:
            self.stats.submits += 1

    def wait(self, recording: Recording) -> None:
        """Wait for everything that was submitted; what went wrong in it is raised here."""
        self._use()
        call(driver.cuStreamSynchronize, self._stream.value)

    def release(self, recording: Recording) -> None:
        """Destroy the graph and drop what it holds; a second time does nothing."""
        with self._lock:
            self.stats.live_recordings -= recording.graph is not None
            recording.graph, recording.held = None, []

    def close(self) -> None:
        """Wait for all work and let go of everything; later calls raise ClosedError."""
        if not self._closed:
            self._closed = True
            driver.cuCtxSetCurrent(self._context.value)
            driver.cuStreamSynchronize(self._stream.value)  # not by `call`: a lost device is closed all the same
            self._kernels = {}
            del self._stream, self._pen, self._context

    def _use(self) -> None:
        """Make the device the calling thread's."""
        if self._closed:
            raise ClosedError("the device was closed", where=self._where)
        call(driver.cuCtxSetCurrent, self._context.value)

    def _address(self, buffer: GpuBuffer, offset: int, nbytes: int) -> int:
        if buffer.handle is None or offset < 0 or offset + nbytes > buffer.nbytes:
            why = "it was freed" if buffer.handle is None else f"it has {buffer.nbytes} bytes"
            what = f"{nbytes} bytes at {offset} of a buffer cannot be used"
            raise DeviceError(what, where=self._where, why=why)
        return int(buffer.handle.value) + offset


class CudaCreator(GpuCreator):
    """Finds the GPUs and opens each when the first session needs it."""

    id = "cuda"

    def absent(self) -> str | None:
        """Return why CUDA cannot be used here, or None."""
        if driver is None or nvrtc is None:
            return Reason("cuda.bindings cannot be imported", "pip install cuda-bindings")
        try:
            call(driver.cuInit, 0)
            call(nvrtc.nvrtcVersion)
        except Exception as e:  # for a missing library the bindings have errors of their own
            return f"the driver or NVRTC cannot be used: {' '.join(str(e).split())}"
        if call(driver.cuDeviceGetCount):
            return None
        return Reason("the driver shows no device", "look whether CUDA_VISIBLE_DEVICES hides them")

    def devices(self) -> list[weft.DeviceInfo]:
        """Return the GPUs that the driver shows."""
        return [] if self.absent() else [describe(index)[0] for index in range(call(driver.cuDeviceGetCount))]

    def open(self, index: int) -> GpuDevice:
        """Return an opened device."""
        return CudaDevice(index)
