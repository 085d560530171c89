"""docs/options.md says what `LoadOptions` says."""

from __future__ import annotations

from scripts.update_options_page import PAGE, page


def test_the_page_of_options_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python -m scripts.update_options_page"
