"""docs/ops.md says what the classes of the ops say."""

from __future__ import annotations

from dataclasses import fields

from scripts.update_ops_page import INTERNAL, PAGE, page
from weft.core.graph.op import op_types


def test_the_page_of_ops_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python -m scripts.update_ops_page"


def test_the_page_has_every_op_with_every_attribute() -> None:
    rows = {line.split("`")[1]: line for line in page().splitlines() if line.startswith("| `")}
    own = {name: cls for name, cls in op_types().items() if cls.__module__.startswith("weft.")}
    assert rows.keys() == own.keys() - INTERNAL and len(rows) > 100
    for name, row in rows.items():
        assert all(f"`{field.name}`" in row for field in fields(own[name])), row
        assert row.split(" | ")[1].strip(), "an op has a docstring"


def test_the_page_says_how_each_device_runs_an_op() -> None:
    rows = {line.split("`")[1]: line.split(" | ")[-3:] for line in page().splitlines() if line.startswith("| `")}
    told = {name: [cell.rstrip(" |") for cell in cells] for name, cells in rows.items()}
    assert told["Conv"] == ["yes", "kernel", "kernel"]
    assert told["AffineGrid"] == ["yes", "parts", "parts"]
    assert told["Loop"] == ["yes", "no", "no"]
    assert {cell for cells in told.values() for cell in cells} == {"yes", "kernel", "parts", "no"}
