"""Memory of a device for the state of networks: values that live from run to run, and from one shape to another."""

from __future__ import annotations

from functools import partial

import numpy as np

from weft.core.contract import check_answers
from weft.core.contract.backend import Backend, StorageType
from weft.core.contract.error_context import blame, callback_of, do_all
from weft.core.graph.dtypes import DType
from weft.core.graph.layout import Array
from weft.core.graph.tensor import Tensor, TensorSpec
from weft.errors import LESS_MEMORY, InputError, OutOfMemory


class StateMemory:
    """STATE tensors of one device, which any number of loaded networks may read and write (`Loader.load`).

    It owns a backend object that runs nothing. Nothing here waits for runs: none that uses a tensor may be under way
    when the tensor is written, read, copied or released. Close the networks that use it before it.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._held: dict[Tensor, None] = {}
        self._closed = False

    @property
    def nbytes(self) -> int:
        """Return the bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self._held)

    def make(self, name: str, spec: TensorSpec) -> Tensor:
        """Return a tensor of zeros; OutOfMemory if the device has no memory for it."""
        tensor = self._acquired(name, spec)
        try:
            self.write(tensor, np.zeros(spec.dims, spec.dtype.numpy))
        except BaseException:
            self.release(tensor)
            raise
        return tensor

    def write(self, tensor: Tensor, array: Array) -> None:
        """Replace the value; the array has the tensor's shape, and any float type if that is of floats."""
        if array.shape != tensor.shape:
            raise InputError(
                f"the state {tensor.name!r} was given another shape",
                why=f"it is {tensor.shape}, and the array {array.shape}",
                fix="give an array of its shape",
            )
        self._copy(Tensor.from_numpy(array, name=tensor.name), tensor)

    def read(self, tensor: Tensor) -> Array:
        """Return the value in a new array."""
        made = Tensor.empty(tensor.shape, tensor.dtype, name=tensor.name)
        self._copy(tensor, made)
        value: Array = made.memory
        return value

    def copy(self, tensor: Tensor, dtype: DType | None = None) -> Tensor:
        """Return a new tensor with the value of another, in another float type if one is given."""
        made = self._acquired(tensor.name, TensorSpec(tensor.shape, dtype or tensor.dtype))
        try:
            self._copy(tensor, made)
        except BaseException:
            self.release(made)
            raise
        return made

    def release(self, tensor: Tensor) -> None:
        """Free a tensor; nothing must use it any more."""
        del self._held[tensor]
        device, callback = self._backend.info.device, self._callback("onReleaseBuffer")
        with blame(device, f"the state {tensor.name!r} could not be freed", callback=callback):
            answer = self._backend.onReleaseBuffer(tensor, StorageType.STATE)
            check_answers.granted(answer, f"{device}: {callback}", "where it does not know the tensor")

    def close(self) -> None:
        """Free all tensors and close the backend object; a second close does nothing."""
        if not self._closed:
            self._closed = True
            releases = [partial(self.release, tensor) for tensor in self._held]
            do_all([*releases, self._backend.onClearBuffer, self._backend.close])

    def _acquired(self, name: str, spec: TensorSpec) -> Tensor:
        tensor = Tensor(name, spec.dims, spec.dtype, backend=self._backend)
        device, callback = self._backend.info.device, self._callback("onAcquireBuffer")
        with blame(device, f"the state {name!r} got no memory", callback=callback):
            answer = self._backend.onAcquireBuffer(tensor, StorageType.STATE)
            if not check_answers.granted(answer, f"{device}: {callback}", "where memory is lacking"):
                raise OutOfMemory(
                    f"{device} has no memory for the state {name!r}",
                    why=f"{tensor.nbytes:,} bytes of STATE memory were refused",
                    fix=f"{LESS_MEMORY}, or another device",
                )
        self._held[tensor] = None
        return tensor

    def _copy(self, source: Tensor, target: Tensor) -> None:
        what = f"the state {target.name!r} could not be copied"
        with blame(self._backend.info.device, what, callback=self._callback("onCopyBuffer")):
            self._backend.onCopyBuffer(source, target)

    def _callback(self, name: str) -> str:
        return callback_of(self._backend, name)
