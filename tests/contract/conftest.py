"""Fixtures of the contract's rows whose tests lie in several files."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.fakes import mock, registered
from tests.contract.told_contexts import WithContext


@pytest.fixture
def acme() -> Iterator[WithContext]:
    with registered(creator := WithContext(mock()), "acme"):
        yield creator
