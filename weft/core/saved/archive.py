"""The file format of saved networks: a zip of members that are neither compressed nor encrypted.

Equal members give equal files, because the zip holds no dates and no owners. A file that is read is not trusted.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from weft.core.host.file_locks import open_locked, remove_left
from weft.errors import ModelError, listing

MANIFEST = "network.json"
NEVER = (1980, 1, 1, 0, 0, 0)
"""The date of every member: the earliest that a zip can hold."""
_MEMBER = re.compile(r"network\.json|arrays/\d{1,9}\.npy|bytes/\d{1,9}")
_DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    OSError,
    ValueError,
    KeyError,
    OverflowError,
    RuntimeError,  # for a member that is encrypted, or of a kind that Python does not know
)
"""What Python's zipfile raises for a damaged file."""
NO_NETWORK = "the file is not a saved network"
SAVE_AGAIN = "save the network again, or copy the file again"


def array_name(index: int) -> str:
    """Return the name of the member that holds an array."""
    return f"arrays/{index}.npy"


def blob_name(index: int) -> str:
    """Return the name of the member that holds a backend's bytes."""
    return f"bytes/{index}"


def write_archive(path: Path, members: Iterable[tuple[str, bytes]]) -> None:
    """Write a temporary file, then replace the old file by it in one step.

    Temporary files that killed processes left beside the same file are removed.
    """
    _remove_unfinished(path)
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
    try:
        try:
            with open_locked(temporary) as file, zipfile.ZipFile(file, "w") as archive:
                for name, content in members:
                    info = zipfile.ZipInfo(name, NEVER)
                    info.create_system, info.external_attr = 3, 0o644 << 16
                    archive.writestr(info, content)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as e:
        fix = "name a file in a folder that exists, may be written and has room"
        raise ModelError("the network cannot be saved", where=str(path), why=e.strerror or str(e), fix=fix) from None


def _remove_unfinished(path: Path) -> None:
    name = re.compile(rf"{re.escape(path.name)}\.[0-9a-f]{{8}}\.part")
    with suppress(OSError):  # if the folder is missing, writing raises the error
        for each in path.parent.iterdir():
            if name.fullmatch(each.name) and each.is_file() and not each.is_symlink():
                with suppress(OSError):
                    remove_left(each)


class Archive:
    """The members of an open file."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        try:
            self._zip = zipfile.ZipFile(file)
        except _DAMAGE as e:
            raise ModelError(NO_NETWORK, why=f"it is not a whole zip: {e}", fix=SAVE_AGAIN) from None
        self._members = {info.filename: info for info in self._zip.infolist()}
        problems = [p for info in self._zip.infolist() if (p := _problem(info, size))]
        if len(self._members) < len(self._zip.infolist()):
            problems.append("two members have the same name")
        if sum(info.file_size for info in self._zip.infolist()) > size:
            problems.append("together, its members claim more bytes than the file has")
        if problems:
            raise ModelError(NO_NETWORK, why=listing(problems), fix=SAVE_AGAIN)

    @property
    def names(self) -> set[str]:
        """Return the names of the members."""
        return set(self._members)

    def crc(self, name: str) -> int:
        """Return the checksum of a member; `read` compares it with the content."""
        return self._members[name].CRC

    def read(self, name: str) -> bytes:
        """Return the content of a member; ModelError if it is missing or damaged."""
        info = self._members.get(name)
        if info is None:
            raise ModelError("the saved network is not complete", why=f"member {name!r} is missing", fix=SAVE_AGAIN)
        try:
            content = self._zip.read(info)
        except _DAMAGE as e:
            raise ModelError("the saved network is damaged", why=f"member {name!r}: {e}", fix=SAVE_AGAIN) from None
        if len(content) != info.file_size:
            why = f"member {name!r} has {len(content):,} of {info.file_size:,} bytes"
            raise ModelError("the saved network is damaged", why=why, fix=SAVE_AGAIN)
        return content


@contextmanager
def open_archive(path: Path) -> Iterator[Archive]:
    """Open a file to read from."""
    try:
        # Check the open file, not its path, which may name another file by now. O_NONBLOCK: do not wait for a pipe.
        with open(path, "rb", opener=lambda p, flags: os.open(p, flags | getattr(os, "O_NONBLOCK", 0))) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                fix = "name a file that OptimizedNetwork.save wrote"
                raise ModelError("the saved network is not a regular file", where=str(path), fix=fix)
            yield Archive(file, status.st_size)
    except OSError as e:
        fix = "pass the path of a file that OptimizedNetwork.save or `weft optimize` wrote, and that you may read"
        why = e.strerror or str(e)
        raise ModelError("the saved network cannot be read", where=str(path), why=why, fix=fix) from None


def _problem(info: zipfile.ZipInfo, size: int) -> str:
    name = info.filename
    if not _MEMBER.fullmatch(name):
        return f"{name!r} is not the name of a member of a saved network"
    if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1 or info.compress_size != info.file_size:
        return f"member {name!r} is compressed or encrypted"
    return f"member {name!r} claims more bytes than the file has" if info.file_size > size else ""
