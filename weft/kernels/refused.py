"""The error for a kernel that a compiler refuses: it shows the start of the log and names a file with the rest.

A rendered kernel has hundreds of lines, which nobody reads in a terminal. The file holds them as they were compiled,
with the whole log behind, so that it can be looked at, compiled by hand, or sent with a report.
"""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

from weft import config
from weft.errors import CompileError, brief
from weft.kernels.cache import folder_refused, write

FOLDER = "refused"
"""The folder of the cache that holds the files."""
SHOWN_LINES = 8
_SHOWN_CHARACTERS = 200
_NEXT = "`weft doctor` tells whether the device compiles anything; if it does, report this with the file {file}"


def kernel_refused(
    entry: str, source: str, log: str, *, where: str, suffix: str, reason: str = "", head: str = ""
) -> CompileError:
    """Return the error for the kernel `entry`; its source and log are written to a file that the message names.

    `head` (constants, as lines) is compiled before the source and goes to the file, too; the log counts lines from
    the source's first. `reason` is what the compiler's error code means; `suffix` is that of the file, ".cl".
    """
    file = _written(entry, f"{head}#line 1\n{source}" if head else source, log, suffix)
    held = str(file) if isinstance(file, Path) else f"(not written: {file})"
    said = "\n    ".join(filter(None, (reason, *shortened(log))))
    return CompileError(
        f"the kernel {entry!r} does not compile",
        where=f"{where}; source and whole log: {held}",
        why=said or "the compiler gave no reason",
        fix=_NEXT.format(file=file.name) if isinstance(file, Path) else _NEXT.partition(" with the file")[0],
    )


def shortened(log: str) -> list[str]:
    """Return a few lines of a compiler's log, from its first error on; those left out are counted."""
    lines = [line.rstrip() for line in log.splitlines() if line.strip(" \0\t")]
    first = next((i for i, line in enumerate(lines) if "error" in line.lower()), 0)
    shown = [brief(line, _SHOWN_CHARACTERS) for line in lines[first : first + SHOWN_LINES]]
    left = len(lines) - len(shown)
    return [*shown, f"({left} more lines of the log are in the file)"] if left else shown


def _written(entry: str, text: str, log: str, suffix: str) -> Path | str:
    """Return the file that holds text and log now, or why there is none."""
    remarks = "".join(f"// {line}\n" for line in log.splitlines())
    content = f"{text.rstrip()}\n\n// The compiler said:\n{remarks or '// nothing'}\n"
    name = f"{entry}-{hashlib.blake2b(content.encode(), digest_size=8).hexdigest()}"
    try:
        if not config.cache_enabled():
            return _temporary(name, suffix, content)
        file = config.cache_dir().absolute() / FOLDER / f"{name}{suffix}"
        if folder_refused(file.parent):
            return _temporary(name, suffix, content)
        try:
            write(file, content.encode())
            return file
        except OSError:  # a cache that cannot be written to is no reason to lose the source
            return _temporary(name, suffix, content)
    except OSError as e:
        return f"{e.filename}: {e.strerror}"


def _temporary(name: str, suffix: str, content: str) -> Path:
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", prefix=f"weft-{name}-", suffix=suffix, delete=False
    ) as file:
        file.write(content)
    return Path(file.name)
