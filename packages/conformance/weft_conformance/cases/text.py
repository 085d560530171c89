"""Rows of TfIdfVectorizer."""

from __future__ import annotations

from functools import partial

from weft_conformance.cases.table import Case, Input, case, given

WEIGHTS = (2.0, 1.5, 3.0, 1.0, 0.5, 4.0, 2.5)

_case = partial(
    case,
    "TfIdfVectorizer",
    min_gram_length=1,
    max_gram_length=2,
    ngram_counts=(0, 4),
    ngram_indexes=(0, 1, 2, 3, 4, 5, 6),
    pool_int64s=(2, 3, 5, 4, 5, 6, 7, 8, 6, 7),
)

CASES: list[Case] = [
    _case(given([1, 1, 3, 3, 3, 7, 8, 6, 7, 5, 6, 8], "int32"), mode="TF", max_skip_count=0),
    _case(given([[1, 1, 3, 3, 3, 7], [8, 6, 7, 5, 6, 8]], "int64"), mode="TF", max_skip_count=5),
    _case(given([[5, 6, 8], [7, 8, 5]], "int32"), mode="IDF", max_skip_count=1, weights=WEIGHTS),
    _case(given([[5, 6, 8], [7, 8, 5]], "int32"), mode="TFIDF", max_skip_count=0, weights=WEIGHTS),
    # Attributes of which nothing follows: no n-gram is so long, and no line has room for such skips.
    _case(given([2, 3, 5, 6, 7, 8], "int64"), mode="TF", max_skip_count=1000),
    _case(given([2, 3, 5, 6, 7, 8], "int64"), mode="TF", max_skip_count=2**40, oracles=(),
          unverified="onnxruntime and onnx's evaluator go through all skips"),
    _case(given([2, 3, 5, 6, 7, 8], "int64"), mode="TF", max_skip_count=1, max_gram_length=2**62, oracles=(),
          unverified="onnxruntime refuses it, and onnx's evaluator goes through all lengths"),
    *(_case(Input("int64", shape), mode="TF", max_skip_count=0) for shape in ((0,), (2, 0))),
]
