"""Note what each thread of a process does, two hundred times a second: `benchmarks.start_timeline` runs it in a start.

It runs before the program, in its child processes too (`sitecustomize`), so it imports the standard library alone. A
line is written when a thread turns to something else: the time, the thread, what it does, and with which kernel.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from functools import cache
from types import FrameType

FOLDER = "START_SAMPLES"
"""The variable that names the folder for a file of each process."""
PERIOD = 0.005
WAITS = "wait"
"""What a thread does that waits in the standard library for nothing that has a phase."""
PHASES: dict[tuple[str, str], str] = {
    ("vulkan/glslang.py", "translate"): "GLSL to SPIR-V",
    ("vulkan/glslang.py", "find_compiler"): "find GLSL compiler",
    ("vulkan/pipeline_builder.py", "pipeline"): "Vulkan pipeline",
    ("vulkan/late_compiler.py", "compile"): "Vulkan pipeline",
    ("vulkan/ptx_kernels.py", "_assembled_from"): "load cubin",
    ("vulkan/device.py", "open_device"): "open device",
    ("vulkan/physical.py", "physical_devices"): "list devices",
    ("vulkan/creator.py", "missing"): "list devices",
    ("vulkan/probe.py", "absent_reason"): "list devices",
    ("opencl/device.py", "open_device"): "open device",
    ("opencl/discovery.py", "raw_devices"): "list devices",
    ("opencl/discovery.py", "enumerate_devices"): "list devices",
    ("opencl/discovery.py", "absent_reason"): "list devices",
    ("opencl/ptx_writer.py", "_programs_here"): "open context to compile",
    ("opencl/ptx_writer.py", "find"): "open device",
    ("opencl/ptx.py", "assembled"): "assemble PTX",
    ("opencl/programs.py", "_build"): "OpenCL compiler",
    ("opencl/programs.py", "_built"): "OpenCL compiler",
    ("opencl/programs.py", "_load"): "load binary",
    ("opencl/compilers.py", "_take"): "wait for a compiling process",
    ("opencl/compilers.py", "_compiled_by"): "kernel in a compiling process",
    ("opencl/compilers.py", "_next"): WAITS,
    ("device/kernel_builds.py", "finish"): "wait for kernels",
    ("device/kernel_builds.py", "attempt"): "wait for kernels",
    ("device/kernel_builds.py", "drop"): "wait for kernels",
    ("device/kernel_builds.py", "kernel"): "wait for kernels",
    ("kernels/template.py", "render"): "render kernels",
    ("selftest/child.py", "verdicts"): "self-test in children",
    ("selftest/verdict_store.py", "verdict"): "self-test",
    ("selftest/verdict_store.py", "recall"): "read verdicts",
    ("selftest/verdict_store.py", "key_of"): "read verdicts",
    ("graph/interpreter.py", "outputs"): "self-test: reference",
    ("lowering/lower.py", "lower"): "plan launches",
    ("memory/static_pool.py", "upload"): "upload weights",
    ("gpu/execution.py", "_placed"): "pack weights",
    ("gpu/execution.py", "onResize"): "bind launches",
    ("recording/pipeline_recording.py", "seal"): "record",
    ("recording/pipeline_recording.py", "submit"): "run",
    ("recording/pipeline_recording.py", "wait"): "run",
    ("session/session.py", "run"): "run",
    ("placement/prepare.py", "prepare_network"): "rewrite graph",
    ("placement/optimizer.py", "divide"): "place and fuse",
    ("session/prefetch.py", "graph"): "wait for the model",
    ("session/prefetch.py", "take"): "wait for the model",
    ("session/session.py", "_prepare"): "load",
    ("session/session.py", "close"): "close",
}
"""What a thread does, by the innermost of its functions that is listed: the end of the file's path, and the name."""
FOLDERS = {"frontends": "read model", "passes": "rewrite graph"}
"""The same by a folder of Weft, for functions that are not listed."""
KERNELS = (
    "vulkan/pipelines.py", "vulkan/ptx_kernels.py", "vulkan/spirv.py", "opencl/programs.py", "opencl/ptx_writer.py",
)
"""Files whose functions have the kernel that they build as `source`, or in `wanted`."""
ASIDE = ("threading.py", "queue.py", "concurrent/futures/thread.py", "socketserver.py")


def _ends(path: str) -> str:
    """Return the last folder and the name of a file."""
    return "/".join(path.rsplit("/", 2)[-2:])


@cache
def _in_weft(file: str) -> str:
    """Return where a file lies in the package; "" if it is another's, such as a test in a clone that is called weft."""
    folder = file[: file.rfind("/weft/") + len("/weft/")]
    return file[len(folder) :] if "/weft/" in file and os.path.exists(f"{folder}__init__.py") else ""


def phase(frame: FrameType | None) -> tuple[str, str]:
    """Return what a thread at this frame does, and the kernel or the kind that it does it with, if that is known."""
    found, detail, inside, waits = "", "", "", True
    while frame is not None:
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        if file.startswith("<frozen importlib"):
            found = found or "import"
        own = _in_weft(file)
        folder = next((FOLDERS[each] for each in own.split("/")[:2] if each in FOLDERS), "")
        found = found or PHASES.get((_ends(file), name), "") or folder
        inside = inside or (own and f"{own}: {name}")
        waits = waits and file.endswith(ASIDE)
        if not detail:
            detail = _detail(frame, own)
        frame = frame.f_back
    return found or (WAITS if waits else inside or "other"), detail


def _detail(frame: FrameType, own: str) -> str:
    """Return the kernel that a function of Weft compiles, or the kind of kernels that it tests."""
    if own.endswith(KERNELS):
        found = frame.f_locals
        source = found.get("source") or getattr(found.get("wanted"), "source", None)
        entry, digest = (getattr(source, name, "") for name in ("entry", "digest"))
        return f"{entry} {digest[:8]}" if entry else ""
    if own.endswith("selftest/child.py") and frame.f_code.co_name == "main":
        return str(frame.f_locals.get("name", ""))
    return ""


def _watch(path: str) -> None:
    me, last, beat = threading.get_ident(), dict[int, tuple[str, str]](), 0
    with open(path, "w", encoding="utf-8", buffering=1) as out:
        out.write(f"{time.monotonic():.4f}\t0\tprocess\t{' '.join(sys.orig_argv)[:300]!r}\t\n")
        while True:
            now, names = time.monotonic(), {t.ident: t.name for t in threading.enumerate()}
            seen = {ident: phase(frame) for ident, frame in sys._current_frames().items() if ident != me}
            for ident, doing in seen.items():
                if last.get(ident) != doing:
                    out.write(f"{now:.4f}\t{ident}\t{names.get(ident, 'of a driver')}\t{doing[0]}\t{doing[1]}\n")
            for ident in last.keys() - seen.keys():
                out.write(f"{now:.4f}\t{ident}\t\t\t\n")
            last, beat = seen, beat + 1
            if beat % 4 == 0:
                out.write(f"{now:.4f}\t0\tbeat\t\t\n")
            time.sleep(PERIOD)


def start() -> None:
    """Start the thread that notes what others do, if the variable is set."""
    folder = os.environ.get(FOLDER)
    if folder:
        path = os.path.join(folder, f"{os.getpid()}.tsv")
        threading.Thread(target=_watch, args=[path], name="samples", daemon=True).start()
