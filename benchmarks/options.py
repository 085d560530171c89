"""What the command lines of the measurements share: values are checked before anything is measured."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable, Collection
from pathlib import Path


def words(known: Collection[str], families: tuple[str, ...] = ()) -> Callable[[str], list[str]]:
    """Return what reads a list of names with commas between them.

    Each is one of those known, which an index may follow, or begins as those of a family do.
    """
    all_known = [*known, *(f"{family}..." for family in families)]

    def read(text: str) -> list[str]:
        found = [word for word in apart(text, ",") if word]
        strange = [word for word in found if word.partition(":")[0] not in known and not word.startswith(families)]
        if text and not found:
            raise ArgumentTypeError(f"{text!r} names none of {', '.join(all_known)}")
        if strange:
            raise ArgumentTypeError(f"{', '.join(strange)} is none of {', '.join(all_known)}")
        return found

    return read


def apart(text: str, separator: str) -> list[str]:
    """Return the parts of a text between separators that are in no brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "[{") - (letter in "]}")
        if letter == separator and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def numbers(text: str) -> list[int]:
    """Return the numbers above 0 of a list with commas between them."""
    try:
        found = [int(word) for word in text.split(",")]
    except ValueError:
        raise ArgumentTypeError(f"{text!r} are no numbers with commas between them") from None
    if min(found) < 1:
        raise ArgumentTypeError(f"{min(found)} is below 1")
    return found


def number(text: str) -> int:
    """Return a number above 0."""
    try:
        (found,) = numbers(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not one number") from None
    return found


def output(text: str) -> Path:
    """Return the path of a file that can be written."""
    path = Path(text)
    if not path.parent.is_dir() or path.is_dir():
        raise ArgumentTypeError(f"{text} cannot be written: there is no such folder, or it is one itself")
    try:
        with path.open("a"):
            pass
    except OSError as e:
        raise ArgumentTypeError(f"{text} cannot be written: {e.strerror}") from None
    return path


def existing_folder(text: str) -> Path:
    """Return the path of a folder that is there."""
    if not Path(text).is_dir():
        raise ArgumentTypeError(f"there is no folder {text}")
    return Path(text)
