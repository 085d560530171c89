"""Checks what backends answer against the contract; any other answer is a BackendError that shows it.

`where` names the backend and the callback ("acme:0: AcmeBackend.why_not"). Each kind of answer has one
function; docs/add-a-backend.md ("What a callback may answer") lists callbacks and answers. numpy's
booleans and integers count as Python's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import Enum
from numbers import Integral, Real
from typing import TypeVar

import numpy as np

from weft.errors import BackendError, ExecutionError, brief

T = TypeVar("T")
SHOWN = 80
"""Characters of an answer that a message shows."""
SAY_WHY = "let the callback raise an error, or return a sentence, that says why it failed"
"""What the author of a backend does about an answer that gives no reason."""


class NoReason(BackendError):
    """What a backend answered in the place of a reason for its refusal, or of None, is neither."""


def shown(answer: object) -> str:
    """Return an answer as messages show it, with its type; only the type if its `repr` fails."""
    if answer is None:
        return "None"
    kind = type(answer).__name__
    try:
        text = " ".join(repr(answer).split())
    except Exception:
        return f"an object of type {kind}"
    return f"{brief(text, SHOWN)} (of type {kind})"


def broken(
    answer: object, where: str, expected: str, fix: str = "", kind: type[BackendError] = BackendError
) -> BackendError:
    """Return the error for an answer that breaks the contract."""
    name = where.rpartition(".")[2]
    return kind(f"{name} returned {shown(answer)}", where=where, why=f"it must return {expected}", fix=fix)


def of_kind(answer: object, kind: type[T], where: str, expected: str, fix: str = "") -> T:
    """Return the answer if it is of class `kind`; else BackendError."""
    if not isinstance(answer, kind):
        raise broken(answer, where, expected, fix)
    return answer


def optional(answer: object, kind: type[T], where: str, expected: str) -> T | None:
    """Return the answer if it is None or of class `kind`; else BackendError."""
    return None if answer is None else of_kind(answer, kind, where, f"{expected}, or None")


def reason(answer: object, where: str) -> str | None:
    """Return the reason for a refusal, or None; NoReason unless the answer is None or a text that is not blank."""
    if answer is None:
        return None
    if isinstance(answer, str) and answer.strip():
        return answer
    if isinstance(answer, str):
        expected, fix = "a reason that is not empty, or None", "say in a sentence what the backend lacks"
    else:
        expected = "the reason of a refusal as a str, or None to take the node"
        fix = "return None to accept" if answer is False else ""
    raise broken(answer, where, expected, fix, NoReason)


def truth(answer: object) -> bool | None:
    """Return the answer as a bool, or None if it is not one: True and 1, False and 0."""
    if isinstance(answer, (bool, np.bool_)):
        return bool(answer)
    return bool(answer) if isinstance(answer, Integral) and int(answer) in (0, 1) else None


def granted(answer: object, where: str, otherwise: str) -> bool:
    """Return whether a callback did what it was asked; BackendError for an answer that is not a bool.

    None means that a `return` is missing. `otherwise` says when False is right.
    """
    meant = truth(answer)
    if meant is None:
        fix = "end it with 'return True'" if answer is None else ""
        raise broken(answer, where, f"True, or False {otherwise}", fix)
    return meant


def agreed(answer: object, where: str) -> bool:
    """Return whether a notified object agrees; None is a yes; BackendError for an answer that is not a bool."""
    meant = True if answer is None else truth(answer)
    if meant is None:
        raise broken(answer, where, "True or None, or False to refuse")
    return meant


def done(answer: object, where: str, what: str) -> None:
    """Accept the answer of a callback that returns no value: None, True, the error code 0.

    ExecutionError, which says that `what` failed, for False, another error code or a sentence; else BackendError.
    """
    if answer is None or answer is True:
        return
    code = answer.value if isinstance(answer, Enum) else answer
    if isinstance(code, (bool, np.bool_)):
        succeeded, why = bool(code), "it returned False"
    elif isinstance(code, Integral):
        succeeded, why = not code, f"it returned the error code {answer}"
    else:
        succeeded, why = False, answer.strip() if isinstance(answer, str) else ""
    if succeeded:
        return
    if not why:
        raise broken(answer, where, "None; to report a failure raise an error, or return a sentence", "return nothing")
    raise ExecutionError(what, where=where, why=why, fix="" if isinstance(answer, str) else SAY_WHY)


def reported(where: str, name: object, value: object, least: float | None = 0) -> None:
    """Check a report of a profiled backend: the name must be a text, the value a number not below `least`."""
    if not isinstance(name, str):
        what, why = f"a backend reported {shown(name)}", "its name must be a text"
        raise BackendError(what, where=where, why=why, fix="report a name, and then a number")
    is_number = isinstance(value, Real) and not isinstance(value, (bool, np.bool_)) and not math.isnan(value)
    if not is_number or (least is not None and value < least):  # type: ignore[operator]
        expected = "a number" if least is None else "a number of seconds, from 0 on"
        what, why = f"a backend reported {name!r} as {shown(value)}", f"it must be {expected}"
        raise BackendError(what, where=where, why=why, fix="leave out what was not measured")


def counters(answer: object, where: str) -> Mapping[str, int]:
    """Return counters by name; BackendError if the answer is not a mapping of numbers."""
    numbers = isinstance(answer, Mapping) and all(
        isinstance(k, str) and isinstance(v, Real) for k, v in answer.items()
    )
    if not isinstance(answer, Mapping) or not numbers:
        raise broken(answer, where, "a mapping of numbers by name", "return {} if there are none")
    return answer


def sentences(answer: object, where: str) -> list[str]:
    """Return a list of sentences; BackendError if the answer is not a sequence of sentences."""
    if isinstance(answer, str) or not isinstance(answer, Sequence) or not all(isinstance(s, str) for s in answer):
        raise broken(answer, where, "a sequence of sentences", "return [] if there are none")
    return list(answer)
