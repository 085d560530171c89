"""Tuning tables on disk: for each device its problems, the choice for each, and every candidate's time or failure.

A table serves one device name, driver and API. An entry serves exactly its problem, and only while its choice leads to
the kernel sources that were timed.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, TypeVar

from weft import config
from weft.backends.gpu.tuning_tables.choice import Choice
from weft.core.contract.backend import DeviceInfo
from weft.core.host.disk_cache import folder_refused, read_trusted, replace_file, say_not_kept, write
from weft.core.host.file_locks import locked
from weft.errors import ConfigError

T = TypeVar("T")
log = logging.getLogger("weft.gpu")

SCHEMA = 2
"""The format of written files, which have a digest of the devices; files of format 1 have none."""
FOLDER = "tuning"
"""The folder inside the cache."""
FILE = re.compile(r"[a-z0-9-]+-[0-9a-f]{8}\.json")
"""The names of the files in it: see `DeviceKey.file`."""


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
    """One candidate's microseconds, or why it failed, and the hash of the kernels that it led to."""

    digest: str
    us: float | None = None
    failed: str | None = None

    @property
    def is_forgotten(self) -> bool:
        """Tell whether this trial erases an earlier one."""
        return self == FORGOTTEN

    def scaled(self, factor: float) -> Trial:
        """Return the trial as if the device had been so many times slower."""
        return self if self.us is None else replace(self, us=round(self.us * factor, 3))


FORGOTTEN = Trial("")
"""Noting it for a candidate erases the candidate's trial from the table."""


@dataclass(frozen=True, slots=True)
class Entry:
    """The choice and the trials of one problem."""

    choice: str | None = None
    """The best candidate; None before any were compared."""
    trials: Mapping[str, Trial] = field(default_factory=dict)

    def merged(self, newer: Entry) -> Entry:
        """Return both entries merged; the newer one wins."""
        return Entry(newer.choice or self.choice, {**self.trials, **newer.trials})

    def joined(self, newer: Entry) -> Entry:
        """Return both entries merged, with the older times scaled to the newer one's clock."""
        slower = _slower(newer, self)
        return Entry(self.choice, {text: t.scaled(slower) for text, t in self.trials.items()}).merged(newer)


class Proposal(NamedTuple):
    """A candidate's text, and the hash of the kernels that it must lead to."""

    text: str
    digest: str


Entries = dict[str, Entry]
Tables = dict[DeviceKey, Entries]


