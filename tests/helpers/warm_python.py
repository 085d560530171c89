"""Python without its start: programs run in forks of a process that has imported what Weft's commands need.

To start Python and to import Weft, numpy and onnx takes half a second of a core, which is most of what many commands
take. A program here has its own arguments, folder, variables and files, and ends as a process does; it differs from one
in that its modules were imported before (with the variables and warnings of the server), and in the seed of its hashes.
What a start itself does is for tests that start a process, of which each command of Weft needs one.
"""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.helpers.weft_server import ask
from weft import config

ROOT = Path(__file__).parents[2]
SEARCHED = os.pathsep.join((str(ROOT), str(ROOT / "packages" / "conformance")))
"""The PYTHONPATH with which programs find Weft and the kit of this tree."""
SCRIPT = Path(__file__).with_name("weft_server.py")
ADDRESS = "WEFT_TESTS_SERVER"
"""The variable by which programs in a server find it."""


class WarmPython:
    """Owns such a process, which starts with the first program; a context manager that ends it."""

    def __init__(self, python: str = sys.executable, path: str = SEARCHED) -> None:
        self._python, self._path = python, path
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """Return the socket that the process listens on, which is started if it is not there."""
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="weft-server-")
            address = f"{self._folder.name}/socket"
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(address)
                listener.listen()
                line = [self._python, str(SCRIPT), "serve", str(listener.fileno())]
                environment = {**os.environ, "PYTHONPATH": self._path}
                self._process = subprocess.Popen(
                    line, env=environment, stdin=subprocess.PIPE, pass_fds=[listener.fileno()]
                )
        return f"{self._folder.name}/socket"

    def run(
        self, *arguments: object, cwd: Path = ROOT, env: Mapping[str, str] | None = None, timeout: float = 300
    ) -> subprocess.CompletedProcess[str]:
        """Return what a program printed and its status; the arguments are those of Python.

        TimeoutError after so many seconds.
        """
        line = [str(each) for each in arguments]
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err, open(os.devnull) as nothing:
            files = nothing.fileno(), out.fileno(), err.fileno()
            status = ask(self.address, line, str(cwd), {**(os.environ if env is None else env)}, files, timeout)
            out.seek(0)
            err.seek(0)
            return subprocess.CompletedProcess(line, status, out.read(), err.read())

    def __enter__(self) -> WarmPython:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process, if it was started."""
        if self._process is not None and self._folder is not None:
            self._process.communicate()  # the end of its stdin ends it
            self._folder.cleanup()


def start_child(
    address: str, text: str, argument: str, *, stdin: int, stderr: int, **environment: str
) -> subprocess.Popen[bytes]:
    """Start a child as `weft.core.host.child_process.start` does, in a server."""
    path = [os.path.abspath(str(entry)) for entry in sys.path]
    line = [*_command(address), "-c", text, argument, *path]
    return subprocess.Popen(
        line, stdin=stdin, stdout=subprocess.PIPE, stderr=stderr, env=config.environment(**environment)
    )


def command_line(address: str) -> str:
    """Return the beginning of a command of a shell that runs Python in a server: what follows are its arguments."""
    return shlex.join(_command(address))


def _command(address: str) -> list[str]:
    return [sys.executable, "-I", "-S", str(SCRIPT), "run", address]
