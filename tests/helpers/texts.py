"""A small language model, and what ONNX Runtime says of a text, given the caches."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort

from benchmarks.decoders import TINY, decoder, empty_caches, feeds


class Reference:
    """ONNX Runtime, which is given the caches."""

    def __init__(self, form: str, batch: int = 1) -> None:
        options = ort.SessionOptions()
        options.log_severity_level = 3
        model = decoder("tiny", form).SerializeToString()
        self._session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self.form, self.caches, self.length = form, empty_caches(TINY, batch), 0

    def feeds(self, words: Any) -> dict[str, Any]:
        """Return the inputs of a run without the caches."""
        return feeds(TINY, self.form, words, self.length)

    def run(self, words: Any) -> Any:
        """Return the logits of new words."""
        logits, *caches = self._session.run(None, {**self.feeds(words), **self.caches})
        self.caches = dict(zip(self.caches, caches, strict=True))
        self.length += words.shape[1]
        return logits


def close(got: Any, wanted: Any) -> bool:
    """Tell whether logits agree as far as ONNX Runtime's sums of fp16 do."""
    return got.shape == wanted.shape and bool(np.abs(got - wanted).max() <= 3e-3 * np.abs(wanted).max())
