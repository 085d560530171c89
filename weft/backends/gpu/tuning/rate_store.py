"""The rates of devices (`weft.kernels.rates`): each is measured once, and its rates are kept beside its verdicts.

The first start takes the device for the card that estimates were fitted on, and measures it while it is idle
(`WEFT_MEASURE`). Later starts choose kernels by what was kept, so all processes choose alike. `weft probe` measures
again.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from weft import config
from weft.core.contract.backend import DeviceInfo
from weft.core.contract.error_context import is_error
from weft.core.host import shutdown
from weft.core.host.background import is_busy
from weft.core.host.disk_cache import DiskCache, hash_of
from weft.kernels import rates as rates_module
from weft.kernels.rates import Rates
from weft.kernels.template import SHADERS

if TYPE_CHECKING:
    from weft.backends.gpu.runtime import GpuRuntime

log = logging.getLogger("weft.measure")

SCHEMA = 1
QUIET = 0.3
"""Seconds without a load or a run after which a device counts as idle."""
LITTLE = 0.25
"""Most of a core that the process may use meanwhile: it may be compiling, and a kernel counts only when it is done."""


def kept(info: DeviceInfo) -> Rates | None:
    """Return the rates that were measured on a device, with this driver and this probe; None if there are none."""
    try:
        return Rates.from_dict(json.loads(DiskCache("selftest").get(_key(info)) or b""), info.id)
    except (ValueError, TypeError, AttributeError):
        return None


def keep(info: DeviceInfo, rates: Rates) -> None:
    """Keep the rates of a device for later starts."""
    DiskCache("selftest").put(_key(info), json.dumps(rates.as_dict()).encode())


def recall(runtime: GpuRuntime) -> None:
    """Let kernels be chosen by what was measured on a device; the first call decides for the life of the runtime."""
    if runtime.rates_recalled or config.measure() == "off":
        return
    with runtime.verdicts.finding:
        if runtime.rates_recalled:
            return
        found, now = kept(runtime.device.info), config.measure() == "now"
        if found is None and now and not runtime.general:
            found = _measured(runtime)
        runtime.rates_recalled = True
        if found is not None:
            runtime.device.caps = replace(runtime.device.caps, rates=found)
    # General kernels may be of another language than those that the device keeps.
    if found is None and not (now or runtime.general) and DiskCache("selftest").folder is not None:
        _Meanwhile(runtime).start()


def _measured(runtime: GpuRuntime, pause: Callable[[], bool] = lambda: True) -> Rates | None:
    """Measure a device and keep its rates; None, with a line in the log, if it cannot be measured."""
    from weft.backends.gpu.tuning.probe import measure  # late: it is needed once for each driver

    try:
        found = measure(runtime, pause)
    except Exception as e:  # of the device, or of its driver's binding
        if not is_error(e):
            raise
        log.info("%s is not measured, and kernels are chosen as for another card: %s", runtime.device.info.name, e)
        return None
    if found is not None:
        keep(runtime.device.info, found)
    return found


class _Meanwhile:
    """Measures a device while nothing else runs on it: a thread, which ends with the process or the device."""

    def __init__(self, runtime: GpuRuntime) -> None:
        self._runtime, self._ended = runtime, threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"{shutdown.OWN_THREADS}measure", daemon=True)

    def start(self) -> None:
        """Begin to wait for the device to be idle."""
        self._runtime.stop_measuring = partial(self.end, shutdown.PATIENCE)
        shutdown.note(self)
        self._thread.start()

    def end(self, patience: float) -> bool:
        """Stop before the next microbenchmark, of some milliseconds; the next start begins anew."""
        self._ended.set()
        self._thread.join(patience)
        return not self._thread.is_alive()

    def _run(self) -> None:
        if self._is_idle():
            _measured(self._runtime, self._is_idle)

    def _is_idle(self) -> bool:
        """Wait until the device has nothing to do for a while; False if the process or the device ends before.

        Nothing is measured before the first run, whose result people wait for, nor while kernels are compiled, or
        tested in other processes.
        """
        while not (self._ended.is_set() or self._runtime.closed or self._runtime.device.gone):
            before, spent = self._work(), time.process_time()
            if self._ended.wait(QUIET):
                return False
            quiet = self._work() == before and time.process_time() - spent <= LITTLE * QUIET
            if quiet and self._has_run() and not (is_busy() or self._runtime.verdicts.finding.locked()):
                return True
        return False

    def _work(self) -> tuple[int, int, int]:
        stats = self._runtime.device.stats
        return stats.compiles, stats.submits, stats.allocations

    def _has_run(self) -> bool:
        return self._runtime.device.stats.submits > 0


def _key(info: DeviceInfo) -> str:
    return json.dumps(("rates", SCHEMA, info.id, info.name, info.driver, _probe()))


@lru_cache(maxsize=1)
def _probe() -> str:
    """Return a hash of what measures, so that another version of Weft measures again only if its probe is another."""
    own = Path(__file__).with_name("probe.py"), Path(rates_module.__file__)
    return hash_of([*own, *sorted(SHADERS.glob("probe*.mako"))])
