"""Run the code of a page of docs/, in order, in the current folder: `python -m tests.helpers.docs_page docs/use.md`.

What a fenced block is for follows from its language and from a comment directly above it:

    ```python               is run; all blocks of a page share their names. If a ```text block comes next, it
                            is what the block prints, log included, or the error that it ends with.
    ```console              lines that begin with `$ ` are run by one shell, which keeps its folder and variables from
                            block to block; what follows each is what it prints
    <!-- save: PATH -->     the block is written there, and not run
    <!-- from: PATH -->     the block is not run, but must stand in that file of the repository, as it is
    any other               is not run

In what is expected, `...` stands for any text. In the shell, `python`, `python3` and `weft` are those of this
repository, as forks of a process if WEFT_TESTS_SERVER names one (see `tests.helpers.warm_python`). A page with the
line <!-- fresh environment --> installs Weft itself: there they are what an environment without Weft has. pip is the
one from where this runs and takes what Weft needs from there; in place of the repository, `$WEFT`, it installs the
wheel that WEFT_TESTS_WHEEL names. Once `weft` has run there, later ones are forks of a process of that environment.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.helpers.warm_python import ADDRESS, SEARCHED, WarmPython, command_line

ROOT = Path(__file__).parents[2]
_COMMENT = r"(?:<!-- (?P<verb>\w+): (?P<path>\S+) -->\n+)?"
WHEEL = "WEFT_TESTS_WHEEL"
"""The variable that names the wheel which a fresh environment gets."""
FRESH = "<!-- fresh environment -->"
_BLOCK = re.compile(rf"^{_COMMENT}```(?P<language>\w*)\n(?P<text>.*?)^```$", re.M | re.S)


@dataclass(frozen=True)
class Block:
    """A fenced block: the line it starts on, its language and text, and the comment above it."""

    line: int
    language: str
    text: str
    verb: str
    path: str


class Mismatch(Exception):
    """A block does not do what its page says."""


def read(page: Path) -> list[Block]:
    """Return the blocks of a page."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(text.count("\n", 0, m.start("text")), m["language"], m["text"], m["verb"] or "", m["path"] or "")
        for m in _BLOCK.finditer(text)
    ]


def matches(expected: str, actual: str) -> bool:
    """Tell whether a text is what is expected, in which `...` stands for anything; ends of lines do not count."""
    pieces = [re.escape(part) for part in _tidy(expected).split("...")]
    return re.fullmatch(".*?".join(pieces), _tidy(actual), re.S) is not None


