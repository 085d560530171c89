"""What tuning found, on disk: for each device a table of problems, their choice, and every candidate's time or failure.

A table serves one device name, driver and API. An entry is used for exactly its problem, and only while
its choice leads to kernels of the source that was timed. Tables that Weft brings are read first and the
user's over them.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import re
import tempfile
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from weft import config
from weft.backends.gpu.picks import Pick
from weft.core.backend import DeviceInfo
from weft.errors import ConfigError

log = logging.getLogger("weft.gpu")

SCHEMA = 1
SHIPPED = Path(__file__).parent / "tuned"
FOLDER = "tuning"
"""The folder inside the cache."""


@dataclass(frozen=True, slots=True)
class DeviceKey:
    """The device that a table is for."""

    api: str
    name: str
    driver: str

    @classmethod
    def of(cls, info: DeviceInfo) -> DeviceKey:
        """Return the key of a device."""
        return cls(info.id, info.name, info.driver)

    @property
    def file(self) -> str:
        """Return the name of its file in the cache."""
        words = re.sub(r"[^a-z0-9]+", "-", f"{self.name} {self.api}".lower()).strip("-")
        digest = hashlib.blake2b("\n".join((self.api, self.name, self.driver)).encode(), digest_size=4)
        return f"{words[:60]}-{digest.hexdigest()}.json"


@dataclass(frozen=True, slots=True)
class Trial:
    """What is known of one candidate: microseconds, or why it failed; and the hash of the kernels it led to."""

    digest: str
    us: float | None = None
    failed: str | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """What is known of one problem."""

    choice: str | None = None
    """The candidate to take; None while nothing was compared."""
    trials: Mapping[str, Trial] = field(default_factory=dict)

    def merged(self, newer: Entry) -> Entry:
        """Return both, where they disagree the newer."""
        return Entry(newer.choice or self.choice, {**self.trials, **newer.trials})


Entries = dict[str, Entry]
Tables = dict[DeviceKey, Entries]


class TuningTable:
    """The table of one device in memory; reads are free of locks, and a `save` keeps what others wrote meanwhile."""

    def __init__(self, info: DeviceInfo, folder: Path | None = None, shipped: Path = SHIPPED) -> None:
        self.key = DeviceKey.of(info)
        if folder is None and config.cache_enabled():
            folder = config.cache_dir() / FOLDER
        self.path = folder / self.key.file if folder else None
        """Where the user's table lies; None if the cache is turned off."""
        self._files = [*sorted(shipped.glob("*.json")), *([self.path] if self.path else [])]
        self._entries: Entries | None = None
        self._changed: Entries = {}
        self._lock = threading.Lock()

    # -- the choices of ops ----------------------------------------------------------------------------

    def choose(self, key: str, texts: Collection[str]) -> str | None:
        """Return the choice for a problem, or the fastest of those on offer if that is not; None if WEFT_TUNING=0."""
        entry = self.entries().get(key) if config.tuning_enabled() else None
        if entry is None or entry.choice is None:
            return None
        timed = {text: t.us for text, t in entry.trials.items() if text in texts and t.us is not None}
        if entry.choice in timed:
            return entry.choice
        return min(timed, key=lambda text: timed[text], default=None)

    def allows(self, pick: Pick) -> bool:
        """Tell whether the choice was timed with the source it has now, and has not failed since."""
        trial = self.known(pick.key, pick.chosen, pick.digest)
        return trial is not None and trial.us is not None

    # -- what a tuner reads and writes -----------------------------------------------------------------

    def entries(self) -> Entries:
        """Return all entries, read from disk the first time."""
        with self._lock:
            if self._entries is None:
                self._entries = {}
                for path in self._files:
                    merge(self._entries, _read_or_warn(path).get(self.key, {}))
            return self._entries

    def subset(self, keys: Collection[str]) -> Entries:
        """Return the entries of some problems."""
        return {key: entry for key, entry in self.entries().items() if key in keys}

    def known(self, key: str, text: str, digest: str) -> Trial | None:
        """Return what is known of a candidate whose kernels have that hash."""
        entry = self.entries().get(key)
        trial = entry.trials.get(text) if entry is not None else None
        return trial if trial is not None and trial.digest == digest else None

    def note(self, key: str, entry: Entry) -> None:
        """Add what was found; `save` keeps it."""
        entries = self.entries()
        with self._lock:
            merge(entries, {key: entry})
            merge(self._changed, {key: entry})

    def save(self) -> None:
        """Add what is new to the file on disk, which other processes may have changed meanwhile."""
        with self._lock:
            changed, self._changed = self._changed, {}
        if self.path is None or not changed:
            return
        try:
            write_tables(self.path, {self.key: changed})
        except OSError as e:
            log.warning("what was tuned cannot be kept in %s: %s", self.path, e)


def merge(into: Entries, newer: Mapping[str, Entry]) -> None:
    """Add entries to others in place."""
    for key, entry in newer.items():
        into[key] = into[key].merged(entry) if key in into else entry


# -- files ---------------------------------------------------------------------------------------------------


def read_tables(path: Path) -> Tables:
    """Return the tables in a file, none if there is no such file; ConfigError if it is damaged."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["schema"] != SCHEMA:
            raise ValueError(f"its schema is {data['schema']!r}, not {SCHEMA}")
        return {DeviceKey(d["api"], d["name"], d["driver"]): _entries(d["problems"]) for d in data["devices"]}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
        raise ConfigError(
            "a tuning table cannot be read", where=str(path), why=f"{type(e).__name__}: {e}", fix="remove the file"
        ) from e


def write_tables(path: Path, tables: Mapping[DeviceKey, Entries]) -> None:
    """Add tables to those in a file; writers wait for each other, readers see the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path.parent):
        held = _read_or_warn(path)
        for key, entries in tables.items():
            merge(held.setdefault(key, {}), entries)
        devices = [
            {**asdict(key), "problems": {k: _encoded(e) for k, e in sorted(held[key].items())}}
            for key in sorted(held, key=lambda k: (k.name, k.api, k.driver))
        ]
        fd, temporary = tempfile.mkstemp(dir=path.parent, suffix=".part")
        with os.fdopen(fd, "w", encoding="utf-8") as f:
            json.dump({"schema": SCHEMA, "devices": devices}, f, indent=1)
            f.write("\n")
        os.replace(temporary, path)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    fd = os.open(folder, os.O_RDONLY)  # the folder itself, so that no file for it is left behind
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _read_or_warn(path: Path) -> Tables:
    try:
        return read_tables(path)
    except ConfigError as e:
        log.warning("the tuning table %s is ignored: %s", path, e.why)
        return {}


def _entries(problems: Mapping[str, Any]) -> Entries:
    return {key: _decoded(value) for key, value in problems.items()}


def _decoded(value: Mapping[str, Any]) -> Entry:
    choice, trials = value["choice"], {text: Trial(**t) for text, t in value["trials"].items()}
    valid = all(
        isinstance(t.digest, str) and isinstance(t.us, (int, float, type(None))) for t in trials.values()
    )
    if not valid or not isinstance(choice, (str, type(None))):
        raise ValueError("an entry has values of the wrong type")
    return Entry(choice, trials)


def _encoded(entry: Entry) -> dict[str, Any]:
    trials = {
        text: {k: v for k, v in asdict(t).items() if v is not None} for text, t in sorted(entry.trials.items())
    }
    return {"choice": entry.choice, "trials": trials}
