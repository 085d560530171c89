"""The error for a kernel that a compiler refuses: it shows the start of the log and names a file with the rest.

A rendered kernel has hundreds of lines, too many for a terminal. The file holds the source as it was compiled and the
whole log, so that a user can read it, compile it by hand, or send it with a report.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
from pathlib import Path

from weft import config
from weft.core.host.disk_cache import folder_refused, write
from weft.errors import CompileError, brief

FOLDER = "refused"
"""The cache folder for these files."""
FILE = re.compile(r"\w+-[0-9a-f]{16}(\.\w+)*")
"""Their names: the kernel's, a digest, and the suffix of its language."""
SHOWN_LINES = 8
_SHOWN_CHARACTERS = 200
_NEXT = (
    "`weft doctor` tells whether the device compiles anything; if it does, report this{enclosed}; "
    "meanwhile fusing=False (`--no-fusing`) may do without this kernel"
)


def kernel_refused(
    entry: str, source: str, log: str, *, where: str, suffix: str, reason: str = "", head: str = ""
) -> CompileError:
    """Return the error for the kernel `entry`; writes its source and log to a file that the message names.

    `head` (constants, as lines) is compiled before the source and is written to the file, too; the log's line
    numbers start at the source. `reason` is what the compiler's error code means; `suffix` is the file's, ".cl".
    """
    file = _written(entry, f"{head}#line 1\n{source}" if head else source, log, suffix)
    held = str(file) if isinstance(file, Path) else f"(not written: {file})"
    said = "\n    ".join(filter(None, (reason, *shortened(log))))
    return CompileError(
        f"the kernel {entry!r} does not compile",
        where=f"{where}; source and whole log: {held}",
        why=said or "the compiler gave no reason",
        fix=_NEXT.format(enclosed=f" with the file {file.name}" if isinstance(file, Path) else ""),
    )


def shortened(log: str) -> list[str]:
    """Return a few lines of a compiler's log, from its first error on, and the number of lines left out."""
    lines = [line.rstrip() for line in log.splitlines() if line.strip(" \0\t")]
    first = next((i for i, line in enumerate(lines) if "error" in line.lower()), 0)
    shown = [brief(line, _SHOWN_CHARACTERS) for line in lines[first : first + SHOWN_LINES]]
    left = len(lines) - len(shown)
    return [*shown, f"({left} more lines of the log are in the file)"] if left else shown


def _written(entry: str, text: str, log: str, suffix: str) -> Path | str:
    """Write text and log to a file and return its path, or return why that failed."""
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
        except OSError:  # the source matters more than where it lies
            return _temporary(name, suffix, content)
    except OSError as e:
        return f"{e.filename}: {e.strerror}"


def _temporary(name: str, suffix: str, content: str) -> Path:
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", prefix=f"weft-{name}-", suffix=suffix, delete=False
    ) as file:
        file.write(content)
    return Path(file.name)
