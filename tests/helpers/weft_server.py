"""A process that has imported what Weft's commands need, and forks for each program that is asked for.

    python tests/helpers/weft_server.py serve DESCRIPTOR        answers on a listening socket until stdin ends
    python -I -S tests/helpers/weft_server.py run SOCKET -m weft devices        as `python -m weft devices`

See `tests.helpers.warm_python`, which starts it. The second form must start in no time: this module imports little.
"""

from __future__ import annotations

import array
import json
import os
import signal
import socket
import sys

COUNT = 4
"""The bytes of the length that a request begins with."""


def ask(
    path: str, arguments: list[str], folder: str, environment: dict[str, str], files: tuple[int, int, int],
    timeout: float | None = None
) -> int:
    """Have the server at a socket run Python with these arguments; return its exit status, or the negative signal.

    `files` become stdin, stdout and stderr. If the asking process ends, so does the program; TimeoutError if it takes
    more than so many seconds.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(timeout)
        connection.connect(path)
        told = json.dumps([arguments, folder, environment]).encode()
        passed = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))]
        connection.sendmsg([len(told).to_bytes(COUNT, "big")], passed)
        connection.sendall(told)
        answer = connection.recv(64)
    if not answer:
        raise RuntimeError("the process that forks for each program has ended")
    return int(answer)


def serve(listener: socket.socket) -> list[str]:
    """Fork for each request until stdin ends; return in a child, with what are Python's arguments there."""
    import contextlib
    import gc
    import select

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    gc.collect()
    gc.freeze()
    running: dict[int, tuple[int, socket.socket]] = {}
    while True:
        asking = {connection.fileno(): end for end, (_, connection) in running.items()}
        ready = select.select([0, listener.fileno(), *running, *asking], [], [])[0]
        if 0 in ready:
            sys.exit()
        for descriptor in ready:
            if descriptor in asking and asking[descriptor] in running:
                os.kill(running[asking[descriptor]][0], signal.SIGKILL)  # who asked has ended
            elif descriptor in running:
                pid, connection = running.pop(descriptor)
                os.close(descriptor)
                status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                with connection, contextlib.suppress(BrokenPipeError):  # who asked has ended
                    connection.sendall(b"%d" % status)
        if listener.fileno() in ready:
            connection = listener.accept()[0]
            arguments, folder, environment, files = _receive(connection)
            pid = os.fork()
            if pid == 0:
                for end, (_, other) in running.items():
                    os.close(end)
                    other.close()
                connection.close()
                listener.close()
                _settle(folder, environment, files)
                return arguments
            for file in files:
                os.close(file)
            running[os.pidfd_open(pid)] = pid, connection


def _receive(connection: socket.socket) -> tuple[list[str], str, dict[str, str], list[int]]:
    length, files, _, _ = socket.recv_fds(connection, COUNT, 3)
    missing, told = int.from_bytes(length, "big"), b""
    while missing > len(told):
        told += connection.recv(missing - len(told))
    arguments, folder, environment = json.loads(told)
    return arguments, folder, environment, files


def _settle(folder: str, environment: dict[str, str], files: list[int]) -> None:
    """Give this child the folder, the variables and the files of who asked."""
    import importlib

    signal.signal(signal.SIGINT, signal.default_int_handler)
    for standard, file in enumerate(files):
        os.dup2(file, standard)
        os.close(file)
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    os.chdir(folder)
    mine = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    base = [each for each in sys.path if each not in mine]
    os.environ.clear()
    os.environ.update(environment)
    theirs = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [*(os.path.abspath(each) for each in theirs if each), *base]
    importlib.invalidate_caches()


def become(arguments: list[str]) -> None:
    """Do what Python does with these arguments: [-W ACTION] and -c CODE, -m MODULE or FILE."""
    import runpy
    import types
    import warnings

    while arguments[0] == "-W":
        sys.warnoptions.append(arguments[1])
        warnings.simplefilter(arguments[1])  # type: ignore[arg-type]
        arguments = arguments[2:]
    what, *rest = arguments
    if what == "-c":
        sys.argv, sys.path[:0] = ["-c", *rest[1:]], [""]
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(rest[0], "<string>", "exec", dont_inherit=True), vars(main))
    elif what == "-m":
        sys.argv, sys.path[:0] = ["-m", *rest[1:]], [os.getcwd()]
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[:0] = [what, *rest], [os.path.dirname(os.path.abspath(what))]
        runpy.run_path(what, run_name="__main__")


WANTED = (
    "mako.lookup", "numpy.random", "platformdirs", "typer.main",
    "weft.backends.gpu.backend", "weft.backends.gpu.selftest.child", "weft.cli.app", "weft_conformance.native.child",
    "weft.core.passes.fuse", "weft.frontends.onnx", "weft.ops", "weft.plugins.packages",
)
"""What commands, pages and Weft's own child processes import, and what that imports."""


def import_all() -> None:
    """Import what is wanted and no driver: those do not survive a fork."""
    from importlib import import_module

    for name in WANTED:
        import_module(name)
    sys.modules["typer.main"].get_command(sys.modules["weft.cli.app"].app_of())  # it imports what it needs
    sys.modules["weft_conformance.native.rules"].table_works()
    assert not {"pyopencl", "vulkan"} & {*sys.modules}, "drivers do not survive a fork"


if __name__ == "__main__":
    if sys.argv[1] == "run":
        status = ask(sys.argv[2], sys.argv[3:], os.getcwd(), dict(os.environ), (0, 1, 2))
        if status < 0:
            os.kill(os.getpid(), -status)
        os._exit(status)
    del sys.path[0]  # the folder of this file
    import_all()
    become(serve(socket.socket(fileno=int(sys.argv[2]))))