def _tidy(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def run_page(page: Path) -> None:
    """Run all blocks; Mismatch names the line of the first that is wrong."""
    names: dict[str, Any] = {"__name__": "__main__"}
    fresh = FRESH in page.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory(prefix="weft-page-") as folder, Shell(Path(folder), fresh=fresh) as shell:
        _run_blocks(page, read(page), names, shell)


def _run_blocks(page: Path, blocks: list[Block], names: dict[str, Any], shell: Shell) -> None:
    for block, after in zip(blocks, [*blocks[1:], None], strict=False):  # a page may have none
        where = f"{page.name}, line {block.line}"
        if block.verb == "from":
            if block.text not in (ROOT / block.path).read_text(encoding="utf-8"):
                raise Mismatch(f"{where}: {block.path} has no such lines any more")
            continue
        if block.verb == "save":
            target = Path(block.path)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(block.text, encoding="utf-8")
            continue
        if block.language == "python":
            shown = after.text if after is not None and after.language == "text" else None
            _run_python(block, names, where, shown)
        elif block.language == "console":
            _run_commands(block, where, shell)


def _run_python(block: Block, names: dict[str, Any], where: str, expected: str | None) -> None:
    code = compile("\n" * block.line + block.text, where, "exec")
    heard = io.StringIO()
    error: Exception | None = None
    with contextlib.redirect_stdout(heard), contextlib.redirect_stderr(heard):
        try:
            exec(code, names)
        except Exception as e:
            error = e
            print(f"{type(e).__module__}.{type(e).__qualname__}: {e}")
    if error is not None and expected is None:
        raise error
    _compare(expected or "", heard.getvalue(), where)


def _run_commands(block: Block, where: str, shell: Shell) -> None:
    for command, expected in _commands(block.text):
        _compare(expected, shell.run(command), f"{where}: {command}")


class Shell:
    """Runs commands one after the other, each in the folder and with the variables that the last one left.

    A context manager that ends the process that forks, if one was started.
    """

    _SCRIPT = """
        if [ -e "$STATE/variables" ]; then . "$STATE/variables"; cd "$(cat "$STATE/folder")"; fi
        eval "$1"
        export -p > "$STATE/variables"; pwd > "$STATE/folder"
    """

    def __init__(self, state: Path, *, fresh: bool) -> None:
        self.environment = {**os.environ, "STATE": str(state), "COLUMNS": "120", "WEFT": str(ROOT)}
        server = None if fresh else os.environ.get(ADDRESS)
        this = f"exec {command_line(server)}" if server else f'exec "{sys.executable}"'
        shims = {"python": f'{this} "$@"', "python3": f'{this} "$@"'}
        self._fresh, self._warm, self._functions = fresh, WarmPython(), ""
        if fresh:
            self.environment.setdefault(WHEEL, str(ROOT))
            libraries = dict.fromkeys(sysconfig.get_paths()[kind] for kind in ("purelib", "platlib"))
            self.environment["PYTHONPATH"] = os.pathsep.join(libraries)
            # pip reads options from variables; that of build isolation is on when it is 0.
            self.environment |= {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0"}
            self.environment |= {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_COMPILE": "1"}
            # A copy of pip in the new environment would take longer to make than all the rest of it.
            shims["python3"] = f'[ "$1 $2" = "-m venv" ] && set -- "$@" --without-pip\n{this} "$@"'
            built = f'for each; do shift; [ "$each" = "$WEFT" ] && each="${WHEEL}"; set -- "$@" "$each"; done'
            shims["pip"] = f'{built}\nexec "$VIRTUAL_ENV/bin/python" -m pip "$@"'
        else:
            shims["weft"] = f'{this} -m weft "$@"'
        for name, command in shims.items():
            shim = state / "bin" / name
            shim.parent.mkdir(exist_ok=True)
            shim.write_text(f"#!/bin/sh\n{command}\n", encoding="utf-8")
            shim.chmod(0o755)
        self.environment["PATH"] = f"{state / 'bin'}{os.pathsep}{os.environ['PATH']}"

    def run(self, command: str) -> str:
        """Return what a command prints, errors included."""
        printed = self._run(command)
        if self._fresh and not self._functions and command.startswith("weft "):
            python = self._run("command -v python").strip()
            self._warm = WarmPython(python, self.environment["PYTHONPATH"])
            self._functions = f'weft() {{ {command_line(self._warm.address)} -m weft "$@"; }}'
        return printed

    def _run(self, command: str) -> str:
        line = ["bash", "-c", self._functions + self._SCRIPT, "bash", command]
        return subprocess.run(
            line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=self.environment, check=False
        ).stdout

    def __enter__(self) -> Shell:
        return self

    def __exit__(self, *_: object) -> None:
        self._warm.close()


def _commands(text: str) -> Iterator[tuple[str, str]]:
    for piece in re.split(r"^\$ ", text, flags=re.M)[1:]:
        command, _, expected = piece.partition("\n")
        yield command, expected


def _compare(expected: str, actual: str, where: str) -> None:
    if not matches(expected, actual):
        raise Mismatch(f"{where}: expected\n\n{expected}\nbut there came\n\n{actual}")


def main(page: Path) -> None:
    """Run a page; then fail if the Vulkan validation layer, where it is on, had anything to say."""
    sys.path[:0] = [str(ROOT), str(ROOT / "examples")]
    os.environ["PYTHONPATH"] = SEARCHED
    run_page(page)
    module = sys.modules.get("weft.backends.vulkan.instance")
    said: list[str] = list(module.validation_messages()) if module else []
    if said:
        raise Mismatch(f"{page.name}: the validation layer says\n" + "\n".join(said))


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except Mismatch as e:
        sys.exit(str(e))
