"""Counts of n-grams: runs of tokens, which are integers here."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from weft.core.graph.composite import Body, decomposition, why_whole
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Node
from weft.core.graph.layout import Array, Shape
from weft.core.graph.op import Constants, Op, standard_op
from weft.core.graph.tensor import TensorSpec
from weft.errors import ModelError
from weft.ops.shape import MAX_ELEMENTS, given, sized, unfit


@standard_op(most_inputs=1)
class TfIdfVectorizer(Op):
    """How often each n-gram of a pool is in each line of tokens, as `mode` weighs it.

    `ngram_counts` says where the n-grams of each length start in `pool_int64s`, `ngram_indexes` where the count of each
    goes; tokens of an n-gram may lie up to `max_skip_count` others apart.
    """

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
        x, places, width = given(inputs, 0), self.places(), max(self.ngram_indexes) + 1
        counts = np.zeros((prod(x.shape[:-1]), width), np.float32)
        windows = self.windows(x.shape[-1])
        for line, tokens in zip(counts, x.reshape(len(counts), x.shape[-1]).tolist(), strict=True):
            for length, step in windows:
                reach = (length - 1) * step + 1
                for start in range(len(tokens) - reach + 1):
                    place = places.get(tuple(tokens[start : start + reach : step]))
                    if place is not None:
                        line[place] += 1
        factors = self.factors()
        out = (counts > 0) * factors if self.mode == "IDF" else counts * factors
        return out.reshape(*x.shape[:-1], width).astype(np.float32)

    def places(self) -> dict[tuple[int, ...], int]:
        """Return where the count of each n-gram goes, of those that are counted."""
        lengths = range(self.min_gram_length, self.max_gram_length + 1)
        return {gram: self.ngram_indexes[k] for k, gram in enumerate(self._grams()) if len(gram) in lengths}

    def windows(self, count: int) -> list[tuple[int, int]]:
        """Return the lengths of n-grams that a line of `count` tokens may have, each with steps between tokens.

        The attributes may allow lengths and skips beyond any number; those that find nothing are left out.
        """
        found = []
        for length in sorted({len(gram) for gram in self.places()}):
            widest = (count - 1) // (length - 1) if length > 1 else min(count, 1)
            found += [(length, step) for step in range(1, min(widest, self.max_skip_count + 1) + 1)]
        return found

    def why_whole(self, inputs: Sequence[Shape | None], constants: Constants, outputs: Sequence[Shape]) -> str:
        """Return the reason of too many comparisons, or of too many windows."""
        shape, lengths = given(inputs, 0), [len(gram) for gram in self.places()]
        windows = self.windows(shape[-1])
        if len(windows) > MOST_WINDOWS:
            return f"it would look through {len(windows)} windows, one after the other; the most is {MOST_WINDOWS}"
        counts = ((shape[-1] - (n - 1) * step) * lengths.count(n) for n, step in windows)
        most = prod(shape[:-1]) * max(counts, default=0)
        if most <= MOST_COMPARED:
            return ""
        return f"it would compare {most} pairs of tokens and n-grams at a time; the most is {MOST_COMPARED}"

    def factors(self) -> Array:
        """Return what each count is multiplied with."""
        factors = np.ones(max(self.ngram_indexes) + 1, np.float32)
        if self.weights and self.mode != "TF":
            factors[: len(self.weights)] = self.weights[: len(factors)]  # by place in the output, as onnxruntime has it
        return factors


MOST_COMPARED = 1 << 24
"""A device compares at most so many tokens with those of n-grams at a time."""
MOST_WINDOWS = 64
"""A device looks at most through so many windows, for each of which it has nodes of its own."""


@decomposition("TfIdfVectorizer")
def _compared(op: TfIdfVectorizer, make: Body, node: Node) -> Sequence[str]:
    """Compare every window with every n-gram, and add up what is equal."""
    if why_whole(make, node):
        return []
    shape, factors = make.dims(node.inputs[0]), op.factors()
    rows, count = prod(shape[:-1]), shape[-1]
    lines = make.reshape(make.cast(node.inputs[0], DType.INT64), rows, count, 1)
    total = make.constant(np.zeros((rows, len(factors)), np.float32))
    grams = op.places()
    for length, step in op.windows(count):
        pool = np.array([gram for gram in grams if len(gram) == length], np.int64)
        windows = count - (length - 1) * step
        equal = ""
        for place in range(length):
            tokens = make.part(lines, 1, place * step, place * step + windows)
            same = make.add("Equal", tokens, make.constant(pool[:, place].reshape(1, 1, -1)))
            equal = make.add("And", equal, same) if equal else same
        found = make.add("ReduceSum", make.cast(equal, DType.FLOAT32), make.ints(1), keepdims=0)
        at = np.array([grams[tuple(gram)] for gram in pool.tolist()], np.int64)
        where = make.constant(np.broadcast_to(at, (rows, len(at))).copy())
        total = make.add("ScatterElements", total, where, found, axis=1, reduction="add")
    if op.mode == "IDF":
        total = make.cast(make.add("Greater", total, make.number(0, total)), DType.FLOAT32)
    return [make.reshape(make.add("Mul", total, make.constant(factors)), *shape[:-1], len(factors))]
