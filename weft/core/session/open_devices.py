"""The devices of one session: their backends are opened here, and their memory managers acquired and released."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from functools import partial

from weft.core.contract import check_answers
from weft.core.contract.backend import Backend, BackendConfig, SameNodes, Wait
from weft.core.contract.contexts import MemoryManager
from weft.core.contract.error_context import blame, callback_of, caught, do_all
from weft.core.contract.profile import Profile, ProfilingContext
from weft.core.registry.device_choice import DeviceChoice

log = logging.getLogger("weft.session")


class OpenDevices:
    """What all loaders of a session share: the choices of devices, and the memory manager of each that has one."""

    def __init__(
        self, choices: Sequence[DeviceChoice], config: BackendConfig, profile: Profile | None = None
    ) -> None:
        self.config, self.profile = config, profile
        self.choices = {c.device: c for c in choices}
        """By device; the user's come first, in order of preference."""
        self._managers: dict[str, MemoryManager | None] = {}
        self._acquired: dict[str, bool] = {}
        """Whether the memory manager of each device has acquired its memory; only devices that have one."""

    def open(self, device: str, *, wait: Wait, same_nodes: SameNodes | None) -> Backend:
        """Return a new backend of a device, with the device's memory manager."""
        choice = self.choices[device]
        if device not in self._managers:
            manager = self._managers[device] = _memory_manager(choice)
            if manager is not None:
                self._acquired[device] = False
        profiling = ProfilingContext(device, self.profile) if self.profile is not None else None
        return choice.open(
            self.config, self._managers[device], profiling, loads=True, wait=wait, same_nodes=same_nodes
        )

    def acquire(self, devices: Iterable[str]) -> None:
        """Have the memory managers of devices acquire their memory, once each (A11)."""
        if not self._acquired or all(self._acquired.values()):  # few devices have one, and each run asks
            return
        for device in dict.fromkeys(devices):
            manager = self._managers.get(device)
            if manager is not None and not self._acquired[device]:
                what = "the backend's memory manager could not acquire its memory"
                with blame(device, what, callback=callback_of(manager, "acquire")):
                    answer: object = manager.acquire()
                    check_answers.done(answer, f"{device}: {callback_of(manager, 'acquire')}", what)
                self._acquired[device] = True

    def release(self) -> None:
        """Have the memory managers release their memory; if one fails, log the error and go on."""
        managers, self._managers = self._managers, {}
        acquired, self._acquired = [device for device, done in self._acquired.items() if done], {}

        def release(device: str) -> None:
            manager = managers[device]
            assert manager is not None
            with caught(partial(log.warning, "the memory manager of %s could not release its memory: %s", device)):
                answer: object = manager.release()
                check_answers.done(answer, callback_of(manager, "release"), "it failed")

        do_all(partial(release, device) for device in acquired)


def _memory_manager(choice: DeviceChoice) -> MemoryManager | None:
    callback = callback_of(choice.creator, "create_memory_manager")
    with blame(choice.device, "the backend could not make its memory manager", callback=callback):
        made = choice.creator.create_memory_manager(choice.index)
    return check_answers.optional(made, MemoryManager, f"{choice.device}: {callback}", "a MemoryManager")  # type: ignore[type-abstract]
