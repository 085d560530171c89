"""Write the table of ops in docs/guides/tflite.md, from the importers.

Run it when a test asks for it after a change of an importer:

    python -m scripts.update_tflite_page
"""

from __future__ import annotations

from pathlib import Path

import weft.frontends.tflite  # noqa: F401  (registers the importers)
from weft.frontends.tflite.building import REFUSED
from weft.frontends.tflite.registry import BUILTIN, CUSTOM, Entry
from weft.frontends.tflite.schema import OPS

PAGE = Path(__file__).parents[1] / "docs" / "guides" / "tflite.md"
BEGIN, END = "<!-- ops -->\n", "<!-- end of ops -->\n"
NO_OPS = {"CUSTOM", "PLACEHOLDER_FOR_GREATER_OP_CODES"}


def table() -> str:
    """Return the table, and the list of what is refused."""
    rows = [_row(op, BUILTIN[op]) for op in sorted(BUILTIN)]
    rows += [_row(op, entry, "custom") for op, entry in sorted(CUSTOM.items()) if _is_own(entry)]
    head = "| op | what its importer does |\n|---|---|\n"
    told = "".join(f"- `{op}`: {why}.\n" for op, why in sorted(REFUSED.items()))
    others = ", ".join(f"`{op}`" for op in sorted({*OPS} - BUILTIN.keys() - REFUSED.keys() - NO_OPS))
    return f"{head}{''.join(rows)}\nRefused, with a reason:\n\n{told}\nNot there yet: {others}.\n"


def _is_own(entry: Entry) -> bool:
    return entry.read.__module__.startswith("weft.")


def _row(op: str, entry: Entry, kind: str = "") -> str:
    said = " ".join((entry.read.__doc__ or "").split()).replace("|", "\\|")
    return f"| `{op}`{f' ({kind})' if kind else ''} | {said} |\n"


def page(text: str) -> str:
    """Return the text of the page with its table as it is to be."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}{table()}{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
