"""The device's time of an OpenCL run that waits in the queue as a whole, so that neither the host nor events add to it.

An event object for each launch costs the device 2 us or more a launch, and where a launch takes less than the host
needs to enqueue it, the device waits. So the launches of a run, and only they, are enqueued without events behind a
kernel that keeps the device busy until all are there; the span is from its end to the start of a kernel that does
nothing. The gaps between launches count. A CUDA graph between two CUDA events covers the same.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pyopencl as cl

import weft
from weft.backends.opencl import native
from weft.backends.opencl.recording import LaunchStep

SOURCE = """
__kernel void spin(__global float* out, int rounds) {
  float x = rounds;
  for (int i = 0; i < rounds; i++) x = x * 0.999f + 1.0f;
  out[0] = x;
}
__kernel void last(__global float* out) { out[1] = 0.0f; }
"""
MOST_ROUNDS = 1 << 28


class QueuedRun:
    """The launches of a session that runs wholly on one OpenCL device."""

    def __init__(self, session: weft.Session) -> None:
        (pipeline,) = session.pipelines
        recording: Any = pipeline.backend.recording._handle  # type: ignore[attr-defined]
        steps = [step for step in recording.steps if isinstance(step, LaunchStep)]
        context = steps[0].kernel.context
        (device,) = context.devices
        api = native.load(device)
        if api is None:
            raise RuntimeError("the OpenCL library that pyopencl uses was not found")
        self._queue = cl.CommandQueue(context, device, cl.command_queue_properties.PROFILING_ENABLE)
        handle = ctypes.c_void_p(self._queue.int_ptr)
        self._calls = [step.native(api, handle) for step in steps]
        program = cl.Program(context, SOURCE).build()
        self._spin, self._last = program.spin, program.last
        self._out = cl.Buffer(context, cl.mem_flags.READ_WRITE, 8)
        self._rounds = 1 << 16

    def milliseconds(self) -> float | None:
        """Return the span of one run, None if the host was too slow even behind the longest wait."""
        while self._rounds <= MOST_ROUNDS:
            self._spin.set_args(self._out, np.int32(self._rounds))
            self._last.set_args(self._out)
            first = cl.enqueue_nd_range_kernel(self._queue, self._spin, (1,), (1,))
            self._queue.flush()
            for call in self._calls:
                if call():
                    raise RuntimeError("the device refused a launch")
            end = cl.enqueue_nd_range_kernel(self._queue, self._last, (1,), (1,))
            self._queue.flush()
            in_time = first.command_execution_status != cl.command_execution_status.COMPLETE
            self._queue.finish()
            if in_time:
                return float(end.profile.start - first.profile.end) * 1e-6
            self._rounds *= 2
        return None
