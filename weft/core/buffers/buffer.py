"""Buffers: tensors on a device that callers make, pass to runs, get from runs, and read."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import numpy as np

from weft.core.buffers.device_memory import DeviceMemory
from weft.core.contract.doors import door
from weft.core.contract.not_copied import NotCopied
from weft.core.graph.layout import Array, Shape
from weft.core.graph.tensor import Tensor, TensorSpec
from weft.core.host.dlpack import HOST_DEVICE, OwnArray, share
from weft.core.host.fitted import fit_array
from weft.core.host.tensor_copy import is_host
from weft.errors import CannotShare, ClosedError, InputError

_lock = threading.Lock()
"""Held to look at, and to change, who uses a buffer."""
_ended = threading.Condition(_lock)
"""Told when the host has read or written one."""
_ends: list[Callable[[], None]] = []
"""What ends the runs of sessions that were dropped, which use their buffers until then."""


def ends_runs(end: Callable[[], None]) -> None:
    """Have a function called, without a lock, before a run that uses a buffer is in somebody's way."""
    _ends.append(end)


class Buffer(NotCopied, OwnArray):
    """A tensor on a device. Runs read and write it there without a copy; `weft.empty` and `weft.array` make one.

    Pass it to `run` or `submit` for an input, or in `outputs`, of any session. `numpy` copies its value to the host,
    `write` replaces it. On the CPU, other libraries share its memory by DLPack: `torch.from_dlpack(buffer)`.

    It holds its memory until it is closed or dropped. While a run uses it that was submitted and not waited for, it
    cannot be read if the run writes it, nor written. Any thread may use it; reads and writes of the host take turns.
    """

    _noun = "buffer"
    _in_a_worker = "send buffer.numpy(), and make a buffer there: weft.array(value, device=...)"
    _a_second = "make one with the same value: weft.array(buffer, device=buffer.device)"

    tensor: Tensor
    is_writable: bool
    _memory: DeviceMemory
    _spec: TensorSpec
    _free: Callable[[Tensor], None]
    _finalizer: weakref.finalize[..., Buffer]
    _readers, _written, _closed = 0, False, False
    _turn: tuple[int, bool] | None = None
    """The thread in which the host reads or writes it now, and whether it writes."""

    def __init__(self, *given: object, **named: object) -> None:
        raise InputError(
            "a buffer is not made by its class",
            why="it lies in the memory of a device, which opens for it",
            fix="weft.empty(shape, device=...) and weft.array(value, device=...) make one, and session.buffer(name)",
        )

    @classmethod
    def of(
        cls, memory: DeviceMemory, tensor: Tensor, free: Callable[[Tensor], None], dropped: Callable[[Tensor], None],
        *, is_writable: bool = True,
    ) -> Buffer:
        """Return one for a tensor: `free` gives it back, and `dropped` notes, in a collection, that it may be."""
        made = cls.__new__(cls)
        made._memory, made.tensor, made.is_writable = memory, tensor, is_writable
        made._free = free
        made._spec = TensorSpec(tensor.shape, tensor.dtype)
        made._finalizer = weakref.finalize(made, dropped, tensor)
        made._finalizer.atexit = False
        return made

    # -- what it is ------------------------------------------------------------------------------------

    @property
    def spec(self) -> TensorSpec:
        """Return the shape and element type."""
        return self._spec

    @property
    def shape(self) -> Shape:
        """Return the shape."""
        return self._spec.dims

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return the element type, as numpy has it."""
        return self._spec.dtype.numpy

    @property
    def ndim(self) -> int:
        """Return the number of dimensions."""
        return len(self._spec.shape)

    @property
    def size(self) -> int:
        """Return the number of elements."""
        return self._spec.size

    @property
    def nbytes(self) -> int:
        """Return the bytes of the value."""
        return self._spec.size * self._spec.dtype.itemsize

    @property
    def device(self) -> str:
        """Return the device whose memory holds it, as "vulkan:0"."""
        return self._memory.device

    @property
    def host(self) -> Array | None:
        """Return the array that is its memory if that is the host's, else None. Runs may change it at any time."""
        self.check_open()
        memory: Array | None = self.tensor.memory if is_host(self.tensor) else None
        return memory

    @property
    def is_closed(self) -> bool:
        """Tell whether it was closed."""
        return self._closed

    def __repr__(self) -> str:
        shape = ", ".join(map(str, self.shape)) + ("," if len(self.shape) == 1 else "")
        return f"Buffer(({shape}), {self.dtype}, {self.device!r}{', closed' if self._closed else ''})"

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a buffer without dimensions has no len()")
        return self.shape[0]

    def __iter__(self) -> Any:
        raise TypeError("a buffer is not taken apart on its device: use buffer.numpy()")

    # -- its value -------------------------------------------------------------------------------------

    @door
    def numpy(self) -> Array:
        """Return a copy of the value on the host, after writes of other threads; InputError while a run writes it."""
        with self._in_turn(writes=False):
            return self.value()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if copy is False:
            shared = self.host
            if shared is None or (dtype is not None and np.dtype(dtype) != shared.dtype):
                raise ValueError(f"{self!r} gives numpy a copy alone: leave copy=False out")
            return shared
        value = self.numpy()
        return value if dtype is None else value.astype(dtype, copy=False)

    @door
    def write(self, value: Any) -> None:
        """Replace the value by that of an array or another buffer of the same shape.

        Element types are converted as those of inputs are. It waits for other threads that read or write the value.
        InputError while a run uses the buffer, be it that of another session that reads it.
        """
        array, problem = fit_array(value, self._spec.dtype)
        if not problem and array.shape != self.shape:
            problem = f"is {array.shape}"
        if problem:
            raise InputError("the value does not fit the buffer", where=repr(self), why=f"it {problem}",
                             fix=f"give an array {self._spec}")
        with self._in_turn(writes=True):
            self.put(array)

    # -- other libraries -------------------------------------------------------------------------------

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return that it is in the host's memory; CannotShare, a BufferError, if it is in a device's own."""
        self._shared()
        return HOST_DEVICE

    def __dlpack__(
        self, *, stream: object = None, max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None, copy: bool | None = None,
    ) -> Any:
        """Return a capsule of its memory, which stays valid after a close; CannotShare if it is in a device's own."""
        return share(self._shared(), max_version=max_version, dl_device=dl_device, copy=copy)

    def _shared(self) -> Array:
        shared = self.host
        if shared is None:
            raise CannotShare(
                "the buffer cannot be shared by DLPack",
                where=repr(self),
                why=f"it is in the memory of {self.device}, which other libraries do not reach",
                fix="share a copy on the host, buffer.numpy(); buffers on the CPU are shared as they are",
            )
        return shared

    # -- its life --------------------------------------------------------------------------------------

    @door
    def close(self) -> None:
        """Free the memory; if a submitted run uses it, at the end of that. A second close does nothing."""
        self._end_dropped()
        with _lock:
            if self._closed:
                return
            self._closed = True
            is_last = self._is_unused
        if is_last:
            self._release()

    @property
    def _is_unused(self) -> bool:
        return not (self._written or self._readers or self._turn)

    def _release(self) -> None:
        if self._finalizer.detach() is not None:
            self._free(self.tensor)

    def __enter__(self) -> Buffer:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    # -- for runs --------------------------------------------------------------------------------------

    def check_open(self) -> None:
        """Raise ClosedError if it was closed."""
        if self._closed:
            raise ClosedError("the buffer is closed", where=repr(self), fix="make another, or close it later")

    def begin(self, *, writes: bool, reading: bool = False) -> None:
        """Let a run use it until `end`: others may read it meanwhile unless that writes.

        It waits for the host to read or write it; InputError if another run is in the way. A run that is `reading` it
        writes it from now on.
        """
        self._end_dropped()
        with _lock:
            self._readers -= reading
            try:
                self._admit(writes=writes)
            except BaseException:
                self._readers += reading
                raise
            if writes:
                self._written = True
            else:
                self._readers += 1

    def end(self, *, writes: bool) -> None:
        """End what `begin` began; a buffer that was closed meanwhile is freed by the last one."""
        with _lock:
            if writes:
                self._written = False
            else:
                self._readers -= 1
            is_last = self._closed and self._is_unused
        if is_last:
            self._release()

    @contextmanager
    def _in_turn(self, *, writes: bool) -> Iterator[None]:
        """Let the host read or write it for the block, one thread after the other; InputError if a run is in the way.

        A buffer that was closed meanwhile is freed at the end.
        """
        self._end_dropped()
        with _lock:
            self._admit(writes=writes, by_host=True)
            self._turn = (threading.get_ident(), writes)
        try:
            yield
        finally:
            with _lock:
                self._turn = None
                is_last = self._closed and self._is_unused
                _ended.notify_all()
            if is_last:
                self._release()

    def _admit(self, *, writes: bool, by_host: bool = False) -> None:
        """Wait until the host's turn allows a use, with `_lock` held; raise if the buffer or a run does not."""
        while True:
            self.check_open()
            if writes and not self.is_writable:
                raise InputError("the buffer is read-only", where=repr(self), why="it shares memory that is",
                                 fix="make another: weft.array(buffer)")
            if self._written or (writes and self._readers):
                raise InputError(
                    "the buffer is in use",
                    where=repr(self),
                    why=f"a run {'writes' if self._written else 'reads'} it that was submitted, or is another thread's",
                    fix="wait for that run, or give each run a buffer of its own",
                )
            if self._turn is None or not (by_host or writes or self._turn[1]):
                return
            if self._turn[0] == threading.get_ident():
                raise InputError(
                    "the buffer is in use", where=repr(self), why="this thread copies it, and called this meanwhile",
                    fix="use it when the copy has ended",
                )
            _ended.wait()

    def _end_dropped(self) -> None:
        """End the runs of sessions that were dropped, if a run uses it."""
        if self._written or self._readers:
            for end in _ends:
                end()

    def value(self) -> Array:
        """Return a copy of the value, to whoever uses it."""
        return self._memory.read(self.tensor)

    def put(self, array: Array) -> None:
        """Replace the value, for whoever uses it; any float type may take the place of another."""
        self._memory.write(self.tensor, array)

    def give(self, target: Tensor) -> None:
        """Copy the value to a tensor anywhere, for whoever uses it."""
        self._memory.move(self.tensor, target)

    def take(self, source: Tensor) -> None:
        """Replace the value by that of a tensor anywhere, for whoever uses it."""
        self._memory.move(source, self.tensor)


def on_host(value: Any) -> Any:
    """Return the value of a buffer on the host, for a run that uses it; anything else as it is."""
    return value.value() if isinstance(value, Buffer) else value
