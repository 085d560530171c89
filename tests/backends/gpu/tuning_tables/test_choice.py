"""What a choice says of itself."""

from __future__ import annotations

import pytest

from weft.backends.gpu.tuning_tables.choice import Choice
from weft.kernels.chooser import NEVER, Candidate, Decision


@pytest.mark.parametrize("chosen", ["usual", "slow by the model", "tuned alone"])
def test_what_tuning_took_is_expected_to_be_no_slower_than_the_default(chosen: str) -> None:
    """So that what follows from expected times does not hang on what was tuned."""
    costs = {"usual": 20.0, "slow by the model": 75.0, "tuned alone": NEVER}
    candidates = {text: Candidate(text, cost) for text, cost in costs.items()}
    assert Choice("key", Decision("conv", None, candidates), chosen, made=True).microseconds == 20
