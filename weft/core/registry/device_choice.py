"""Choosing devices: what names mean among the backends of a registry, and opening what is chosen."""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from weft.core.contract.backend import (
    Backend,
    BackendConfig,
    BackendCreator,
    BackendInfo,
    DeviceInfo,
    ForwardType,
    SameNodes,
    Wait,
)
from weft.core.contract.backend_options import NO_OPTIONS, Options, Value, defaults, kept_by_networks
from weft.core.contract.check_answers import done
from weft.core.contract.contexts import MemoryManager
from weft.core.contract.error_context import blame, callback_of, caught, do_all, is_error
from weft.core.contract.profile import ProfilingContext
from weft.core.registry.entries import version_of
from weft.core.registry.probe import described, hidden, present, unusable
from weft.errors import BackendError, ConfigError, DeviceError, NoDevice, WeftError, brief

if TYPE_CHECKING:
    from weft.core.registry.backend_registry import BackendRegistry

log = logging.getLogger("weft.registry")

DeviceName = str | ForwardType
NAME = re.compile(r"([A-Za-z][A-Za-z0-9_]*)(?::(\S+))?")
"""The name of a device: a backend's id, and an index, a UUID or the beginning of one, or a PCI address."""
_PCI = re.compile(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})(?:\.([0-7]))?")
_UUID = re.compile(r"(?:[a-z]+-)?[0-9a-f]{8}[0-9a-f-]*|(?:gpu|mig)-[0-9a-f][0-9a-f/-]*")
"""A UUID with or without what its vendor writes before it; only with that may it be cut short anywhere."""


@dataclass(frozen=True)
class DeviceChoice:
    """A chosen device: the creator of its backend, its index, why it was chosen, and the user's options."""

    creator: BackendCreator
    index: int
    why: str = ""
    given: Options = NO_OPTIONS
    """The user's options that differ from the defaults."""
    info: DeviceInfo | None = None
    named: str = ""
    """The device's `DeviceInfo.identity`, if the user named it by its UUID or PCI address."""

    @property
    def device(self) -> str:
        """Return the device's name, "vulkan:0"."""
        return f"{self.creator.id}:{self.index}"

    @cached_property
    def options(self) -> Options:
        """Return a value for each option of the backend."""
        return Options({**defaults(self.creator), **self.given})

    def with_options(self, given: Mapping[str, Value]) -> DeviceChoice:
        """Return the device with exactly these options, which the creator must take."""
        usual = defaults(self.creator)
        return replace(self, given=Options({k: v for k, v in given.items() if usual.get(k) != v}))

    def sooner(self) -> DeviceChoice:
        """Return the device with the options with which it runs sooner."""
        return self.with_options(self.creator.sooner(self.options))

    def prepare(self) -> None:
        """Open the device early, if the creator can do that for these options."""
        if not self.given:
            _note_opened(self.creator)
            self.creator.onPrepare(self.index)

    def open(
        self, config: BackendConfig, memory: MemoryManager | None = None,
        profiling: ProfilingContext | None = None, *, loads: bool = False, wait: Wait = Wait.ALL,
        same_nodes: SameNodes | None = None,
    ) -> Backend:
        """Return a new backend on the device; `loads` says that a network will run on it, `wait` how soon.

        `same_nodes` is what it has in common with others that run the same nodes for other sizes.
        """
        creator = self.creator
        info = BackendInfo(
            id=creator.id, index=self.index, config=config, version=version_of(creator), memory_manager=memory,
            profiling=profiling, forward_type=creator.forward_type, options=self.options,
            kept_options=kept_by_networks(creator, self.options), loads=loads, wait=wait, same_nodes=same_nodes,
            named=self.named,
        )
        _note_opened(self.creator)
        try:
            backend = self.creator.onCreate(info)
        except WeftError:
            raise
        except Exception as e:
            if not is_error(e):
                raise
            raise DeviceError(
                f"{self.device} cannot be used",
                where=f"{type(self.creator).__name__}.onCreate",
                why=described(e),
                fix="run 'weft doctor', or choose another device",
            ) from e
        if not isinstance(backend, Backend):
            raise BackendError(
                f"{self.device} cannot be used",
                where=f"{type(self.creator).__name__}.onCreate",
                why=f"it returned {brief(repr(backend))}, which is not a Backend",
                fix="return an object of a class that is derived from weft.Backend",
            )
        return backend


