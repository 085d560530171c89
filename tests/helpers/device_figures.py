"""Other figures of kinds of device than `device_models.json` has, for the time of a test."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from weft.kernels import device_model
from weft.kernels.chooser import forget_decisions
from weft.kernels.device_model import AlgorithmFigures


def set_figures(patch: pytest.MonkeyPatch, of: type[AlgorithmFigures], **figures: Any) -> None:
    """Let an algorithm have these figures of every kind of device, until the patch is undone."""
    for kind, model in device_model.MODELS.items():
        sections = {**model.algorithms, of.section: {**model.algorithms[of.section], **figures}}
        patch.setitem(device_model.MODELS, kind, replace(model, algorithms=sections))
    forget_decisions()
