"""What a measurement depends on besides the code: Weft's variables, and the choices that the user tuned."""

from __future__ import annotations

import hashlib
import os
import shlex
import sys

from weft import config
from weft.backends.gpu.tuning_tables.tuning_table import FOLDER

OURS = "WEFT_"
"""The prefix of Weft's variables."""


def command(module: str) -> str:
    """Return the command line of this process, which runs `module`, in a form to paste into a shell."""
    return shlex.join(["python", "-m", module, *sys.argv[1:]])


def variables() -> dict[str, str]:
    """Return the variables of the environment that are Weft's."""
    return {name: value for name, value in sorted(os.environ.items()) if name.startswith(OURS)}


def tuning() -> str:
    """Return a hash of the user's tuning tables, which override those that Weft brings.

    Those are part of the source, whose hash is recorded too.
    """
    if not config.tuning_enabled():
        return "none: WEFT_TUNING=0"
    folder = config.cache_dir() / FOLDER
    tables = sorted(folder.glob("*.json")) if config.cache_enabled() else []
    if not tables:
        return "the tables that Weft brings"
    hashed = hashlib.blake2b(digest_size=8)
    for path in tables:
        content = path.read_bytes()
        hashed.update(f"{path.name} {len(content)}\n".encode() + content)
    return f"the tables that Weft brings, and the user's of hash {hashed.hexdigest()}"
