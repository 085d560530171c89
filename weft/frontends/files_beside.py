"""Files beside a model that hold its weights, mapped into memory, never read at once.

A model names the files that it wants, so a model from a stranger may name any file of the user's, and an archive may
bring links to any. A file is opened only if it really lies, all links resolved, below the model's folder, or below the
folder in which the model's own file really lies: Hugging Face's cache keeps the files of a repository in one folder of
blobs, and a model and its data are links into it. After that no link is followed: each folder on the way is opened from
the one before it, so that nothing can be exchanged in between. Where the system cannot do that, the file that was
opened is compared with the one that was checked. (Published attacks on other readers: CVE-2022-25882, CVE-2024-27318,
CVE-2026-27489 on the path and CVE-2026-34445 on the entries.)
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path, PureWindowsPath

import numpy as np

from weft.core.graph.layout import Array
from weft.errors import ModelError

BY_DESCRIPTORS = os.open in os.supports_dir_fd and hasattr(os, "O_NOFOLLOW")
"""Whether a folder can be held open and a file opened from there; not so on Windows."""
READ = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
FOLDER = READ | getattr(os, "O_DIRECTORY", 0)
# O_NONBLOCK: a pipe put in the file's place after the check must not make us wait for its writer.
NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


class FilesBeside:
    """The files beside one model, each mapped once; `folders` are where they may lie, () if the model has no path."""

    def __init__(self, folders: Sequence[Path] = ()) -> None:
        self.folders = folders
        self._maps: dict[str, Array] = {}

    def map(self, location: str, where: str) -> Array:
        """Return the bytes of the file at a location, read-only; ModelError, naming `where`, if it is refused."""
        if location not in self._maps:
            if not self.folders:
                raise refusal(
                    where,
                    "the model was given as bytes or as an object, so there is no folder to look in",
                    "load the model by its path, or put the data into the model first (for ONNX, onnx.load does)",
                )
            descriptor = open_below(self.folders, location, where)
            with os.fdopen(descriptor, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                # An empty file cannot be mapped, but a tensor without elements may well be in one.
                self._maps[location] = np.memmap(file, np.uint8, "r") if size else np.empty(0, np.uint8)
        return self._maps[location]

    def part(self, location: str, offset: int, nbytes: int, where: str) -> Array:
        """Return some bytes of the file at a location; ModelError if it is refused, or has fewer."""
        data = self.map(location, where)
        if offset + nbytes > data.size:
            raise refusal(where, f"bytes {offset} to {offset + nbytes} are asked for, the file has {data.size}")
        return data[offset : offset + nbytes]


def folders_of(path: Path) -> tuple[Path, ...]:
    """Return where files beside a model may lie: in the folder of its path, or of the file behind its links."""
    try:
        real = Path(os.path.realpath(path, strict=True))
    except OSError:  # it has gone since, or never had a name: a descriptor of memory leads to none
        return (path.parent,)
    return tuple(dict.fromkeys((path.parent, real.parent)))


def open_below(folders: Sequence[Path], location: str, where: str) -> int:
    """Return a descriptor of the regular file at `location` in the first folder that has it; ModelError if none has.

    The file may lie below any of the folders, whichever links lead there.
    """
    root, parts = _resolved(folders, _parts(location, where), where)
    if not BY_DESCRIPTORS:
        return _open_by_path(root, parts, where)
    try:
        parent = os.open(root, FOLDER)
    except OSError as e:
        raise refusal(where, f"the model's folder {root} cannot be opened: {e.strerror}") from e
    try:
        for part in parts[:-1]:
            parent = _step(parent, part)
        return _open_file(parent, parts[-1], where)
    except OSError as e:
        raise refusal(where, f"it cannot be opened in {root}: {e.strerror}") from e
    finally:
        os.close(parent)


def _resolved(folders: Sequence[Path], parts: Sequence[str], where: str) -> tuple[Path, Sequence[str]]:
    """Return one of the folders, without links, and the way from there to the file, without links as well."""
    problems = []
    for folder in folders:
        try:
            real = Path(os.path.realpath(folder.joinpath(*parts), strict=True))
            roots = [Path(os.path.realpath(each, strict=True)) for each in folders]
        except OSError as e:
            problems.append(f"it cannot be opened in {folder}: {e.strerror}")
            continue
        for root in roots:
            if real.is_relative_to(root):
                return root, real.relative_to(root).parts or (".",)
        raise refusal(
            where,
            f"a link leads out of the model's folder, to {real}",
            "replace the link by the file itself, if you trust the model with that file",
        )
    missing = not any(os.path.lexists(folder.joinpath(*parts)) for folder in folders)
    fix = "copy the file there from where the model comes from" if missing else ""
    raise refusal(where, problems[0], fix)


def _step(parent: int, part: str) -> int:
    child = os.open(part, FOLDER | NO_LINK, dir_fd=parent)
    os.close(parent)
    return child


def _open_file(parent: int, part: str, where: str) -> int:
    # Check before opening (opening a device may have effects), and again once it is open.
    _check_regular(os.stat(part, dir_fd=parent, follow_symlinks=False), where)
    descriptor = os.open(part, READ | NO_LINK, dir_fd=parent)
    try:
        _check_regular(os.fstat(descriptor), where)
    except ModelError:
        os.close(descriptor)
        raise
    return descriptor


def _open_by_path(root: Path, parts: Sequence[str], where: str) -> int:
    """Do as `open_below` where folders cannot be held open, as on Windows."""
    path = root.joinpath(*parts)
    if any(":" in part for part in parts):
        raise refusal(where, "the path has ':' in it, which leads to other data of a file on Windows")
    try:
        seen = os.lstat(path)
        _check_regular(seen, where)
        descriptor = os.open(path, READ | NO_LINK)
    except OSError as e:
        raise refusal(where, f"it cannot be opened in {root}: {e.strerror}") from e
    try:
        opened = os.fstat(descriptor)
        _check_regular(opened, where)
        if os.path.realpath(path) != str(path) or not os.path.samestat(seen, opened):
            raise refusal(where, "the path leads elsewhere, or changed while it was opened")
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _check_regular(status: os.stat_result, where: str) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise refusal(where, "it is not a regular file")
    if status.st_nlink > 1:
        raise refusal(
            where, f"the file has {status.st_nlink} names (hard links)", "copy it: one name is allowed"
        )


def _parts(location: str, where: str) -> list[str]:
    windows = PureWindowsPath(location)
    if not location or "\0" in location:
        raise refusal(where, "the entry names no file")
    if location.startswith("/") or windows.drive or windows.root:
        raise refusal(where, "the path is absolute; it must be relative to the model's folder")
    parts = [part for part in location.split("/") if part not in ("", ".")]
    depths = list(accumulate(-1 if part == ".." else 1 for part in parts))
    if not parts or min(depths) < 0 or not depths[-1] or "\\" in location:
        raise refusal(where, "the path has '\\' in it or leaves by '..'; it must stay in the model's folder")
    return parts


def refusal(where: str, why: str, fix: str = "") -> ModelError:
    """Return the error for data beside a model that Weft does not read."""
    return ModelError("external data of the model is refused", where=where, why=why, fix=fix)


def map_model(path: Path) -> Array:
    """Return the bytes of a model's own file, mapped; ModelError if it cannot be read."""
    try:
        # O_NONBLOCK: a pipe must not make us wait for its writer.
        with open(path, "rb", opener=lambda p, flags: os.open(p, flags | getattr(os, "O_NONBLOCK", 0))) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ModelError("the model is not a regular file", where=str(path), fix="pass the path of a file")
            return np.memmap(file, np.uint8, "r") if status.st_size else np.empty(0, np.uint8)
    except (OSError, ValueError) as e:
        why = e.strerror if isinstance(e, OSError) and e.strerror else str(e)
        raise ModelError(
            "the model file cannot be read", where=str(path), why=why,
            fix="pass the path of a model's file that is there and that you may read",
        ) from None
