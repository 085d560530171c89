"""Contract row F8: an optimised network comes back from a file unchanged: nodes, attributes, arrays to the bit."""

from __future__ import annotations

import io
import json
import struct
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from dataclasses import fields, replace
from math import inf, nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

import weft
from tests.helpers.run_length import is_long
from tests.helpers.saved_networks import (
    F32,
    ROOT,
    SHAPES,
    Color,
    Holder,
    again,
    as_saved,
    content,
    manifest_of,
    of_ops,
    same_bits,
    small,
    whole,
)
from weft.core.contract.backend import BackendConfig
from weft.core.graph.dtypes import DType
from weft.core.graph.fused_op import Fused, Step
from weft.core.graph.graph import Graph, Node
from weft.core.graph.layout import Array, Layout
from weft.core.graph.op import find_op
from weft.core.graph.tensor import TensorSpec
from weft.core.placement.optimized_network import OptimizedNetwork, PreCompiled
from weft.core.saved.codec import Decoder, Encoder
from weft_conformance.cases.table import Case, all_cases

# -- networks come back as they were -------------------------------------------------------------------------


def test_F8_everything_that_a_network_is_comes_back(tmp_path: Path, cpu_1_2: None) -> None:
    network = small()
    loaded = again(network, tmp_path)
    assert str(loaded) == str(network)
    assert loaded.graph.nodes[:3] == network.graph.nodes[:3]
    assert (loaded.graph.inputs, loaded.graph.outputs) == (["x"], ["y", "w", "x"])
    assert loaded.graph.specs == network.graph.specs
    assert loaded.graph.layouts == {"h": Layout.NHWC}
    assert loaded.placement == {"n0": "cpu:0", "n2": "cpu:0", "n1": "cpu:1"}
    assert [n.name for n in loaded.copies] == ["copy a"]
    compiled = loaded.graph.nodes[3].op
    assert isinstance(compiled, PreCompiled)
    assert (compiled.backend, compiled.payload, compiled.results) == ("cpu", b"code", (F32,))
    for before, after in zip(network.parts, loaded.parts, strict=True):
        assert (before.device, before.graph.name) == (after.device, after.graph.name)
        assert (before.graph.inputs, before.graph.outputs) == (after.graph.inputs, after.graph.outputs)
        assert before.graph.specs == after.graph.specs
        assert all(same_bits(before.graph.constants[k], v) for k, v in after.graph.constants.items())


def test_F8_parts_share_their_constants_and_nodes_with_the_network(tmp_path: Path, cpu_1_2: None) -> None:
    loaded = again(small(), tmp_path)
    assert len({id(g.constants["w"]) for g in (loaded.graph, *(p.graph for p in loaded.parts))}) == 1
    assert loaded.parts[0].graph.nodes[0] is loaded.graph.nodes[0]
    with pytest.raises(ValueError, match="read-only"):
        loaded.graph.constants["w"][0] = 1


@pytest.mark.alike
@pytest.mark.parametrize(
    ("device", "options"),
    [
        ("cpu", {}),
        ("opencl", {}),
        ("opencl", {"precision": "low", "memory": "limit"}),
        ("vulkan", {"precision": "low", "memory": "limit"}),
        (["opencl", "cpu"], {"hints": {"block*/relu": "cpu", "side/*": "cpu"}}),
    ],
    ids=["cpu", "opencl", "opencl-low", "vulkan-low", "mixed"],
)
def test_F8_an_optimised_model_gives_the_same_results_after_it_was_loaded(
    tmp_path: Path, device: str | list[str], options: dict[str, Any]
) -> None:
    network = weft.optimize(SHAPES, device, shapes={"image": (1, 3, 128, 128)}, **options)
    loaded = again(network, tmp_path)
    assert str(loaded) == str(as_saved(network))
    assert loaded.config == network.config
    assert (loaded.notes, loaded.passes, loaded.refusals) == (network.notes, network.passes, network.refusals)
    assert loaded.journal == network.journal and loaded.why("stem/relu") == as_saved(network).why("stem/relu")
    image = np.random.default_rng(8).random((1, 3, 128, 128), np.float32)
    with weft.Runtime() as runtime:
        first, second = (runtime.run(runtime.load(n), image) for n in (network, loaded))
    assert all(map(same_bits, first, second))


