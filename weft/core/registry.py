"""The registry of backends: by string id and by forward type."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from weft.core.backend import Backend, BackendConfig, BackendCreator, BackendInfo, DeviceInfo, ForwardType
from weft.core.contexts import MemoryManager
from weft.core.profile import ProfilingContext
from weft.errors import BackendError, ConfigError, DeviceError, NoDevice, WeftError

log = logging.getLogger("weft.registry")

DeviceName = str | ForwardType
_NAME = re.compile(r"([A-Za-z][A-Za-z0-9_]*)(?::(\d+))?")


@dataclass(frozen=True, slots=True)
class Choice:
    """A device that was picked: the creator of its backend, its index, and why it was picked."""

    creator: BackendCreator
    index: int
    why: str = ""

    @property
    def device(self) -> str:
        """Return the device's name, "vulkan:0"."""
        return f"{self.creator.id}:{self.index}"

    def open(
        self, config: BackendConfig, memory: MemoryManager | None = None, profiling: ProfilingContext | None = None
    ) -> Backend:
        """Return a new backend on the device."""
        info = BackendInfo(self.creator.id, self.index, config, self.creator.version, memory, profiling)
        try:
            backend = self.creator.onCreate(info)
        except WeftError:
            raise
        except Exception as e:
            raise DeviceError(f"{self.device} cannot be used", why=f"{type(e).__name__}: {e}") from e
        if not isinstance(backend, Backend):
            raise BackendError(
                f"{self.device} cannot be used",
                where=f"{type(self.creator).__name__}.onCreate",
                why=f"it returned {backend!r}, which is not a Backend",
            )
        return backend


