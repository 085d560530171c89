"""Run the code of a page of docs/, in order, in the current folder: `python -m tests.docs.page docs/use.md`.

What a fenced block is for follows from its language and from a comment directly above it:

    ```python               is run; all blocks of a page share their names. If a ```text block comes next, it
                            is what the block prints, log included, or the error that it ends with.
    ```console              `$ weft ...` lines are run; what follows each is what it prints
    <!-- file: PATH -->     the block is written there first; a template under weft/shaders is then found
    <!-- from: PATH -->     the block is not run, but must stand in that file of the repository, as it is
    any other               is not run

In what is expected, `...` stands for any text.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
_COMMENT = r"(?:<!-- (?P<verb>\w+): (?P<path>\S+) -->\n+)?"
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
    blocks = read(page)
    for block, after in zip(blocks, [*blocks[1:], None], strict=True):
        where = f"{page.name}, line {block.line}"
        if block.verb == "from":
            if block.text not in (ROOT / block.path).read_text(encoding="utf-8"):
                raise Mismatch(f"{where}: {block.path} has no such lines any more")
            continue
        if block.verb == "file":
            _write(block)
        if block.language == "python":
            shown = after.text if after is not None and after.language == "text" else None
            _run_python(block, names, where, shown)
        elif block.language == "console":
            _run_commands(block, where)


def _write(block: Block) -> None:
    target = Path(block.path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(block.text, encoding="utf-8")
    if target.suffix == ".mako":
        # As if it had been put into the package: there is no other door for templates.
        from weft.kernels import template

        template._lookup().directories.append(str(target.parent.absolute()))


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


def _run_commands(block: Block, where: str) -> None:
    for command, expected in _commands(block.text):
        words = command.split()
        if words[0] != "weft":
            raise Mismatch(f"{where}: only `weft` can be run, not {words[0]!r}")
        done = subprocess.run(
            [sys.executable, "-m", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        _compare(expected, done.stdout, f"{where}: {command}")


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
    os.environ["PYTHONPATH"] = str(ROOT)
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
