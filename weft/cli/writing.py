"""Files that commands write: they are tried before the work, so that none is lost."""

from __future__ import annotations

import tempfile
from pathlib import Path

from weft.errors import InputError


def check_writable(path: Path, option: str) -> None:
    """Raise InputError if the file that an option names cannot be written; its folder must be there."""
    if path.is_dir():
        raise InputError(f"{path} is a folder", where=f"{option} {path}", fix="name a file in it")
    try:
        with path.open("ab") if path.exists() else tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as e:
        raise not_written(path, e, option) from None


def not_written(path: Path, error: OSError, option: str) -> InputError:
    """Return the error for a file that cannot be written."""
    file = next((parent for parent in path.parents if parent.is_file()), None)
    if file is not None:
        why, fix = f"{file} is a file, not a folder", f"name another place in {option}"
    elif not path.parent.is_dir():
        why, fix = f"there is no folder {path.parent}", f"make it, or name another place in {option}"
    else:
        why, fix = error.strerror or str(error), f"check its permissions, or name another place in {option}"
    return InputError(f"{path} cannot be written", where=f"{option} {path}", why=why, fix=fix)