class BackendRegistry:
    """Backends by id and forward type; an id or slot can be taken once."""

    def __init__(self) -> None:
        self._by_id: dict[str, BackendCreator] = {}
        self._by_type: dict[ForwardType, BackendCreator] = {}

    def insert(self, key: DeviceName, creator: BackendCreator) -> None:
        """Register a creator under a forward type or an id (and under its own id and type)."""
        kind = key if isinstance(key, ForwardType) else creator.forward_type
        id_ = creator.id or key.name.lower() if isinstance(key, ForwardType) else key
        if not isinstance(id_, str) or not _NAME.fullmatch(id_) or ":" in id_:
            raise BackendError(f"{id_!r} cannot be a backend id", why="an id is letters, digits and _")
        if kind is ForwardType.AUTO or id_.lower() == "auto":
            raise BackendError("AUTO is not a device and cannot be registered", fix="choose a USER slot or an id")
        holder, slot = self._by_id.get(id_.lower()), f"the id {id_!r}"
        if holder is None and kind is not None:
            holder, slot = self._by_type.get(kind), f"the slot {kind.name}"
        if holder is not None:
            raise BackendError(
                f"{slot} is taken",
                why=f"held by {holder.id!r} ({type(holder).__module__}.{type(holder).__qualname__})",
                fix="choose another, or remove the holder",
            )
        creator.id, creator.forward_type = id_, kind
        self._by_id[id_.lower()] = creator
        if kind is not None:
            self._by_type[kind] = creator

    def remove(self, key: DeviceName) -> None:
        """Unregister a backend and close its devices."""
        creator = self.find(key)
        self._by_id.pop(creator.id.lower())
        if creator.forward_type is not None:
            self._by_type.pop(creator.forward_type)
        creator.close()

    def ids(self) -> list[str]:
        """Return the ids of all registered backends."""
        return [c.id for c in self.creators()]

    def creators(self) -> list[BackendCreator]:
        """Return the creators in the order of registration."""
        return list(self._by_id.values())

    def absent(self) -> dict[str, str]:
        """Return the backends that cannot run here, each with the reason."""
        return {c.id: why for c in self.creators() if (why := absence(c)) is not None}

    def devices(self) -> list[DeviceInfo]:
        """Return every device of every backend that can run here."""
        return [d for c in self.creators() if absence(c) is None for d in c.devices()]

    def choose(self, device: DeviceName | Sequence[DeviceName]) -> list[Choice]:
        """Return the devices for a name or a list of names in order of preference.

        Of several names, those whose device is absent are passed over, and the next choice says so; if all
        are absent, NoDevice has every reason.
        """
        names = [device] if isinstance(device, (str, ForwardType)) else device
        if not isinstance(names, Sequence) or not names:
            raise ConfigError(f"{device!r} names no device", fix='pass device="auto", "cpu", "opencl" or "vulkan"')
        choices: list[Choice] = []
        missing: list[NoDevice] = []
        for name in names:
            try:
                choice = self._one(name)
            except NoDevice as e:
                if len(names) == 1 or not self._is_known(name):
                    raise
                log.warning("%s", e)
                missing.append(e)
                continue
            if choice.device not in [c.device for c in choices]:
                choices.append(choice)
        reasons = "; ".join(f"{e.what} ({e.why})" for e in missing)
        if not choices:
            raise NoDevice("none of the named devices can be used here", why=reasons, fix="run 'weft doctor'")
        if missing:
            first = choices[0]
            choices[0] = replace(first, why="; ".join(w for w in (first.why, f"passed over: {reasons}") if w))
        return choices

    def _one(self, name: DeviceName) -> Choice:
        is_auto = name is ForwardType.AUTO or (isinstance(name, str) and name.strip().lower() == "auto")
        return self._auto() if is_auto else self._named(name)

    def _is_known(self, name: DeviceName) -> bool:
        key = name.strip().lower().partition(":")[0] if isinstance(name, str) else name
        return key == "auto" or key in self._by_id or key in self._by_type

    def _auto(self) -> Choice:
        ranked = sorted((c for c in self.creators() if c.auto_rank is not None), key=lambda c: c.auto_rank or 0)
        found = [(c, d) for c in ranked if absence(c) is None for d in c.devices()]
        for creator, d in found:
            if not d.software:
                return Choice(creator, d.index, f"AUTO picked {d.id}:{d.index} ({d.name}), a GPU")
        why = ", ".join(f"{d.id}:{d.index} ({d.name}) is software" for _, d in found)
        why = why or "; ".join(f"{k}: {v}" for k, v in self.absent().items()) or "no GPU backend is registered"
        fallback = self.find(ForwardType.CPU)
        return Choice(fallback, 0, f"AUTO picked {fallback.id}: no GPU was found ({why})")

    def _named(self, name: DeviceName) -> Choice:
        index = 0
        if isinstance(name, str):
            match = _NAME.fullmatch(name.strip())
            if not match:
                raise ConfigError(f"{name!r} is not a device", fix='write an id, or an id and an index: "vulkan:1"')
            index = int(match[2] or 0)
            name = match[1]
        creator = self.find(name)
        why = absence(creator)
        if why is not None:
            raise NoDevice(f"{creator.id} cannot be used here", why=why, fix="run 'weft doctor'")
        devices = creator.devices()
        if index not in [d.index for d in devices]:
            found = ", ".join(f"{d.id}:{d.index} ({d.name})" for d in devices) or "none"
            raise NoDevice(
                f"there is no device {creator.id}:{index}",
                why=f"{creator.id} has {len(devices)} device(s): {found}",
                fix="run 'weft devices' for the list",
            )
        return Choice(creator, index)

    def find(self, key: DeviceName) -> BackendCreator:
        """Return the creator of that id or forward type; NoDevice with the registered ids if there is none."""
        if not isinstance(key, (str, ForwardType)):
            raise ConfigError(f"{key!r} is not a device", fix='pass an id such as "cpu", or a ForwardType')
        found = self._by_type.get(key) if isinstance(key, ForwardType) else self._by_id.get(key.lower())
        if found is None:
            shown = key.name if isinstance(key, ForwardType) else repr(key)
            raise NoDevice(
                f"no backend is registered for {shown}",
                why=f"registered are {', '.join(self.ids())}",
                fix="run 'weft devices' for the list",
            )
        return found


def absence(creator: BackendCreator) -> str | None:
    """Return why nothing of this kind can run here, or None; a creator that fails to answer is absent."""
    try:
        why = creator.absent()
    except Exception as e:
        return f"asking whether it is there failed: {type(e).__name__}: {e}"
    return why if why is None or why.strip() else "its creator gives no reason"


registry = BackendRegistry()
"""The registry that every part of Weft uses."""


def insertExtraBackendCreator(key: DeviceName, creator: BackendCreator) -> None:
    """Register a backend under a forward type (USER_0 ...) or an id; a taken one is refused, naming the holder."""
    registry.insert(key, creator)
