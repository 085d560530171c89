"""Where a caller's code enters Weft: errors leave with short tracebacks, and `torch.compile` does not look inside.

A wrong path or shape is the caller's to mend, and frames of Weft say nothing about it. What a callback of the caller
raises keeps the callback's frames. `WEFT_FULL_TRACEBACKS=1` shows all, for work on Weft.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from types import FrameType, TracebackType
from typing import ParamSpec, TypeVar

from weft import config
from weft.errors import WeftError

Given = ParamSpec("Given")
Result = TypeVar("Result")
_OWN = (os.path.join(Path(__file__).parents[2], ""), contextlib.__file__)
"""Where code lies whose frames are left out: Weft's own, and that of its context managers."""


_DYNAMO = "torch._dynamo"
"""The module of `torch.compile`, which compiles each Python frame below a compiled function, numpy's too."""
_uncompiled: dict[Callable[..., object], Callable[..., object]] = {}
"""Functions of Weft by what `torch.compile` leaves alone."""


def door(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """Return the function, which raises Weft's errors with short tracebacks and runs as it is under `torch.compile`."""

    @wraps(function)
    def called(*given: Given.args, **named: Given.kwargs) -> Result:
        try:
            if _DYNAMO in sys.modules:
                return _left_alone(function)(*given, **named)
            return function(*given, **named)
        except WeftError as e:
            raise _shortened(e) from e.__cause__

    vars(called)["_torchdynamo_disable"] = True  # as torch.compiler.disable does it: a compiled graph ends at the call
    return called


def _left_alone(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """Return the function under `torch.compiler.disable`; torch is imported already."""
    if function not in _uncompiled:
        _uncompiled[function] = sys.modules["torch"].compiler.disable(function)
    return _uncompiled[function]  # type: ignore[return-value]  # of the same parameters and result


def _shortened(error: WeftError) -> WeftError:
    """Return an error of Weft with the frames of others' code, and of Weft the one that raised it.

    So are the errors of Weft that it came from. What others raised keeps all of its frames.
    """
    if config.full_tracebacks():
        return error
    seen = set[int]()
    each: BaseException | None = error
    while isinstance(each, WeftError) and id(each) not in seen:
        seen.add(id(each))
        each.__traceback__ = _others(each.__traceback__)
        each = each.__cause__ or each.__context__
    return error


def _others(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback without Weft's own frames, but for the innermost one."""
    steps = list[TracebackType]()
    while trace is not None:
        if trace.tb_next is None or not _is_own(trace.tb_frame):
            steps.append(trace)
        trace = trace.tb_next
    kept: TracebackType | None = None
    for step in reversed(steps):
        kept = TracebackType(kept, step.tb_frame, step.tb_lasti, step.tb_lineno)
    return kept


def _is_own(frame: FrameType) -> bool:
    """Tell whether a frame is of Weft's code, or of a method that its dataclasses have without source."""
    file = frame.f_code.co_filename
    return file.startswith(_OWN) or (file == "<string>" and frame.f_globals.get("__name__", "").startswith("weft."))
