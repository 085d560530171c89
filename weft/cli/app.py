"""The command `weft`: its sub-commands, and how an error looks."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

import weft
from weft import config
from weft.cli import (
    bench,
    cache,
    compare,
    conformance,
    devices,
    doctor,
    inspect,
    optimize,
    run,
    selftest,
    tune,
)
from weft.cli.command import Commands
from weft.cli.console import PlainFormatter, error
from weft.errors import WeftError

FAILED = 2
"""The exit status after an error of Weft, as after a wrong option."""
LISTING = ("devices", "doctor")
"""Commands that list skipped backends themselves, and so log no warnings of them."""

app = Commands(
    name="weft",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Run neural networks on the CPU, on OpenCL and on Vulkan.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run")(run.run)
app.command("devices")(devices.devices)
app.command("doctor")(doctor.doctor)
app.command("bench")(bench.bench)
app.command("compare")(compare.compare)
app.command("inspect")(inspect.inspect)
app.command("optimize")(optimize.optimize)
app.command("selftest")(selftest.selftest)
app.command("tune")(tune.tune)
app.command("conformance")(conformance.conformance)
app.add_typer(cache.app, name="cache")


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"weft {weft.__version__}")
        raise typer.Exit


@app.callback()
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
        app([a for a in given if a != "--debug"])
    except (WeftError, MemoryError) as e:
        if debug:
            raise
        short = isinstance(e, MemoryError)
        error(f"the host does not have enough memory\n  why: {e}\n  next: use smaller shapes" if short else str(e))
        sys.exit(FAILED)
