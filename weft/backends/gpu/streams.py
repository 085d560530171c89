"""Uploads of large inputs that go on while the host still copies."""

from __future__ import annotations

from typing import Any

from weft.backends.gpu.device import Binding, CopyCommand, GpuDevice
from weft.core.hostcopy import copy_into
from weft.core.layout import Array

LEAST = 4 << 20
"""Bytes below which an upload goes with the run."""
CHUNK = 2 << 20
"""Bytes of an upload that are submitted together: few, so that the last ones do not take long after the copy,
but worth the call."""


def worthwhile(device: GpuDevice, nbytes: int) -> bool:
    """Tell whether an input of so many bytes is uploaded in chunks."""
    return device.sends_ahead and nbytes >= LEAST


class Stream:
    """The upload of one input in chunks, each a recording that is submitted as soon as the host has copied it.

    Only for a device that `sends_ahead`: what one thread submits there runs in order, so that the run
    which is submitted last needs no further wait for the chunks, and to wait for it is to wait for them.
    """

    def __init__(self, device: GpuDevice, host: Array, source: Binding, target: Binding, label: str) -> None:
        self._device, self._host = device, host
        self._ends: list[int] = []
        self._recordings: list[Any] = []
        self._sent = 0
        for start in range(0, source.nbytes, CHUNK):
            size = min(CHUNK, source.nbytes - start)
            here, there = (Binding(b.buffer, b.offset + start, size) for b in (source, target))
            self._recordings.append(device.record([CopyCommand(here, there, label)]))
            self._ends.append(start + size)

    def fill(self, source: Array) -> None:
        """Copy an array to the staging memory and send what is there; the last run is done."""
        self.settle()
        copy_into(self._host, source, self._send)

    def finish(self) -> None:
        """Send what is not sent yet: all, if the staging memory was written by somebody else."""
        self._send(self._ends[-1])

    def end(self) -> None:
        """Note that the run which was submitted after the chunks has ended."""
        self._sent = 0

    def settle(self) -> None:
        """Wait for chunks that no run followed: something failed between."""
        if self._sent:
            self._device.wait(self._recordings[self._sent - 1])
            self._sent = 0

    def release(self) -> None:
        """Free the recordings."""
        for recording in self._recordings:
            self._device.release(recording)
        self._recordings = []

    def _send(self, nbytes: int) -> None:
        while self._sent < len(self._ends) and self._ends[self._sent] <= nbytes:
            self._device.submit(self._recordings[self._sent])
            self._sent += 1
