"""Programs without the start of Python, which tests run (`tests.helpers.warm_python`), end as processes do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.warm_python import WarmPython, command_line

TOLD = """
import os, sys, warnings
from dataclasses import dataclass
@dataclass
class Local: value: int
print(sys.argv, os.getcwd(), os.environ.get("ABC"), sys.path[:2], __name__, Local(3))
try:
    warnings.warn("seen")
except UserWarning as e:
    print("raised", e)
print("to stderr", file=sys.stderr)
"""


def test_a_program_has_arguments_folder_variables_and_files_as_a_process(
    warm_python: WarmPython, tmp_path: Path
) -> None:
    arguments = ("-W", "error", "-c", TOLD, "one", "a b")
    environment = {**os.environ, "ABC": "x y", "PYTHONPATH": str(tmp_path / "library")}
    real = subprocess.run(
        [sys.executable, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    forked = warm_python.run(*arguments, cwd=tmp_path, env=environment)
    assert (forked.returncode, forked.stdout, forked.stderr) == (0, real.stdout, real.stderr)
    shell = f"{command_line(warm_python.address)} -W error -c \"$1\" one 'a b' 2>&1 >/dev/null | cat"
    line = ["bash", "-c", shell, "bash", TOLD]
    assert subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True).stdout == real.stderr


@pytest.mark.parametrize(
    ("code", "status", "said"),
    [
        ("import sys; sys.exit(3)", 3, ""),
        ("import sys; sys.exit('no')", 1, "no\n"),
        ("import os; os.kill(os.getpid(), 9)", -9, ""),
        ("import atexit; atexit.register(lambda: open(2, 'w').write('at exit'))", 0, "at exit"),
        ("1 / 0", 1, "ZeroDivisionError: division by zero\n"),
    ],
)
def test_a_program_ends_as_a_process(warm_python: WarmPython, code: str, status: int, said: str) -> None:
    done = warm_python.run("-c", code)
    assert done.returncode == status and done.stderr.endswith(said)
    line = f"{command_line(warm_python.address)} -c \"$1\" 2>&1"
    assert subprocess.run(["bash", "-c", line, "bash", code], capture_output=True).returncode % 256 == (
        status if status >= 0 else 128 - status
    )


def test_a_module_and_a_file_run_and_leave_nothing_behind(warm_python: WarmPython, tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text("import weft; value = weft.__version__; weft.kept = True")
    (tmp_path / "program.py").write_text("import other, sys, weft; print(other.value, sys.argv[1:])")
    done = warm_python.run(tmp_path / "program.py", "x")
    assert done.stdout.endswith("['x']\n"), done.stderr
    assert warm_python.run("-m", "weft", "--version").stdout == f"weft {done.stdout.split()[0]}\n"
    assert warm_python.run("-c", "import weft; print(hasattr(weft, 'kept'))").stdout == "False\n"


def test_a_program_ends_with_who_asked_for_it(warm_python: WarmPython, tmp_path: Path) -> None:
    """It holds one end of a pipe, which the other end sees to be closed."""
    os.mkfifo(tmp_path / "pipe")
    code = f"f = open({str(tmp_path / 'pipe')!r}, 'wb', 0); f.write(b'.'); import signal; signal.pause()"
    line = ["bash", "-c", f'exec {command_line(warm_python.address)} -c "$1"', "bash", code]
    with subprocess.Popen(line) as asking, (tmp_path / "pipe").open("rb") as pipe:
        assert pipe.read(1) == b"."
        asking.kill()
        assert pipe.read() == b""
