"""The registry of backends: by string id and by forward type."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from weft.core.backend import BackendCreator, DeviceInfo, ForwardType
from weft.errors import BackendError, ConfigError, NoDevice

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


class BackendRegistry:
    """Backends by id and forward type; an id or slot can be taken once."""

    def __init__(self) -> None:
        self._by_id: dict[str, BackendCreator] = {}
        self._by_type: dict[ForwardType, BackendCreator] = {}

    def insert(self, key: DeviceName, creator: BackendCreator) -> None:
        """Register a creator under a forward type or an id (and under its own id and type)."""
        if isinstance(key, ForwardType):
            creator.forward_type = key
            creator.id = creator.id or key.name.lower()
        else:
            creator.id = key
        if not _NAME.fullmatch(creator.id) or ":" in creator.id:
            raise BackendError(f"{creator.id!r} cannot be a backend id", why="an id is letters, digits and _")
        if creator.forward_type is ForwardType.AUTO:
            raise BackendError("AUTO is not a device and cannot be registered")
        holder = self._by_id.get(creator.id)
        slot = f"the id {creator.id!r}"
        if holder is None and creator.forward_type is not None:
            holder, slot = self._by_type.get(creator.forward_type), f"the slot {creator.forward_type.name}"
        if holder is not None:
            raise BackendError(
                f"{slot} is taken", why=f"held by {type(holder).__name__}", fix="choose another, or remove the holder"
            )
        self._by_id[creator.id] = creator
        if creator.forward_type is not None:
            self._by_type[creator.forward_type] = creator

    def remove(self, key: DeviceName) -> None:
        """Unregister a backend and close its devices."""
        creator = self.find(key)
        creator.close()
        self._by_id.pop(creator.id)
        if creator.forward_type is not None:
            self._by_type.pop(creator.forward_type)

    def ids(self) -> list[str]:
        """Return the ids of all registered backends."""
        return list(self._by_id)

    def creators(self) -> list[BackendCreator]:
        """Return the creators in the order of registration."""
        return list(self._by_id.values())

    def absent(self) -> dict[str, str]:
        """Return the backends that cannot run here, each with the reason."""
        return {c.id: why for c in self.creators() if (why := c.absent()) is not None}

    def devices(self) -> list[DeviceInfo]:
        """Return every device of every backend that can run here."""
        return [d for c in self.creators() if c.absent() is None for d in c.devices()]

    def choose(self, device: DeviceName | Sequence[DeviceName]) -> list[Choice]:
        """Return the devices for a name or a list of names in order of preference."""
        names = [device] if isinstance(device, (str, ForwardType)) else list(device)
        if not names:
            raise ConfigError("no device was named", fix='pass device="auto", "cpu", "opencl" or "vulkan"')
        choices: list[Choice] = []
        for name in names:
            is_auto = name is ForwardType.AUTO or (isinstance(name, str) and name.lower() == "auto")
            choice = self._auto() if is_auto else self._named(name)
            if choice.device not in [c.device for c in choices]:
                choices.append(choice)
        return choices

    def _auto(self) -> Choice:
        ranked = sorted((c for c in self.creators() if c.auto_rank is not None), key=lambda c: c.auto_rank or 0)
        found = [(c, d) for c in ranked if c.absent() is None for d in c.devices()]
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
            name = match[1].lower()
        creator = self.find(name)
        why = creator.absent()
        if why is not None:
            raise NoDevice(f"{creator.id} cannot be used here", why=why, fix="run 'weft doctor'")
        count = len(creator.devices())
        if index >= count:
            raise NoDevice(
                f"there is no device {creator.id}:{index}",
                why=f"{creator.id} has {count} device(s)",
                fix="run 'weft devices' for the list",
            )
        return Choice(creator, index)

    def find(self, key: DeviceName) -> BackendCreator:
        """Return the creator of that id or forward type; NoDevice with the registered ids if there is none."""
        found = self._by_type.get(key) if isinstance(key, ForwardType) else self._by_id.get(key)
        if found is None:
            shown = key.name if isinstance(key, ForwardType) else repr(key)
            raise NoDevice(
                f"no backend is registered for {shown}",
                why=f"registered are {', '.join(self._by_id)}",
                fix="run 'weft devices' for the list",
            )
        return found


registry = BackendRegistry()
"""The registry that every part of Weft uses."""


def insertExtraBackendCreator(key: DeviceName, creator: BackendCreator) -> None:
    """Register a backend under a forward type (USER_0 ...) or an id; a taken one is refused, naming the holder."""
    registry.insert(key, creator)
