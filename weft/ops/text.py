"""Counts of n-grams: runs of tokens, which are integers here."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import ClassVar

import numpy as np

from weft.core.graph.dtypes import DType
from weft.core.graph.layout import Array
from weft.core.graph.op import Constants, Op, register_op
from weft.core.graph.op_class import op_dataclass
from weft.core.graph.tensor import TensorSpec
from weft.errors import ModelError
from weft.ops.shape import MAX_ELEMENTS, given, sized, unfit


@register_op
@op_dataclass
class TfIdfVectorizer(Op):
    """How often each n-gram of a pool is in each line of tokens, as `mode` weighs it.

    `ngram_counts` says where the n-grams of each length start in `pool_int64s`, `ngram_indexes` where the count of each
    goes; tokens of an n-gram may lie up to `max_skip_count` others apart. It counts a few integers, so it runs on the
    CPU alone.
    """

    most_inputs: ClassVar[int | None] = 1
    max_gram_length: int
    max_skip_count: int
    min_gram_length: int
    mode: str
    ngram_counts: tuple[int, ...]
    ngram_indexes: tuple[int, ...]
    pool_int64s: tuple[int, ...] = ()
    pool_strings: tuple[str, ...] = ()
    weights: tuple[float, ...] = ()

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        """Return the spec of the output."""
        x = given(inputs, 0)
        if self.pool_strings:
            raise ModelError("n-grams of strings are not supported", why="Weft has no element type of strings")
        if x.dtype not in (DType.INT32, DType.INT64) or len(x.dims) not in (1, 2):
            raise unfit(f"{x} is no line of tokens, and no list of lines")
        if self.mode not in ("TF", "IDF", "TFIDF") or not 1 <= self.min_gram_length <= self.max_gram_length:
            raise unfit(f"mode {self.mode!r} or lengths {self.min_gram_length} to {self.max_gram_length} are unknown")
        starts = (*self.ngram_counts, len(self.pool_int64s))
        if sorted(starts) != list(starts) or starts[0] < 0 or self.max_skip_count < 0 or not self.ngram_indexes:
            raise unfit(f"ngram_counts {self.ngram_counts} do not divide a pool of {len(self.pool_int64s)}")
        if len(self._grams()) > len(self.ngram_indexes) or min(self.ngram_indexes) < 0:
            raise unfit(f"{len(self.ngram_indexes)} ngram_indexes are not one for each n-gram")
        width = max(self.ngram_indexes) + 1
        if len(self.weights) not in (0, len(self.ngram_indexes)) or width > MAX_ELEMENTS:
            raise unfit(f"{len(self.weights)} weights are not one for each n-gram")
        return (sized((*x.dims[:-1], width), DType.FLOAT32),)

    def _grams(self) -> list[tuple[int, ...]]:
        """Return the n-grams in the order in which they are numbered."""
        grams: list[tuple[int, ...]] = []
        ends = (*self.ngram_counts[1:], len(self.pool_int64s))
        for length, (start, end) in enumerate(zip(self.ngram_counts, ends, strict=True), start=1):
            grams += [self.pool_int64s[at : at + length] for at in range(start, end - length + 1, length)]
        return grams

    def reference(self, *inputs: Array | None) -> Array:
        """Return the output."""
        x, grams = given(inputs, 0), self._grams()
        lengths = range(self.min_gram_length, self.max_gram_length + 1)
        places = {gram: self.ngram_indexes[k] for k, gram in enumerate(grams) if len(gram) in lengths}
        width = max(self.ngram_indexes) + 1
        counts = np.zeros((prod(x.shape[:-1]), width), np.float32)
        for line, tokens in zip(counts, x.reshape(len(counts), x.shape[-1]).tolist(), strict=True):
            for skip in range(self.max_skip_count + 1):
                for length in lengths if not skip else (n for n in lengths if n > 1):
                    reach = (length - 1) * (skip + 1) + 1
                    for start in range(len(tokens) - reach + 1):
                        place = places.get(tuple(tokens[start : start + reach : skip + 1]))
                        if place is not None:
                            line[place] += 1
        factors = np.ones(width, np.float32)
        if self.weights and self.mode != "TF":
            factors[: len(self.weights)] = self.weights[:width]  # by place in the output, as onnxruntime has it
        out = (counts > 0) * factors if self.mode == "IDF" else counts * factors
        return out.reshape(*x.shape[:-1], width).astype(np.float32)
