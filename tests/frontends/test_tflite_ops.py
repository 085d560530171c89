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
from tests.helpers.tflite_cases import CASES, Case
from weft.frontends.tflite.registry import BUILTIN

ANSWERS = Path(__file__).with_name("tflite_answers.json")


@cache
def answers() -> dict[str, Any]:
    """Return what LiteRT computes for each case (`python -m scripts.update_tflite_answers`)."""
    found: dict[str, Any] = json.loads(ANSWERS.read_text(encoding="utf-8"))
    return found


def check(case: Case, device: str) -> None:
    """Run a case on a device alone, and compare all runs."""
    with weft.load(case.file.bytes(), device, fallback="error") as session:
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


def test_there_is_an_answer_for_each_case() -> None:
    assert answers().keys() == CASES.keys(), "run: python -m scripts.update_tflite_answers"


def test_each_builtin_op_has_a_case() -> None:
    stable = {op for op in BUILTIN if op.startswith("STABLEHLO_")}
    assert BUILTIN.keys() - stable - {case.op for case in CASES.values()} == NOT_ALONE


NOT_ALONE = {"ASSIGN_VARIABLE", "CALL", "CALL_ONCE", "DENSIFY", "READ_VARIABLE", "VAR_HANDLE"}
"""Ops that make no network of their own; `test_tflite_load.py` has them."""
