"""Notes that a device was lost: its driver gave up, and nothing of it can be used any more."""

from __future__ import annotations

from types import TracebackType

from weft.backends.gpu.device import fork_guard
from weft.backends.gpu.device.device import GpuDevice
from weft.errors import DeviceLost


class NotingLoss:
    """A context that marks its device as gone if the device is lost inside, so that the next session opens it again.

    One object serves all runs: it has no state. A generator's context would cost a small network more than its copies.
    """

    __slots__ = ("_device",)

    def __init__(self, device: GpuDevice) -> None:
        self._device = device

    def __enter__(self) -> None:
        fork_guard.check(self._device.info.id, self._device.info.index)

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        if isinstance(e, DeviceLost):
            self._device.gone = True
