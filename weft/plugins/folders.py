"""Backends in folders: which folders and files are considered, and how each is loaded."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from weft.core.host.trust import file_problem, folder_problem
from weft.core.registry.backend_registry import BackendRegistry
from weft.core.registry.entries import Folder
from weft.plugins.interface import Announced, MalformedError, read
from weft.plugins.python_file import forget_changed, load_module

log = logging.getLogger("weft.plugins")

FILE_NAME = re.compile(r"[A-Za-z0-9]+_[A-Za-z0-9]+_backend\.(py|so(?:\.[0-9]+)*)")
"""<vendor>_<name>_backend.py, or .so with any number of version fields."""

_SECURE = "allow only its owner to write to it (chmod go-w, chown), or remove it from the folders that are searched"


def insert_all(registry: BackendRegistry, paths: Sequence[Folder]) -> None:
    """Insert the backends in folders; report what is wrong with folders and files and go on."""
    seen: set[Path] = set()
    fresh: set[Path] = set()
    for path in paths:
        why = why_not_folder(path)
        if why is not None:
            registry.skip(f"the folder {str(path)!r}", why, by_path=True)
            continue
        if others := folder_problem(Path(path)):
            log.warning("code is loaded from the folder %s, though %s; %s", path, others, _SECURE)
        for file, is_native in files(registry, Path(path)):
            if file in seen:
                log.debug("%s was loaded already", file)
                continue
            seen.add(file)
            if others := file_problem(file):
                log.warning("code is loaded from %s, though %s; %s", file, others, _SECURE)
            if not is_native and file.parent not in fresh:
                fresh.add(file.parent)
                forget_changed(file.parent)
            try:
                announced = load(file, is_native=is_native)
            except MalformedError as e:
                registry.skip(str(file), str(e), by_path=True)
                continue
            registry.insert_dynamic(
                announced.creator, str(file), id=announced.id, by_path=True, version=announced.version
            )


def why_not_folder(path: object) -> str | None:
    """Return why nothing is loaded from a path, or None."""
    if not isinstance(path, (str, os.PathLike)):
        return "it is not a path"
    if not os.path.isabs(path):
        return "it is not an absolute path"
    if not os.path.exists(path):
        return "it does not exist"
    return None if os.path.isdir(path) else "it is not a directory"


def is_considered(name: str) -> bool:
    """Tell whether a file of that name can be a backend."""
    return FILE_NAME.fullmatch(name) is not None


def files(registry: BackendRegistry, folder: Path) -> Iterator[tuple[Path, bool]]:
    """Yield the canonical path of each file to consider, and whether it is native code, in the order of the names.

    The name of a symlink, not of its target, says how the file is loaded.
    """
    try:
        names = sorted(os.listdir(folder))
    except OSError as e:
        registry.skip(f"the folder {str(folder)!r}", f"it cannot be read: {e.strerror}", by_path=True)
        return
    for name in names:
        if not is_considered(name):
            log.debug("%s is not named like a backend", folder / name)
            continue
        try:
            file = (folder / name).resolve(strict=True)
        except (OSError, RuntimeError) as e:  # RuntimeError: a symlink to itself, before Python 3.13
            why = e.strerror if isinstance(e, OSError) else str(e)
            registry.skip(str(folder / name), f"the link cannot be followed: {why}", by_path=True)
            continue
        if file.is_file():
            yield file, not name.endswith(".py")
        else:
            log.debug("%s is not a file", folder / name)


def load(file: Path, *, is_native: bool) -> Announced:
    """Return the backend in a file; MalformedError says why there is none."""
    if is_native:
        from weft.plugins.native import load_library

        return load_library(file)
    module, version = load_module(file)
    return replace(read(module, "it"), version=version)
