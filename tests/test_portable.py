"""What Weft needs of the system: nothing at import or on the CPU that Windows or macOS lack."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType

import pytest

from tests.helpers.waits import ended
from weft.core.host import file_locks

ROOT = Path(__file__).parents[1]

# Others' modules and the standard library are imported first: on Windows they are other modules than here.
ELSEWHERE = """
import asyncio, concurrent.futures, ctypes.util, importlib, logging.handlers, multiprocessing.pool, os, pkgutil
import signal, sqlite3, stat, subprocess, sys, tempfile, threading, unittest.mock, uuid, zipfile
import importlib.util
import cffi, mako.template, mako.lookup, numpy, onnx.backend.test.loader, onnx.reference, platformdirs, pyopencl
import pytest, rich.console
import rich.progress, rich.table, rich.traceback, typer, typer.testing, PIL.Image

numpy.memmap, numpy.linalg, numpy.random
MISSING = {modules!r}
for name in MISSING:
    sys.modules[name] = None
for module, names in {attributes!r}.items():
    for name in names:
        if hasattr(sys.modules[module], name):
            delattr(sys.modules[module], name)
os.supports_dir_fd = os.supports_follow_symlinks = os.supports_fd = set()
sys.platform = "win32"
"""
# On macOS less is missing: the calls about processors and open files of Linux.
MODULES = ["crypt", "fcntl", "grp", "posix", "pty", "pwd", "resource", "spwd", "syslog", "termios", "tty"]
ATTRIBUTES = {
    "os": [
        "O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK", "O_NOCTTY", "chown", "fork", "fchmod", "fchown",
        "geteuid", "getgid", "getegid", "getpgid", "getuid", "kill", "killpg", "lchown", "mkfifo", "nice", "pread",
        "sched_getaffinity", "sched_setaffinity", "set_blocking", "setsid", "sysconf", "uname", "statvfs",
        "posix_fadvise", "posix_fallocate", "memfd_create", "pidfd_open",
    ],
    "signal": [
        "SIGALRM", "SIGBUS", "SIGCHLD", "SIGHUP", "SIGKILL", "SIGPIPE", "SIGQUIT", "SIGSTOP", "SIGUSR1", "SIGUSR2",
        "pthread_kill", "pthread_sigmask", "setitimer", "sigwait", "siginterrupt",
    ],
    "select": ["epoll", "poll", "select"],
    "time": ["clock_gettime", "tzset"],
}

EVERY_MODULE = """
import weft, weft_conformance
folders = {"weft.": weft.__path__, "weft_conformance.": weft_conformance.__path__}
for found in (each for prefix, folder in folders.items() for each in pkgutil.walk_packages(folder, prefix)):
    # This starts the command line, this needs pytest's options, and weft.torch needs PyTorch.
    if found.name in ("weft.__main__", "weft_conformance.test_backend"):
        continue
    if not found.name.startswith("weft.torch") or importlib.util.find_spec("torch"):
        try:
            importlib.import_module(found.name)
        except weft.WeftError as e:
            raise SystemExit(f"{found.name}: {e}")
import weft_command, weft_pytest
"""

A_RUN = """
import weft
from weft import models
from pathlib import Path

folder = Path(sys.argv[1])
x = numpy.random.default_rng(0).random((1, 3, 128, 128), numpy.float32)
with weft.load(models.path("shapes"), "cpu") as session:
    (expected,) = session.run(x)
model = onnx.load(models.path("shapes"))
onnx.save(model, folder / "outside.onnx", save_as_external_data=True, size_threshold=0, location="weights")
weft.optimize(folder / "outside.onnx", "cpu", shapes={"image": x.shape}).save(folder / "net.weft")
for name in ("outside.onnx", "net.weft"):
    with weft.load(folder / name, *(["cpu"] if name != "net.weft" else [])) as session:
        assert (session.run(x)[0] == expected).all(), name
print("ran", weft.devices()[0].id)
"""


def run(code: str, tmp_path: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, cwd=ROOT, check=False, timeout=300
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


def test_without_what_windows_and_macos_lack_every_module_is_imported_and_the_cpu_runs(tmp_path: Path) -> None:
    lacking = ELSEWHERE.format(modules=MODULES, attributes=ATTRIBUTES)
    assert run(lacking + EVERY_MODULE + A_RUN, tmp_path).split() == ["ran", "cpu"]


class WindowsLocks(ModuleType):
    """`msvcrt` as far as locks go: a lock that is not had in time is an error, to be asked for again."""

    LK_LOCK = 1

    def __init__(self) -> None:
        super().__init__("msvcrt")

    def locking(self, fd: int, mode: int, nbytes: int) -> None:
        assert (mode, nbytes) == (self.LK_LOCK, 1)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OSError(errno.EDEADLK, "resource deadlock avoided") from None


@pytest.mark.parametrize("windows", [False, True])
def test_a_folder_is_one_writers_at_a_time(windows: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if windows:
        monkeypatch.setattr(file_locks, "_fcntl", None)
        monkeypatch.setitem(sys.modules, "msvcrt", WindowsLocks())
    inside, most = [0], [0]

    def write() -> None:
        for _ in range(50):
            with file_locks.locked(tmp_path):
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                os.sched_yield()
                inside[0] -= 1

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    ended(*threads)
    assert most == [1] and inside == [0]
    assert [p.name for p in tmp_path.iterdir()] == ([".lock"] if windows else [])


def test_a_lock_that_cannot_be_had_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError), file_locks.locked(tmp_path / "nothing"):
        pass
