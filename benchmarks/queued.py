"""The device's time of a session's run on OpenCL that waits in the queue as a whole: its launches, and only they.

See `weft.backends.opencl.queue_timer`. A CUDA graph between two CUDA events covers the same.
"""

from __future__ import annotations

import ctypes
from typing import Any

import pyopencl as cl

import weft
from benchmarks.measure import Array
from weft.backends.opencl import native
from weft.backends.opencl.queue_timer import QueueTimer
from weft.backends.opencl.recording import QueuedLaunch, QueuedRead


class QueuedRun:
    """The launches of a session that runs wholly on one OpenCL device."""

    def __init__(self, session: weft.Session) -> None:
        (pipeline,) = session.pipelines
        recordings: Any = pipeline.backend.recording.handles  # type: ignore[attr-defined]
        steps = [step for recording in recordings for step in recording.steps]
        launches = [step for step in steps if isinstance(step, QueuedLaunch)]
        self._reads = [step for step in steps if isinstance(step, QueuedRead)]
        self._outputs = [pipeline.mapped[name] for name in pipeline.graph.outputs]
        context = launches[0].kernel.context
        (device,) = context.devices
        api = native.load(device)
        if api is None:
            raise RuntimeError("the OpenCL library that pyopencl uses was not found")
        self._handle = ctypes.c_void_p(None)
        self._calls = [step.native(api, self._handle) for step in launches]
        self._timer = QueueTimer(context, device)
        self._queue = cl.CommandQueue(context, device)

    def _enqueue(self, queue: cl.CommandQueue) -> None:
        self._handle.value = queue.int_ptr
        for call in self._calls:
            if call():
                raise RuntimeError("the device refused a launch")

    @property
    def launches(self) -> int:
        """Return how many kernels one run launches."""
        return len(self._calls)

    def milliseconds(self) -> float | None:
        """Return the span of one run, None if the host was too slow even behind the longest wait."""
        seconds = self._timer.seconds(self._enqueue)
        return None if seconds is None else seconds * 1e3

    def outputs(self) -> list[Array]:
        """Return the last run's outputs: their memory is still unchanged."""
        for output in self._outputs:
            output[...] = 0
        for read in self._reads:
            read.enqueue(self._queue)
        self._queue.finish()
        return [output.copy() for output in self._outputs]
