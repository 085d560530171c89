"""External data: tensors that lie in files beside the model, mapped into memory, never read at once.

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
from onnx import TensorProto

from weft.core.graph.layout import Array
from weft.errors import ModelError
from weft.frontends.onnx.wording import quote

BY_DESCRIPTORS = os.open in os.supports_dir_fd and hasattr(os, "O_NOFOLLOW")
"""Whether a folder can be held open and a file opened from there; not so on Windows."""
READ = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
FOLDER = READ | getattr(os, "O_DIRECTORY", 0)
# O_NONBLOCK: a pipe put in the file's place after the check must not make us wait for its writer.
NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
LONGEST_NUMBER = 19


class ExternalFiles:
    """The external files of one model, each mapped once."""

    def __init__(self, folders: Sequence[Path] = ()) -> None:
        self.folders = folders
        self._maps: dict[str, Array] = {}

    def view(self, tensor: TensorProto, nbytes: int) -> Array:
        """Return the `nbytes` of an external tensor as a read-only uint8 array in the mapped file."""
        where = f"tensor {quote(tensor.name)}"
        entries = _entries(tensor, where)
        location = entries.get("location", "")
        where += f", external file {quote(location)}"
        offset = _number(entries, "offset", where) or 0
        length = _number(entries, "length", where)
        if length is not None and length != nbytes:
            raise _refusal(where, f"the entry says {length} bytes, its shape and element type say {nbytes}")
        data = self._map(location, where)
        if offset + nbytes > data.size:
            raise _refusal(
                where, f"bytes {offset} to {offset + nbytes} are asked for, the file has {data.size}"
            )
        return data[offset : offset + nbytes]

    def _map(self, location: str, where: str) -> Array:
        if location not in self._maps:
            if not self.folders:
                raise _refusal(
                    where,
                    "the model was given as bytes or as a ModelProto, so there is no folder to look in",
                    "load the model by its path, or put the data into the model first (onnx.load does)",
                )
            descriptor = open_below(self.folders, location, where)
            with os.fdopen(descriptor, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                # An empty file cannot be mapped, but a tensor without elements may well be in one.
                self._maps[location] = np.memmap(file, np.uint8, "r") if size else np.empty(0, np.uint8)
        return self._maps[location]


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
        raise _refusal(where, f"the model's folder {root} cannot be opened: {e.strerror}") from e
    try:
        for part in parts[:-1]:
            parent = _step(parent, part)
        return _open_file(parent, parts[-1], where)
    except OSError as e:
        raise _refusal(where, f"it cannot be opened in {root}: {e.strerror}") from e
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
        raise _refusal(
            where,
            f"a link leads out of the model's folder, to {real}",
            "replace the link by the file itself, if you trust the model with that file",
        )
    missing = not any(os.path.lexists(folder.joinpath(*parts)) for folder in folders)
    fix = "copy the file there from where the model comes from" if missing else ""
    raise _refusal(where, problems[0], fix)


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
        raise _refusal(where, "the path has ':' in it, which leads to other data of a file on Windows")
    try:
        seen = os.lstat(path)
        _check_regular(seen, where)
        descriptor = os.open(path, READ | NO_LINK)
    except OSError as e:
        raise _refusal(where, f"it cannot be opened in {root}: {e.strerror}") from e
    try:
        opened = os.fstat(descriptor)
        _check_regular(opened, where)
        if os.path.realpath(path) != str(path) or not os.path.samestat(seen, opened):
            raise _refusal(where, "the path leads elsewhere, or changed while it was opened")
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _check_regular(status: os.stat_result, where: str) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise _refusal(where, "it is not a regular file")
    if status.st_nlink > 1:
        raise _refusal(
            where, f"the file has {status.st_nlink} names (hard links)", "copy it: one name is allowed"
        )


def _parts(location: str, where: str) -> list[str]:
    windows = PureWindowsPath(location)
    if not location or "\0" in location:
        raise _refusal(where, "the entry names no file")
    if location.startswith("/") or windows.drive or windows.root:
        raise _refusal(where, "the path is absolute; it must be relative to the model's folder")
    parts = [part for part in location.split("/") if part not in ("", ".")]
    depths = list(accumulate(-1 if part == ".." else 1 for part in parts))
    if not parts or min(depths) < 0 or not depths[-1] or "\\" in location:
        raise _refusal(where, "the path has '\\' in it or leaves by '..'; it must stay in the model's folder")
    return parts


def _entries(tensor: TensorProto, where: str) -> dict[str, str]:
    # A plain dictionary, so that a key out of the file never names an attribute or an argument.
    entries: dict[str, str] = {}
    for entry in tensor.external_data:
        if not isinstance(entry.key, str) or not isinstance(entry.value, str):
            raise _refusal(where, "an entry is not UTF-8 text")
        if entry.key in entries:
            raise _refusal(where, f"the entry {quote(entry.key)} is there twice")
        entries[entry.key] = entry.value
    return entries


def _number(entries: dict[str, str], key: str, where: str) -> int | None:
    text = entries.get(key)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= LONGEST_NUMBER):
        raise _refusal(where, f"{key} {quote(text)} is not a number of bytes")
    return int(text)


def _refusal(where: str, why: str, fix: str = "") -> ModelError:
    return ModelError("external data of the model is refused", where=where, why=why, fix=fix)
