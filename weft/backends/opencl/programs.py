"""Finds or builds the program of a rendered kernel: in memory, in the disk cache, or with the driver's compiler."""

from __future__ import annotations

import logging
import math
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import pyopencl as cl

from weft.backends.gpu.device.built_kernels import KERNELS_KEPT, Kept
from weft.backends.gpu.device.device import Size3
from weft.backends.opencl import ptx
from weft.backends.opencl.cl_errors import words
from weft.backends.opencl.compilers import Compilers
from weft.config import opencl_build_options
from weft.errors import CompileError
from weft.kernels.cache import DiskCache
from weft.kernels.refused import kernel_refused
from weft.kernels.source import LOCAL_SIZE, ConstantKind, KernelSource

log = logging.getLogger("weft.opencl")

BUILD_OPTIONS = ("-cl-std=CL1.2", "-cl-single-precision-constant")
"""No option loosens arithmetic: precision HIGH means fp32 with the errors that the language allows by default.

`-cl-mad-enable` would allow less accurate intermediate results. It gains nothing where contraction to fma
is already on, which is the language's default.
"""
_CACHE_FORMAT = "1"
_NVIDIA_REGISTERS = 1 << 16
"""Registers of an NVIDIA multiprocessor; its compiler ignores the work-group size and may give each item too many."""
_ITEMS_WITH_ALL_REGISTERS = 256
_INT_MIN, _INT_MAX = -(1 << 31), (1 << 31) - 1
_NONE: frozenset[str] = frozenset()
_WORD = re.compile(r"[A-Za-z_]\w*", re.ASCII)


@dataclass(frozen=True, eq=False)
class Built:
    """A program built by the driver; it is freed with its last reference."""

    program: cl._cl._Program
    _spare: dict[str, list[cl.Kernel]] = field(default_factory=dict)

    def kernel(self, entry: str) -> cl.Kernel:
        """Return a kernel object that nobody uses, one that was given back if there is one: making one takes longer."""
        spare = self._spare.get(entry)
        return spare.pop() if spare else cl.Kernel(self.program, entry)

    def give_back(self, entry: str, kernel: cl.Kernel) -> None:
        """Take a kernel object of which no launch is waiting any more; its arguments are set anew."""
        self._spare.setdefault(entry, []).append(kernel)


@dataclass(frozen=True, eq=False)
class OpenCLKernel:
    """A built kernel; a recording creates a separate kernel object from it for each launch."""

    built: Built
    """Keeps the program alive, and findable for others, while one of its kernels is used."""
    entry: str
    local: Size3
    arguments: int
    constants: tuple[np.generic, ...] = ()
    """Values of the constants that are arguments after the buffers."""


