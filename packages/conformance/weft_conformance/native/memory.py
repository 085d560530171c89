"""Open devices of a library, and memory for the tensors of a run with guards around each."""

from __future__ import annotations

import ctypes
from ctypes import c_void_p
from itertools import count
from typing import NamedTuple

import numpy as np

from weft.core.contract.backend_options import Options
from weft.core.graph.layout import Array
from weft.core.graph.tensor import Tensor
from weft.plugins.native_abi import OptionsView
from weft_conformance.native.calls import Broken, Calls, Pointer
from weft_conformance.native.nodes import NodeWork, View

ALIGNMENT = 64
GUARD = 256
"""The least number of guard bytes before and behind each tensor, which nobody may write to."""


class Library(NamedTuple):
    """A library's functions, the index and the options of the device that is tried, and the table's address."""

    calls: Calls
    number: int
    options: Options
    address: int


class Device:
    """An open device."""

    def __init__(self, library: Library) -> None:
        self.calls = library.calls
        self.has_buffers, self.has_queue = self.calls.has("allocate"), self.calls.has("wait")
        made = Pointer()
        if self.calls.has("open_with"):
            given = OptionsView(library.options)
            self.calls.must("open_with", library.number, given.count, given.pointers, made.argument)
        elif self.calls.has("open"):
            self.calls.must("open", library.number, made.argument)
        if not made.is_whole():
            raise Broken("the device was written beside *device, which has room for one pointer")
        self.handle = c_void_p(made.value)

    def wait(self) -> None:
        """Wait for what is queued."""
        if self.has_queue:
            self.calls.must("wait", self.handle)

    def close(self) -> None:
        """Close it."""
        if self.calls.has("close"):
            self.calls.plain("close", self.handle)

    def allocate(self, nbytes: int) -> int:
        """Return a buffer; Broken if there is none."""
        buffer: int | None = self.calls.plain("allocate", self.handle, nbytes)
        if not buffer:
            raise Broken(f"allocate returned NULL for {nbytes:,} bytes")
        return buffer

    def free(self, buffer: int) -> None:
        """Give a buffer back."""
        self.calls.plain("free", self.handle, buffer)

    def upload(self, buffer: int, offset: int, data: Array) -> None:
        """Copy into a buffer; check that the library did not change the source, then overwrite the source."""
        source = np.array(data)
        self.calls.must("upload", self.handle, buffer, offset, source.ctypes.data, source.nbytes)
        if source.tobytes() != data.tobytes():
            self.calls.broken("upload wrote to its source")
        source[...] = 0xFF

    def download(self, buffer: int, offset: int, nbytes: int) -> Array:
        """Return a piece of a buffer."""
        target = np.full(nbytes + 2 * GUARD, 0xFE, np.uint8)
        self.calls.must("download", self.handle, buffer, offset, target.ctypes.data + GUARD, nbytes)
        if (target[:GUARD] != 0xFE).any() or (target[GUARD + nbytes :] != 0xFE).any():
            self.calls.broken(f"download wrote beside the {nbytes:,} bytes that it was asked for")
        return target[GUARD : GUARD + nbytes].copy()


_seeds = count()


