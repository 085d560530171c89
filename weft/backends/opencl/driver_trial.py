"""Tests whether a device compiles and runs a kernel, once, in a child process, before Weft relies on it.

A driver may list a device for which it compiles nothing, such as a driver older than the CPU, or crash when it
tries. So a child process builds one small kernel, runs it and compares the numbers. A passed test is kept on disk with
the driver's version and libraries and the kind of CPU, so that an upgrade repeats the test. A failed test is not kept:
every program that asks for the device repeats it. `WEFT_SELFTEST` decides where the test runs, as for kernels.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import shutil
import subprocess
import sys
import threading
from functools import lru_cache, partial
from pathlib import Path
from signal import Signals

import numpy as np
import pyopencl as cl

from weft import config
from weft.backends.opencl import compilers, native, pip_driver
from weft.backends.opencl.cl_errors import words
from weft.backends.opencl.known_drivers import driver_of
from weft.core.host import child_process
from weft.core.host.background import aside
from weft.core.host.disk_cache import DiskCache
from weft.errors import brief
from weft.kernels.compile_error import shortened

log = logging.getLogger("weft.opencl")

TIMEOUT = 120.0
"""Seconds after which a test is given up: a driver's first compilation may take long."""
_MARK = "weft-trial "
_RIGHT = b"right"
_SCHEMA = 1
_ITEMS, _GROUP = 100, 16
_SOURCE = """
__kernel void weft_trial(__global const float *x, __global float *y, const int n)
{
    __local float part[16];
    const int item = get_local_id(0), i = get_global_id(0);
    part[item] = i < n ? x[i] * 2.0f + 1.0f : 0.0f;
    barrier(CLK_LOCAL_MEM_FENCE);
    float sum = 0.0f;
    for (int k = 0; k <= item; k++)
        sum += part[k];
    if (i < n)
        y[i] = sum;
}
"""
_LIBRARY_FOLDERS = ("/usr/lib", "/usr/lib64", f"/usr/lib/{platform.machine()}-linux-gnu", "/lib64", "/lib")
_LASTING_FACTS = (
    "vendor_id", "cpu family", "model", "model name", "stepping", "flags",
    "CPU implementer", "CPU architecture", "CPU variant", "CPU part", "Features",
)
_lock = threading.Lock()
_known: dict[str, str | None] = {}
"""This process's verdicts, by device."""


def why_unusable(devices: list[cl.Device], index: int) -> str | None:
    """Return why a device is unusable and what to install, or None if it computes correctly.

    `devices` are all of the machine, in the order in which every process finds them.
    """
    mode = config.selftest()
    if mode == "off":
        return None
    facts = facts_of(devices, index)
    with _lock:
        if facts not in _known:
            _known[facts] = _tried(devices, index, facts, in_child=mode != "process")
        why = _known[facts]
    return None if why is None else f"{why}; {_advice(devices, index)}"


def facts_of(devices: list[cl.Device], index: int) -> str:
    """Return a device's identity in every process: its own description, and the number of equal ones before it."""
    own = [_described(device) for device in devices]
    return json.dumps((*own[index], own[:index].count(own[index])))


def _described(device: cl.Device) -> tuple[str, ...]:
    owner = device.platform
    return (owner.name, owner.version, device.vendor, device.name, device.version, device.driver_version)


def _tried(devices: list[cl.Device], index: int, facts: str, *, in_child: bool) -> str | None:
    device = devices[index]
    if driver_of(device).needs_linker and not can_link():
        return "PoCL cannot link kernels here, and would end the process: apt install gcc libc6-dev"
    cache, key = DiskCache("trials"), json.dumps((_SCHEMA, _SOURCE, facts, _machine(), _loaded_libraries()))
    if cache.get(key) == _RIGHT:
        return None
    if in_child and driver_of(device).compiles_one_at_a_time:
        from weft.backends.opencl.discovery import describe  # late: it imports this module late, too

        # This is a first start: processes that compile come in the time of the trial.
        known = compilers.facts_of(describe(device, index))
        compilers.shared(known, compilers.process_count()).expect(compilers.EARLY)
    right, why = _tried_in_child(facts) if in_child and child_process.has_interpreter() else (True, try_device(device))
    if why is None and right:
        cache.put(key, _RIGHT)
    return why


