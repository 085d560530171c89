"""A length that grows touches no weights, and gives what a session gives that was loaded for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import weft
from benchmarks.gpt2 import gpt2
from benchmarks.minilm import Sizes
from weft.core.session.session import Session

SIZES = Sizes(layers=1, hidden=32, heads=2, inner=48, vocabulary=1000, positions=90)
DEVICES = ("cpu", "opencl", "vulkan")
LEAST = 10_000
"""Bytes of the smallest constant that counts as a weight; the embeddings of the words have more."""


def feeds(past: int, *, half: bool = False) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(past)
    caches = {f"past.0.{kind}": rng.standard_normal((1, 2, past, 16)) for kind in ("key", "value")}
    words = {"input_ids": np.array([[past % 7]]), "attention_mask": np.ones((1, past + 1), np.int64)}
    return words | {name: a.astype(np.float16 if half else np.float32) for name, a in caches.items()}


def weights(session: Session) -> Mapping[str, np.ndarray]:
    return {name: a for name, a in session.optimized.graph.constants.items() if a.nbytes >= LEAST}


@pytest.mark.covering
@pytest.mark.parametrize("precision", ["high", "low"])
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("device", DEVICES)
def test_lengths_in_any_order_are_right_and_touch_no_weights(
    device: str, half: bool, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither on the host, where they stay the same arrays, nor on the device, where nothing as large is uploaded."""
    model, sent = gpt2(SIZES, half=half, tied=half), list[int]()
    with weft.load(model, device, precision=precision, fallback="error") as session:
        session.run(feeds(5, half=half))
        session.run(feeds(6, half=half))
        held = weights(session)
        assert held
        if device != "cpu":
            creator: Any = weft.registry.find(device)
            opened = creator.runtime(0).device
            upload = opened.upload

            def counted(buffer: object, offset: int, data: np.ndarray) -> None:
                sent.append(data.nbytes)
                upload(buffer, offset, data)

            monkeypatch.setattr(opened, "upload", counted)
        found = {past: session.run(feeds(past, half=half)) for past in (7, 8, 30, 6, 9, 31, 5, 80)}
        assert all(now is held[name] for name, now in weights(session).items())
        assert max(sent, default=0) < LEAST
    for past in (8, 80):
        shapes = {name: a.shape for name, a in feeds(past).items()}
        with weft.load(model, device, shapes=shapes, precision=precision, fallback="error") as fresh:
            for a, b in zip(found[past], fresh.run(feeds(past, half=half)), strict=True):
                np.testing.assert_allclose(a, b, rtol=2e-3 if half or precision == "low" else 1e-5, atol=2e-3)
