"""What a measurement depends on besides the code: Weft's variables, and the choices that the user tuned."""

from __future__ import annotations

import hashlib
import os
import shlex
import sys

from weft import config
from weft.backends.gpu.tuning.tuning_table import FOLDER

OURS = "WEFT_"
"""How the names of Weft's variables begin."""


def command(module: str) -> str:
    """Return the command line of this process, in which that module runs, so that a shell takes it again."""
    return shlex.join(["python", "-m", module, *sys.argv[1:]])


def variables() -> dict[str, str]:
    """Return the variables of the environment that are Weft's."""
    return {name: value for name, value in sorted(os.environ.items()) if name.startswith(OURS)}


def tuning() -> str:
    """Return what kernels are chosen by: a hash of the user's tables, which are read over those that Weft brings.

    These are part of the source.
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
