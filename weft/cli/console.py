"""What commands print with: tables and results to stdout, notes and progress to stderr."""

from __future__ import annotations

import logging
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from textwrap import wrap

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from weft import config

PIPED_WIDTH = 160
"""Columns if the output is no terminal and COLUMNS not set, so that a table in a file is not folded at 80."""
GAP = 3
"""Columns between those of a table."""

_ORDERING = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Characters that reverse the direction of the text after them."""


def plain(text: str, *, lines: bool = False) -> str:
    """Return somebody else's text made safe for a terminal, which then shows it on one line and does nothing else.

    White space becomes a space (with `lines`, line breaks stay) and other control characters U+FFFD.
    """
    kept = "\n" if lines else ""
    return "".join(c if c in kept else " " if c in "\n\r\t\v\f" else _shown(c) for c in text)


def _shown(character: str) -> str:
    is_text = unicodedata.category(character) not in ("Cc", "Cs", "Zl", "Zp") and character not in _ORDERING
    return character if is_text else "\ufffd"


class PlainFormatter(logging.Formatter):
    """Writes log records to a terminal: their control characters are replaced."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as text."""
        return plain(super().format(record), lines=True)


def _console(stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    width = config.columns() or (None if stream.isatty() else PIPED_WIDTH)
    return Console(file=stream, width=width, highlight=False, soft_wrap=True)


def table(headers: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Sequence[str] = ()) -> None:
    """Print rows under headers; the columns named in `numbers` are set flush right.

    Unlike text, a table must fit the terminal. It folds between words only: where that is not enough, each row becomes
    lines of its own, one for each cell.
    """
    cells = [[plain(cell) for cell in row] for row in rows]
    console = _console(stderr=False)
    widths = _widths(list(zip(headers, *cells, strict=True)), console.width)
    if widths is None:
        for row in cells:
            _record(console, headers, row)
        return
    out = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for header, width in zip(headers, widths, strict=True):
        out.add_column(header, justify="right" if header in numbers else "left", overflow="fold", width=width)
    for row in cells:
        out.add_row(*map(escape, row))
    console.print(out, soft_wrap=False)


def _widths(columns: Sequence[Sequence[str]], width: int) -> list[int] | None:
    """Return the width of each column of a table that breaks no word; None if it is too wide for the terminal."""
    least = [max((cell_len(word) for cell in column for word in cell.split()), default=0) for column in columns]
    wanted = [max(map(cell_len, column)) for column in columns]
    spare = width - GAP * (len(columns) - 1) - sum(least)
    if spare < 0:
        return None
    found = list(least)
    # The narrowest get what they want first, and what is left is shared by the others.
    order = sorted(range(len(columns)), key=lambda k: wanted[k] - least[k])
    for done, k in enumerate(order):
        more = min(wanted[k] - least[k], spare // (len(order) - done))
        found[k] += more
        spare -= more
    return found


def _record(console: Console, headers: Sequence[str], row: Sequence[str]) -> None:
    """Print a row of a table as lines, the first flush left; cells that are empty are left out."""
    for k, (header, cell) in enumerate(zip(headers, row, strict=True)):
        if cell.strip():
            text = f"{header}: {cell.strip()}" if header else cell.strip()
            indent = "  " if k else ""
            lines = wrap(
                text, console.width, initial_indent=indent, subsequent_indent="    ", break_long_words=False,
                break_on_hyphens=False,
            )
            console.print("\n".join(lines), markup=False)


def line(text: str = "", style: str = "") -> None:
    """Print a line of results, unfolded."""
    _console(stderr=False).print(plain(text, lines=True), markup=False, style=style or None)


def note(text: str) -> None:
    """Print a remark to stderr."""
    _console(stderr=True).print(plain(text, lines=True), markup=False, style="dim")


def error(text: str) -> None:
    """Print an error to stderr, its first line in red."""
    first, _, rest = plain(text, lines=True).partition("\n")
    console = _console(stderr=True)
    console.print(f"error: {first}", markup=False, style="bold red")
    if rest:
        console.print(rest, markup=False)


@contextmanager
def working(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show what is being done, and for how long, while the block runs, if a terminal is attached.

    The block gets a function of the number of steps done and of all steps. Calling it shows a bar; until then a
    spinner turns.
    """
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    # Late: most runs of commands show no progress, because their errors go to no terminal.
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
    )

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=_console(stderr=True), transient=True) as progress:
        task = progress.add_task(plain(what), total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
