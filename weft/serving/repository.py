"""The models of a server: where they are, which versions there are, and how changed ones take their places."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from weft.core.registry.front_ends import front_ends
from weft.errors import ConfigError, listing
from weft.serving.pool import Pool
from weft.serving.protocol import RefusedError

log = logging.getLogger("weft.serving")

ONLY_VERSION = "1"
"""The version of a model that is a file."""
Signature = tuple[tuple[str, int, int], ...]
"""What tells that files have changed: their names, times and sizes."""


@dataclass
class Served:
    """A version of a model: its file, and the pool that runs it; None if it is not loaded, and why."""

    path: Path
    signature: Signature
    pool: Pool | None
    why: str = ""


class Repository:
    """Models by name. A model is a file, or a folder whose sub-folders with numbers as names hold its versions.

    `open_pool` makes the pool of a file. `refresh` loads what is new or has changed beside what runs, and swaps them.
    """

    def __init__(self, sources: Mapping[str, Path], open_pool: Callable[[Path], Pool]) -> None:
        self._sources, self._open = dict(sources), open_pool
        self._served: dict[tuple[str, str], Served] = {}
        self._unloaded: set[str] = set()
        """Models that somebody unloaded; they stay so until somebody loads them."""
        self._turn = threading.Lock()
        """Held by the thread that changes what is served."""

    @property
    def names(self) -> list[str]:
        """Return the names of all models."""
        return list(self._sources)

    def load(self) -> None:
        """Load all models; an error of one is raised."""
        self.refresh(strict=True)

    def refresh(self, name: str | None = None, *, strict: bool = False) -> None:
        """Load what is new or has changed, of all models or of one; close what is gone.

        What cannot be loaded is logged, and the version before it stays; with `strict` it is raised.
        """
        with self._turn:
            for each in [name] if name is not None else self._sources:
                if each in self._unloaded:
                    continue
                try:
                    found = _versions(self._sources[each])
                except (ConfigError, OSError) as e:
                    _tell(e, f"model {each!r}", strict)
                    continue
                for version, path in found.items():
                    self._renew((each, version), path, strict)
                for key in [key for key in self._served if key[0] == each and key[1] not in found]:
                    self._drop(key)

    def _renew(self, key: tuple[str, str], path: Path, strict: bool) -> None:
        """Load a file if it is not what is served; if that fails, what was served before stays."""
        before = self._served.get(key)
        now: Signature = ()
        try:
            now = _signature(path)
            if before is not None and (before.path, before.signature) == (path, now):
                return
            self._put(key, Served(path, now, self._open(path)))
        except Exception as e:
            kept = before.pool if before else None
            self._served = {**self._served, key: Served(path, now, kept, str(e))}
            _tell(e, f"version {key[1]} of model {key[0]!r}", strict)

    def _put(self, key: tuple[str, str], made: Served) -> None:
        before = self._served.get(key)
        self._served = {**self._served, key: made}
        log.info("version %s of model %r is served from %s", key[1], key[0], made.path)
        if before is not None and before.pool is not None:
            before.pool.close()

    def _drop(self, key: tuple[str, str]) -> None:
        gone = self._served[key]
        self._served = {k: v for k, v in self._served.items() if k != key}
        if gone.pool is not None:
            gone.pool.close()

    def turn_on(self, name: str) -> None:
        """Load a model that was unloaded, or look for changes of it; RefusedError if there is none, or it is broken."""
        self._check(name)
        with self._turn:
            self._unloaded.discard(name)
        self.refresh(name)
        served = [each for (n, _), each in self._served.items() if n == name]
        broken = [each.why for each in served if each.why] or ([] if served else ["its file has gone"])
        if broken:
            raise RefusedError(400, f"model {name!r} could not be loaded: {broken[0]}")

    def turn_off(self, name: str) -> None:
        """Unload a model; RefusedError if there is none."""
        self._check(name)
        with self._turn:
            self._unloaded.add(name)
            for key in [key for key in self._served if key[0] == name]:
                self._drop(key)

    def _check(self, name: str) -> None:
        if name not in self._sources:
            raise RefusedError(404, f"there is no model {name!r}; served are {listing(self.names, ', ')}")

    def versions(self, name: str) -> dict[str, Pool]:
        """Return the pools of a model by version, the latest last; RefusedError if there is no such model."""
        self._check(name)
        loaded = {v: pool for (n, v), pool in self.pools.items() if n == name}
        return {v: loaded[v] for v in sorted(loaded, key=int)}

    def find(self, name: str, version: str | None = None) -> tuple[str, Pool]:
        """Return a version of a model, by default the latest, and its pool; RefusedError if it is not served now."""
        known = self.versions(name)
        if version is None and not known:
            raise RefusedError(503, f"no version of model {name!r} is loaded")
        chosen = [*known][-1] if version is None else version
        if chosen not in known:
            loaded = ", ".join(known) or "none"
            raise RefusedError(404, f"model {name!r} has no version {chosen!r}; loaded are {loaded}")
        return chosen, known[chosen]

    @property
    def pools(self) -> dict[tuple[str, str], Pool]:
        """Return the pools that are loaded, by name and version."""
        return {key: served.pool for key, served in self._served.items() if served.pool is not None}

    @property
    def index(self) -> list[dict[str, str]]:
        """Return the state of each version of each model."""
        rows = [
            {"name": name, "version": version, "state": "READY" if each.pool else "UNAVAILABLE", "reason": each.why}
            for (name, version), each in self._served.items()
        ]
        there = {row["name"] for row in rows}
        off = [{"name": n, "state": "UNAVAILABLE", "reason": "unloaded"} for n in self.names if n not in there]
        return [*rows, *off]

    @property
    def is_ready(self) -> bool:
        """Tell whether each model that nobody unloaded has a version that takes requests."""
        open_now = {name for (name, _), pool in self.pools.items() if not pool.is_closed}
        return all(name in open_now for name in self._sources if name not in self._unloaded)

    def close(self) -> None:
        """Run what waits, and close all pools."""
        with self._turn:
            for key in list(self._served):
                self._drop(key)


def _tell(e: Exception, what: str, strict: bool) -> None:
    if strict:
        raise e
    log.warning("%s cannot be loaded: %s", what, e)


def _versions(source: Path) -> dict[str, Path]:
    """Return the files of a model's versions."""
    if source.is_file():
        return {ONLY_VERSION: source}
    folders = [f for f in source.iterdir() if f.name.isascii() and f.name.isdigit()] if source.is_dir() else []
    found = {str(int(folder.name)): _model_in(folder) for folder in folders if folder.is_dir()}
    if not found:
        raise ConfigError(
            f"there is no model {str(source)!r}",
            why="it is neither a file, nor a folder with sub-folders 1, 2, ... for its versions",
            fix="name a file, or a folder such as model/1/model.onnx",
        )
    return found


