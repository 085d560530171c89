"""What backends answer, held against the contract: whatever else they return is a BackendError that shows it.

`where` names the backend and the callback ("acme:0: AcmeBackend.why_not").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np

from weft.core.layout import Array
from weft.core.tensor import Tensor
from weft.errors import BackendError, brief

T = TypeVar("T")
SHOWN = 80
"""Characters of an answer that a message shows."""


def shown(answer: object) -> str:
    """Return an answer as messages show it, with its type; one that cannot be printed by its type alone."""
    if answer is None:
        return "None"
    kind = type(answer).__name__
    try:
        text = " ".join(repr(answer).split())
    except Exception:
        return f"an object of type {kind}"
    return f"{brief(text, SHOWN)} (of type {kind})"


def broken(answer: object, where: str, expected: str, fix: str = "") -> BackendError:
    """Return the error for an answer that is not what the contract says."""
    name = where.rpartition(".")[2]
    return BackendError(f"{name} returned {shown(answer)}", where=where, why=f"it must return {expected}", fix=fix)


def of_kind(answer: object, kind: type[T], where: str, expected: str, fix: str = "") -> T:
    """Return an answer that is of a class; BackendError if it is not."""
    if not isinstance(answer, kind):
        raise broken(answer, where, expected, fix)
    return answer


def optional(answer: object, kind: type[T], where: str, expected: str, fix: str = "") -> T | None:
    """Return an answer that is None or of a class; BackendError if it is neither."""
    return None if answer is None else of_kind(answer, kind, where, f"{expected}, or None", fix)


def reason(answer: object, where: str) -> str | None:
    """Return the reason of a refusal, or None; BackendError unless it is None or a text that is not blank."""
    if answer is None:
        return None
    if isinstance(answer, str) and answer.strip():
        return answer
    if isinstance(answer, str):
        expected, fix = "a reason that is not empty, or None", "say in a sentence what the backend lacks"
    else:
        expected = "the reason of a refusal as a str, or None where the node is taken"
        fix = "return None to accept" if answer is False else ""
    raise broken(answer, where, expected, fix)


def granted(answer: object, where: str, otherwise: str) -> bool:
    """Return whether a callback did what it was asked; BackendError for None, which is a missing return.

    `otherwise` says when False is right.
    """
    if answer is None:
        raise broken(answer, where, f"True, or False {otherwise}", "end it with 'return True'")
    return bool(answer)


def host_array(answer: object, tensor: Tensor, where: str) -> Array | None:
    """Return the lasting host array of a tensor, or None; BackendError if it has another shape or type."""
    if answer is None:
        return None
    shape, dtype = tensor.storage_shape, tensor.dtype.numpy
    if isinstance(answer, np.ndarray) and (answer.shape, answer.dtype) == (shape, dtype):
        return answer
    got = f"a {answer.dtype} array of shape {answer.shape}" if isinstance(answer, np.ndarray) else shown(answer)
    raise BackendError(
        f"{where.rpartition('.')[2]} returned {got} for {tensor.name!r}",
        where=where,
        why=f"it must return a {dtype} array of shape {shape}, or None",
        fix="return None to be copied to and from",
    )


def counters(answer: object, where: str) -> Mapping[str, int]:
    """Return counters by name; BackendError if they are none."""
    numbers = isinstance(answer, Mapping) and all(
        isinstance(k, str) and isinstance(v, (int, float)) for k, v in answer.items()
    )
    if not isinstance(answer, Mapping) or not numbers:
        raise broken(answer, where, "a mapping of numbers by name", "return {} if there are none")
    return answer


def sentences(answer: object, where: str) -> list[str]:
    """Return a sequence of sentences; BackendError if it is none."""
    if isinstance(answer, str) or not isinstance(answer, Sequence) or not all(isinstance(s, str) for s in answer):
        raise broken(answer, where, "a sequence of sentences", "return [] if there are none")
    return list(answer)
