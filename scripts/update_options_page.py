"""Write docs/options.md, the options of a load, from `LoadOptions`.

Run it when a test asks for it after a change of an option:

    python -m scripts.update_options_page
"""

from __future__ import annotations

from dataclasses import fields
from enum import Enum
from pathlib import Path

from weft.core.session.load_options import (
    LoadKeywords,
    LoadOptions,
    OptimizeKeywords,
    RuntimeKeywords,
    options,
)

PAGE = Path(__file__).parents[1] / "docs" / "options.md"
HEAD = """\
# The options of a load

`weft.load(model, device, **options)` takes all options of this page. `weft.optimize` and `Runtime.load` take those that
the third column names. Each option is described in the class `weft.LoadOptions`;
`python -m scripts.update_options_page` makes this page from it, and a test fails where it is out of date.

A wrong name or value raises `ConfigError`, before the model is read. A saved network takes only the options that do not
change how it was optimised: `Runtime.load` has the same ones.

| option | values; default | taken by | on the command line | what it does |
|---|---|---|---|---|
"""


def page() -> str:
    """Return the text of the page."""
    return HEAD + "".join(map(_row, options()))


def _row(name: str) -> str:
    each = options()[name]
    taken = [word for word, names in {
        "load": {"device", *LoadKeywords.__annotations__},
        "optimize": {"device", *OptimizeKeywords.__annotations__},
        "Runtime.load": {*RuntimeKeywords.__annotations__},
    }.items() if name in names]  # fmt: skip
    default = next(f.default for f in fields(LoadOptions) if f.name == name)
    shown = repr(default.value if isinstance(default, Enum) else default).replace("'", '"')
    variable = f" `{each.variable}` changes the default." if each.variable else ""
    flag = f"`{' '.join(each.flags)}`" if each.flags else ""
    return f"| `{name}` | {each.values}; `{shown}` | {', '.join(taken)} | {flag} | {each.doc}{variable} |\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
