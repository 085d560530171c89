"""Processes for work of Weft's own: this interpreter with this process's module path, and none of its modules."""

from __future__ import annotations

import os
import subprocess
import sys

from weft import config


def program(module: str) -> str:
    """Return what a process runs to call `main(argument)` of a module.

    Nothing is imported before the path is right: a file in the working directory may be named as a module is.
    """
    return f"import sys; sys.path[:] = sys.argv[2:]; from {module} import main; main(sys.argv[1])"


def has_interpreter() -> bool:
    """Tell whether there is an interpreter that can be started: a frozen program has none of its own."""
    return bool(sys.executable) and not getattr(sys, "frozen", False)


def start(text: str, argument: str, *, stdin: int, stderr: int, **environment: str) -> subprocess.Popen[bytes]:
    """Start a `program` whose output is a pipe, with variables of the environment changed; OSError if that fails."""
    path = [os.path.abspath(str(entry)) for entry in sys.path]
    return subprocess.Popen(
        [sys.executable, "-c", text, argument, *path],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=stderr,
        env=config.environment(**environment),
    )
