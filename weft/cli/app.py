"""The command `weft`: its sub-commands, and how an error looks."""

from __future__ import annotations

import errno
import logging
import sys
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from importlib import import_module
from typing import Annotated

import typer

import weft
from weft import config
from weft.cli.command import FOUND_WRONG, Commands
from weft.cli.console import PlainFormatter, error
from weft.errors import ConfigError, WeftError

FAILED = 2
"""The exit status after an error of Weft, as after a wrong option."""
NOT_WRITTEN = frozenset((errno.ENOSPC, errno.EIO, errno.EFBIG, errno.EDQUOT, errno.EBADF, errno.ENXIO, errno.EPIPE))
"""Errors of a stream that takes no more; those of files that a command opens itself have their names."""
COMMANDS = (
    "run", "devices", "doctor", "bench", "compare", "inspect", "optimize", "serve", "selftest", "probe", "tune",
    "cache",
)
"""Weft's own commands, in the order of the help. Each is the function of that name in the module of that name."""
LISTING = ("devices", "doctor")
"""Commands that list skipped backends themselves, and so log no warnings of them."""


def app_of(named: str = "") -> Commands:
    """Return the app with the command of this name; with all commands if Weft itself has none of this name.

    To import the others would take longer than most commands. ConfigError if a command's package is not installed.
    """
    app = Commands(
        name="weft",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        help="Run neural networks on the CPU, on OpenCL and on Vulkan.",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(common)
    for name in [named] if named in COMMANDS else COMMANDS:
        module = import_module(f"weft.cli.{name}")
        if name == "cache":  # a group of commands
            app.add_typer(module.app, name=name)
        else:
            app.command(name)(getattr(module, name))
    if named not in COMMANDS:
        from weft.cli.added_commands import SEPARATE, added_commands, not_installed  # late: few lines need it

        added = added_commands(COMMANDS)
        if named in SEPARATE and named not in added:
            raise not_installed(named)
        for name, function in added.items():
            app.command(name)(function)
    return app


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"weft {weft.__version__}")
        raise typer.Exit


def common(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show tracebacks and Weft's log; may stand anywhere on the line.")
    ] = False,
) -> None:
    """Run neural networks on the CPU, on OpenCL and on Vulkan."""
    config.check()
    if context.invoked_subcommand in LISTING:
        plugins = logging.getLogger("weft.plugins")
        plugins.addFilter(_is_not_listed)
        context.call_on_close(lambda: plugins.removeFilter(_is_not_listed))


def _run(named: str, arguments: Sequence[str]) -> None:
    """Run a command, and exit with its status once all that it printed is written; ConfigError if stdout takes none."""
    if sys.stdout is None:
        raise _not_written("it is closed")
    try:
        try:
            app_of(named)(arguments)
        except SystemExit:
            sys.stdout.flush()
            raise
    except OSError as e:
        if e.errno not in NOT_WRITTEN or e.filename is not None:
            raise
        with suppress(OSError):
            sys.stdout.close()  # else the interpreter tries again to write what is left
        if e.errno == errno.EPIPE:  # whoever reads has enough
            sys.exit(FOUND_WRONG)
        raise _not_written(e.strerror or str(e)) from e


def _not_written(why: str) -> ConfigError:
    fix = "send it to a file or a program that takes it"
    return ConfigError("what the command prints cannot be written", where="stdout", why=why, fix=fix)


def _is_not_listed(record: logging.LogRecord) -> bool:
    return not hasattr(record, "skipped")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command line, by default that of the process, and exit with its status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    handler = logging.StreamHandler()
    handler.setFormatter(PlainFormatter("weft: %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.DEBUG if debug else logging.WARNING)
    try:
        with config.showing_full_tracebacks() if debug else nullcontext():
            named = next((a for a in given if not a.startswith("-")), "")
            _run(named, [a for a in given if a != "--debug"])
    except (WeftError, MemoryError) as e:
        if debug:
            raise
        short = isinstance(e, MemoryError)
        error(f"the host does not have enough memory\n  why: {e}\n  next: use smaller shapes" if short else str(e))
        sys.exit(FAILED)