class TuningTable:
    """The table of one device in memory. Reads take no lock, and `save` keeps what other processes wrote meanwhile."""

    def __init__(self, info: DeviceInfo, folder: Path | None = None, *, proposes: bool = True) -> None:
        self.key, self._proposes = DeviceKey.of(info), proposes
        if folder is None and config.cache_enabled():
            folder = config.cache_dir() / FOLDER
        self.path = folder / self.key.file if folder else None
        """The path of the file; None if the cache is turned off."""
        self.why_not_kept = "" if self.path else "WEFT_CACHE=0 is set"
        """Why notes are not saved to disk, if they are not."""
        self._entries: Entries | None = None
        self._changed: Entries = {}
        self._lock = threading.Lock()

    @property
    def file(self) -> Path | None:
        """Return the file; None if there is none yet, or nothing is saved."""
        return None if self.path is None or self.why_not_kept or not self.path.exists() else self.path

    # -- what ops and a tuner read ---------------------------------------------------------------------

    def proposal(self, key: str, texts: Collection[str]) -> Proposal | None:
        """Return the choice for a problem, or the fastest of `texts` if the choice is not among them.

        It counts only if it leads to the kernels that were timed. With WEFT_TUNING=0, or the option `tuning` off,
        there is none.
        """
        if not (self._proposes and config.tuning_enabled()):
            return None
        entry = self.entry(key)
        timed = {text: t.us for text, t in entry.trials.items() if text in texts and t.us is not None}
        if entry.choice is None or not timed:
            return None
        text = entry.choice if entry.choice in timed else min(timed, key=lambda text: timed[text])
        return Proposal(text, entry.trials[text].digest)

    def entry(self, key: str) -> Entry:
        """Return the entry of a problem; an empty one if there is none."""
        return self.entries().get(key) or Entry()

    def subset(self, keys: Collection[str]) -> Entries:
        """Return the entries of some problems."""
        return {key: entry for key, entry in self.entries().items() if key in keys}

    def known(self, key: str, text: str, digest: str) -> Trial | None:
        """Return the trial of a candidate whose kernels have that hash, or None."""
        trial = self.entry(key).trials.get(text)
        return trial if trial is not None and trial.digest == digest else None

    def beside(self, choice: Choice) -> Mapping[str, Trial]:
        """Return the trials of a problem if the candidate taken has a time with its kernels; otherwise none."""
        trials = self.entry(choice.key).trials
        trial = trials.get(choice.chosen)
        if trial is None or trial.us is None or trial.digest != choice.digest:
            return {}
        return {text: t for text, t in trials.items() if not t.is_forgotten}

    def entries(self) -> Entries:
        """Return all entries; the first call reads them from disk."""
        if self._entries is None:
            with self._lock:
                if self._entries is None:
                    self._entries = {} if self.path is None else self._kept().get(self.key, {})
        return self._entries

    def _kept(self) -> Tables:
        """Return the tables in the file; none, and a remark, if others could have written to its folder."""
        assert self.path is not None
        if folder_refused(self.path.parent):
            return {}
        return _read_or_warn(self.path, read_trusted)

    # -- what a tuner writes ---------------------------------------------------------------------------

    def note(self, key: str, entry: Entry) -> None:
        """Add an entry; `save` writes it to disk."""
        entries = self.entries()
        with self._lock:
            merge(entries, {key: entry})
            merge(self._changed, {key: entry})

    def save(self) -> None:
        """Add what is new to the file on disk, which other processes may have changed meanwhile.

        If that fails, the next save tries it again.
        """
        with self._lock:
            changed, self._changed = self._changed, {}
        if self.path is None or not changed:
            return
        self.why_not_kept = folder_refused(self.path.parent) or ""
        try:
            if not self.why_not_kept:
                write_tables(self.path, {self.key: changed}, read_trusted, write)
                return
        except OSError as e:
            self.why_not_kept = f"{self.path.parent} cannot be written"
            say_not_kept(self.path.parent.parent, e)
        with self._lock:
            merge(changed, self._changed)
            self._changed = changed


class TableSource:
    """Chooses for one node by a table. Plan the node again until its choices `stand`; stale ones are not made again."""

    def __init__(self, table: TuningTable) -> None:
        self._table = table
        self._taken: dict[str, Proposal] = {}
        self._refused: set[tuple[str, Proposal]] = set()

    def choose(self, key: str, texts: Collection[str]) -> str | None:
        """Return the candidate for a problem, as text; None: the op's default."""
        proposal = self._table.proposal(key, texts)
        if proposal is None or (key, proposal) in self._refused:
            return None
        self._taken[key] = proposal
        return proposal.text

    def stand(self, choices: Iterable[Choice]) -> bool:
        """Tell whether all choices led to the kernels that were timed; refuse the choices that did not."""
        made = [(choice, self._taken[choice.key]) for choice in choices if choice.made]
        stale = {(choice.key, proposal) for choice, proposal in made if choice.digest != proposal.digest}
        self._refused |= stale
        return not stale


def _slower(newer: Entry, older: Entry) -> float:
    """Return how many times longer the same kernels took than for the older entry, because clocks differ."""
    pairs = [(t, older.trials[text]) for text, t in newer.trials.items() if text in older.trials]
    return median([a.us / b.us for a, b in pairs if a.us and b.us and a.digest == b.digest] or [1.0])


def merge(into: Entries, newer: Mapping[str, Entry]) -> None:
    """Add entries to others in place."""
    for key, entry in newer.items():
        into[key] = into[key].merged(entry) if key in into else entry


# -- files ---------------------------------------------------------------------------------------------------


Reader = Callable[[Path], bytes]
"""Returns the content of a file; OSError if it cannot be read or is not trusted."""
Writer = Callable[[Path, bytes], None]
"""Writes a file in one step; OSError if that fails."""


def read_tables(
    path: Path, fix: str = "remove it, or run `weft tune` to write it anew", read: Reader = Path.read_bytes
) -> Tables:
    """Return the tables in a file, none if there is no such file; ConfigError with `fix` if it is damaged."""
    try:
        data = read(path)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as e:
        raise ConfigError(f"{path} cannot be read", why=e.strerror or str(e), fix=fix) from None
    try:
        return _decoded(data)
    except ValueError as e:
        raise ConfigError(f"{path} is no table of `weft tune`", why=str(e), fix=fix) from None


