"""Each op of TensorFlow Lite, on small networks, against what LiteRT computes for them."""

from __future__ import annotations

import base64
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from tests.helpers.tflite_cases import CASES, Case, numbers
from tests.helpers.tflite_files import one_op
from weft.frontends.tflite.registry import BUILTIN

ANSWERS = Path(__file__).with_name("tflite_answers.json")


@cache
def answers() -> dict[str, Any]:
    """Return what LiteRT computes for each case (`python -m scripts.update_tflite_answers`)."""
    found: dict[str, Any] = json.loads(ANSWERS.read_text(encoding="utf-8"))
    return found


def check(case: Case, device: str) -> None:
    """Run a case on a device, and compare all runs."""
    with weft.load(case.file.bytes(), device) as session:
        for inputs, wanted in zip(case.runs, answers()[case.name], strict=True):
            got = session.run(*inputs)
            assert len(got) == len(wanted)
            for value, (dtype, shape, data) in zip(got, wanted, strict=True):
                want = np.frombuffer(base64.b64decode(data), dtype).reshape(shape)
                assert (value.dtype, value.shape) == (want.dtype, want.shape)
                if want.dtype.kind == "f":
                    np.testing.assert_allclose(value, want, rtol=1e-5, atol=1e-5)
                else:
                    off = np.abs(value.astype(np.int64) - want.astype(np.int64))
                    assert off.max(initial=0) <= case.steps, f"{value} instead of {want}"


@pytest.mark.parametrize("name", sorted(CASES))
def test_an_op_computes_what_litert_computes(name: str) -> None:
    check(CASES[name], "cpu")


@pytest.mark.long
@pytest.mark.parametrize("device", ["opencl", "vulkan"])
@pytest.mark.parametrize("name", sorted(CASES))
def test_an_op_computes_so_on_a_gpu(name: str, device: str) -> None:
    """Nodes that the device refuses run on the CPU: the op table has what it takes."""
    check(CASES[name], device)


X, Y = numbers((2, 3, 4)), numbers((2, 5, 4), seed=1)
PLAIN: dict[str, tuple[Any, ...]] = {
    "STABLEHLO_TRANSPOSE": ([X], X.transpose(2, 0, 1), {"permutation": [2, 0, 1]}),
    "STABLEHLO_SLICE": ([X], X[:, 1:3, ::2], {"starts": [0, 1, 0], "limits": [2, 3, 4], "strides": [1, 1, 2]}),
    "STABLEHLO_CONCATENATE": ([X, Y], np.concatenate([X, Y], 1), {"dimension": 1}),
    "STABLEHLO_BROADCAST_IN_DIM": ([X[:, 0]], np.repeat(X[:, :1], 3, axis=1), {"dimensions": [0, 2]}),
    "STABLEHLO_DOT_GENERAL": (
        [X, Y], X @ Y.transpose(0, 2, 1),
        {"left_batch": [0], "right_batch": [0], "left_contracted": [2], "right_contracted": [2]},
    ),
    "STABLEHLO_COMPARE": ([X, X[::-1].copy()], X[::-1] < X, {"direction": 3}),
    "STABLEHLO_CLAMP": ([np.float32(-1), X, np.float32(1)], X.clip(-1, 1), {}),
    "STABLEHLO_SELECT": ([X > 0, X, -X], np.abs(X), {}),
    "STABLEHLO_CBRT": ([X], np.cbrt(X), {}),
    "STABLEHLO_REMAINDER": ([X, np.float32(0.7)], np.fmod(X, np.float32(0.7)), {}),
    "STABLEHLO_CONVERT": ([X], X.astype(np.int32), {}),
    "STABLEHLO_IOTA": ([], np.broadcast_to(np.arange(4, dtype=np.float32), (2, 4)), {"dimension": 1}),
    "STABLEHLO_DYNAMIC_SLICE": ([X, *map(np.int32, (1, 2, 3))], X[1:, 1:, 2:], {"sizes": [1, 2, 2]}),
}
"""Ops that LiteRT has no kernels for: what goes in, what comes out, and options."""


@pytest.mark.parametrize("op", PLAIN)
def test_an_op_of_stablehlo(op: str) -> None:
    inputs, want, options = PLAIN[op]
    open_ = [(each.shape, str(each.dtype)) for each in map(np.asarray, inputs)]
    file = one_op(op, open_, [(want.shape, str(want.dtype))], **options)
    with weft.load(file.bytes(), "cpu", fallback="error") as session:
        (got,) = session.run(*inputs)
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("op", "more"), [("RANDOM_UNIFORM", []), ("RANDOM_STANDARD_NORMAL", []), ("MULTINOMIAL", [0])])
def test_random_numbers_are_as_they_should_be_spread(op: str, more: list[int]) -> None:
    size = np.array([2000] if more else [40, 50], np.int32)
    logits = np.log(np.array([[0.2, 0.5, 0.3]], np.float32))
    given = [logits, np.array(2000, np.int32)] if more else [size]
    file = one_op(op, given, [((1, 2000), "int64") if more else ((40, 50), "float32")], seed=3, seed2=5)
    with weft.load(file.bytes(), "cpu") as session:
        (got,) = session.run()
    if more:
        np.testing.assert_allclose(np.bincount(got[0], minlength=3) / 2000, [0.2, 0.5, 0.3], atol=0.05)
    else:
        middle, spread = (0.5, 12**-0.5) if op == "RANDOM_UNIFORM" else (0, 1)
        assert got.shape == (40, 50) and abs(got.mean() - middle) < 0.1 and abs(got.std() - spread) < 0.1


def test_there_is_an_answer_for_each_case() -> None:
    assert answers().keys() == CASES.keys(), "run: python -m scripts.update_tflite_answers"


def test_each_builtin_op_has_a_case() -> None:
    stable = {op for op in BUILTIN if op.startswith("STABLEHLO_")}
    assert BUILTIN.keys() - stable - {case.op for case in CASES.values()} == NOT_ALONE


NOT_ALONE = {
    "ASSIGN_VARIABLE", "CALL", "CALL_ONCE", "COMPLEX_ABS", "DENSIFY", "IMAG", "MULTINOMIAL", "RANDOM_STANDARD_NORMAL",
    "RANDOM_UNIFORM", "READ_VARIABLE", "REAL", "VAR_HANDLE",
}
"""Ops that make no network of their own, or that draw; other tests have them."""
