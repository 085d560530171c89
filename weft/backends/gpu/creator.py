"""What the creators of GPU backends share: they open each device once, on first use, as a runtime."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from weft import config
from weft.backends.gpu.device import fork_guard
from weft.backends.gpu.device.built_kernels import KERNELS_KEPT
from weft.core.contract.backend import Backend, BackendCreator, BackendInfo, BackendOption
from weft.core.contract.backend_options import NO_OPTIONS, Options, defaults
from weft.kernels.general import general

if TYPE_CHECKING:
    from weft.backends.gpu.backend import GpuBackend
    from weft.backends.gpu.device.device import GpuDevice
    from weft.backends.gpu.device.driver_parts import Unlisted
    from weft.backends.gpu.runtime import GpuRuntime


def _check_profile(text: object) -> None:
    """Raise ConfigError for a device profile that makes no sense."""
    from weft.backends.gpu.device.profiles import parse_profile

    parse_profile(str(text), f"the option {PROFILE.name}")


PROFILE = BackendOption(
    "device_profile",
    "",
    'What the device pretends to be, "adreno" or "items=128"; empty: WEFT_DEVICE_PROFILE says it.',
    check=_check_profile,
)
GENERAL = BackendOption(
    "general", False, "Plan with few, general kernels: they are there sooner, are not tested first, and take longer."
)
"""What the first runs of a session have (`GpuCreator.sooner`)."""
CHAINS = BackendOption("chains", True, "Let consecutive small launches share one, where a GPU runs that right.")
"""For APIs whose devices may have `DeviceCaps.resident_groups`."""

IDLE = 4
"""Most devices that stay open with options that no session uses at the moment."""


def _recall(runtime: GpuRuntime) -> None:
    """Read what earlier starts found on a device: which kernels are wrong, and how fast it is."""
    from weft.backends.gpu.selftest import verdict_store
    from weft.backends.gpu.tuning import rate_store

    verdict_store.recall(runtime)
    rate_store.recall(runtime)


class _Lease:
    """A user of a runtime that keeps its device open while a backend is being made."""


class GpuCreator(BackendCreator):
    """Open devices once and make backends on them; a subclass says how a device is opened.

    A device is opened once for each set of options; sessions with other options share nothing. It stays open for later
    sessions. Opening one with new options closes unused ones, except the last few and the one with default options.
    """

    options: Sequence[BackendOption] = (
        BackendOption("tuning", True, "Choose kernels by the tables of `weft tune`."),
        PROFILE,
        BackendOption("memory_limit", 0, "The most bytes that all sessions on the device hold; 0: no limit.", least=0),
        BackendOption(
            "submit_seconds", -1.0, "About the longest that one submission of a run takes, so that no watchdog resets "
            "the device; 0: no limit; -1: 0.5 on a GPU, no limit on a CPU.", least=-1,
        ),
        BackendOption("kernels_kept", KERNELS_KEPT, "Built kernels that are held beside those in use.", least=0),
        GENERAL,
    )

    def __init__(self) -> None:
        self._runtimes: dict[tuple[int, Options], GpuRuntime] = {}
        self._gone: list[GpuRuntime] = []
        self._lock = threading.Lock()

    @abstractmethod
    def open(self, index: int) -> GpuDevice:
        """Open the device of that index."""

    def open_with(self, index: int, options: Options) -> GpuDevice:
        """Open the device of that index with these options; by default they do not change what is opened."""
        return self.open(index)

    def sooner(self, options: Options) -> Options:
        """Return the options with general kernels, and with no kernels that several launches share."""
        return Options({**options, GENERAL.name: True})

    def backend_class(self) -> type[GpuBackend]:
        """Return the class of the backends; with its own class, an API has its own execution creators."""
        # Late: `import weft` must stay light.
        from weft.backends.gpu.backend import GpuBackend

        return GpuBackend

    def absent(self) -> str | None:
        """Return why there is no such device in this process, or None."""
        found: str | None = fork_guard.reason()
        if found is None:
            fork_guard.start()
            found = self.missing()
        return found

    def missing(self) -> str | None:
        """Return why there is no such device on this machine, or None; a driver may be asked for it."""
        return None

    def listed_vendors(self) -> set[int] | None:
        """Return the PCI ids of the vendors whose devices the API lists, hidden ones too; None if there is no API."""
        return None

    def unlisted(self) -> list[Unlisted]:
        """Return why cards of this machine are not among the devices, where a part of their driver is missing."""
        from weft.backends.gpu.device.driver_parts import unlisted

        listed = self.listed_vendors()
        return [] if listed is None else unlisted(self.id, listed)

    def runtime(self, index: int, options: Options = NO_OPTIONS) -> GpuRuntime:
        """Return the runtime of a device with these options; open it the first time, and again after it was lost.

        ConfigError for a device profile that makes no sense. A device with options may be closed when others are
        opened; use `held` to keep it open.
        """
        with self.held(index, options) as runtime:
            return runtime

    @contextmanager
    def held(self, index: int, options: Options = NO_OPTIONS) -> Iterator[GpuRuntime]:
        """Yield the runtime of a device with these options; it stays open inside the block."""
        lease = _Lease()
        runtime = self._leased(index, options, lease)
        try:
            yield runtime
        finally:
            runtime.users.discard(lease)

    def _leased(self, index: int, options: Options, lease: _Lease) -> GpuRuntime:
        from weft.backends.gpu.runtime import GpuRuntime

        fork_guard.check(self.id, index)
        fork_guard.start()
        key = (index, self._settled(options))
        where = f"the option {PROFILE.name}" if options.get(PROFILE.name) else "WEFT_DEVICE_PROFILE"
        with self._lock:
            held = self._runtimes.get(key)
            if held is not None and held.device.gone:
                self._gone.append(self._runtimes.pop(key))
            if key not in self._runtimes:
                self._close_idle()
                self._runtimes[key] = made = GpuRuntime(self._opened(index, key[1], where), key[1])
                if made.general:
                    made.left = partial(self._close_unused, key)
            self._runtimes[key].users.add(lease)
            return self._runtimes[key]

    def _settled(self, options: Options) -> Options:
        """Return all options that a device is opened with: given ones, defaults, and the profile of the environment."""
        given = {**defaults(self), **options}  # a subclass may declare other options
        return Options({**given, PROFILE.name: str(given.get(PROFILE.name) or config.device_profile())})

    def _close_idle(self) -> None:
        """Make room for one more device: close those whose options no session uses, except the last few."""
        usual = self._settled(NO_OPTIONS)
        idle = [key for key, runtime in self._runtimes.items() if not runtime.users and key[1] != usual]
        for key in idle[: max(len(idle) - (IDLE - 1), 0)]:
            self._runtimes.pop(key).close()

    def _close_unused(self, key: tuple[int, Options]) -> None:
        """Close a device with these options if no session uses it."""
        with self._lock:
            held = self._runtimes.get(key)
            if held is not None and not held.users:
                self._runtimes.pop(key).close()

    def _opened(self, index: int, options: Options, where: str) -> GpuDevice:
        from weft.backends.gpu.device.profiles import parse_profile

        profile = parse_profile(str(options[PROFILE.name]), where)
        device = self.open_with(index, options)
        if profile is not None:
            device.pretend(profile)
        if options[GENERAL.name]:
            device.caps = general(device.caps)
        return device

    def is_open(self, index: int) -> bool:
        """Tell whether a device is open with some options."""
        with self._lock:
            return any(at == index for at, _ in self._runtimes)

    def onPrepare(self, index: int) -> None:
        """Open the device, and read what earlier starts found on its kernels."""
        with self.held(index) as runtime:
            _recall(runtime)

    def onCreate(self, info: BackendInfo) -> Backend:
        """Return a backend for one pipeline; all on one device share its runtime."""
        with self.held(info.index, info.options) as runtime:
            _recall(runtime)
            made = self.backend_class()(info, runtime)
            with self._lock:
                runtime.users.add(made)
            return made

    def held_bytes(self) -> Mapping[int, int]:
        """Return the bytes of all buffers of open devices, and of arrays that callers hold there."""
        with self._lock:
            held = dict.fromkeys((index for index, _ in self._runtimes), 0)
            for (index, _), runtime in self._runtimes.items():
                held[index] += runtime.heap.held
            return held

    def close(self) -> None:
        """Close the devices that were opened; sessions on them must be closed before."""
        with self._lock:
            for runtime in (*self._runtimes.values(), *self._gone):
                runtime.close()
            self._runtimes.clear()
            self._gone.clear()
