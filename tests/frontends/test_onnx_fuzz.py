"""Fuzzers of the ONNX front end: whatever a file holds, it loads or a WeftError says why not.

Both are bounded and draw the same examples in every run: `scripts.fuzz` makes them, and runs them on devices as well.
"""

from __future__ import annotations

import random
import resource
import time

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import ModelProto

from scripts.fuzz.mutate import change_bytes
from scripts.fuzz.onnx_cases import change_fields, networks
from tests.helpers.run_length import examples
from weft.core.graph.graph import bind, infer_shapes
from weft.errors import WeftError
from weft.frontends.onnx import load

SECONDS_FOR_ONE = 5.0
MEGABYTES_FOR_ALL = 400
BOUNDED = settings(
    derandomize=True, max_examples=examples(600), deadline=None, database=None, suppress_health_check=list(HealthCheck)
)

SEEDS = networks()


def fuzz_model(seed: int) -> ModelProto:
    """Return a model in which a few fields have other values."""
    draw = random.Random(seed)
    model = ModelProto()
    model.CopyFrom(draw.choice(SEEDS))
    change_fields(model, draw)
    return model


def fuzz_bytes(seed: int) -> bytes:
    """Return the bytes of a model with a few of them changed, put in, taken out or cut off."""
    draw = random.Random(seed)
    return change_bytes(draw.choice(SEEDS).SerializeToString(), draw)


def examine(model: ModelProto | bytes) -> bool:
    """Load, bind and infer shapes; tell whether that works. Anything but a WeftError is a failure."""
    start = time.process_time()
    try:
        graph = load(model)
        shapes = {
            name: tuple(2 if isinstance(d, str) else d for d in graph.specs[name].shape)
            for name in graph.inputs
        }
        infer_shapes(bind(graph, shapes))
        str(graph)
    except WeftError as e:
        assert e.what
        return False
    finally:
        assert time.process_time() - start < SECONDS_FOR_ONE
    return True


def peak() -> float:
    """Return the most memory that this process has had so far, in megabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def test_the_seeds_are_good_models() -> None:
    assert all(examine(model) for model in SEEDS)


def test_models_with_changed_fields_load_or_are_refused() -> None:
    before, seen = peak(), {True: 0, False: 0}

    @BOUNDED
    @given(st.integers(0, 2**32))
    def one(seed: int) -> None:
        for k in range(10):
            seen[examine(fuzz_model(seed * 10 + k))] += 1

    one()
    assert peak() - before < MEGABYTES_FOR_ALL
    assert min(seen.values()) > sum(seen.values()) // 20, f"the fuzzer makes too much of one kind: {seen}"


def test_changed_bytes_load_or_are_refused() -> None:
    before, seen = peak(), {True: 0, False: 0}

    @BOUNDED
    @given(st.integers(0, 2**32))
    def one(seed: int) -> None:
        for k in range(10):
            seen[examine(fuzz_bytes(seed * 10 + k))] += 1

    one()
    assert peak() - before < MEGABYTES_FOR_ALL
    assert min(seen.values()) > sum(seen.values()) // 50, f"the fuzzer makes too much of one kind: {seen}"