class Programs:
    """The kernels of one device, each built at most once; several threads may use it.

    `all_late` says whether every constant is an argument at every shape; by default that is so on a CPU.
    """

    def __init__(
        self,
        context: cl.Context,
        device: cl.Device,
        compilers: Compilers | None = None,
        *,
        all_late: bool | None = None,
    ) -> None:
        self._context, self._device, self._compilers = context, device, compilers
        self._disk = DiskCache("opencl")
        # A CPU's compiler takes a second a kernel, so one program serves all shapes there. A GPU's is fast, and
        # its kernels gain from known constants.
        self._is_cpu = bool(device.type & cl.device_type.CPU)
        self._all_late = self._is_cpu if all_late is None else all_late
        self._programs: Kept[tuple[str, str, str], Built] = Kept(KERNELS_KEPT)
        self._lock = threading.Lock()
        self.built_from_source = 0
        self.loaded_from_disk = 0

    @property
    def built(self) -> int:
        """Return the number of programs made for the device, from source or from a cached binary."""
        return self.built_from_source + self.loaded_from_disk

    def get(
        self, source: KernelSource, values: Mapping[str, int | float], varying: frozenset[str] = _NONE
    ) -> OpenCLKernel:
        """Return the kernel with these constants; builds it if it is not in memory.

        Of the constants that vary between shapes, those that can be arguments are, unless the kernel was built for
        exactly these constants.
        """
        late = late_constants(source, None if self._all_late else varying)
        if late and not self._all_late and self._programs.find(self._key(source, values, ())) is not None:
            late = []
        key = self._key(source, values, late)
        local = (int(values.get("LX", 1)), int(values.get("LY", 1)), int(values.get("LZ", 1)))
        takes = len(source.args) + len(late)
        built = self._programs.get(key, lambda: Built(self._make(source, values, varying, key[2], local, takes)))
        given = tuple(np.int32(values[n]) if kind == "int" else np.float32(values[n]) for n, kind in late)
        return OpenCLKernel(built, source.entry, local, len(source.args), given)

    @staticmethod
    def _key(
        source: KernelSource, values: Mapping[str, int | float], late: Sequence[tuple[str, ConstantKind]]
    ) -> tuple[str, str, str]:
        early = [c for c in source.constants if c not in late]
        return (source.digest, source.entry, defines(source, values, early) + late_define(late))

    def disk_key(self, source: KernelSource, header: str) -> str:
        """Return the disk cache key: everything that the binary depends on."""
        device, platform = self._device, self._device.platform
        where = (platform.name, platform.version, device.name, device.driver_version)
        patch = (ptx.VERSION,) if ptx.MARK in source.text else ()
        options = (*BUILD_OPTIONS, *opencl_build_options())
        return "\n".join((_CACHE_FORMAT, *patch, *where, *options, source.digest, source.entry, header))

    def close(self) -> None:
        """Forget all kernels."""
        self._programs.clear()

    def hold(self, count: int) -> None:
        """Keep `count` programs besides those in use."""
        self._programs.limit(count)

    @property
    def held(self) -> int:
        """Return the number of programs in use or kept."""
        return len(self._programs)

    def _make(
        self,
        source: KernelSource,
        values: Mapping[str, int | float],
        varying: frozenset[str],
        header: str,
        local: Size3,
        takes: int,
    ) -> cl._cl._Program:
        key = self.disk_key(source, header)
        program = self._kept(key, source, local, takes)
        from_disk = program is not None
        if program is None and self._compilers is not None and self._compilers.compile(source, values, varying):
            program = self._kept(key, source, local, takes)
        if program is None:
            program = self._build(source, header, local)
            self._check_local(program, source, local)
            binary = self._keep(key, program)
            if binary is not None and self._is_cpu:
                # A CPU's driver keeps its compiler's data while the program lives: Intel's 2 to 5 MB a kernel. The
                # same program loaded from its binary takes 0.2 to 0.9 MB, and a hundredth of the compiler's time.
                program = self._from_binary(binary, source, local, takes) or program
        with self._lock:
            self.loaded_from_disk += from_disk
            self.built_from_source += not from_disk
        return program

    def _kept(self, key: str, source: KernelSource, local: Size3, takes: int) -> cl._cl._Program | None:
        """Return the program whose binary is on disk, or None; discards a binary that the driver refuses.

        `takes` is the kernel's number of arguments.
        """
        binary = self._disk.get(key)
        program = self._from_binary(binary, source, local, takes) if binary is not None else None
        if binary is not None and program is None:
            self._disk.discard(key)
        return program

    def _from_binary(
        self, binary: bytes, source: KernelSource, local: Size3, takes: int
    ) -> cl._cl._Program | None:
        """Return a binary's program, or None if the driver refuses it or it holds another kernel."""
        try:
            program = cl._cl._Program(self._context, [self._device], [binary])
            _build(program, self._device, local)
            kernel = cl.Kernel(program, source.entry)
            if kernel.num_args != takes:
                raise CompileError(f"it takes {kernel.num_args} arguments in place of {takes}")
            self._check_local(program, source, local)
        except (cl.Error, CompileError, RuntimeError, ValueError) as e:  # the last two: from pyopencl itself
            why = words(e.code) if isinstance(e, cl.Error) else str(e)
            log.info("the driver refuses the binary of kernel %s: %s", source.entry, why)
            return None
        return program

    def _build(self, source: KernelSource, header: str, local: Size3) -> cl._cl._Program:
        program = cl._cl._Program(self._context, f"{header}#line 1\n{source.text}")
        try:
            _build(program, self._device, local)
            cl.Kernel(program, source.entry)
        except cl.Error as e:
            raise self._refused(source, header, words(e.code), _log_of(program, self._device)) from e
        return self._uncovered(program, source, header, local) if ptx.MARK in source.text else program

    def _uncovered(
        self, covered: cl._cl._Program, source: KernelSource, header: str, local: Size3
    ) -> cl._cl._Program:
        """Return the program with its hidden instructions uncovered; see `ptx`."""
        binaries = cast("list[bytes]", covered.get_info(cl.program_info.BINARIES))
        text = ptx.uncover(bytes(binaries[0]))
        if text is None:
            raise self._refused(source, header, "the compiler did not write PTX for sm_90", "")
        program = cl._cl._Program(self._context, [self._device], [text])
        try:
            _build(program, self._device, local)
            cl.Kernel(program, source.entry)
        except cl.Error as e:
            raise self._refused(source, header, words(e.code), _log_of(program, self._device)) from e
        return program

    def _keep(self, key: str, program: cl._cl._Program) -> bytes | None:
        """Write the program's binary to disk and return it; None if the driver does not return it."""
        try:
            binaries = cast("list[bytes]", program.get_info(cl.program_info.BINARIES))
        except cl.Error as e:
            log.info("the driver does not return the binary of a kernel: %s", words(e.code))
            return None
        if not binaries or not binaries[0]:
            return None
        self._disk.put(key, bytes(binaries[0]))
        return bytes(binaries[0])

    def _check_local(self, program: cl._cl._Program, source: KernelSource, local: Size3) -> None:
        kernel = cl.Kernel(program, source.entry)
        most = kernel.get_work_group_info(cl.kernel_work_group_info.WORK_GROUP_SIZE, self._device)
        if math.prod(local) <= most:
            return
        raise CompileError(
            f"the kernel {source.entry!r} cannot run with work-groups of {local[0]}x{local[1]}x{local[2]}",
            where=self._device.name.strip(),
            why=f"it needs so many registers or so much local memory that a work-group has at most {most} work-items",
            fix="choose a smaller LX, LY or LZ",
        )

    def _refused(self, source: KernelSource, header: str, reason: str, build_log: str) -> CompileError:
        driver = f"{self._device.platform.name.strip()} {self._device.driver_version.strip()}"
        where = f"{self._device.name.strip()}, {driver}"
        return kernel_refused(
            source.entry, source.text, build_log, where=where, suffix=".cl", reason=reason, head=header
        )


