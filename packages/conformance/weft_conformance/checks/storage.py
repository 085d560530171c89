"""The storage types, within a resize and outside of one, by what tensors hold (M5-M8)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import combinations

import numpy as np

from weft.core.contract.backend import Backend, StorageType
from weft.core.graph.dtypes import DType
from weft.core.graph.layout import Array, Shape
from weft.core.graph.tensor import Tensor
from weft_conformance.drive import acquired, read, write
from weft_conformance.kit import Kit, check
from weft_conformance.report import Finding

STATIC, DYNAMIC, SEPARATE = StorageType.STATIC, StorageType.DYNAMIC, StorageType.DYNAMIC_SEPERATE
SIZES: tuple[Shape, ...] = ((1, 6, 5, 5), (2, 3), (40,), (1, 6, 5, 5), (1, 4, 2), (3, 5, 7), (1, 1), (2, 6, 5, 5))


@check("storage", "M5 M6 M7 M8", "memory lives as long as its storage type says, and no two live tensors overlap")
def storage(kit: Kit) -> Iterable[Finding]:
    """Acquire, write, release and read, without any op."""
    attempts: dict[str, Callable[[Backend], str]] = {
        "DYNAMIC outside a resize": _eager,
        "DYNAMIC within a resize": _planned,
        "DYNAMIC_SEPERATE outside a resize is not reused before a clear": _separate_eager,
        "DYNAMIC_SEPERATE within a resize is not reused before a clear": _separate_planned,
        **ends_of_others(STATIC),
        "STATIC is there at once within a resize": _static_within_resize,
        "callbacks answer True": _answers,
        "many rounds": _rounds,
        "more than 64 KiB": _large,
    }
    for subject, attempt in attempts.items():
        yield kit.attempt(subject, _on_a_fresh_backend, kit, attempt)


def ends_of_others(kind: StorageType) -> dict[str, Callable[[Backend], str]]:
    """Return what tries whether memory of a kind that stays outlives what ends other memory, by name."""
    attempts = {
        "outlives the release of others": _and_releases,
        "outlives a clear": _and_clear,
        "outlives a resize": _and_resize,
        "is released one by one": _one_by_one,
    }
    return {f"{kind.name} {subject}": partial(attempt, kind) for subject, attempt in attempts.items()}


def _on_a_fresh_backend(kit: Kit, attempt: Callable[[Backend], str]) -> str:
    with kit.opened() as backend:
        return attempt(backend)


def _pattern(tensor: Tensor, seed: int) -> Array:
    return np.asarray(np.random.default_rng(seed).uniform(1, 2, tensor.shape), np.float32)


def _fill(backend: Backend, tensors: Iterable[Tensor], seed: int = 0) -> dict[Tensor, Array]:
    """Write a pattern of its own into each tensor and return the patterns."""
    patterns = {t: _pattern(t, seed + k) for k, t in enumerate(tensors)}
    for tensor, pattern in patterns.items():
        write(backend, tensor, pattern)
    return patterns


def _lost(backend: Backend, patterns: dict[Tensor, Array], when: str) -> str:
    """Return which tensors do not hold what was written, "" if all do."""
    lost = [t.name for t, pattern in patterns.items() if not np.array_equal(read(backend, t), pattern)]
    return f"{', '.join(lost)} lost the content {when}" if lost else ""


def _several(backend: Backend, kind: StorageType, count: int = 4, prefix: str = "") -> list[Tensor]:
    prefix = prefix or kind.value
    return [acquired(backend, SIZES[k % len(SIZES)], kind, name=f"{prefix}{k}") for k in range(count)]


def _eager(backend: Backend) -> str:
    a, b, c, d = _several(backend, DYNAMIC)
    patterns = _fill(backend, (a, b, c, d))
    problem = _lost(backend, patterns, "when the others were written")
    backend.onReleaseBuffer(b, DYNAMIC)
    del patterns[b]
    again = _several(backend, DYNAMIC, 3, "again")
    patterns |= _fill(backend, again, 50)
    return problem or _lost(backend, patterns, "when released memory was given out again")


def _planned(backend: Backend) -> str:
    """Acquire and release like a chain of nodes with a branch; then check each pair that is live at one time."""
    backend.onResizeBegin()
    alive: dict[int, Tensor] = {}
    every: dict[int, Tensor] = {}
    together: set[tuple[int, int]] = set()
    for k in range(10):
        tensor = acquired(backend, SIZES[k % len(SIZES)], DYNAMIC, name=f"t{k}")
        alive[k] = every[k] = tensor
        together |= set(combinations(sorted(alive), 2))
        if k % 3 != 0:
            gone = min(alive)
            backend.onReleaseBuffer(alive.pop(gone), DYNAMIC)
    backend.onAllocateBuffer()
    backend.onResizeEnd()
    for a, b in sorted(together):
        problem = _lost(backend, _fill(backend, (every[a], every[b])), f"though t{a} and t{b} live at one time")
        if problem:
            return problem
    return _lost(backend, _fill(backend, alive.values()), "though none of them was released")


def _separate_eager(backend: Backend) -> str:
    separate = _several(backend, SEPARATE)
    patterns = _fill(backend, separate)
    for tensor in separate:
        backend.onReleaseBuffer(tensor, SEPARATE)
    others = [*_several(backend, SEPARATE, prefix="later"), *_several(backend, DYNAMIC, prefix="dynamic")]
    _fill(backend, others, 50)
    return _lost(backend, patterns, "after a release, which must do nothing before a clear")


def _separate_planned(backend: Backend) -> str:
    backend.onResizeBegin()
    separate = _several(backend, SEPARATE)
    others: list[Tensor] = []
    for k, tensor in enumerate(separate):
        backend.onReleaseBuffer(tensor, SEPARATE)
        others += [
            acquired(backend, tensor.shape, DYNAMIC, name=f"dynamic{k}"),
            acquired(backend, tensor.shape, SEPARATE, name=f"later{k}"),
        ]
    backend.onAllocateBuffer()
    backend.onResizeEnd()
    patterns = _fill(backend, separate)
    _fill(backend, others, 50)
    return _lost(backend, patterns, "after a release, which must do nothing before a clear")


def _and_releases(kind: StorageType, backend: Backend) -> str:
    kept, gone = _several(backend, kind, 3, "kept"), _several(backend, kind, 3, "gone")
    dynamic = _several(backend, DYNAMIC, 3)
    patterns = _fill(backend, kept)
    _fill(backend, (*gone, *dynamic), 50)
    for tensor, its in (*((t, kind) for t in gone), *((t, DYNAMIC) for t in dynamic)):
        backend.onReleaseBuffer(tensor, its)
    later = [*_several(backend, kind, 5, "later"), *_several(backend, DYNAMIC, 5, "new")]
    _fill(backend, later, 90)
    return _lost(backend, patterns, "when others were released and their memory given out again")


def _and_clear(kind: StorageType, backend: Backend) -> str:
    kept = _several(backend, kind, 3)
    patterns = _fill(backend, kept)
    _fill(backend, _several(backend, DYNAMIC), 20)
    backend.onClearBuffer()
    _fill(backend, _several(backend, DYNAMIC, 6, "new"), 50)
    return _lost(backend, patterns, f"at onClearBuffer, which must leave {kind.name} memory")


def _and_resize(kind: StorageType, backend: Backend) -> str:
    kept = _several(backend, kind, 3)
    patterns = _fill(backend, kept)
    for size in (1, 3, 2):
        backend.onClearBuffer()
        backend.onResizeBegin()
        tensors = [acquired(backend, (size, 6, 5, 5), DYNAMIC, name=f"t{k}") for k in range(4)]
        backend.onAllocateBuffer()
        backend.onResizeEnd()
        _fill(backend, tensors, 50)
        problem = _lost(backend, patterns, f"at a resize, which must leave {kind.name} memory")
        if problem:
            return problem
    return ""


def _static_within_resize(backend: Backend) -> str:
    backend.onResizeBegin()
    before = _several(backend, DYNAMIC, 2, "before")
    kept = _several(backend, STATIC, 2)
    patterns = _fill(backend, kept)  # an execution uploads its constants in onResize
    after = _several(backend, DYNAMIC, 2, "after")
    backend.onAllocateBuffer()
    backend.onResizeEnd()
    _fill(backend, (*before, *after), 50)
    return _lost(backend, patterns, "between its acquire in a resize and the end of it")


def _one_by_one(kind: StorageType, backend: Backend) -> str:
    tensors = _several(backend, kind, 6)
    patterns = _fill(backend, tensors)
    for k, tensor in enumerate(tensors):
        del patterns[tensor]
        backend.onReleaseBuffer(tensor, kind)
        _fill(backend, [acquired(backend, tensor.shape, kind, name=f"new{k}")], 100 + k)
        problem = _lost(backend, patterns, f"when {tensor.name} was released")
        if problem:
            return problem
    return ""


def _answers(backend: Backend) -> str:
    tensor, static = (Tensor(n, (2, 3), DType.FLOAT32, backend=backend) for n in ("dynamic", "static"))
    answers: dict[str, object] = {
        "onAcquireBuffer of DYNAMIC memory": backend.onAcquireBuffer(tensor, DYNAMIC),
        "onAcquireBuffer of STATIC memory": backend.onAcquireBuffer(static, STATIC),
    }
    write(backend, tensor, _pattern(tensor, 0))
    answers |= {
        "onReleaseBuffer of DYNAMIC memory": backend.onReleaseBuffer(tensor, DYNAMIC),
        "onReleaseBuffer of STATIC memory": backend.onReleaseBuffer(static, STATIC),
        "onClearBuffer": backend.onClearBuffer(),
        "onWaitFinish": backend.onWaitFinish(),
    }
    backend.onResizeBegin()
    later = Tensor("later", (2, 3), DType.FLOAT32, backend=backend)
    answers["onAcquireBuffer within a resize"] = backend.onAcquireBuffer(later, DYNAMIC)
    answers["onAllocateBuffer"] = backend.onAllocateBuffer()
    backend.onResizeEnd()
    bad = [f"{name} returned {answer!r}" for name, answer in answers.items() if answer is not True]
    return "; ".join(bad)


def _rounds(backend: Backend) -> str:
    for size in (1, 4, 2, 4, 1):
        backend.onClearBuffer()
        backend.onResizeBegin()
        shape = (size, 6, 5)
        tensors = [acquired(backend, shape, SEPARATE, name="x"), acquired(backend, shape, DYNAMIC, name="y")]
        backend.onAllocateBuffer()
        backend.onResizeEnd()
        problem = _lost(backend, _fill(backend, tensors, size), f"in a round with {size} images")
        if problem:
            return problem
    return ""


def _large(backend: Backend) -> str:
    """Keep large tensors live at one time, within a resize and outside of one."""
    shape = (3, 5, 83, 79)
    static, eager = acquired(backend, shape, STATIC, name="static"), acquired(backend, shape, DYNAMIC, name="eager")
    backend.onResizeBegin()
    kinds = [(kind, f"{kind.value}{k}") for k in range(2) for kind in (DYNAMIC, SEPARATE)]
    planned = [acquired(backend, shape, kind, name=name) for kind, name in kinds]
    backend.onAllocateBuffer()
    backend.onResizeEnd()
    return _lost(backend, _fill(backend, (static, eager, *planned)), "of tensors that take 393,420 bytes each")
