"""What tests of saved networks register while they run."""

from __future__ import annotations

import pytest

import weft
from tests.helpers.saved_networks import Holder
from weft.core.graph.op import op_types, register_op


@pytest.fixture
def holder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register `Holder` for the time of a test."""
    monkeypatch.setattr("weft.core.graph.op._OPS", op_types())
    register_op(Holder)


@pytest.fixture
def cpu_1_2(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the CPU backend be of version 1.2."""
    monkeypatch.setattr(weft.registry.find("cpu"), "version", "1.2")
