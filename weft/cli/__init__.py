"""The command line, one module a command; nothing else in Weft prints."""

from weft.cli.app import main

__all__ = ["main"]
