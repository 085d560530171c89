"""The options of a load are declared once: signatures, flags and checks follow `LoadOptions`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

import weft
from tests.helpers.cli import write_model
from weft.errors import ConfigError, InputError

KEYWORDS = {
    weft.load: {f.name for f in fields(weft.LoadOptions)} - {"device"},
    weft.optimize: {
        "precision", "memory", "power", "fusing", "winograd", "shapes", "fallback", "hints", "debug",
        "backend_options", "limits", "passes", "runtime", "signature",
    },
    weft.Runtime.load: {"profile", "backend_options", "progress", "overflow_check", "wait"},
}


@pytest.mark.parametrize("call", KEYWORDS, ids=lambda call: call.__qualname__)
def test_signatures_and_docstrings_have_every_option(call: Callable[..., Any]) -> None:
    named = {n: p for n, p in signature(call).parameters.items() if p.kind is Parameter.KEYWORD_ONLY}
    assert named.keys() == KEYWORDS[call]
    defaults = {f.name: f.default for f in fields(weft.LoadOptions)}
    assert {n: p.default for n, p in named.items()} == {n: defaults[n] for n in named}
    assert [n for n in named if f"    {n}: " not in (call.__doc__ or "")] == []


@pytest.mark.parametrize(
    ("call", "wrong", "said"),
    [
        (weft.load, {"precison": "low"}, "did you mean 'precision'?"),
        (weft.optimize, {"shape": {}}, "did you mean 'shapes'?"),
        (weft.optimize, {"state": True}, "'state' is an option of weft.load only"),
        (weft.load, {"zzz": 1}, "none is like 'zzz'"),
    ],
    ids=["near", "near in optimize", "of load alone", "far"],
)
def test_an_unknown_option_is_answered_by_the_nearest(
    call: Callable[..., Any], wrong: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match="has no option") as caught:
        call("missing.onnx", "cpu", **wrong)
    assert said in str(caught.value)


@pytest.mark.parametrize("name", ["fusing", "winograd", "overflow_check"])
def test_switches_are_on_or_off(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}='no' is neither on nor off"):
        weft.LoadOptions(**{name: "no"})  # type: ignore[arg-type]


def test_options_are_checked_and_kept_in_their_types() -> None:
    made = weft.LoadOptions.of({"precision": "low", "limits": {"nodes": 5}, "hints": None})
    assert made.precision is weft.Precision.LOW and made.limits.nodes == 5 and made.hints == {}


def cache(path: Path) -> Path:
    """Write a model that appends its input to a cache, and adds up the cache."""
    nodes = [
        helper.make_node("Concat", ["past.0", "x"], ["present.0"], axis=0),
        helper.make_node("ReduceSum", ["present.0"], ["y"], keepdims=1),
    ]
    return write_model(path, nodes, {"x": ("n", 2), "past.0": ("p", 2)}, ["y", "present.0"])


def test_arrays_for_outputs_are_refused_for_the_state(tmp_path: Path) -> None:
    with weft.load(cache(tmp_path / "m.onnx"), "cpu", state=True) as session:
        session.run(np.ones((1, 2), np.float32))
        assert session.keeps_state
        with pytest.raises(InputError, match="the session keeps a state, which each run may make longer"):
            session.output_arrays()
