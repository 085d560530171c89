"""A backend whose contexts record their notices."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.helpers.fakes import mock, registered
from tests.helpers.noting_contexts import WithContext


@pytest.fixture
def acme() -> Iterator[WithContext]:
    with registered(creator := WithContext(mock()), "acme"):
        yield creator
