"""What all commands share: they refuse an option given twice, unless it may be repeated, and answer Ctrl-C."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand

from weft.cli.console import note
from weft.cli.json_output import with_value
from weft.errors import ConfigError

FOUND_WRONG = 1
"""The exit status where a command did its work, and what it looked at is not right."""
INTERRUPTED = 130
"""The exit status after Ctrl-C, as shells have it."""
Function = TypeVar("Function", bound=Callable[..., Any])


class WeftCommand(TyperCommand):
    """A command that refuses an option given twice, and says when it was interrupted."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Return what is left of the arguments; ConfigError if an option is there twice."""
        args = with_value(args)
        _, _, order = self.make_parser(ctx).parse_args(list(args))
        options = [p for p in order if not getattr(p, "multiple", True) and not getattr(p, "is_flag", False)]
        for option in options:
            if options.count(option) > 1:
                several = "comma" in (getattr(option, "help", None) or "")
                raise ConfigError(
                    f"{option.opts[0]} is given twice",
                    fix="give it once" + (", with commas between several" if several else ""),
                )
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; Ctrl-C ends it with a word."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            note("interrupted")
            raise typer.Exit(INTERRUPTED) from None


class Commands(typer.Typer):
    """An app or a group, each command of which is a `WeftCommand`."""

    def command(self, *args: Any, **options: Any) -> Callable[[Function], Function]:
        """Return what registers a function as a command; arguments are those of `typer.Typer.command`."""
        return super().command(*args, **{"cls": WeftCommand, **options})