_opened: WeakKeyDictionary[BackendCreator, int] = WeakKeyDictionary()
"""The process in which each creator first opened a device; closing a creator removes it."""
_lock = threading.Lock()


def _note_opened(creator: BackendCreator) -> None:
    if creator not in _opened:
        with _lock:
            _opened.setdefault(creator, os.getpid())


def close_creator(creator: BackendCreator) -> None:
    """Close what a creator opened; the error blames its backend."""
    _opened.pop(creator, None)
    callback = callback_of(creator, "close")
    with blame(creator.id, "the backend could not close its devices", callback=callback):
        answer: object = creator.close()  # type: ignore[func-returns-value]
        done(answer, callback, "close failed")


def close_opened() -> None:
    """Close the devices that creators opened in this process; a forked process does not close its parent's."""
    with _lock:
        mine = [creator for creator, process in _opened.items() if process == os.getpid()]
    do_all(partial(_close_logged, creator) for creator in mine)


def _close_logged(creator: BackendCreator) -> None:
    with caught(lambda e: log.warning("closing the devices of %s failed: %s", creator.id, described(e))):
        close_creator(creator)


def choose(
    known: BackendRegistry, device: DeviceName | Sequence[DeviceName], *, pass_over: bool = True
) -> list[DeviceChoice]:
    """Return the devices for a name or a list of names; see `BackendRegistry.choose`."""
    names = check_names(known, device)
    choices: list[DeviceChoice] = []
    missing: list[NoDevice] = []
    for name in names:
        try:
            choice = _one(known, name)
        except NoDevice as e:
            if len(names) == 1 or not pass_over:
                raise
            log.warning("%s", e)
            missing.append(e)
            continue
        if choice.device not in [c.device for c in choices]:
            choices.append(choice)
    reasons = "; ".join(e.short for e in missing)
    if not choices:
        raise NoDevice("none of the named devices can be used here", why=reasons, fix="run 'weft doctor'")
    if missing:
        first = choices[0]
        choices[0] = replace(first, why="; ".join(w for w in (first.why, f"passed over: {reasons}") if w))
    return choices


def check_names(known: BackendRegistry, device: DeviceName | Sequence[DeviceName]) -> list[DeviceName]:
    """Return the names of devices as a list; see `BackendRegistry.check_names`."""
    names = [device] if isinstance(device, (str, ForwardType)) else device
    if not isinstance(names, Sequence) or not names:
        raise ConfigError(f"{device!r} names no device", fix='pass device="auto", "cpu", "opencl" or "vulkan"')
    for name in names:
        if not _is_auto(name):
            known.find(_split(name)[0])
    return list(names)


def _one(known: BackendRegistry, name: DeviceName) -> DeviceChoice:
    return _auto(known) if _is_auto(name) else _named(known, name)


def gpus(known: BackendRegistry) -> list[DeviceInfo]:
    """Return every usable GPU once: through the API that "auto" prefers among those that list it."""
    kept: list[DeviceInfo] = []
    for creator, device in _ranked(known):
        names = {device.uuid.lower(), device.pci.lower()} - {""}
        of_others = [{d.uuid.lower(), d.pci.lower()} for d in kept if d.id != device.id]
        is_kept = any(names & other for other in of_others) if names else bool(of_others)
        if not device.software and not is_kept and unusable(creator, device.index) is None:
            kept.append(device)
    return kept


def _ranked(known: BackendRegistry) -> list[tuple[BackendCreator, DeviceInfo]]:
    """Return the devices among which "auto" chooses, the preferred APIs first."""
    ranked = sorted((c for c in known.creators() if c.auto_rank is not None), key=lambda c: c.auto_rank or 0)
    return [(c, d) for c in ranked for d in present(c)[0]]


def _auto(known: BackendRegistry) -> DeviceChoice:
    found = _ranked(known)
    broken: list[str] = []
    for creator, d in found:
        if d.software:
            continue
        reason = unusable(creator, d.index)
        if reason is None:
            passed = "".join(f"; {each}" for each in broken)
            return DeviceChoice(creator, d.index, f"AUTO picked {_shown(d)}, a GPU{passed}", info=d)
        broken.append(f"{_shown(d)} cannot be used: {reason}")
    why = ", ".join((*broken, *(f"{_shown(d)} is software" for _, d in found if d.software)))
    why = why or "; ".join(f"{k}: {v}" for k, v in known.absent().items()) or "no GPU backend is registered"
    fallback = known.find(ForwardType.CPU)
    return DeviceChoice(fallback, 0, f"AUTO picked {fallback.id}: no GPU was found ({why})")


