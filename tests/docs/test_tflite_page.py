"""docs/guides/tflite.md lists the ops that the importers have."""

from __future__ import annotations

from scripts.update_tflite_page import PAGE, page


def test_the_table_of_ops_is_up_to_date() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == page(text), "run: python -m scripts.update_tflite_page"