def _model_in(folder: Path) -> Path:
    """Return the file of a version: the only one that a front end reads."""
    suffixes = {suffix for each in front_ends.registered() for suffix in each.suffixes if suffix}
    files = sorted(f for f in folder.iterdir() if f.is_file() and f.suffix in suffixes)
    if len(files) != 1:
        raise ConfigError(
            f"a version of a model is one file, and {str(folder)!r} has {len(files)}",
            why=", ".join(f.name for f in files) or f"none ends in {', '.join(sorted(suffixes))}",
            fix="leave one, beside files with its external data",
        )
    return files[0]


def _signature(path: Path) -> Signature:
    """Return what changes when the file does, or one beside it whose name begins so, as external data have it."""
    beside = sorted(p for p in path.parent.iterdir() if p.name.startswith(path.stem) and p.is_file())
    return tuple((p.name, (stat := os.stat(p)).st_mtime_ns, stat.st_size) for p in beside)


def named_sources(models: list[str]) -> dict[str, Path]:
    """Return paths of models by name, from `PATH` or `NAME=PATH`; ConfigError for two of one name."""
    sources: dict[str, Path] = {}
    for each in models:
        name, separator, path = each.partition("=")
        if not separator or Path(each).exists():
            name, path = Path(each).stem, each
        if name in sources or not name or "/" in name:
            raise ConfigError(
                f"{name!r} cannot be the name of a model" if not name or "/" in name else f"two models are {name!r}",
                fix="write NAME=PATH, with another name for each",
            )
        sources[name] = Path(path)
    return sources