def late_constants(source: KernelSource, varying: frozenset[str] | None) -> list[tuple[str, ConstantKind]]:
    """Return which constants of a kernel are arguments, if these vary between shapes, or any may (None).

    The local size must be known to the compiler, and what functions beside the kernel read: they do not see its
    arguments. A source that was not written for this has none.
    """
    beside, found, _ = source.text.rpartition("LATE_CONSTANTS")
    if not found or varying == _NONE:
        return []
    known = {*LOCAL_SIZE, *(_WORD.findall(beside) if varying is not None else ())}
    return [c for c in source.constants if c[0] not in known and (varying is None or c[0] in varying)]


def late_define(late: Sequence[tuple[str, ConstantKind]]) -> str:
    """Return the macro that adds the late constants to the kernel's signature, as arguments."""
    return f"#define LATE_CONSTANTS {''.join(f', const {kind} {name}' for name, kind in late)}\n"


def defines(
    source: KernelSource, values: Mapping[str, int | float], early: Sequence[tuple[str, ConstantKind]] | None = None
) -> str:
    """Return one `#define` line for each constant of the kernel, or for those in `early`."""
    missing = [name for name, _ in source.constants if name not in values]
    if missing:
        raise CompileError(
            f"the kernel {source.entry!r} lacks values for its constants",
            why=f"no value was given for {', '.join(missing)}",
            fix="give one for each of " + ", ".join(name for name, _ in source.constants),
        )
    chosen = source.constants if early is None else early
    return "".join(f"#define {name} {literal(values[name], kind)}\n" for name, kind in chosen)


def literal(value: int | float, kind: ConstantKind) -> str:
    """Return a constant as exact OpenCL C: 32-bit ints, floats rounded to fp32."""
    if kind == "int":
        number = int(value)
        if not _INT_MIN <= number <= _INT_MAX:
            raise CompileError(
                f"the constant {number} does not fit", why="constants of kernels are 32-bit ints"
            )
        if number == _INT_MIN:
            return f"({_INT_MIN + 1} - 1)"  # in C, the literal 2147483648 is not an int
        return str(number) if number >= 0 else f"({number})"
    with np.errstate(over="ignore"):
        single = float(np.float32(value))
    if math.isnan(single):
        return "NAN"
    if math.isinf(single):
        return "INFINITY" if single > 0 else "(-INFINITY)"
    text = f"{single:.8e}f"  # nine digits identify every fp32 value
    return f"({text})" if text.startswith("-") else text


def build_options(platform: str, local: Size3) -> tuple[str, ...]:
    """Return the options for a kernel of this local size; NVIDIA's compiler is told how many registers it may use."""
    items, options = math.prod(local), (*BUILD_OPTIONS, *opencl_build_options())
    if "NVIDIA" not in platform or items <= _ITEMS_WITH_ALL_REGISTERS:
        return options
    return (*options, f"-cl-nv-maxrregcount={_NVIDIA_REGISTERS // items}")


def _build(program: cl._cl._Program, device: cl.Device, local: Size3) -> None:
    # The public Program.build adds its own options, a second disk cache, and warnings for harmless logs.
    program._build(" ".join(build_options(device.platform.name, local)).encode(), [device])


def _log_of(program: cl._cl._Program, device: cl.Device) -> str:
    try:
        return str(program.get_build_info(device, cl.program_build_info.LOG)).strip("\n\0 ")
    except cl.Error as e:
        return f"the driver gives no build log: {words(e.code)}"
