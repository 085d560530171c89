"""Measures the device's time for work enqueued as a whole, so that neither the host nor events add to it.

On an NVIDIA GPU an event object costs 2 us or more a launch, and never shows less than 4 us. And
the device waits if a launch takes less time than the host needs to enqueue it. So the work is enqueued without events
behind a kernel that keeps the device busy until all of it is enqueued. The result spans from that kernel's end to the
start of an empty kernel, including the gaps between launches.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyopencl as cl

from weft.backends.opencl import native

SOURCE = """
__kernel void spin(__global float* out, int rounds) {
  float x = rounds;
  for (int i = 0; i < rounds; i++) x = x * 0.999f + 1.0f;
  out[0] = x;
}
__kernel void last(__global float* out) { out[1] = 0.0f; }
"""
FIRST_ROUNDS, MOST_ROUNDS = 1 << 16, 1 << 28


class QueueTimer:
    """A separate queue on a device, for one thread at a time."""

    def __init__(self, context: cl.Context, device: cl.Device) -> None:
        self._queue = cl.CommandQueue(context, device, cl.command_queue_properties.PROFILING_ENABLE)
        calls = native.load(device)
        program = native.program_of(calls, context, SOURCE)
        native.build_problem(calls, program, device, ())  # what is wrong with it, its kernels say
        self._spin, self._last = cl.Kernel(program, "spin"), cl.Kernel(program, "last")
        self._out = cl.Buffer(context, cl.mem_flags.READ_WRITE, 8)
        self._rounds = FIRST_ROUNDS

    def seconds(self, enqueue: Callable[[cl.CommandQueue], None]) -> float | None:
        """Return the duration of what `enqueue` adds; None if the host is too slow even behind the longest wait.

        It may call `enqueue` several times, until the host keeps up. Earlier work of other queues must be done.
        """
        while self._rounds <= MOST_ROUNDS:
            self._spin.set_args(self._out, np.int32(self._rounds))
            self._last.set_args(self._out)
            first = cl.enqueue_nd_range_kernel(self._queue, self._spin, (1,), (1,))
            self._queue.flush()
            enqueue(self._queue)
            end = cl.enqueue_nd_range_kernel(self._queue, self._last, (1,), (1,))
            self._queue.flush()
            in_time = first.command_execution_status != cl.command_execution_status.COMPLETE
            self._queue.finish()
            if in_time:
                return float(end.profile.start - first.profile.end) * 1e-9
            self._rounds *= 2
        self._rounds = FIRST_ROUNDS  # the host may be faster next time
        return None
