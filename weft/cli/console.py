"""What commands print with: tables and results to stdout, notes and progress to stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

PIPED_WIDTH = 160
"""Columns where the output is no terminal: a table in a file is not folded to 80."""


def _console(stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else PIPED_WIDTH
    return Console(file=stream, width=width, highlight=False, soft_wrap=True)


def table(headers: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Sequence[str] = ()) -> None:
    """Print rows under headers; the columns named in `numbers` are set flush right."""
    out = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for header in headers:
        out.add_column(header, justify="right" if header in numbers else "left", overflow="fold")
    for row in rows:
        out.add_row(*(escape(cell) for cell in row))
    # Unlike text, a table must be fitted to the terminal.
    _console(stderr=False).print(out, soft_wrap=False)


def line(text: str = "", style: str = "") -> None:
    """Print a line of results, unfolded."""
    _console(stderr=False).print(text, markup=False, style=style or None)


def note(text: str) -> None:
    """Print a remark to stderr."""
    _console(stderr=True).print(text, markup=False, style="dim")


def error(text: str) -> None:
    """Print an error to stderr, its first line in red."""
    first, _, rest = text.partition("\n")
    console = _console(stderr=True)
    console.print(f"error: {first}", markup=False, style="bold red")
    if rest:
        console.print(rest, markup=False)


@contextmanager
def working(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show what is done, and for how long, while the block runs, if a terminal is attached.

    The function that the block gets takes a number of steps done and the number of all; with it there is
    a bar, without it something that turns.
    """
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=_console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
