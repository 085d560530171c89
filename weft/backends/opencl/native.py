"""OpenCL functions for the replay, called through ctypes: no event objects, arguments built once."""

from __future__ import annotations

import ctypes
import ctypes.util
import logging
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from typing import Any

import pyopencl as cl

from weft.backends.opencl import pip_driver
from weft.backends.opencl.cl_errors import words
from weft.core.host.background import aside

Call = partial[int]
"""A call with its arguments bound; it returns the error code."""

log = logging.getLogger("weft.opencl")

_starting = threading.Lock()
_DEVICE_VENDOR_ID = 0x1001
_NULL = ctypes.c_void_p(None)
_ZERO = ctypes.c_uint(0)
_ONE = ctypes.c_uint(1)
_THREE = ctypes.c_uint(3)
_FOUR_BYTES = ctypes.c_size_t(4)
_Sizes = ctypes.c_size_t * 3


class NativeCalls:
    """Builds OpenCL calls with all arguments bound; they return the error code.

    ctypes gets values of the exact C types, so that a call converts nothing. The
    queue is one shared `c_void_p`, whose value is set before a replay.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._create_program = _function(library, "clCreateProgramWithSource")
        self._create_program.restype = ctypes.c_void_p
        self._build = _function(library, "clBuildProgram")
        self._set_arg = _function(library, "clSetKernelArg")
        self._launch = _function(library, "clEnqueueNDRangeKernel")
        self._write = _function(library, "clEnqueueWriteBuffer")
        self._read = _function(library, "clEnqueueReadBuffer")
        self._copy = _function(library, "clEnqueueCopyBuffer")
        self._flush = _function(library, "clFlush")
        self._finish = _function(library, "clFinish")

    def create_program(self, context: int, text: bytes) -> int:
        """Return a program of this text, which is not built; 0 if there is none, because memory or handles are out."""
        texts, sizes = (ctypes.c_char_p * 1)(text), (ctypes.c_size_t * 1)(len(text))
        return self._create_program(ctypes.c_void_p(context), _ONE, texts, sizes, _NULL) or 0

    def build(self, program: int, device: int, options: bytes) -> int:
        """Build a program for a device; return the error code.

        It avoids pyopencl, as `finish` does, because Ctrl-C and the end of the process do not wait for a compiler.
        """
        devices = (ctypes.c_void_p * 1)(device)
        code: int = self._build(ctypes.c_void_p(program), _ONE, devices, options, _NULL, _NULL)
        return code

    def set_numbers(self, kernel: int, first: int, numbers: Sequence[bytes]) -> int:
        """Set arguments of a kernel, from the `first` on, to numbers, given as their bytes; return the error code.

        pyopencl tries what an argument may be, which takes it 20 us; a kernel may have forty.
        """
        handle, joined = ctypes.c_void_p(kernel), b"".join(numbers)
        held = ctypes.create_string_buffer(joined, len(joined))
        at = ctypes.addressof(held)
        for position, number in enumerate(numbers, start=first):
            size = _FOUR_BYTES if len(number) == 4 else ctypes.c_size_t(len(number))
            code: int = self._set_arg(handle, ctypes.c_uint(position), size, ctypes.c_void_p(at))
            if code:
                return code
            at += len(number)
        return 0

    def launch(self, queue: ctypes.c_void_p, kernel: int, grid: tuple[int, ...], local: tuple[int, ...]) -> Call:
        """Return the call that runs a kernel on `grid` work-items in groups of `local`."""
        handle = ctypes.c_void_p(kernel)
        return partial(
            self._launch, queue, handle, _THREE, _NULL, _Sizes(*grid), _Sizes(*local), _ZERO, _NULL, _NULL
        )

    def write(self, queue: ctypes.c_void_p, target: int, offset: int, nbytes: int, host: int) -> Call:
        """Return the call that copies host memory to a buffer, without waiting."""
        return partial(self._write, *self._transfer(queue, target, offset, nbytes, host))

    def write_now(self, queue: int, target: int, offset: int, nbytes: int, host: int) -> int:
        """Copy host memory, which need not be pinned, to a buffer; return the error code once that is done."""
        at = (ctypes.c_size_t(offset), ctypes.c_size_t(nbytes), ctypes.c_void_p(host))
        code: int = self._write(ctypes.c_void_p(queue), ctypes.c_void_p(target), _ONE, *at, _ZERO, _NULL, _NULL)
        # After the blocking call alone, a kernel in another queue still read the old bytes with Intel's runtime.
        return code or self.finish(queue)

    def read(self, queue: ctypes.c_void_p, source: int, offset: int, nbytes: int, host: int) -> Call:
        """Return the call that copies a buffer to host memory, without waiting."""
        return partial(self._read, *self._transfer(queue, source, offset, nbytes, host))

    def copy(self, queue: ctypes.c_void_p, source: int, at: int, target: int, to: int, nbytes: int) -> Call:
        """Return the call that copies from buffer to buffer."""
        source_handle, target_handle = ctypes.c_void_p(source), ctypes.c_void_p(target)
        sizes = (ctypes.c_size_t(at), ctypes.c_size_t(to), ctypes.c_size_t(nbytes))
        return partial(self._copy, queue, source_handle, target_handle, *sizes, _ZERO, _NULL, _NULL)

    def flush(self, queue: ctypes.c_void_p) -> Call:
        """Return the call that starts the device on what is in the queue."""
        return partial(self._flush, queue)

    def finish(self, queue: int) -> int:
        """Wait for all work of a queue; return the error code.

        It avoids pyopencl: a thread that waits there when the interpreter exits would abort the process.
        """
        code: int = self._finish(ctypes.c_void_p(queue))
        return code

    @staticmethod
    def _transfer(queue: ctypes.c_void_p, buffer: int, offset: int, nbytes: int, host: int) -> tuple[Any, ...]:
        sizes = (ctypes.c_size_t(offset), ctypes.c_size_t(nbytes))
        return (queue, ctypes.c_void_p(buffer), _ZERO, *sizes, ctypes.c_void_p(host), _ZERO, _NULL, _NULL)


@lru_cache(maxsize=1)
def start_drivers() -> None:
    """Make the OpenCL loader load and start all drivers once, without blocking other threads as pyopencl would.

    It also finds the driver that pip installed, unless something else started the loader before. Ctrl-C waits for none.
    """
    aside(_start_drivers)


def _start_drivers() -> None:
    with _starting, pip_driver.offered():
        for library in _candidates():
            with suppress(AttributeError):
                library.clGetPlatformIDs(ctypes.c_uint(0), _NULL, ctypes.byref(ctypes.c_uint(0)))
                return


def load(device: cl.Device) -> NativeCalls | None:
    """Return the calls of the OpenCL library that pyopencl uses, or None if it cannot be identified with certainty."""
    for library in _candidates():
        try:
            if _answers(library, device):
                return NativeCalls(library)
        except (AttributeError, OSError):
            continue
    log.info("the OpenCL library of pyopencl was not found for direct calls: replays go through pyopencl")
    return None


@contextmanager
def _unwarned() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def program_of(calls: NativeCalls | None, context: cl.Context, text: str) -> cl.Program:
    """Return a program of this text, which is not built; pyopencl's error if the driver gives none."""
    if calls is None:
        with _unwarned():
            program = cl.Program(context, text)
            assert program.int_ptr  # from now on it is built without pyopencl's cache on disk, which a warning says
        return program
    made: cl.Program = cl.Program.from_int_ptr(calls.create_program(context.int_ptr, text.encode()), retain=False)
    return made