def joined(rows: Iterable[Case]) -> Graph:
    """Return one graph with a node for each row of the op table."""
    graph = Graph("rows", [], [])
    for k, row in enumerate(rows):
        names = tuple(f"x{k}.{i}" if given_ is not None else "" for i, given_ in enumerate(row.inputs))
        for name, spec, value in zip(names, row.specs(), row.constants(), strict=True):
            if spec is not None:
                graph.specs[name] = spec
            if value is not None:
                graph.constants[name] = value
            elif name:
                graph.inputs.append(name)
        results = row.make_op().infer(row.specs(), row.constants())
        outputs = tuple(f"y{k}.{i}" for i in range(len(results)))
        graph.specs |= dict(zip(outputs, results, strict=True))
        graph.outputs += outputs
        graph.nodes.append(Node(f"n{k}", row.make_op(), names, outputs))
    return graph


def test_F8_the_op_of_every_row_of_the_table_comes_back_equal(tmp_path: Path) -> None:
    graph = joined(all_cases())
    loaded = again(whole(graph), tmp_path).graph
    assert loaded.nodes == graph.nodes
    assert [str(n) for n in loaded.nodes] == [str(n) for n in graph.nodes]
    assert loaded.constants.keys() == graph.constants.keys()
    assert all(same_bits(graph.constants[k], v) for k, v in loaded.constants.items())


def test_F8_the_optimised_rows_of_the_table_come_back(tmp_path: Path) -> None:
    """In the short run one row of each op: to optimise them all takes seconds."""
    rows = all_cases() if is_long() else {row.op: row for row in all_cases()}.values()
    network = weft.optimize(joined(rows), ["opencl", "cpu"])
    loaded = again(network, tmp_path)
    assert str(loaded) == str(as_saved(network))
    assert len(network.parts) > 1


def test_F8_all_that_can_be_known_of_a_network_is_saved() -> None:
    known = {"graph", "parts", "devices", "config", "refusals", "notes", "passes", "versions", "backend_options"}
    known |= {"journal", "tail", "named"}
    known.add("weights")  # without them nothing is saved
    assert {f.name for f in fields(OptimizedNetwork)} == known
    assert {f.name for f in fields(BackendConfig)} == {"memory", "precision", "power", "fusing", "winograd"}
    saved = {"name", "inputs", "outputs", "nodes", "specs", "constants", "layouts", "aliases"}
    # What a model's file declares of its outputs, and what stays float32, matters before there is anything to save.
    # The state of a saved network is among its inputs and outputs.
    others = {"declared", "defaults", "wide", "overflowing", "state", "initial"}
    assert {f.name for f in fields(Graph)} == saved | others


# -- values and arrays ---------------------------------------------------------------------------------------

DTYPES = st.sampled_from([d.numpy for d in DType if d.raw == d.numpy])
"""Those that hypothesis can draw; tests/ops/test_element_types.py saves the others."""
ARRAYS = npst.arrays(DTYPES, npst.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
SPECS = st.builds(
    TensorSpec,
    st.lists(st.integers(0, 9) | st.text(max_size=3), max_size=4).map(tuple),
    st.sampled_from(DType),
)
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()) | st.binary(max_size=8)
)
LEAVES = (
    SCALARS
    | st.sampled_from(DType)
    | st.sampled_from(Layout)
    | SPECS
    | ARRAYS
    | ARRAYS.filter(np.size).map(lambda a: a.reshape(-1)[0])
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3).map(tuple)
        | st.builds(Holder, inner)
        | st.builds(Step, st.builds(Holder, inner), st.lists(st.integers(-1, 5), max_size=3).map(tuple))
    ),
    max_leaves=6,
)


def described(value: object) -> object:
    """Return a value so that `==` compares types, and numbers bit by bit."""
    if isinstance(value, tuple):
        return [described(v) for v in value]
    if isinstance(value, Holder):
        return ("Holder", described(value.value), value.color)
    if isinstance(value, Step):
        return ("Step", described(value.op), described(value.operands))
    if isinstance(value, (np.ndarray, np.generic)):
        return (type(value), value.dtype, value.shape, value.tobytes())
    return (type(value), struct.pack("d", value) if isinstance(value, float) else value)


