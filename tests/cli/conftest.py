"""The fixture of all tests of the command line."""

from __future__ import annotations

import pytest

from tests.helpers.cli import Cli


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(capsys)
