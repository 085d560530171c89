"""Finds or builds the program of a rendered kernel: in memory, in the disk cache, or with the driver's compiler."""

from __future__ import annotations

import logging
import math
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import cast

import numpy as np
import pyopencl as cl

from weft.backends.gpu.device.built_kernels import KERNELS_KEPT, Kept
from weft.backends.gpu.device.device import Size3
from weft.backends.opencl import native, ptx
from weft.backends.opencl.build_options import given_to_compiler, language_options
from weft.backends.opencl.cl_errors import words
from weft.backends.opencl.compilers import Compilers
from weft.backends.opencl.constants import as_arguments, header, late_constants
from weft.backends.opencl.known_drivers import driver_named
from weft.core.host.background import aside
from weft.core.host.disk_cache import DiskCache
from weft.errors import CompileError
from weft.kernels.compile_error import kernel_refused
from weft.kernels.source import ConstantKind, KernelSource, defined, undefined

log = logging.getLogger("weft.opencl")

CACHE = "opencl"
"""The folder of binaries inside the cache."""
_CACHE_FORMAT = "1"
_REGISTERS_AT_ONCE = 8
"""An item gets a multiple of so many registers: with a limit between two, a group might not fit and never start."""
_ITEMS_WITH_ALL_REGISTERS = 256
_NONE: frozenset[str] = frozenset()
_MOST_TOGETHER = 16
"""Kernels in one program: with 32 each took a tenth less time, and an interrupt leaves twice as much behind."""
_TOGETHER = b"a kernel of the program\n"
"""Begins what is kept on disk for a kernel of a program of several: its name there and the program's key follow."""
_Key = tuple[str, str, str]
"""A source's digest, its kernel's name, and the constants that are known, as macros."""


@dataclass(frozen=True, eq=False)
class _Shared:
    """A program that several kernels are from; it is freed with the last of them."""

    program: cl.Program


@dataclass(frozen=True, eq=False)
class Built:
    """A kernel's program, which the driver built, and its name there; freed with its last reference."""

    program: cl.Program
    name: str
    shared: _Shared | None = None
    """The program, if other kernels are from it."""
    _spare: list[cl.Kernel] = field(default_factory=list)

    def kernel(self) -> cl.Kernel:
        """Return a kernel object that nobody uses, one that was given back if there is one: making one takes longer."""
        try:
            return self._spare.pop()  # another thread may take the last one between a look and this
        except IndexError:
            return cl.Kernel(self.program, self.name)

    def give_back(self, kernel: cl.Kernel) -> None:
        """Take a kernel object of which no launch is waiting any more; its arguments are set anew."""
        self._spare.append(kernel)