class Arena:
    """The inputs and outputs of one run, in a buffer of the device or on the host, with guards between them.

    On the host, with `least_aligned`, they are aligned for their elements and no more.
    """

    def __init__(self, device: Device, work: NodeWork, *, least_aligned: bool = False) -> None:
        self.device, self.work = device, work
        at, self._offsets = 0, dict[Tensor, int]()
        for tensor in work.tensors:
            at = -(-(at + GUARD) // ALIGNMENT) * ALIGNMENT
            shift = tensor.dtype.itemsize if least_aligned and not device.has_buffers else 0
            self._offsets[tensor] = at + shift
            at += shift + tensor.nbytes
        self.nbytes = at + GUARD
        # Other bytes in each arena, so that untouched memory is never mistaken for an earlier run's results.
        self._before = np.random.default_rng(next(_seeds)).integers(0, 256, self.nbytes, np.uint8)
        for given, array in zip(work.inputs, work.arrays, strict=True):
            if given is not None and array is not None:
                self._piece(self._before, given)[...] = np.frombuffer(array.tobytes(), np.uint8)
        self.buffer = 0
        if device.has_buffers:
            self.buffer = device.allocate(self.nbytes)
            device.upload(self.buffer, 0, self._before)
        else:
            room = np.empty(self.nbytes + ALIGNMENT, np.uint8)
            start = -room.ctypes.data % ALIGNMENT
            self._host = room[start : start + self.nbytes]
            self._host[...] = self._before

    def locate(self, view: View) -> None:
        """Tell C where the tensors are."""
        pairs = zip((*self.work.inputs, *self.work.outputs), (*view.inputs, *view.outputs), strict=True)
        for tensor, seen in pairs:
            if tensor is not None:
                at = self._offsets[tensor]
                seen.data = self.buffer if self.buffer else self._host.ctypes.data + at
                seen.offset = at if self.buffer else 0

    def outputs(self) -> list[Array]:
        """Return the outputs, and note writes to anything else."""
        after = self.device.download(self.buffer, 0, self.nbytes) if self.buffer else self._host.copy()
        found = [self._piece(after, t).copy() for t in self.work.outputs]
        for tensor in self.work.outputs:
            self._piece(after, tensor)[...] = self._piece(self._before, tensor)
        changed = np.flatnonzero(after != self._before)
        if changed.size:
            self.device.calls.broken(f"execute wrote {self._where(int(changed[0]))} ({self.work.name})")
        for tensor, raw in zip(self.work.outputs, found, strict=True):
            if tensor.dtype.value == "bool" and (raw > 1).any():
                self.device.calls.broken(f"execute wrote {raw.max()} for a bool ({self.work.name})")
        return [
            raw.view(t.dtype.numpy).reshape(t.shape) for t, raw in zip(self.work.outputs, found, strict=True)
        ]

    def is_untouched(self) -> bool:
        """Tell whether nothing has changed since the beginning."""
        after = self.device.download(self.buffer, 0, self.nbytes) if self.buffer else self._host
        return np.array_equal(after, self._before)

    def free(self) -> None:
        """Give the buffer back."""
        if self.buffer:
            self.device.free(self.buffer)

    def _piece(self, image: Array, tensor: Tensor) -> Array:
        at = self._offsets[tensor]
        return image[at : at + tensor.nbytes]

    def _where(self, byte: int) -> str:
        for tensor, at in self._offsets.items():
            if at <= byte < at + tensor.nbytes:
                return f"to an input, {tensor.name!r}"
        tensor, at = min(self._offsets.items(), key=lambda each: max(each[1] - byte, byte - each[1] - each[0].nbytes))
        side = f"{at - byte} bytes before" if byte < at else f"{byte - at - tensor.nbytes} bytes behind the end of"
        kind = "output" if tensor in self.work.outputs else "input"
        return f"{side} the {kind} {tensor.name!r}, which has {tensor.nbytes} bytes"


class Prepared:
    """A node for which `create` was called; what `create` was shown has been overwritten since."""

    def __init__(self, device: Device, work: NodeWork, *, overwrites: bool = False, roomy: bool = False) -> None:
        self.device, self.work, self._is_roomy = device, work, roomy
        self._view = View(work, constants=True, roomy=roomy)
        before, made = self._view.content(), Pointer()
        device.calls.must("create", device.handle, ctypes.byref(self._view.node), made.argument)
        if self._view.content() != before:
            device.calls.broken(f"create changed what it was shown ({work.name})")
        if not made.is_whole():
            raise Broken("create wrote beside *state, which has room for one pointer")
        self._state = c_void_p(made.value)
        if overwrites:
            self._view.overwrite()

    def execute(self, arena: Arena, *, overwritten_with: int | None = None) -> None:
        """Run it; then overwrite what `execute` was shown, with pointers to other memory."""
        view = View(self.work, constants=False, roomy=self._is_roomy)
        arena.locate(view)
        before = view.content()
        self.device.calls.must("execute", self._state, view.input_array, view.output_array)
        if view.content() != before:
            self.device.calls.broken(f"execute changed what it was shown ({self.work.name})")
        if overwritten_with is not None:
            view.overwrite(overwritten_with)
        self._last = view  # keeps the memory alive, so that a pointer that the library kept stays valid

    def destroy(self) -> None:
        """Free the state."""
        self.device.calls.plain("destroy", self._state)
