"""Work on a large input while the host still copies it: uploads in chunks, and the first nodes on micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from weft.backends.gpu.device.device import Binding, Command, CopyCommand, GpuDevice
from weft.core.graph.layout import Array
from weft.core.host.parallel_copy import copy_into

LEAST = 4 << 20
"""Inputs of fewer bytes are uploaded by the run's own recording."""
LEAST_DIRECT = 1 << 20
"""From here on a device that `uploads_directly` takes an input from the caller's array, as it is in one copy less."""
LEAST_AFTER_DIRECT = 8 << 20
"""On such a device, inputs of fewer bytes are uploaded as a whole: a chunk that another core of the host has copied
lies in that core's cache, from where the device may read it at a quarter of the speed (benchmarks/NOTES.md)."""
CHUNK = 2 << 20
"""Bytes of a chunk: few, so that the last chunk is done soon after the copy, but worth the call."""


def least(device: GpuDevice) -> int:
    """Return the fewest bytes of an input on which work begins while the host copies it."""
    return LEAST_AFTER_DIRECT if device.uploads_directly else LEAST


def worthwhile(device: GpuDevice, nbytes: int) -> bool:
    """Tell whether an input of so many bytes is uploaded in chunks."""
    return device.sends_ahead and nbytes >= least(device)


@dataclass(frozen=True)
class Job:
    """Commands that may begin once the host has copied the first `end` bytes of an input."""

    end: int
    commands: Sequence[Command]
    uploads: bool = False
    """Whether it only uploads, which may overlap with other jobs."""


def chunks(source: Binding, target: Binding, label: str, micro_batches: int = 1) -> list[Job]:
    """Return the upload of an input in chunks, each inside one of so many micro-batches."""
    jobs = []
    for number in range(micro_batches):
        first, last = (source.nbytes * n // micro_batches for n in (number, number + 1))
        for start in range(first, last, CHUNK):
            size = min(CHUNK, last - start)
            here, there = (Binding(b.buffer, b.offset + start, size) for b in (source, target))
            jobs.append(Job(start + size, [CopyCommand(here, there, label)], uploads=True))
    return jobs


class Stream:
    """What a device does with one input while the host copies it: jobs, submitted as soon as they may begin.

    A thread's submits run in order, after its sends. So the run, submitted last, starts after the jobs, and waiting
    for it waits for them.
    """

    def __init__(self, device: GpuDevice, host: Array, jobs: Sequence[Job]) -> None:
        self._device, self._host = device, host
        jobs = sorted(jobs, key=lambda job: job.end)
        self._ends = [job.end for job in jobs]
        self.recordings: list[Any] = []
        with ExitStack() as made:
            made.callback(self.release)
            for job in jobs:
                self.recordings.append(device.record(job.commands))
            made.pop_all()
        self._uploads = [job.uploads for job in jobs]
        self._sent = 0
        self._broken = False
        """The run after what was sent did not begin."""

    def fill(self, source: Array) -> None:
        """Copy an array to the host's memory of the input, submitting meanwhile; the last run is done."""
        self.settle()
        copy_into(self._host, source, self._send)

    def finish(self) -> None:
        """Submit what is left: all, if that memory was written by somebody else."""
        if self._broken:
            self.settle()  # what was sent is of another run
        self._send(self._ends[-1])

    def break_off(self) -> None:
        """Note that the run to which the jobs belong did not begin; the next run sends everything anew."""
        self._broken = True

    def end(self) -> None:
        """Note that the run which was submitted after the jobs has ended."""
        self._sent = 0

    def settle(self) -> None:
        """Wait for jobs that no run followed: something failed between."""
        if self._sent:
            for recording in self.recordings[: self._sent]:
                self._device.wait(recording)
            self._sent = 0
        self._broken = False

    def release(self) -> None:
        """Free the recordings."""
        for recording in self.recordings:
            self._device.release(recording)
        self.recordings = []

    def _send(self, nbytes: int) -> None:
        while self._sent < len(self._ends) and self._ends[self._sent] <= nbytes:
            start = self._device.send if self._uploads[self._sent] else self._device.submit
            start(self.recordings[self._sent])
            self._sent += 1