def build_problem(
    calls: NativeCalls | None, program: cl.Program, device: cl.Device, options: Sequence[str]
) -> tuple[int, str] | None:
    """Have the driver build a program; return the error code and what the compiler said if it does not.

    pyopencl's own build adds options, and warns of logs that say all went well.
    """
    if calls is None:
        try:
            with _unwarned():
                program.build(list(options), [device])
        except cl.Error as e:
            return int(e.code), str(e)
        return None
    code = calls.build(program.int_ptr, device.int_ptr, " ".join(options).encode())
    return (code, _log_of(program, device)) if code else None


def _log_of(program: Any, device: cl.Device) -> str:
    try:
        return str(program.get_build_info(device, cl.program_build_info.LOG)).strip("\n\0 ")
    except cl.Error as e:
        return f"the driver gives no build log: {words(e.code)}"


def about(device: cl.Device, query: int, nbytes: int) -> bytes:
    """Return what a driver answers to a query that pyopencl does not know; nothing if it gives no such answer."""
    for library in _candidates():
        try:
            if _answers(library, device):
                return _asked(library, device, query, nbytes)
        except (AttributeError, OSError):
            continue
    return b""


def _asked(library: ctypes.CDLL, device: cl.Device, query: int, nbytes: int) -> bytes:
    held, size = ctypes.create_string_buffer(nbytes), ctypes.c_size_t(0)
    room, handle = ctypes.c_size_t(nbytes), ctypes.c_void_p(device.int_ptr)
    code = _function(library, "clGetDeviceInfo")(handle, ctypes.c_uint(query), room, held, ctypes.byref(size))
    return held.raw if code == 0 and size.value == nbytes else b""


def _candidates() -> Iterator[ctypes.CDLL]:
    """Yield candidate libraries; a symbol looked up in pyopencl's extension is found in the library it links to."""
    names: tuple[Callable[[], str | None], ...] = (
        lambda: getattr(cl._cl, "__file__", None),
        lambda: ctypes.util.find_library("OpenCL"),  # starts processes, so it comes last
    )
    for find in names:
        name = find()
        if name is None:
            continue
        try:
            yield ctypes.CDLL(name)
        except OSError:
            continue


def _answers(library: ctypes.CDLL, device: cl.Device) -> bool:
    """Tell whether the library knows the device by pyopencl's handle."""
    ask = library.clGetDeviceInfo
    ask.restype = ctypes.c_int
    value = ctypes.c_uint(0)
    handle, size = ctypes.c_void_p(device.int_ptr), ctypes.c_size_t(ctypes.sizeof(value))
    code = ask(handle, ctypes.c_uint(_DEVICE_VENDOR_ID), size, ctypes.byref(value), _NULL)
    return code == 0 and value.value == device.vendor_id


def _function(library: ctypes.CDLL, name: str) -> Any:
    function = getattr(library, name)
    function.restype = ctypes.c_int
    return function