def try_device(device: cl.Device) -> str | None:
    """Return what is wrong with a device, or None if it built and ran a kernel; its driver may crash the process."""
    calls = native.load(device)
    try:
        context = cl.Context([device])
        queue = cl.CommandQueue(context)
        program = native.program_of(calls, context, _SOURCE)
        problem = native.build_problem(calls, program, device, ("-cl-std=CL1.2",))
        if problem is not None:
            said = "; ".join(shortened(problem[1])[:2])
            return "; ".join(filter(None, (f"a small kernel does not run: {words(problem[0])}", said)))
        kernel = cl.Kernel(program, "weft_trial")
        x, y = np.arange(_ITEMS, dtype=np.float32), np.zeros(_ITEMS, np.float32)
        source, target = (cl.Buffer(context, cl.mem_flags.READ_WRITE, each.nbytes) for each in (x, y))
        cl.enqueue_copy(queue, source, x, is_blocking=True)
        kernel.set_args(source, target, np.int32(_ITEMS))
        cl.enqueue_nd_range_kernel(queue, kernel, (-(-_ITEMS // _GROUP) * _GROUP,), (_GROUP,))
        cl.enqueue_copy(queue, y, target, is_blocking=True)
    except cl.Error as e:
        return f"a small kernel does not run: {words(e.code)}"
    groups = range(0, _ITEMS, _GROUP)
    right = np.concatenate([np.cumsum(x[g : g + _GROUP] * 2 + 1) for g in groups])
    return None if np.array_equal(y, right) else "a small kernel computes wrong numbers"


def _tried_in_child(facts: str) -> tuple[bool, str | None]:
    """Return whether a child process tried the device, and what was wrong."""
    try:
        program = child_process.program(__name__)
        process = child_process.start(program, facts, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
    except OSError as e:
        log.warning("an OpenCL device is used without a test: %s cannot be started: %s", sys.executable, e.strerror)
        return False, None
    try:
        # Not in the main thread: after Ctrl-C, subprocess waits there for another quarter of a second.
        out, error = aside(partial(_heard, process))
    except subprocess.TimeoutExpired:
        return True, f"a small kernel does not run: its compilation did not end within {TIMEOUT:g} s"
    finally:
        process.kill()
    lines = [line[len(_MARK) :] for line in out.decode(errors="replace").splitlines() if line.startswith(_MARK)]
    said = shortened(error.decode(errors="replace"))[:1]
    if not lines:  # it ended before it reached the device, so nothing is known about the device
        log.warning("an OpenCL device is used without a test: the child process that tests it ended early: %s", said)
        return False, None
    answer = json.loads(lines[-1])
    if answer == "begun":
        status = process.returncode
        end = Signals(-status).name if status < 0 else f"status {status}"
        return True, "; ".join((f"the driver ends the process ({end}) when it compiles a small kernel", *said))
    if answer is None:
        return True, None
    return True, "; ".join((brief(answer), *(s for s in said if s not in answer)))


def _heard(process: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
    """Return what a child process wrote; it has ended then."""
    with process:
        try:
            return process.communicate(timeout=TIMEOUT)
        finally:
            process.kill()


def _advice(devices: list[cl.Device], index: int) -> str:
    is_cpu = [bool(device.type & cl.device_type.CPU) for device in devices]
    if not is_cpu[index]:
        return "update the driver of this device"
    if sum(is_cpu) > 1:
        return "update this driver or remove it: there is another for the CPU"
    return f"update this driver or install another: {for_the_cpu()}"


def for_the_cpu() -> str:
    """Return how to install an OpenCL driver for this machine's CPU."""
    pip = sys.platform == "linux" and platform.machine() == "x86_64"
    return f"pip install {pip_driver.PACKAGES}" if pip else "apt install pocl-opencl-icd"


@lru_cache(maxsize=1)
def can_link() -> bool:
    """Tell whether PoCL can link kernels: it needs a linker and the C library's start files."""
    start_files = (f for folder in _LIBRARY_FOLDERS for f in Path(folder).glob("crti.o"))
    return sys.platform != "linux" or (shutil.which("ld") is not None and any(start_files))


def _machine() -> list[str]:
    """Return the CPU's features that a compiler may depend on."""
    lines = [platform.machine()]
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                name, colon, value = line.partition(":")
                if not colon:  # the first core's facts end here
                    break
                lines += [value.strip()] if name.strip() in _LASTING_FACTS else []
    except OSError:
        lines.append(platform.processor())
    return lines


def _loaded_libraries() -> list[tuple[str, int, int]]:
    """Return path, size and time of the driver libraries loaded in this process, where the system tells."""
    names = set(pip_driver.libraries())
    try:
        mapped = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    paths = {columns[5] for line in mapped.splitlines() if len(columns := line.split(maxsplit=5)) == 6}
    found = []
    for path in sorted(p for p in paths if os.path.basename(p) in names):
        try:
            stat = os.stat(path)
        except OSError:  # replaced while it was loaded
            continue
        found.append((path, stat.st_size, stat.st_mtime_ns))
    return found


# -- in the child process ----------------------------------------------------------------------------------------


def main(facts: str) -> None:
    """Test the device with these facts; print when the test begins and what it finds."""
    from weft.backends.opencl.discovery import raw_devices

    devices = raw_devices()
    for index, device in enumerate(devices):
        if facts_of(devices, index) == facts:
            _say("begun")
            _say(try_device(device))
            break
    os._exit(0)  # a driver's crash at exit is not part of the test


def _say(answer: str | None) -> None:
    # On a line of its own: a driver may have printed before.
    os.write(1, f"\n{_MARK}{json.dumps(answer)}\n".encode())
