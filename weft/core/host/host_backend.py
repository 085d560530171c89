"""Backends in the host's memory: every callback of the contract, over numpy arrays."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache, partial
from math import inf, isinf

import numpy as np

from weft.core.contract.backend import Backend, BackendInfo, StorageType
from weft.core.graph.layout import Array
from weft.core.graph.tensor import Tensor
from weft.core.host.tensor_copy import copy_tensor
from weft.core.memory.buffer_manager import BufferManager, Slot
from weft.errors import LESS_MEMORY, OutOfMemory


class HostBackend(Backend):
    """A backend whose tensors are numpy arrays, so that other backends copy to and from them directly.

    Subclass it for values in the host's memory: it has all callbacks, so only `why_not` and the ops are left to
    write. From `onAllocateBuffer` on, `Tensor.memory` is an array of `storage_shape`.
    """

    host_memory = True

    def __init__(self, info: BackendInfo) -> None:
        super().__init__(info)
        self._memory = BufferManager(partial(self._allocate, info.id), lambda _: None)
        self._slots: dict[Tensor, Slot] = {}

    def onAcquireBuffer(self, tensor: Tensor, storage_type: StorageType) -> bool:
        """Give the tensor an array now or in the plan."""
        slot = self._slots[tensor] = self._memory.acquire(tensor.nbytes, storage_type)
        tensor.backend = self
        if slot.buffer is not None:
            self._bind(tensor, slot)
        return True

    @staticmethod
    def _bind(tensor: Tensor, slot: Slot) -> None:
        tensor.memory = np.ndarray(tensor.storage_shape, tensor.dtype.numpy, slot.buffer, slot.offset)

    def onReleaseBuffer(self, tensor: Tensor, storage_type: StorageType) -> bool:
        """Free the array according to its storage type."""
        slot = self._slots.get(tensor)
        if slot is None:
            return False
        self._memory.release(slot)
        if storage_type.stays:
            del self._slots[tensor]
        return True

    def canImport(self, source: Backend) -> bool:
        """Tell whether the source's tensors are arrays on the host."""
        return source.host_memory

    def onImportBuffer(self, tensor: Tensor, source: Tensor) -> bool:
        """Use the array of another tensor."""
        tensor.backend, tensor.memory = self, source.memory
        return source.memory is not None

    def onResizeBegin(self) -> None:
        """Start to record lifetimes."""
        self._memory.begin()

    def onAllocateBuffer(self) -> bool:
        """Allocate the arena and give every tensor its place."""
        self._memory.allocate()
        for tensor, slot in self._slots.items():
            if not slot.storage.stays and slot.buffer is not None:  # what stays had its place at once
                self._bind(tensor, slot)
        return True

    def onClearBuffer(self) -> bool:
        """Free everything except STATIC and STATE memory."""
        self._memory.clear()
        self._slots = {t: s for t, s in self._slots.items() if s.storage.stays}
        return True

    def onCopyBuffer(self, src: Tensor, dst: Tensor) -> None:
        """Copy between arrays, converting layout and element type; a device's backend copies its own tensors."""
        copy_tensor(src, dst)

    def onExecuteBegin(self) -> None:
        """Do nothing: each execution runs when it is called."""

    def onExecuteEnd(self) -> None:
        """Do nothing: executions run when they are called."""

    def statistics(self) -> Mapping[str, int]:
        """Return the bytes of the arena, its lower bound, and the bytes of constants."""
        return self._memory.statistics()

    def close(self) -> None:
        """Drop all arrays."""
        self._memory.close()
        self._slots.clear()

    @staticmethod
    def _allocate(device: str, nbytes: int) -> Array:
        try:
            if nbytes > _whole_memory():
                # Many systems would grant it, and kill the process when it writes there.
                raise MemoryError("it exceeds the host's whole memory")
            return np.empty(nbytes, np.uint8)
        except (MemoryError, ValueError) as e:
            raise OutOfMemory(
                f"{nbytes:,} bytes cannot be allocated",
                where=device,
                why=f"{_free_memory()}; {e}",
                fix=LESS_MEMORY,
            ) from e


def _free_memory() -> str:
    free = _memory("SC_AVPHYS_PAGES")
    return "the host has less" if isinf(free) else f"the host has {free:,} bytes free"


@cache
def _whole_memory() -> float:
    return _memory("SC_PHYS_PAGES")


def _memory(pages: str) -> float:
    """Return the bytes of that many pages; infinity if the system does not tell."""
    try:
        return os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return inf
