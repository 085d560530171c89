"""Other figures of kinds of device than `device_models.json` has, for the time of a test."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from weft.kernels import device_model
from weft.kernels.chooser import forget_decisions


def set_figures(patch: pytest.MonkeyPatch, **figures: Any) -> None:
    """Let every kind of device have these figures, until the patch is undone."""
    for kind, model in device_model.MODELS.items():
        patch.setitem(device_model.MODELS, kind, replace(model, **figures))
    forget_decisions()
