"""Memory of a device for tensors that live until they are released, whatever networks come and go.

Buffers of callers and the state of networks lie there.
"""

from __future__ import annotations

import threading
from functools import partial

import numpy as np

from weft.core.contract.backend import Backend, StorageType
from weft.core.contract.callbacks import Callbacks
from weft.core.contract.error_context import blame, callback_of, do_all
from weft.core.graph.dtypes import DType
from weft.core.graph.layout import Array
from weft.core.graph.tensor import Tensor, TensorSpec
from weft.core.host.tensor_copy import copy_tensor
from weft.errors import ClosedError, InputError, OutOfMemory

MOST_SPARE = 8
"""How many tensors that nobody uses any more are kept for the next ones."""
MOST_SPARE_BYTES = 256 << 20
"""The most bytes of them."""


class DeviceMemory:
    """Tensors of one device, which any number of loaded networks may read and write.

    It owns a backend object that runs nothing. The memory is of kind STATE where the backend keeps state, else STATIC.
    Any thread may call it. Nothing here waits for runs: none that uses a tensor may be under way when the tensor is
    written, read, copied or released. Close networks that use a tensor (`Loader.load`) before it.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend, self._callbacks = backend, Callbacks(backend, backend.info.device)
        self._storage = StorageType.STATE if backend.keeps_state else StorageType.STATIC
        self._held: dict[Tensor, bool] = {}
        """The tensors, and whether their memory is of the backend: that of others is theirs."""
        self._spare: list[Tensor] = []
        """Tensors that nobody uses, kept for the next ones of their shapes and types; the latest is last."""
        self._closed = False
        self._lock = threading.RLock()
        """Held during each call of the backend, which need not know threads."""

    @property
    def device(self) -> str:
        """Return the device's name, "vulkan:0"."""
        return self._backend.info.device

    @property
    def place(self) -> tuple[str, int]:
        """Return the id of the device's backend, and the index."""
        return self._backend.info.id, self._backend.info.index

    @property
    def is_closed(self) -> bool:
        """Tell whether it was closed."""
        return self._closed

    @property
    def count(self) -> int:
        """Return how many tensors there are."""
        return len(self._held)

    @property
    def nbytes(self) -> int:
        """Return the bytes of all tensors, without those in memory of others."""
        with self._lock:
            return sum(tensor.nbytes for tensor, is_own in self._held.items() if is_own)

    def make(self, name: str, spec: TensorSpec, value: Array | None = None) -> Tensor:
        """Return a tensor of zeros, or with a value; OutOfMemory if the device has no memory for it."""
        with self._lock:
            tensor = self.acquire(name, spec)
            try:
                self.write(tensor, np.zeros(spec.dims, spec.dtype.numpy) if value is None else value)
            except BaseException:
                self.release(tensor)
                raise
            return tensor

    def acquire(self, name: str, spec: TensorSpec) -> Tensor:
        """Return a tensor with any content; OutOfMemory if the device has no memory for it.

        It is a spare one if one fits: a device takes a millisecond to give memory, and a run to be recorded for it.
        """
        with self._lock:
            self._check_open()
            fitting = [each for each in self._spare if (each.shape, each.dtype) == (spec.dims, spec.dtype)]
            if fitting:
                tensor = fitting[-1]
                self._spare.remove(tensor)
                tensor.name = name
            else:
                tensor = Tensor(name, spec.dims, spec.dtype, backend=self._backend)
                try:
                    self._callbacks.acquire(tensor, self._storage)
                except OutOfMemory:
                    if not self.free_spare():
                        raise
                    self._callbacks.acquire(tensor, self._storage)
            self._held[tensor] = True
        return tensor

    def spare(self, tensor: Tensor) -> None:
        """Keep the memory of a tensor that nobody uses any more for the next one of its shape and type.

        It is freed if it is the host's, which others may share, or if too much is kept; and with `free_spare`.
        """
        with self._lock:
            if self._backend.host_memory or not self._held.get(tensor, False):
                self.release(tensor)
                return
            del self._held[tensor]
            self._spare.append(tensor)
            while len(self._spare) > MOST_SPARE or sum(each.nbytes for each in self._spare) > MOST_SPARE_BYTES:
                self._callbacks.release(self._spare.pop(0), self._storage)

    def free_spare(self) -> bool:
        """Free what is kept for tensors to come; tell whether there was something."""
        with self._lock:
            spare, self._spare = self._spare, []
            do_all(partial(self._callbacks.release, tensor, self._storage) for tensor in spare)
            return bool(spare)

    def adopt(self, name: str, array: Array) -> Tensor:
        """Return a tensor in the memory of an array, of a backend whose memory is the host's."""
        tensor = Tensor(name, array.shape, DType.of(array.dtype), memory=array, backend=self._backend)
        with self._lock:
            self._check_open()
            self._held[tensor] = False
        return tensor

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"the memory of {self.device} is closed", fix="use a device that is open")

    def write(self, tensor: Tensor, array: Array) -> None:
        """Replace the value; the array has the tensor's shape, and any float type if that is of floats."""
        if array.shape != tensor.shape:
            raise InputError(
                f"{tensor.name!r} was given another shape",
                why=f"it is {tensor.shape}, and the array {array.shape}",
                fix="give an array of its shape",
            )
        self.move(Tensor.from_numpy(array, name=tensor.name), tensor)

    def read(self, tensor: Tensor) -> Array:
        """Return the value in a new array."""
        made = Tensor.empty(tensor.shape, tensor.dtype, name=tensor.name)
        self.move(tensor, made)
        value: Array = made.memory
        return value

    def copy(self, tensor: Tensor, dtype: DType | None = None) -> Tensor:
        """Return a new tensor with the value of another, in another float type if one is given."""
        with self._lock:
            made = self.acquire(tensor.name, TensorSpec(tensor.shape, dtype or tensor.dtype))
            try:
                self.move(tensor, made)
            except BaseException:
                self.release(made)
                raise
            return made

    def move(self, source: Tensor, target: Tensor) -> None:
        """Copy the value of one tensor to another; one of them is held here, the other may be anywhere."""
        what = f"{target.name!r} could not be copied"
        with self._lock, blame(self.device, what, callback=callback_of(self._backend, "onCopyBuffer")):
            copy_tensor(source, target)

    def release(self, tensor: Tensor) -> None:
        """Free a tensor, unless a close has; nothing must use it any more."""
        with self._lock:
            if self._held.pop(tensor, False):
                self._callbacks.release(tensor, self._storage)
            tensor.memory = None

    def close_if_empty(self) -> bool:
        """Close unless there are tensors; tell whether it is closed."""
        with self._lock:
            if not self._held:
                self.close()
            return self._closed

    def close(self) -> None:
        """Free all tensors and close the backend object; a second close does nothing."""
        with self._lock:
            if not self._closed:
                self._closed = True
                releases = [partial(self.release, tensor) for tensor in [*self._held]]
                do_all([*releases, self.free_spare, self._backend.onClearBuffer, self._backend.close])
