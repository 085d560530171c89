"""The pytest plugin of Weft's conformance kit; it does nothing unless its options are given.

    pytest --pyargs weft_conformance --weft-backend acme

It is outside the package because pytest loads plugins in every run, and `import weft` takes time.
"""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the kit."""
    group = parser.getgroup("weft", "conformance of a backend (with --pyargs weft_conformance)")
    group.addoption("--weft-backend", metavar="NAME", help='the device to examine: "acme", "vulkan:1"')
    group.addoption("--weft-only", metavar="WORD", action="append", default=[], help="checks, ops or parts of rows")
    group.addoption("--weft-precision", metavar="PRECISION", default="high", help="high, normal or low")
    group.addoption("--weft-backend-path", metavar="DIR", action="append", default=[], help="a folder with backends")
    group.addoption("--weft-seed", metavar="N", type=int, default=0, help="the seed of the first random network")
    group.addoption("--weft-seconds", metavar="S", type=float, default=0, help="how long random networks are drawn")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Open the named device, so that a missing one ends the run before any test."""
    if session.config.getoption("weft_backend"):
        from weft_conformance.options import kit_of  # late: it imports weft

        kit_of(session.config)
