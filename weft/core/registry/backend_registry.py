"""The registry of backends: by string id and by forward type.

A program inserts its own backends. A `Finder` finds others when the registry is first asked: first those
that installed packages announce, then those in the folders of `WEFT_DYNAMIC_BACKEND_PATHS`.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import ClassVar
from weakref import WeakSet

from weft import config
from weft.core.contract.backend import Backend, BackendCreator, DeviceInfo, ForwardType
from weft.core.contract.backend_options import BackendOptions, Value, problems_of, taken, wrong_options
from weft.core.contract.error_context import caught, do_all
from weft.core.contract.not_copied import NotCopied
from weft.core.registry import device_choice
from weft.core.registry.device_choice import NAME, DeviceChoice, DeviceName, close_creator, none_works
from weft.core.registry.entries import WEFT, Entry, Finder, Folder, as_creator, check_creator
from weft.core.registry.probe import hidden, present, unusable
from weft.errors import BackendError, ConfigError, NoDevice, brief

plugin_log = logging.getLogger("weft.plugins")


class BackendRegistry(NotCopied):
    """Backends by id and forward type; each id and type can be taken once."""

    _noun = "registry of backends"
    _in_a_worker = "each process has its own, weft.registry, with the backends that are installed"
    _a_second = "use weft.registry, or a runtime with backends of its own: weft.Runtime(dynamic_backend_paths=[...])"

    _lock = threading.RLock()
    """Shared by all registries: a backend that one of them is loading may ask another."""

    _all: ClassVar[WeakSet[BackendRegistry]] = WeakSet()
    """All registries with backends: a creator is closed when the last of them drops it."""

    def __init__(self, finder: Finder | None = None) -> None:
        self.finder = finder
        self._is_derived = False
        self._by_id: dict[str, Entry] = {}
        self._by_type: dict[ForwardType, Entry] = {}
        self._failures: dict[str, tuple[str, bool]] = {}
        self._paths: tuple[Folder, ...] | None = None
        self._asked_packages = self._asked_paths = self._searching = False
        with self._lock:
            self._all.add(self)

    # -- backends of the program -------------------------------------------------------------------------

    def insert(
        self, key: DeviceName, creator: BackendCreator | type[Backend], *, origin: str = "registry.insert"
    ) -> None:
        """Register a creator under a forward type or an id (and under its own id and type).

        For a single device, a Backend class is enough. BackendError if the id or the type is taken.
        """
        with self._lock:
            self._put(key, Entry(as_creator(creator), origin, by_call=origin != WEFT))

    def _put(self, key: DeviceName, entry: Entry) -> None:
        creator = entry.creator
        kind = key if isinstance(key, ForwardType) else creator.forward_type
        id_ = creator.id or key.name.lower() if isinstance(key, ForwardType) else key
        if not isinstance(id_, str) or not NAME.fullmatch(id_) or ":" in id_:
            raise BackendError(
                f"{id_!r} cannot be a backend id",
                why="an id is letters, digits and _",
                fix="use letters, digits and _, and begin with a letter",
            )
        if kind is ForwardType.AUTO or id_.lower() == "auto":
            raise BackendError("AUTO is not a device and cannot be registered", fix="choose a USER slot or an id")
        check_creator(creator)
        holder, slot = self._by_id.get(id_.lower()), f"the id {id_!r}"
        if holder is None and kind is not None:
            holder, slot = self._by_type.get(kind), f"the slot {kind.name}"
        if holder is not None:
            raise BackendError(f"{slot} is taken", why=f"held by {holder}", fix="choose another, or remove the holder")
        creator.id, creator.forward_type = id_, kind
        # A new dict: other threads may be reading the old one.
        self._by_id = {**self._by_id, id_.lower(): entry}
        if kind is not None:
            self._by_type = {**self._by_type, kind: entry}

    def remove(self, key: DeviceName) -> None:
        """Unregister a backend, and close its devices unless another registry holds it, too."""
        with self._lock:
            self._drop(self._entry(key))

    def _drop(self, entry: Entry) -> None:
        self._by_id = {k: e for k, e in self._by_id.items() if e is not entry}
        self._by_type = {k: e for k, e in self._by_type.items() if e is not entry}
        self._close_unheld(entry)

    def _close_unheld(self, entry: Entry) -> None:
        if not any(e.creator is entry.creator for each in self._all for e in each._by_id.values()):
            close_creator(entry.creator)

    # -- backends that are found ---------------------------------------------------------------------------

    def insert_dynamic(
        self, creator: BackendCreator, origin: str, *, id: str = "", by_path: bool = False, version: str = ""
    ) -> bool:
        """Register a creator found at `origin`, under `id` or its own id; return whether that succeeded.

        `version` is used if the creator has none. If the id is taken (the first wins) or not valid, the creator is
        skipped with a warning.
        """
        with self._lock:
            name = id or creator.id
            holder = self._by_id.get(name.lower()) if isinstance(name, str) else None
            if holder is not None and holder.creator is creator:
                return True
            try:
                self._put(name, Entry(creator, origin, by_path))
            except BackendError as e:
                self.skip(origin, e.short, by_path=by_path)
                return False
            creator.found_version = version
            return True

    def skip(self, origin: str, reason: str, *, by_path: bool = False) -> None:
        """Warn that the backend at `origin` is not used, and remember the reason."""
        reason = brief(reason)
        plugin_log.warning("%s is skipped: %s", origin, reason, extra={"skipped": origin})
        self._failures[origin] = (reason, by_path)

    def rescan(self, paths: Sequence[Folder] | None = None) -> None:
        """Search folders again: close and remove backends that came from folders, insert those there now.

        `paths` replaces `WEFT_DYNAMIC_BACKEND_PATHS` from now on; None returns to the variable.
        """
        if isinstance(paths, (str, os.PathLike)):
            raise ConfigError(f"{str(paths)!r} is one path, not a list of paths", fix=f"write [{str(paths)!r}]")
        with self._lock:
            if self._searching:
                raise BackendError(
                    "a backend cannot start a search of folders while it is being loaded",
                    fix="call rescan after the import of the backend",
                )
            self._search(packages_alone=True)
            self._forget_paths()
            self._paths = None if paths is None else tuple(paths)
            self._asked_paths = False
            self._search()

    @property
    def paths(self) -> tuple[Folder, ...] | None:
        """Return the folders given to `rescan`, or None where the environment variable decides."""
        return self._paths

    def derive(self, paths: Sequence[Folder]) -> BackendRegistry:
        """Return a registry for one runtime: the present backends, but from folders only those in `paths`.

        With no paths it has no backends from folders. `close` it in the end.
        """
        made = BackendRegistry(self.finder)
        with self._lock:
            self._search(packages_alone=True)
            made._by_id = {k: e for k, e in self._by_id.items() if not e.by_path}
            made._by_type = {k: e for k, e in self._by_type.items() if not e.by_path}
            made._failures = {k: f for k, f in self._failures.items() if not f[1]}
        made._asked_packages = made._is_derived = True
        made.rescan(paths)
        return made

    def close(self) -> None:
        """Unregister the backends that came from folders; all others stay registered.

        Backends that no other registry holds are closed; a derived registry also closes those removed elsewhere.
        """
        with self._lock:
            self._asked_paths = True
            self._forget_paths()
            if self._is_derived and self in self._all:
                self._all.discard(self)
                self._each(self._close_unheld, self._by_id.values())

    def _forget_paths(self) -> None:
        self._each(self._drop, [e for e in self._by_id.values() if e.by_path])
        self._failures = {k: f for k, f in self._failures.items() if not f[1]}

    @staticmethod
    def _each(close: Callable[[Entry], None], entries: Iterable[Entry]) -> None:
        """Close one entry after another, even if some raise; log the errors."""

        def close_one(entry: Entry) -> None:
            with caught(lambda e: plugin_log.warning("closing %s failed: %s: %s", entry, type(e).__name__, e)):
                close(entry)

        do_all(partial(close_one, entry) for entry in entries)

    def _search(self, *, packages_alone: bool = False) -> None:
        """Find backends, once. Queries from a backend that is being loaded do not start another search."""
        if self.finder is None or (self._asked_packages and self._asked_paths and not self._searching):
            return
        with self._lock:
            if self._searching:
                return
            self._searching = True
            try:
                if not self._asked_packages:
                    self._asked_packages = True
                    self.finder.insert_installed(self)
                if not (self._asked_paths or packages_alone):
                    self._asked_paths = True
                    given = config.dynamic_backend_paths() if self._paths is None else self._paths
                    self.finder.insert_from(self, given)
            finally:
                self._searching = False

    # -- queries -------------------------------------------------------------------------------------------

    def is_registered(self, key: DeviceName) -> bool:
        """Tell whether a backend has that id or forward type; its hardware may still be absent."""
        self._search()
        return (key.lower() in self._by_id) if isinstance(key, str) else (key in self._by_type)

    def ids(self) -> list[str]:
        """Return the ids of all registered backends."""
        return [c.id for c in self.creators()]

    def creators(self) -> list[BackendCreator]:
        """Return the creators in the order of registration."""
        self._search()
        return [e.creator for e in self._by_id.values()]

    def origins(self) -> dict[str, str]:
        """Return where each backend came from, by id: "weft", a call, an entry point, or a file."""
        self._search()
        return {e.creator.id: e.origin for e in self._by_id.values()}

    def is_known_elsewhere(self, id: str) -> bool:
        """Tell whether other processes find the backend, too; they do not if this program registered it by a call."""
        self._search()
        entry = self._by_id.get(id.lower())
        return entry is not None and not entry.by_call

    @property
    def failures(self) -> dict[str, str]:
        """Return the backends that were found and are not used: the reason, by origin."""
        self._search()
        return {origin: reason for origin, (reason, _) in self._failures.items()}

    def absent(self) -> dict[str, str]:
        """Return the backends that cannot run here and why: no device is present, or none works."""
        reasons = {}
        for creator in self.creators():
            devices, why = present(creator)
            if why is None and all(unusable(creator, d.index) for d in devices):
                why = none_works(creator, devices)
            if why is not None:
                reasons[creator.id] = why
        return reasons

    def devices(self) -> list[DeviceInfo]:
        """Return every device of every backend that can run here."""
        return [d for c in self.creators() for d in present(c)[0] if unusable(c, d.index) is None]

    def gpus(self) -> list[DeviceInfo]:
        """Return every usable GPU once, also where several APIs list it: through the one that "auto" prefers.

        Of two APIs that tell neither UUIDs nor PCI addresses, only the preferred one counts.
        """
        return device_choice.gpus(self)

    def unusable(self) -> list[tuple[DeviceInfo, str]]:
        """Return the devices that are present but unusable, each with the reason."""
        found = [(d, unusable(c, d.index)) for c in self.creators() for d in present(c)[0]]
        return [(d, why) for d, why in found if why is not None]

    def hidden(self) -> dict[str, list[str]]:
        """Return by backend which devices environment variables hide from this process, a sentence each."""
        found = {creator.id: hidden(creator) for creator in self.creators()}
        return {id_: notes for id_, notes in found.items() if notes}

    def take_options(self, given: BackendOptions | None) -> dict[str, dict[str, Value]]:
        """Return options by backend id, each value in its type; ConfigError lists all that are wrong."""
        if given is None:
            return {}
        if not isinstance(given, Mapping):
            raise wrong_options([f"{brief(repr(given))} is not a dict of options by backend"])
        problems: list[str] = []
        found: dict[str, tuple[BackendCreator, Mapping[str, object]]] = {}
        for key, values in given.items():
            known = isinstance(key, (str, ForwardType)) and self.is_registered(key)
            if not known:
                problems.append(f"{key!r} is not a backend: registered are {', '.join(self.ids())}")
                continue
            creator = self.find(key)
            wrong = problems_of(creator, values)
            if creator.id in found:
                wrong.append(f"{creator.id!r} is named twice")
            problems += wrong
            found[creator.id] = (creator, values)
        if problems:
            raise wrong_options(problems)
        return {id_: taken(creator, values) for id_, (creator, values) in found.items()}

    def choose(self, device: DeviceName | Sequence[DeviceName], *, pass_over: bool = True) -> list[DeviceChoice]:
        """Return the devices for a name or a list of names in order of preference.

        An id alone means the first device of its backend that works; "id:N" means exactly the device with that index,
        "id:GPU-4b2c" the one whose UUID begins so, and "id:0000:65:00.0" the one at that PCI address.
        In a list, absent or unusable devices are skipped with a warning, and the next choice says so. If all are, or
        without `pass_over`, NoDevice gives the reasons.
        """
        return device_choice.choose(self, device, pass_over=pass_over)

    def check_names(self, device: DeviceName | Sequence[DeviceName]) -> list[DeviceName]:
        """Return the names of devices as a list; ConfigError or NoDevice for a name that means no backend.

        It asks no driver, so a wrong name is an error before anything slow begins.
        """
        return device_choice.check_names(self, device)

    def find(self, key: DeviceName) -> BackendCreator:
        """Return the creator of that id or forward type; NoDevice lists the registered ids if there is none."""
        return self._entry(key).creator

    def _entry(self, key: DeviceName) -> Entry:
        if not isinstance(key, (str, ForwardType)):
            raise ConfigError(f"{key!r} is not a device", fix='pass an id such as "cpu", or a ForwardType')
        self._search()
        found = self._by_type.get(key) if isinstance(key, ForwardType) else self._by_id.get(key.lower())
        if found is None:
            shown = key.name if isinstance(key, ForwardType) else repr(key)
            skipped = "".join(f"; {origin} was skipped: {why}" for origin, why in self.failures.items())
            raise NoDevice(
                f"no backend is registered for {shown}",
                why=f"registered are {', '.join(self.ids())}{skipped}",
                fix="run 'weft devices' for the list",
            )
        return found


registry = BackendRegistry()
"""The registry that every part of Weft uses."""


def insertExtraBackendCreator(key: DeviceName, creator: BackendCreator | type[Backend]) -> None:
    """Register a backend under a forward type (USER_0 ...) or an id; if it is taken, BackendError names the holder."""
    registry.insert(key, creator, origin="insertExtraBackendCreator")