@dataclass(frozen=True)
class _Wanted:
    """A kernel to be built: its source, the constants that are known, and what it must be when it is built."""

    source: KernelSource
    header: str
    local: Size3
    takes: int
    """The number of its arguments."""

    @property
    def text(self) -> str:
        """Return the program."""
        return f"{self.header}#line 1\n{self.source.text}"


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
        self, context: cl.Context, device: cl.Device, compilers: Compilers | None = None, *,
        all_late: bool | None = None,
    ) -> None:
        self._context, self._device, self._compilers = context, device, compilers
        self._calls = native.load(device)
        self._disk = DiskCache(CACHE)
        # A CPU's compiler takes a second a kernel, so one program serves all shapes there. A GPU's is fast, and
        # its kernels gain from known constants.
        self._is_cpu = bool(device.type & cl.device_type.CPU)
        self._all_late = self._is_cpu if all_late is None else all_late
        self._programs: Kept[_Key, Built] = Kept(KERNELS_KEPT)
        self._shared: weakref.WeakValueDictionary[str, _Shared] = weakref.WeakValueDictionary()
        """Programs of several kernels, by the keys of their binaries."""
        self._lock = threading.Lock()
        self.built_from_source = 0
        self.loaded_from_disk = 0

    @property
    def all_late(self) -> bool:
        """Tell whether every constant is an argument at every shape."""
        return self._all_late

    @property
    def built(self) -> int:
        """Return the number of kernels made for the device, from source or from a cached binary."""
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
        wanted = _wanted(source, values, key[2], len(late))
        built = self._programs.get(key, lambda: self._make(wanted, values, varying))
        return OpenCLKernel(built, source.entry, wanted.local, len(source.args), as_arguments(late, values))

    def build_together(self, kernels: Iterable[tuple[KernelSource, Mapping[str, int | float]]]) -> list[Built]:
        """Build the kernels that are not there yet, several in a program, and return them: hold them until `get` has.

        A CPU's compiler takes most of its time for the program, whatever is in it; on other devices nothing is built.
        What is not built here, because it cannot be joined or the compiler refuses it, is left to `get`.
        """
        if not self._all_late:
            return []
        missing: dict[_Key, _Wanted] = {}
        for source, values in kernels:
            late = late_constants(source, None)
            with suppress(CompileError):  # a value is missing, or too large
                key = self._key(source, values, late)
                if may_join(source) and key not in missing and self._programs.find(key) is None:
                    wanted = _wanted(source, values, key[2], len(late))
                    if not self._is_on_disk(wanted):
                        missing[key] = wanted
        held: list[Built] = []
        for some in _groups(missing):  # Ctrl-C leaves the program behind that is being built, and begins no other
            held += aside(partial(self._keep_together, some, [missing[key] for key in some]))
        return held

    def _keep_together(self, keys: Sequence[_Key], wanted: Sequence[_Wanted]) -> list[Built]:
        made = zip(keys, self._make_together(wanted), strict=True)
        return [self._programs.get(key, partial(_same, one)) for key, one in made if one]

    def _make_together(self, wanted: Sequence[_Wanted]) -> list[Built | None]:
        """Build one program of all, and return the kernels; None for those that `get` must build."""
        none: list[Built | None] = [None] * len(wanted)
        program, first = self._program_of(joined([(each.source, each.header) for each in wanted])), wanted[0]
        problem = self._problem(program, first)
        if problem is not None:
            log.info("%d kernels cannot be built together: %s", len(wanted), words(problem[0]))
            return none
        keys = [disk_key(self._device, one.source, one.header) for one in wanted]
        shared_key = "\n".join((_CACHE_FORMAT, "together", *keys))
        binary = self._keep(shared_key, program)
        if binary is None:
            return none  # the compiler's data would be held for all of them
        shared = self._share(shared_key, binary, first)
        if shared is None:
            return none
        made: list[Built | None] = []
        for place, (key, one) in enumerate(zip(keys, wanted, strict=True)):
            name = name_of(one.source, place)
            fits = self._fits(shared.program, name, one)
            made.append(Built(shared.program, name, shared) if fits else None)
            if fits:
                self._disk.put(key, _TOGETHER + f"{name}\n{shared_key}".encode())
        with self._lock:
            self.built_from_source += sum(built is not None for built in made)
        return made

    def missing(self, kernels: Iterable[tuple[KernelSource, Mapping[str, int | float]]]) -> int:
        """Return how many different kernels are neither in memory nor on disk."""
        found = dict[_Key, _Wanted]()
        for source, values in kernels:
            late = late_constants(source, None if self._all_late else _NONE)
            key = self._key(source, values, late)
            found[key] = _wanted(source, values, key[2], len(late))
        return sum(self._programs.find(key) is None and not self._is_on_disk(one) for key, one in found.items())

    def _is_on_disk(self, wanted: _Wanted) -> bool:
        path = self._disk.path(disk_key(self._device, wanted.source, wanted.header))
        return path is not None and path.exists()

    @staticmethod
    def _key(
        source: KernelSource, values: Mapping[str, int | float], late: Sequence[tuple[str, ConstantKind]]
    ) -> _Key:
        return (source.digest, source.entry, header(source, values, late))

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

    def _make(self, wanted: _Wanted, values: Mapping[str, int | float], varying: frozenset[str]) -> Built:
        key = disk_key(self._device, wanted.source, wanted.header)
        built = self._kept(key, wanted)
        from_disk = built is not None
        if built is None:
            helped = nullcontext(False) if self._compilers is None else self._compilers.compiled(
                wanted.source, values, varying
            )
            with helped as done:
                built = (self._kept(key, wanted) if done else None) or self._built(key, wanted)
        with self._lock:
            self.loaded_from_disk += from_disk
            self.built_from_source += not from_disk
        return built

    def _built(self, key: str, wanted: _Wanted) -> Built:
        """Return the kernel after the driver compiled it here; its binary is kept on disk."""
        program = self._build(wanted)
        self._check_local(program, wanted.source.entry, wanted)
        binary = self._keep(key, program)
        if binary is not None and self._is_cpu:
            # A CPU's driver keeps its compiler's data while the program lives: Intel's 2 to 5 MB a kernel. The
            # same program loaded from its binary takes 0.2 to 0.9 MB, and a hundredth of the compiler's time.
            program = self._from_binary(binary, wanted) or program
        return Built(program, wanted.source.entry)

    def _kept(self, key: str, wanted: _Wanted) -> Built | None:
        """Return the kernel whose binary is on disk, or None; discards a binary that the driver refuses."""
        blob = self._disk.get(key)
        if blob is None:
            return None
        if blob.startswith(_TOGETHER):
            built = self._from_shared(blob[len(_TOGETHER) :].decode(), wanted)
        else:
            program = self._from_binary(blob, wanted)
            built = None if program is None else Built(program, wanted.source.entry)
        if built is None:
            self._disk.discard(key)
        return built

    def _from_shared(self, where: str, wanted: _Wanted) -> Built | None:
        """Return a kernel from the program of several that holds it; None if it is not there any more."""
        name, _, shared_key = where.partition("\n")
        shared = self._shared.get(shared_key)
        if shared is None:
            binary = self._disk.get(shared_key)
            shared = None if binary is None else self._share(shared_key, binary, wanted)
        if shared is None or not self._fits(shared.program, name, wanted):
            return None
        return Built(shared.program, name, shared)

    def _share(self, shared_key: str, binary: bytes, wanted: _Wanted) -> _Shared | None:
        """Load the program of several kernels, `wanted` one of them, and let others find it while one of them lives."""
        program = self._load(binary, wanted)
        if program is None:
            self._disk.discard(shared_key)
            return None
        shared = self._shared[shared_key] = _Shared(program)
        return shared

    def _from_binary(self, binary: bytes, wanted: _Wanted) -> cl.Program | None:
        """Return a binary's program, or None if the driver refuses it or it holds another kernel."""
        program = self._load(binary, wanted)
        return program if program is not None and self._fits(program, wanted.source.entry, wanted) else None

    def _load(self, binary: bytes, wanted: _Wanted) -> cl.Program | None:
        try:
            program = cl.Program(self._context, [self._device], [binary])
            problem = self._problem(program, wanted)
        except (cl.Error, RuntimeError, ValueError) as e:  # the last two: from pyopencl itself
            self._say_refused(wanted, e)
            return None
        if problem is not None:
            self._say_refused(wanted, words(problem[0]))
            return None
        return program

    def _fits(self, program: cl.Program, name: str, wanted: _Wanted) -> bool:
        """Tell whether a program has the kernel, under this name."""
        try:
            kernel = cl.Kernel(program, name)
            if kernel.num_args != wanted.takes:
                raise CompileError(f"it takes {kernel.num_args} arguments in place of {wanted.takes}")
            self._check_local(program, name, wanted)
        except (cl.Error, CompileError, RuntimeError, ValueError) as e:
            self._say_refused(wanted, e)
            return False
        return True

    def _say_refused(self, wanted: _Wanted, e: Exception | str) -> None:
        why = words(e.code) if isinstance(e, cl.Error) else str(e)
        log.info("the binary of kernel %s is not used: %s", wanted.source.entry, why)

    def ptx(
        self, source: KernelSource, values: Mapping[str, int | float], varying: frozenset[str] = _NONE
    ) -> bytes:
        """Return the PTX of a kernel, for an API that runs it; it is kept on disk as `get` does."""
        late = late_constants(source, varying)
        wanted = _wanted(source, values, header(source, values, late), len(late))
        key = disk_key(self._device, source, wanted.header)
        text = self._disk.get(key)
        if text is None:
            text = self._ptx(self._compiled(wanted), wanted)
            self._disk.put(key, text)
        return text

    def _build(self, wanted: _Wanted) -> cl.Program:
        """Return the program, its hidden instructions uncovered; see `ptx`."""
        program = self._compiled(wanted)
        if not wanted.source.has("covered"):
            return program
        return self._checked(cl.Program(self._context, [self._device], [self._ptx(program, wanted)]), wanted)

    def _compiled(self, wanted: _Wanted) -> cl.Program:
        return self._checked(self._program_of(wanted.text), wanted)

    def _program_of(self, text: str) -> cl.Program:
        return native.program_of(self._calls, self._context, text)

    def _checked(self, program: cl.Program, wanted: _Wanted) -> cl.Program:
        """Have the driver build a program that has the kernel, and return it."""
        problem = self._problem(program, wanted)
        if problem is not None:
            raise self._refused(wanted.source, wanted.header, words(problem[0]), problem[1])
        try:
            cl.Kernel(program, wanted.source.entry)
        except cl.Error as e:
            raise self._refused(wanted.source, wanted.header, words(e.code), "") from e
        return program

    def _problem(self, program: cl.Program, wanted: _Wanted) -> tuple[int, str] | None:
        """Have the driver build a program, of a kernel or of several like it; return what it says if it does not."""
        options = build_options(self._device.platform.name, wanted.source, wanted.local)
        return native.build_problem(self._calls, program, self._device, options)

    def _ptx(self, program: cl.Program, wanted: _Wanted) -> bytes:
        """Return a program's PTX, its hidden instructions uncovered."""
        binary = bytes(cast("list[bytes]", program.get_info(cl.program_info.BINARIES))[0])
        text = ptx.uncover(binary) if wanted.source.has("covered") else binary
        if text is None:
            raise self._refused(wanted.source, wanted.header, "the compiler did not write PTX for sm_90", "")
        return text

    def _keep(self, key: str, program: cl.Program) -> bytes | None:
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

    def _check_local(self, program: cl.Program, name: str, wanted: _Wanted) -> None:
        local = wanted.local
        kernel = cl.Kernel(program, name)
        most = kernel.get_work_group_info(cl.kernel_work_group_info.WORK_GROUP_SIZE, self._device)
        if math.prod(local) <= most:
            return
        raise CompileError(
            f"the kernel {wanted.source.entry!r} cannot run with work-groups of {local[0]}x{local[1]}x{local[2]}",
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


def disk_key(device: cl.Device, source: KernelSource, header: str) -> str:
    """Return the key of a kernel's binary in the disk cache: everything that the binary depends on."""
    platform = device.platform
    where = (platform.name, platform.version, device.name, device.driver_version)
    return "\n".join((_CACHE_FORMAT, *where, given_to_compiler(source, header)))


def _wanted(source: KernelSource, values: Mapping[str, int | float], header: str, late: int) -> _Wanted:
    local = (int(values.get("LX", 1)), int(values.get("LY", 1)), int(values.get("LZ", 1)))
    return _Wanted(source, header, local, len(source.args) + late)


def _groups(missing: Mapping[_Key, _Wanted]) -> Iterator[list[_Key]]:
    """Yield the kernels of each program: those with the same options, prelude and launch, two or more."""
    alike: dict[tuple[object, ...], list[_Key]] = {}
    for key, wanted in missing.items():
        code = wanted.source.code
        alike.setdefault((language_options(wanted.source), code.prelude, code.launch), []).append(key)
    for keys in alike.values():
        for first in range(0, len(keys), _MOST_TOGETHER):
            some = keys[first : first + _MOST_TOGETHER]
            if len(some) > 1:
                yield some


def _same(built: Built) -> Built:
    return built


def build_options(platform: str, source: KernelSource, local: Size3) -> tuple[str, ...]:
    """Return the options for a kernel of this local size; a compiler may be told how many registers it may use."""
    items, options = math.prod(local), language_options(source)
    registers = driver_named(platform).registers
    if not registers or items <= _ITEMS_WITH_ALL_REGISTERS:
        return options
    most = registers // items // _REGISTERS_AT_ONCE * _REGISTERS_AT_ONCE
    return (*options, f"-cl-nv-maxrregcount={most}")


# -- one program of several kernels -----------------------------------------------------------------------


def may_join(source: KernelSource) -> bool:
    """Tell whether a program of several kernels can hold a kernel; else it is compiled alone."""
    return source.code.in_pieces and not source.has("covered")


def name_of(source: KernelSource, place: int) -> str:
    """Return the name of a kernel in a program in which it is at `place`."""
    return f"{source.entry}_of_{place}"


def joined(kernels: Sequence[tuple[KernelSource, str]]) -> str:
    """Return the program of kernels of one prelude and launch, given with what defines their constants."""
    first = kernels[0][0].code
    pieces, functions = [first.launch, first.prelude], set[str]()
    for place, (source, defined_before) in enumerate(kernels):
        code = source.code
        pieces += [text for text in code.functions if text not in functions]
        functions.update(code.functions)
        pieces += [defined_before, defined([(source.entry, name_of(source, place))]), code.head, code.body, code.end]
        constants = (name for name, _ in source.constants)
        pieces.append(undefined([source.entry, "LATE_CONSTANTS", *constants, *code.macros]))
    return "".join(pieces)
