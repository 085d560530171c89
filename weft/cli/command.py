"""A command whose options are given once, unless they may be repeated."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

from weft.errors import ConfigError


class Once(TyperCommand):
    """A command that refuses an option with a value the second time, of which the last one would count."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Return what is left of the arguments; ConfigError if an option is there twice."""
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
