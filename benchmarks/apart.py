"""Runs a peer in a child process, so that what it keeps open on the device does not slow others."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing import get_context
from typing import Any, TypeVar

T = TypeVar("T")
MOST = 300.0
"""Seconds that a process may take."""


def apart(function: Callable[..., T], *arguments: Any, seconds: float = MOST) -> T:
    """Return what a function of a module returns in a new process, which then ends; raise here what it raises.

    TimeoutError after so many seconds, and if the process ends by itself.
    """
    with get_context("spawn").Pool(1) as pool:
        answer = pool.apply_async(function, arguments)
        answer.wait(seconds)
        if not answer.ready():
            raise TimeoutError(f"{function.__name__} did not answer within {seconds:g} s")
        return answer.get()
