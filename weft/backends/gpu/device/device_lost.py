"""What to do where a device is lost: the driver gives up on it, and nothing of it can be used any more."""

from __future__ import annotations

from types import TracebackType

from weft.backends.gpu.device import fork_guard
from weft.backends.gpu.device.device import GpuDevice
from weft.errors import DeviceLost


class NotingLoss:
    """A context in which a device that is lost is noted, so that the next session opens it anew.

    It has no state and serves all runs: a generator's context would cost a small network more than its copies.
    """

    __slots__ = ("_device",)

    def __init__(self, device: GpuDevice) -> None:
        self._device = device

    def __enter__(self) -> None:
        fork_guard.check(self._device.info.id, self._device.info.index)

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        if isinstance(e, DeviceLost):
            self._device.gone = True