@given(value=VALUES)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_F8_any_attribute_that_can_be_saved_comes_back_the_same(
    holder: None, value: object, tmp_path: Path
) -> None:
    loaded = again(of_ops(Holder(value, Color.RED)), tmp_path)
    assert described(loaded.graph.nodes[0].op) == described(Holder(value, Color.RED))


@pytest.mark.parametrize(
    "value", [inf, -inf, nan, -0.0, 5e-324, True, 1, 1.0, 2**200, "\ud800", "", (), ((), (1,))]
)
def test_F8_attributes_at_the_edges(value: object, holder: None, tmp_path: Path) -> None:
    loaded = again(of_ops(Holder(value)), tmp_path).graph.nodes[0].op
    assert described(loaded) == described(Holder(value))


@given(array=ARRAYS)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_F8_constants_come_back_to_the_bit(array: Array, tmp_path: Path) -> None:
    spec = TensorSpec(array.shape, DType.of(array.dtype))
    graph = Graph("g", [], ["c"], [], {"c": spec}, {"c": array})
    assert same_bits(again(replace(whole(graph), parts=()), tmp_path).graph.constants["c"], array)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12, dtype=np.float32).reshape(3, 4).T,
        np.arange(12, dtype=np.int64)[::-2],
        np.broadcast_to(np.float16(2), (2, 2)),
    ],
    ids=["transposed", "strided", "broadcast"],
)
def test_F8_constants_that_lie_otherwise_in_memory(array: Array, tmp_path: Path) -> None:
    graph = Graph("g", [], ["c"], [], {"c": TensorSpec(array.shape, DType.of(array.dtype))}, {"c": array})
    loaded = again(replace(whole(graph), parts=()), tmp_path).graph.constants["c"]
    assert same_bits(loaded, np.ascontiguousarray(array))


def test_F8_an_array_is_a_file_that_numpy_reads(tmp_path: Path, cpu_1_2: None) -> None:
    with zipfile.ZipFile(io.BytesIO(content(small(), tmp_path))) as archive:
        assert archive.namelist() == ["network.json", "arrays/0.npy", "bytes/0"]
        array = np.load(io.BytesIO(archive.read("arrays/0.npy")), allow_pickle=False)
    assert same_bits(array, np.arange(2, dtype=np.float32))


def test_F8_equal_constants_are_written_once(tmp_path: Path) -> None:
    values: dict[str, Array] = {f"c{k}": np.ones(100, np.float32) for k in range(5)}
    values |= {"half": np.ones(100, np.float16), "flat": np.ones((10, 10), np.float32)}
    specs = {k: TensorSpec(v.shape, DType.of(v.dtype)) for k, v in values.items()}
    graph = Graph("g", [], list(values), [], specs, values)
    saved = content(replace(whole(graph), parts=()), tmp_path)
    assert len(manifest_of(saved)["arrays"]) == 3


def test_F8_equal_networks_give_equal_files_in_every_process(tmp_path: Path) -> None:
    code = f"""
import hashlib, sys, weft
n = weft.optimize({str(SHAPES)!r}, "cpu", shapes={{"image": (1, 3, 128, 128)}})
n.save(sys.argv[1])
"""
    for k in "12":
        environment = {"PYTHONHASHSEED": k, "PYTHONPATH": str(ROOT)}
        subprocess.run([sys.executable, "-c", code, tmp_path / k], check=True, env=environment)
    first, second = ((tmp_path / k).read_bytes() for k in "12")
    assert first == second
    assert str(ROOT).encode() not in first
    with zipfile.ZipFile(tmp_path / "1") as archive:
        assert {i.date_time for i in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}


def test_F8_the_codec_alone_gives_equal_ops() -> None:
    encoder = Encoder()
    decoder = Decoder(encoder.arrays.__getitem__, encoder.blobs.__getitem__, weft.registry.find)
    for row in all_cases():
        made = row.make_op()
        text = json.dumps(encoder.op(made))
        assert decoder.op(json.loads(text)) == made, row.id
    assert find_op("Fused") is Fused
