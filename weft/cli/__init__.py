"""The command line, one module a command; nothing else in Weft prints."""

from __future__ import annotations

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command line, by default that of the process, and exit with its status."""
    from weft.cli import app  # late: the child processes of `weft doctor` need one module of this package

    app.main(arguments)


__all__ = ["main"]
