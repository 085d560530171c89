"""Notes that a device was lost: its driver gave up in some call, and nothing of it can be used any more."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from weft.errors import DeviceLost

CALLS = (
    "allocate", "adopt", "upload", "upload_beside", "download", "compile", "compile_for_shapes", "compile_together",
    "record", "submit", "send", "wait", "queued_seconds", "timings", "span",
)
"""The methods of a device in which its driver may give up."""


def note_losses(kind: type) -> None:
    """Have a class of devices mark a device as `gone` when one of its methods raises DeviceLost."""
    for name in CALLS:
        method = vars(kind).get(name)
        if method is not None:
            setattr(kind, name, _noting(method))


def _noting(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(device: Any, *arguments: Any, **named: Any) -> Any:
        try:
            return method(device, *arguments, **named)
        except DeviceLost:
            device.gone = True
            raise

    return call