def _named(known: BackendRegistry, name: DeviceName) -> DeviceChoice:
    key, which = _split(name)
    creator = known.find(key)
    devices, why = present(creator)
    if why is not None:
        raise NoDevice(f"{creator.id} cannot be used here", why=why, fix="run 'weft doctor'")
    if which is None:
        works = next((d for d in devices if unusable(creator, d.index) is None), None)
        if works is None:
            why = none_works(creator, devices)
            raise NoDevice(f"{creator.id} cannot be used here", why=why, fix="run 'weft doctor'")
        return DeviceChoice(creator, works.index, info=works)
    by_index = [d for d in devices if which.isdigit() and d.index == int(which)]
    found = by_index or [d for d in devices if _is_called(d, which)]
    if len(found) != 1:
        listed = ", ".join(_shown(d, True) for d in found or devices)
        hides = "".join(f"; {note}" for note in hidden(creator))
        raise NoDevice(
            f"{creator.id}:{which} means several devices" if found else f"there is no device {creator.id}:{which}",
            why=f"{creator.id} has {len(found or devices)} {'such ' if found else ''}device(s): {listed}{hides}",
            fix="run 'weft devices' for the list",
        )
    (info,) = found
    why = unusable(creator, info.index)
    if why is not None:
        raise NoDevice(f"{_shown(info)} cannot be used", why=why, fix="run 'weft doctor'")
    return DeviceChoice(creator, info.index, info=info, named="" if by_index else info.identity)


def _is_called(device: DeviceInfo, name: str) -> bool:
    """Tell whether a device has this PCI address, or a UUID that begins so."""
    asked, own = _PCI.fullmatch(name.lower()), _PCI.fullmatch(device.pci.lower())
    if asked:
        pairs = zip(asked.groups("0"), own.groups("0"), strict=True) if own else ()
        return own is not None and all(int(a, 16) == int(b, 16) for a, b in pairs)
    begins, uuid = name.lower(), device.uuid.lower()
    bare = uuid.partition("-")[2] if re.match(r"[a-z]+-", uuid) and not re.match(r"[0-9a-f]{8}-", uuid) else uuid
    return bool(uuid) and (uuid.startswith(begins) or bare.startswith(re.sub(r"^(gpu|mig)-", "", begins)))


def _is_auto(name: DeviceName) -> bool:
    return name is ForwardType.AUTO or (isinstance(name, str) and name.strip().lower() == "auto")


def _why_no_name(name: str, which: str | None) -> str:
    """Return why a text names no device; `which` is what follows the colon behind an id."""
    if re.fullmatch(r"(gpu|mig)-.*", name.lower()):
        return "a UUID follows the id of an API, and there is none before it"
    if which is None:
        return "an id is letters, digits and _, and something follows its colon, if it has one"
    if re.fullmatch(r"(gpu|mig)-.*", which.lower()):
        return f"{which!r} is no UUID: digits from 0 to 9 and a to f follow {which[:4]}"
    return f"{which!r} is neither an index, which is 0 or more, nor a UUID or PCI address"


def _split(name: DeviceName) -> tuple[DeviceName, str | None]:
    """Return the backend that a device's name means, and which of its devices: ("vulkan", "1") for "vulkan:1"."""
    if not isinstance(name, str):
        return name, None
    match = NAME.fullmatch(name.strip())
    which = match[2] if match else None
    if not match or (which and not re.fullmatch(rf"\d+|{_PCI.pattern}|{_UUID.pattern}", which.lower())):
        raise ConfigError(
            f"{name!r} is not a device",
            why=_why_no_name(name.strip(), which),
            fix="write an id, or one with an index, UUID or PCI address, as `weft devices` lists them: "
            '"vulkan:1", "vulkan:GPU-4b", "opencl:65:00.0"',
        )
    return match[1], which


def _shown(device: DeviceInfo, fully: bool = False) -> str:
    known = ", ".join(filter(None, (device.name, *((device.uuid, device.pci) if fully else ()))))
    return f"{device.id}:{device.index} ({known})"


def none_works(creator: BackendCreator, devices: Sequence[DeviceInfo]) -> str:
    """Return why each device of a backend cannot be used."""
    return "; ".join(f"{_shown(d)} cannot be used: {unusable(creator, d.index)}" for d in devices)
