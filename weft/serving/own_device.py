"""Which device a worker among many takes: the one that Ray gave it, or one that no other worker has."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from threading import Lock
from urllib.parse import quote

from weft import config
from weft.core.contract.doors import door
from weft.core.host.disk_cache import folder_refused
from weft.core.host.file_locks import locked
from weft.core.registry.backend_registry import registry
from weft.errors import ConfigError, NoDevice

FOLDER = "devices"
"""The folder of the cache with a folder for each device that a process may have for itself."""
_lock = Lock()
_claims: dict[tuple[int, str], ExitStack] = {}
"""What keeps each device for a process, whose id comes first: a forked process has none of its parent's."""


@door
def own_device(among: Sequence[str] | None = None) -> str:
    """Return the name of a GPU that this process has for itself, "vulkan:GPU-...": each time the same.

    In a worker to which Ray gave a GPU (`num_gpus=1`), it is that one. Elsewhere it is the first GPU, or the first
    device of `among`, that no other process of this user asked for; it is free again when the process ends. So are
    workers told apart that get no index, such as those of Ray for `resources={"weft": 1}`, or of a web server.
    NoDevice if all are taken, or there is none.
    """
    given = _of_ray() if among is None else []
    names = [device.identity for device in registry.gpus()] if among is None else list(among)
    if given:
        return _given(given, names)
    with _lock:
        for name in names:
            if (os.getpid(), name) in _claims or _claim(name):
                return name
    raise NoDevice(
        "there is no device left for this process",
        why=f"other processes have {', '.join(names)}" if names else "no GPU was found",
        fix="start as many workers as there are devices" if names else "run 'weft doctor', or name devices in among=",
    )


def _of_ray() -> list[str]:
    """Return the ids of the accelerators that Ray gave to this worker; none outside of a worker."""
    ray = sys.modules.get("ray")  # a worker of Ray has imported it
    if ray is None or not ray.is_initialized() or ray.get_runtime_context().worker.mode != ray.WORKER_MODE:
        return []
    found = ray.get_runtime_context().get_accelerator_ids()
    return [str(each) for ids in found.values() for each in ids]


def _given(ids: Sequence[str], names: Sequence[str]) -> str:
    """Return the first GPU that Ray gave: by its UUID, or because Ray hides all others from the process."""
    for name in names:
        if any(not each.isdigit() and each.lower() in name.lower() for each in ids):
            return name
    if len(names) == len(ids):
        return names[0]
    raise NoDevice(
        "the GPU that Ray gave to this worker is not found",
        why=f"Ray gave {', '.join(ids)}, and the process sees {', '.join(names) or 'no GPU'}",
        fix="let Ray hide the other GPUs (no RAY_EXPERIMENTAL_NOSET_..._VISIBLE_DEVICES), or run 'weft doctor' there",
    )


def _claim(name: str) -> bool:
    """Take a device for this process; False if another process has it."""
    base = config.cache_dir() / FOLDER
    folder, held = base / quote(name, safe=""), ExitStack()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        refused = folder_refused(base)
        if refused:
            raise PermissionError(refused)
        held.enter_context(locked(folder, 0))
    except TimeoutError:
        return False
    except OSError as e:
        raise ConfigError(
            "no device can be kept for this process",
            where=str(folder),
            why=str(e),
            fix="name a folder of your own in WEFT_CACHE_DIR, the same for all workers",
        ) from e
    _claims[os.getpid(), name] = held
    return True
