"""A peer in a process of its own, so that what it keeps of the device slows nobody else."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def apart(function: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
    """Return what a function of a module returns in a new process, which then ends; what it raises is raised here."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments, **options).result()