def write_tables(
    path: Path,
    tables: Mapping[DeviceKey, Entries],
    read: Reader = Path.read_bytes,
    write: Writer = replace_file,
) -> None:
    """Add tables to those in a file; writers wait for each other, and readers see the old file or the new one.

    A damaged file is replaced: its readers have reported it. By default the file may lie anywhere, and nothing else in
    its folder changes; a table inside the cache is read and written as the cache does.
    """
    path.parent.mkdir(parents=True, mode=0o700, exist_ok=True)
    with locked(path.parent):
        held: Tables = {}
        with suppress(ConfigError):
            held = read_tables(path, read=read)
        for key, entries in tables.items():
            known = held.setdefault(key, {})
            known |= {problem: known.get(problem, Entry()).joined(entry) for problem, entry in entries.items()}
        devices = [
            {**asdict(key), "problems": {k: _encoded(e) for k, e in sorted(held[key].items())}}
            for key in sorted(held, key=lambda k: (k.name, k.api, k.driver))
        ]
        content = {"schema": SCHEMA, "digest": _digest(devices), "devices": devices}
        write(path, f"{json.dumps(content, indent=1)}\n".encode())


def _digest(devices: Any) -> str:
    """Return the hash of the devices in a file and all their entries, independent of the JSON's form."""
    text = json.dumps(devices, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _read_or_warn(path: Path, read: Reader = Path.read_bytes) -> Tables:
    try:
        return read_tables(path, read=read)
    except ConfigError as e:
        log.warning("%s and is ignored: %s; %s", e.what, e.why, e.fix)
        return {}


def _decoded(text: bytes) -> Tables:
    """Return the tables in a file's content; ValueError says what is wrong with it."""
    try:
        data = json.loads(text)
    except json.JSONDecodeError as e:
        raise ValueError(f"it is no JSON, from line {e.lineno} on") from None
    except (ValueError, RecursionError):
        raise ValueError("it is no JSON") from None
    schema = _member(data, "schema", int, "it")
    if schema not in (1, SCHEMA):
        raise ValueError(f"its schema is {schema}, not {SCHEMA}")
    if data.keys() - {"schema", "devices", *(["digest"] if schema == SCHEMA else [])}:
        raise ValueError("it has members that such a table does not have")
    if schema == SCHEMA and _member(data, "digest", str, "it") != _digest(data.get("devices")):
        raise ValueError("its digest does not fit its content: it was damaged, or changed by hand")
    tables: Tables = {}
    for device in _member(data, "devices", list, "it"):
        api, name, driver = (_member(device, field, str, "a device") for field in ("api", "name", "driver"))
        problems = _member(device, "problems", dict, "a device")
        tables[DeviceKey(api, name, driver)] = {key: _entry(value) for key, value in problems.items()}
    return tables


_KINDS: dict[type, str] = {int: "a number", str: "a text", list: "a list", dict: "an object"}


def _member(of: Any, name: str, kind: type[T], where: str) -> T:
    value = of.get(name) if isinstance(of, dict) else None
    if not isinstance(value, kind):
        raise ValueError(f"{where} has no {name!r} that is {_KINDS[kind]}")
    return value


def _entry(value: Any) -> Entry:
    trials = _member(value, "trials", dict, "a problem")
    if not isinstance(value.get("choice", 0), (str, type(None))):
        raise ValueError("a problem has no 'choice' that is a text or null")
    return Entry(value["choice"], {text: _trial(trial) for text, trial in trials.items()})


def _trial(value: Any) -> Trial:
    digest = _member(value, "digest", str, "a candidate")
    us, failed = value.get("us"), value.get("failed")
    is_time = isinstance(us, (int, float)) and not isinstance(us, bool) and 0 <= us <= sys.float_info.max
    if us is not None and not is_time:
        raise ValueError("a candidate has a time 'us' that is no number from 0 on")
    if not isinstance(failed, (str, type(None))) or value.keys() - {"digest", "us", "failed"}:
        raise ValueError("a candidate has members besides the texts 'digest' and 'failed', and its time 'us'")
    return Trial(digest, us, failed)


def _encoded(entry: Entry) -> dict[str, Any]:
    known = {text: asdict(t) for text, t in sorted(entry.trials.items()) if not t.is_forgotten}
    trials = {text: {k: v for k, v in t.items() if v is not None} for text, t in known.items()}
    return {"choice": entry.choice, "trials": trials}
