"""The memories of devices in which buffers lie: one for each device, open while there are buffers."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import partial

from weft.core.buffers.buffer import Buffer
from weft.core.buffers.device_memory import DeviceMemory
from weft.core.contract.backend import BackendConfig, BackendCreator
from weft.core.contract.backend_options import Options
from weft.core.contract.error_context import caught, do_all
from weft.core.graph.layout import Array
from weft.core.graph.tensor import Tensor, TensorSpec
from weft.core.host import shutdown
from weft.core.host.dropped import Dropped
from weft.core.host.turns import Turns
from weft.core.registry.device_choice import DeviceChoice
from weft.errors import ClosedError, DeviceLost

log = logging.getLogger("weft.memory")
_Key = tuple[BackendCreator, int, Options]


class DeviceMemories:
    """Makes buffers, in the memory of a device that is opened for the first and closed after the last of them.

    A device is open once for each set of options of its backend, so those of other options are other devices.
    """

    def __init__(self) -> None:
        self._held: dict[_Key, DeviceMemory] = {}
        self._dropped = Dropped[tuple[DeviceMemory, Tensor]](of_process=True)
        """What buffers held that were dropped without a close. The next buffers take their memory."""
        self._lock = threading.Lock()
        self._opening = Turns[_Key]()
        """To open a device takes long: buffers on others come and go meanwhile."""
        self._process = os.getpid()
        shutdown.note(self)

    def make(self, choice: DeviceChoice, spec: TensorSpec, name: str, value: Array | None = None) -> Buffer:
        """Return a buffer on a device, with a value or any content; OutOfMemory if there is none for it."""
        if value is None:
            return self._made(choice, lambda memory: memory.acquire(name, spec))
        return self._made(choice, lambda memory: memory.make(name, spec, value))

    def adopt(self, choice: DeviceChoice, array: Array, name: str, *, is_writable: bool) -> Buffer:
        """Return a buffer in the memory of an array, on a device whose memory is the host's."""
        return self._made(choice, lambda memory: memory.adopt(name, array), is_writable=is_writable)

    def _made(
        self, choice: DeviceChoice, make: Callable[[DeviceMemory], Tensor], *, is_writable: bool = True
    ) -> Buffer:
        left = self._set_aside()
        while True:
            memory = self._opened(choice)
            try:
                tensor = make(memory)
            except ClosedError:
                if memory.is_closed:  # another thread has freed the last buffer there
                    continue
                raise
            except DeviceLost:
                with self._lock:
                    self._held = {key: each for key, each in self._held.items() if each is not memory}
                raise
            except BaseException:
                self._close_empty(memory)
                raise
            self._close_left(left - {memory})
            dropped = partial(_note, self._dropped, memory)
            return Buffer.of(memory, tensor, partial(self._free, memory), dropped, is_writable=is_writable)

    def is_open(self, choice: DeviceChoice) -> bool:
        """Tell whether a device is open for buffers."""
        memory = self._held.get((choice.creator, choice.index, choice.options))
        return memory is not None and not memory.is_closed

    def _opened(self, choice: DeviceChoice) -> DeviceMemory:
        key = (choice.creator, choice.index, choice.options)
        with self._lock:
            memory = self._held.get(key)
        if memory is not None and not memory.is_closed:
            return memory
        with self._opening.of(key):
            with self._lock:
                memory = self._held.get(key)
            if memory is None or memory.is_closed:
                memory = DeviceMemory(choice.open(BackendConfig()))
                with self._lock:
                    self._held[key] = memory
            return memory

    def _free(self, memory: DeviceMemory, tensor: Tensor) -> None:
        try:
            memory.release(tensor)
        finally:
            self._close_empty(memory)

    def _close_empty(self, memory: DeviceMemory) -> None:
        if memory.close_if_empty():
            with self._lock:
                self._held = {key: each for key, each in self._held.items() if each is not memory}

    def _set_aside(self) -> set[DeviceMemory]:
        """Leave the memory of buffers that were dropped without a close to the next ones; return which had some."""
        left: set[DeviceMemory] = set()
        for memory, tensor in self._dropped.take():
            left.add(memory)
            with self._caught(memory):
                if not memory.is_closed:
                    memory.spare(tensor)
        return left

    def _close_left(self, memories: Iterable[DeviceMemory]) -> None:
        for memory in memories:
            with self._caught(memory):
                self._close_empty(memory)

    @staticmethod
    def _caught(memory: DeviceMemory) -> AbstractContextManager[None]:
        return caught(partial(log.warning, "a buffer that was dropped on %s could not be freed: %s", memory.device))

    def free_dropped(self) -> bool:
        """Free the memory of buffers that were dropped without a close; tell whether there was some."""
        self._set_aside()
        with self._lock:
            memories = [*self._held.values()]
        freed = list[bool]()
        for memory in memories:
            with self._caught(memory):
                freed.append(memory.free_spare())
        self._close_left(memories)
        return any(freed)

    @property
    def open(self) -> list[DeviceMemory]:
        """Return the memories in which there are buffers."""
        self.free_dropped()
        with self._lock:
            return [*self._held.values()]

    def end(self, patience: float) -> bool:
        """Free all buffers at the end of the process; in a forked one they are its parent's."""
        if self._process == os.getpid():
            do_all(partial(self._end_one, memory) for memory in self.open)
        return True

    @staticmethod
    def _end_one(memory: DeviceMemory) -> None:
        with caught(partial(log.warning, "the buffers on %s could not be freed: %s", memory.device)):
            memory.close()


def _note(dropped: Dropped[tuple[DeviceMemory, Tensor]], memory: DeviceMemory, tensor: Tensor) -> None:
    dropped.add((memory, tensor))


device_memories = DeviceMemories()
