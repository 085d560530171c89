"""Fixtures of the contract's rows whose tests lie in several files."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import weft
from tests.helpers.fakes import mock, registered
from tests.helpers.saved_networks import Holder
from tests.helpers.told_contexts import WithContext
from weft.core.graph.op import op_types, register_op


@pytest.fixture
def acme() -> Iterator[WithContext]:
    with registered(creator := WithContext(mock()), "acme"):
        yield creator


@pytest.fixture
def holder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register `Holder` for the time of a test."""
    monkeypatch.setattr("weft.core.graph.op._OPS", op_types())
    register_op(Holder)


@pytest.fixture
def cpu_1_2(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the CPU backend be of version 1.2."""
    monkeypatch.setattr(weft.registry.find("cpu"), "version", "1.2")
