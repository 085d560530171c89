"""From a path to the bytes of a model's file; nothing here needs the onnx package."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from weft.core.registry.foreign import HEAD, recognise, recognise_path
from weft.errors import ModelError

LARGEST_FILE = 2**31 - 1
"""Protobuf's own limit; larger weights lie in external data."""
PATH_FIX = "pass the path of an ONNX file that is there and that you may read"
"""The advice for a path that is no model's."""
ADDRESS_FIX = "download the file first, and pass its path: Weft reads files alone"
"""The advice for an address in the web."""


@dataclass(frozen=True)
class ModelFile:
    """What a model's file holds, and where it lies."""

    path: Path
    data: memoryview


def read_file(model: str | os.PathLike[str]) -> ModelFile:
    """Return the file of a path; ModelError if it cannot be read, or is larger than protobuf takes."""
    text = os.fspath(model)
    if not isinstance(text, str) or not text or "\0" in text:
        raise ModelError(f"{text!r} is not a path", why="a path is a text that is not empty", fix=PATH_FIX)
    path = Path(text)
    return ModelFile(path, _file_bytes(path))


def _file_bytes(path: Path) -> memoryview:
    try:
        # Check the open file, not its path: the path may name another file by now.
        with open(path, "rb", opener=_open_at_once) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ModelError("the model is not a regular file", where=str(path), fix=PATH_FIX)
            if status.st_size > LARGEST_FILE:
                foreign = recognise(file.read(HEAD))
                if foreign is not None:
                    raise foreign.refusal(str(path))
                raise ModelError(
                    "the model file is too large",
                    where=str(path),
                    why=f"it has {status.st_size:,} bytes; protobuf reads at most {LARGEST_FILE:,}",
                    fix="save the weights as external data (onnx.save with save_as_external_data=True)",
                )
            # Read into numpy's memory, whose pages are large: it takes half the time of bytes.
            data = np.empty(status.st_size, np.uint8).data
            return data[: file.readinto(data)]
    except OSError as e:
        foreign = recognise_path(path) if os.path.isdir(path) else None
        if foreign is not None:
            raise foreign.refusal(str(path), "a model is one file") from None
        fix = ADDRESS_FIX if "://" in os.fspath(path) or ":/" in os.fspath(path)[2:] else PATH_FIX
        raise ModelError("the model file cannot be read", where=str(path), why=e.strerror or str(e), fix=fix) from None


def _open_at_once(path: str, flags: int) -> int:
    """Open a file without waiting for the other end if it is a pipe."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
