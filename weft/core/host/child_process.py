"""Child processes for Weft's own work: the same interpreter and module path, and no modules imported yet."""

from __future__ import annotations

import os
import subprocess
import sys

from weft import config


def program(module: str) -> str:
    """Return the program text for a child process that calls `main(argument)` of a module.

    It sets the path before it imports anything: a file in the working directory may have a module's name.
    """
    return f"import sys; sys.path[:] = sys.argv[2:]; from {module} import main; main(sys.argv[1])"


def has_interpreter() -> bool:
    """Tell whether a child process can be started: a frozen program has no interpreter of its own."""
    return bool(sys.executable) and not getattr(sys, "frozen", False)


def start(text: str, argument: str, *, stdin: int, stderr: int, **environment: str) -> subprocess.Popen[bytes]:
    """Start a `program` with its output on a pipe and some environment variables changed; OSError if that fails."""
    path = [os.path.abspath(str(entry)) for entry in sys.path]
    return subprocess.Popen(
        [sys.executable, "-c", text, argument, *path],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=stderr,
        env=config.environment(**environment),
    )
