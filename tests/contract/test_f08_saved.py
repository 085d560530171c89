"""Contract row F8: an optimised network as a file, which fits the backends that it was made for and no others."""

from __future__ import annotations

import io
import json
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from enum import Enum
from math import inf, nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

import weft
from tests.contract.fakes import Creator, registered
from tests.core.nets import Net, op
from weft.conformance.cases.table import all_cases
from weft.core.backend import BackendConfig
from weft.core.codec import Decoder, Encoder
from weft.core.dtypes import DType
from weft.core.fused import RUNNING, Fused, Step
from weft.core.graph import Graph, Node
from weft.core.layout import Array, Layout
from weft.core.op import Constants, Op, find_op, op_types, register_op
from weft.core.optimized import Copy, OptimizedNetwork, Part, PreCompiled
from weft.core.saved import load_saved, save
from weft.core.tensor import TensorSpec
from weft.errors import BackendError, ModelError, UnsupportedOps, WeftError

ROOT = Path(__file__).parents[2]
SHAPES = ROOT / "weft" / "models" / "shapes.onnx"
F32 = TensorSpec((2,), DType.FLOAT32)


class Color(Enum):
    """An enum that only an op below knows."""

    RED = 1


@dataclass(frozen=True)
class Holder(Op):
    """An op whose attribute may be anything."""

    value: object = None
    color: Color | None = None

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        return (F32,)

    def reference(self, *inputs: Array | None) -> Array:
        return np.zeros(2, np.float32)


@pytest.fixture
def holder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register `Holder` for the time of a test."""
    monkeypatch.setattr("weft.core.op._OPS", op_types())
    register_op(Holder)


def of_ops(*ops: Op) -> OptimizedNetwork:
    """Return a network with a node for each op, all of one part."""
    nodes = [Node(f"n{k}", each, ("x",), (f"y{k}",)) for k, each in enumerate(ops)]
    values = ["x", *(f"y{k}" for k in range(len(ops)))]
    return whole(Graph("g", ["x"], values[1:], nodes, dict.fromkeys(values, F32)))


def whole(graph: Graph, device: str = "cpu:0") -> OptimizedNetwork:
    """Return a graph as a network of one part."""
    part = replace(graph, name=f"{graph.name}.0")
    return OptimizedNetwork(
        graph, (Part(device, part),), (device,), BackendConfig(), versions={device[:-2]: ""}
    )


def content(network: OptimizedNetwork, folder: Path) -> bytes:
    """Return the bytes of a saved network."""
    network.save(folder / "content.weft")
    return (folder / "content.weft").read_bytes()


def again(network: OptimizedNetwork, folder: Path) -> OptimizedNetwork:
    """Return the network saved and loaded, having checked that saving that gives the same file."""
    first = content(network, folder)
    loaded = OptimizedNetwork.load(folder / "content.weft")
    assert content(loaded, folder) == first
    return loaded


def manifest_of(saved: bytes) -> Any:
    """Return what network.json says."""
    with zipfile.ZipFile(io.BytesIO(saved)) as archive:
        return json.loads(archive.read("network.json"))


def changed(saved: bytes, change: Callable[[dict[str, bytes]], None]) -> bytes:
    """Return a saved network with other members."""
    with zipfile.ZipFile(io.BytesIO(saved)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return out.getvalue()


def rewritten(saved: bytes, change: Callable[[Any], object]) -> bytes:
    """Return a saved network with another network.json."""

    def rewrite(members: dict[str, bytes]) -> None:
        manifest = json.loads(members["network.json"])
        change(manifest)
        members["network.json"] = json.dumps(manifest).encode()

    return changed(saved, rewrite)


def refusal(saved: bytes, folder: Path, kind: type[WeftError] = ModelError) -> str:
    """Return the message with which a file is refused; it names the file."""
    path = folder / "refused.weft"
    path.write_bytes(saved)
    with pytest.raises(kind) as caught:
        load_saved(path)
    assert type(caught.value) is kind
    assert caught.value.where == str(path)
    return str(caught.value)


def same_bits(a: Array, b: Array) -> bool:
    """Tell whether two arrays are the same to the bit."""
    return (a.shape, a.dtype, a.tobytes()) == (b.shape, b.dtype, b.tobytes())


def small() -> OptimizedNetwork:
    """Return a network with two parts, a copy, a constant, a fused op and bytes of a backend."""
    values = ["x", "a", "a@b", "w", "y"]
    fused = Fused(op("Add"), 2, (Step(op("Relu"), (RUNNING,)),))
    first = Graph("g.0", ["x"], ["a"], [Node("n0", fused, ("x", "w"), ("a",))])
    last = Graph(
        "g.1", ["a@b"], ["y"], [Node("n1", PreCompiled("cpu", b"code", (F32,)), ("a@b", "w"), ("y",))]
    )
    copy = Node("copy a", Copy("cpu:0", "cpu:1"), ("a",), ("a@b",))
    weights = {"w": np.arange(2, dtype=np.float32)}
    for part in (first, last):
        part.constants = dict(weights)
        part.specs = {v: F32 for n in part.nodes for v in (*n.inputs, *n.outputs)}
    graph = Graph(
        "g", ["x"], ["y", "w", "x"], [*first.nodes, copy, *last.nodes], dict.fromkeys(values, F32), weights
    )
    graph.layouts = {"a": Layout.NHWC}
    parts = (Part("cpu:0", first), Part("cpu:1", last))
    return OptimizedNetwork(graph, parts, ("cpu:0", "cpu:1"), BackendConfig(), versions={"cpu": "1.2"})


@pytest.fixture
def cpu_1_2(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the CPU backend be of version 1.2."""
    monkeypatch.setattr(weft.registry.find("cpu"), "version", "1.2")


# -- networks come back as they were -------------------------------------------------------------------------


def test_F8_everything_that_a_network_is_comes_back(tmp_path: Path, cpu_1_2: None) -> None:
    network = small()
    loaded = again(network, tmp_path)
    assert str(loaded) == str(network)
    assert loaded.graph.nodes[:2] == network.graph.nodes[:2]
    assert (loaded.graph.inputs, loaded.graph.outputs) == (["x"], ["y", "w", "x"])
    assert loaded.graph.specs == network.graph.specs
    assert loaded.graph.layouts == {"a": Layout.NHWC}
    assert loaded.placement == {"n0": "cpu:0", "n1": "cpu:1"}
    assert [n.name for n in loaded.copies] == ["copy a"]
    compiled = loaded.graph.nodes[2].op
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


@pytest.mark.parametrize(
    ("device", "options"),
    [
        ("cpu", {}),
        ("opencl", {}),
        ("vulkan", {"precision": "low", "memory": "limit"}),
        (["opencl", "cpu"], {"hints": {"block*/relu": "cpu", "side/*": "cpu"}}),
    ],
    ids=["cpu", "opencl", "vulkan-low", "mixed"],
)
def test_F8_an_optimised_model_gives_the_same_results_after_it_was_loaded(
    tmp_path: Path, device: str | list[str], options: dict[str, Any]
) -> None:
    network = weft.optimize(SHAPES, device, shapes={"image": (1, 3, 128, 128)}, **options)
    loaded = again(network, tmp_path)
    assert str(loaded) == str(network)
    assert loaded.config == network.config
    assert (loaded.notes, loaded.passes, loaded.refusals) == (network.notes, network.passes, network.refusals)
    image = np.random.default_rng(8).random((1, 3, 128, 128), np.float32)
    with weft.Runtime() as runtime:
        first, second = (runtime.run(runtime.load(n), image) for n in (network, loaded))
    assert all(map(same_bits, first, second))


def every_row() -> Graph:
    """Return one graph with a node for each row of the op table."""
    graph = Graph("rows", [], [])
    for k, row in enumerate(all_cases()):
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
    graph = every_row()
    loaded = again(whole(graph), tmp_path).graph
    assert loaded.nodes == graph.nodes
    assert [str(n) for n in loaded.nodes] == [str(n) for n in graph.nodes]
    assert loaded.constants.keys() == graph.constants.keys()
    assert all(same_bits(graph.constants[k], v) for k, v in loaded.constants.items())


def test_F8_the_optimised_rows_of_the_table_come_back(tmp_path: Path) -> None:
    network = weft.optimize(every_row(), ["opencl", "cpu"])
    loaded = again(network, tmp_path)
    assert str(loaded) == str(network)
    assert len(network.parts) > 1


def test_F8_all_that_can_be_known_of_a_network_is_saved() -> None:
    known = {"graph", "parts", "devices", "config", "refusals", "notes", "passes", "versions"}
    known.add("weights")  # without them nothing is saved
    assert {f.name for f in fields(OptimizedNetwork)} == known
    assert {f.name for f in fields(BackendConfig)} == {"memory", "precision", "power"}
    assert {f.name for f in fields(Graph)} == {
        *("name", "inputs", "outputs", "nodes", "specs", "constants", "layouts")
    }


# -- values and arrays ---------------------------------------------------------------------------------------

DTYPES = st.sampled_from([d.numpy for d in DType])
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


# -- what cannot be saved ------------------------------------------------------------------------------------


def unsavable(network: OptimizedNetwork, folder: Path) -> str:
    """Return the message with which saving is refused; what was there stays."""
    path = folder / "kept.weft"
    path.write_bytes(b"before")
    with pytest.raises(ModelError) as caught:
        network.save(path)
    assert path.read_bytes() == b"before"
    assert [p.name for p in folder.iterdir()] == ["kept.weft"]
    return str(caught.value)


class Other(Enum):
    """An enum that no op names."""

    ONE = 1


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ([1], "a builtins.list"),
        ({"a": 1}, "a builtins.dict"),
        (len, "a builtins.builtin_function_or_method"),
        (Other.ONE, "not of an enum that the attribute's type names"),
        (np.zeros(1, "complex64"), "complex64"),
        (np.str_("a"), "<U1"),
        ((1, (object(),)), "a builtins.object"),
        (1 << 1024, "a builtins.int"),
    ],
    ids=["list", "dict", "function", "enum", "complex", "numpy-text", "nested", "huge"],
)
def test_F8_attributes_that_no_file_can_hold(value: object, why: str, holder: None, tmp_path: Path) -> None:
    said = unsavable(of_ops(Holder(value)), tmp_path)
    assert "node 'n0' (Holder): attribute 'value'" in said
    assert why in said


def test_F8_all_nodes_that_cannot_be_saved_are_named(holder: None, tmp_path: Path) -> None:
    said = unsavable(of_ops(Holder([1]), Holder(1), Holder({})), tmp_path)
    assert "'n0'" in said
    assert "'n1'" not in said
    assert "'n2'" in said


def test_F8_an_op_that_is_not_registered_cannot_be_saved(tmp_path: Path) -> None:
    assert "test_f08_saved.Holder is not the op registered as" in unsavable(of_ops(Holder(1)), tmp_path)


def test_F8_an_attribute_of_another_type_than_the_op_says_cannot_be_saved(tmp_path: Path) -> None:
    said = unsavable(of_ops(op("LeakyRelu", alpha="steep"), op("Softmax", axis=1.5)), tmp_path)
    assert "node 'n0' (LeakyRelu): attribute 'alpha': 'steep' is not a float" in said
    assert "node 'n1' (Softmax): attribute 'axis': 1.5 is not a int" in said


def test_F8_debug_nodes_cannot_be_saved(tmp_path: Path) -> None:
    network = weft.optimize(SHAPES, "cpu", shapes={"image": (1, 3, 128, 128)}, debug=print)
    said = unsavable(network, tmp_path)
    assert "attribute 'sink'" in said
    assert "must be optimised without them" in said


def test_F8_a_network_without_its_constants_cannot_be_saved(tmp_path: Path) -> None:
    net = Net()
    graph = net.finish(net.add("Add", net.input("x", 2), np.ones(2, np.float32)))
    said = unsavable(weft.optimize(graph, "cpu").without_constants(), tmp_path)
    assert "nothing makes" in said
    assert "save what weft.optimize returns" in said


@pytest.mark.parametrize("path", ["", "a\0b", ".", "/"])
def test_F8_a_path_that_names_no_file(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for act in (lambda: save(of_ops(), path), lambda: load_saved(path)):
        with pytest.raises(ModelError, match="is not the path of a file"):
            act()


def test_F8_a_folder_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "no" / "a.weft", tmp_path / "file" / "a.weft"):
        with pytest.raises(ModelError, match="cannot be saved"):
            of_ops().save(path)
    (tmp_path / "folder").mkdir()
    with pytest.raises(ModelError, match="cannot be saved"):
        of_ops().save(tmp_path / "folder")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder"]


# -- what a backend compiled itself --------------------------------------------------------------------------


@dataclass(frozen=True)
class Program:
    """An object of a backend."""

    text: str

    def to_bytes(self) -> bytes:
        if not self.text:
            raise OSError("no program")
        return self.text.encode()


class Loading(Creator):
    """A creator that makes programs of bytes."""

    def load_payload(self, content: bytes) -> object:
        return Program(content.decode("ascii"))


def compiled(payload: object) -> OptimizedNetwork:
    return whole(of_ops(PreCompiled("acme", payload, (F32,))).graph, "acme:0")


def test_F8_a_payload_of_bytes_stays_bytes(tmp_path: Path) -> None:
    with registered(Loading()):
        loaded = again(compiled(b"\0\xff"), tmp_path)
    assert vars(loaded.graph.nodes[0].op)["payload"] == b"\0\xff"


def test_F8_a_backend_saves_and_loads_its_own_objects(tmp_path: Path) -> None:
    with registered(Loading()):
        loaded = again(compiled(Program("add")), tmp_path)
    assert vars(loaded.graph.nodes[0].op)["payload"] == Program("add")
    assert loaded.parts[0].graph.nodes[0].op is loaded.graph.nodes[0].op


def test_F8_without_load_payload_the_op_holds_the_bytes(tmp_path: Path) -> None:
    compiled(Program("add")).save(tmp_path / "a.weft")
    with registered(Creator()):
        loaded = load_saved(tmp_path / "a.weft")
    assert vars(loaded.graph.nodes[0].op)["payload"] == b"add"


@dataclass(frozen=True)
class Wrong:
    """An object whose bytes are text."""

    def to_bytes(self) -> str:
        return "text"


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (object(), "a object, is not bytes and has no method to_bytes"),
        (Program(""), "failed in to_bytes: OSError: no program"),
        (Wrong(), "a Wrong, returned a str from to_bytes"),
    ],
)
def test_F8_a_payload_that_cannot_be_saved_names_its_backend(
    payload: object, why: str, tmp_path: Path
) -> None:
    said = unsavable(compiled(payload), tmp_path)
    assert "node 'n0' (PreCompiled): the payload of backend 'acme'" in said
    assert why in said


def test_F8_a_backend_that_fails_to_load_its_object_is_named(tmp_path: Path) -> None:
    saved = content(compiled(Program("\xe9")), tmp_path)
    with registered(Loading()):
        said = refusal(saved, tmp_path, UnsupportedOps)
    assert "'n0' (PreCompiled): backend 'acme' failed in load_payload: UnicodeDecodeError" in said


# -- what is not loaded --------------------------------------------------------------------------------------


def test_F8_another_version_of_a_backend_is_refused_naming_both(tmp_path: Path) -> None:
    creator = Creator()
    creator.version = "2.0"
    network = replace(compiled(b""), versions={"acme": "1.9"})
    with registered(creator):
        said = refusal(content(network, tmp_path), tmp_path, BackendError)
    assert "backend 'acme' is of version 2.0 here and was of 1.9 there" in said
    assert "optimise the model again" in said


def test_F8_a_backend_without_a_version_changes_with_weft(tmp_path: Path) -> None:
    saved = content(of_ops(op("Relu")), tmp_path)
    saved = rewritten(saved, lambda m: m.update(weft="0.0.1"))
    said = refusal(saved, tmp_path, BackendError)
    assert f"backend 'cpu' is of version Weft {weft.__version__} here and was of Weft 0.0.1 there" in said


def test_F8_backends_that_are_not_registered_are_named_all_at_once(tmp_path: Path) -> None:
    network = replace(compiled(b""), versions={"acme": "1", "emca": "2"})
    said = refusal(content(network, tmp_path), tmp_path, BackendError)
    assert "backend 'acme' is not registered" in said
    assert "backend 'emca' is not registered" in said


def test_F8_backends_of_another_registry(tmp_path: Path) -> None:
    from weft.core.registry import BackendRegistry

    content(compiled(b"add"), tmp_path)
    own = BackendRegistry()
    own.insert("acme", Creator())
    assert OptimizedNetwork.load(tmp_path / "content.weft", backends=own).devices == ("acme:0",)


def test_F8_ops_that_are_not_registered_are_named_all_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("weft.core.op._OPS", op_types())
        register_op(Holder)
        saved = content(of_ops(Holder(1), op("Relu"), Holder(2)), tmp_path)
    said = refusal(saved, tmp_path, UnsupportedOps)
    assert "2 node(s)" in said
    assert "'n0': op type 'Holder' is not registered" in said
    assert "'n2': op type 'Holder' is not registered" in said


def test_F8_attributes_that_the_op_does_not_have(tmp_path: Path) -> None:
    saved = content(of_ops(op("Relu"), op("LeakyRelu", alpha=0.5)), tmp_path)
    saved = rewritten(saved, lambda m: m["nodes"][1]["op"]["fields"].update(beta=1))
    said = refusal(saved, tmp_path, UnsupportedOps)
    assert "'n1' (LeakyRelu): its attributes do not fit" in said
    assert "'beta'" in said


@pytest.mark.parametrize("found", [2, 0, "1", None, True])
def test_F8_another_format_is_refused_naming_both(found: object, tmp_path: Path) -> None:
    saved = rewritten(content(of_ops(), tmp_path), lambda m: m.update(format=found, weft="9.9"))
    said = refusal(saved, tmp_path)
    assert f"the file has format {found!r}, saved by Weft 9.9" in said
    assert "reads format 1" in said


def test_F8_files_that_are_none(tmp_path: Path) -> None:
    for saved in (b"", b"no zip", b"PK\3\4" + bytes(100), SHAPES.read_bytes()):
        assert "is not a saved network" in refusal(saved, tmp_path)
    with pytest.raises(ModelError, match="cannot be read"):
        load_saved(tmp_path / "missing.weft")
    with pytest.raises(ModelError, match="cannot be read"):
        load_saved(tmp_path / "refused.weft" / "a")
    with pytest.raises(ModelError, match=r"cannot be read|not a regular file"):
        load_saved(tmp_path)


@pytest.mark.parametrize("name", ["network.json", "arrays/0.npy", "bytes/0"])
def test_F8_a_missing_member_is_named(name: str, tmp_path: Path, cpu_1_2: None) -> None:
    saved = changed(content(small(), tmp_path), lambda members: members.__delitem__(name))
    assert f"member {name!r} is missing" in refusal(saved, tmp_path)


@pytest.mark.parametrize(
    "name",
    ["../evil", "/etc/passwd", "arrays/../../x.npy", "arrays\\0.npy", "arrays/0.npy/x", "x.pkl", "arrays/0"],
)
def test_F8_an_unsafe_member_name_is_refused(name: str, tmp_path: Path, cpu_1_2: None) -> None:
    saved = changed(content(small(), tmp_path), lambda members: members.update({name: b""}))
    assert f"{name!r} is not the name of a member" in refusal(saved, tmp_path)


def test_F8_members_that_belong_to_nothing_or_are_there_twice(tmp_path: Path, cpu_1_2: None) -> None:
    saved = content(small(), tmp_path)
    extra = changed(saved, lambda members: members.update({"arrays/7.npy": b""}))
    assert "member 'arrays/7.npy' belongs to no network" in refusal(extra, tmp_path)
    out = io.BytesIO(saved)
    with zipfile.ZipFile(out, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("network.json", b"{}")
    assert "two members have the same name" in refusal(out.getvalue(), tmp_path)


def test_F8_compressed_members_are_refused(tmp_path: Path) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("network.json", b"{" + b" " * 10**6)
    assert "compressed" in refusal(out.getvalue(), tmp_path)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "JSONDecodeError"),
        (b"{", "JSONDecodeError"),
        (b"[]", "is not a dict"),
        (b"{}", "KeyError: 'format'"),
        (b'{"format": NaN}', "NaN is not a number of JSON"),
        (b"\xff\xfe\xff", "UnicodeDecodeError"),
        (b"[" * 100_000, "RecursionError"),
        (b"1" * 10_000, "ValueError"),
    ],
)
def test_F8_damaged_json_is_refused(text: bytes, why: str, tmp_path: Path) -> None:
    saved = changed(content(of_ops(), tmp_path), lambda members: members.update({"network.json": text}))
    said = refusal(saved, tmp_path)
    assert "network.json is not what Weft writes" in said
    assert why in said


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda a: a[:-1], "it has 7 bytes for float32[2]"),
        (lambda a: a + b"\0", "it has 9 bytes for float32[2]"),
        (lambda a: b"", "its header does not say float32[2]"),
        (lambda a: a.replace(b"(2,)", b"(4,)"), "its header does not say float32[2]"),
        (lambda a: a.replace(b"<f4", b"|O8"), "its header does not say float32[2]"),
    ],
    ids=["cut", "longer", "empty", "shape", "objects"],
)
def test_F8_damaged_arrays_are_refused(
    damage: Callable[[bytes], bytes], why: str, tmp_path: Path, cpu_1_2: None
) -> None:
    def change(members: dict[str, bytes]) -> None:
        members["arrays/0.npy"] = damage(members["arrays/0.npy"])

    assert f"arrays/0.npy: {why}" in refusal(changed(content(small(), tmp_path), change), tmp_path)


def test_F8_a_bool_that_is_neither_true_nor_false_is_refused(tmp_path: Path) -> None:
    graph = Graph("g", [], ["c"], [], {"c": TensorSpec((1,), DType.BOOL)}, {"c": np.ones(1, np.bool_)})
    saved = content(replace(whole(graph), parts=()), tmp_path)

    def change(members: dict[str, bytes]) -> None:
        members["arrays/0.npy"] = members["arrays/0.npy"][:-1] + b"\2"

    assert "neither 0 nor 1" in refusal(changed(saved, change), tmp_path)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (
            lambda m: m["graph"]["specs"]["w"].update(shape=[3]),
            "constant 'w' is float32[2] and its spec says",
        ),
        (lambda m: m["graph"]["specs"].pop("a"), "there is no shape and type of 'a'"),
        (lambda m: m["graph"]["specs"]["a"].update(shape=[-1]), "is not a shape"),
        (lambda m: m["graph"]["specs"]["a"].update(dtype="OBJECT"), "KeyError: 'OBJECT'"),
        (lambda m: m["graph"]["constants"].update(w=1), "there is no number 1 of 1"),
        (lambda m: m["graph"]["constants"].update(w=-1), "there is no number -1 of 1"),
        (lambda m: m["graph"]["nodes"].reverse(), "which is made only later"),
        (lambda m: m["graph"]["nodes"].pop(), "nothing makes the output 'y'"),
        (lambda m: m["parts"].pop(), "the nodes of the parts are not those of the network"),
        (lambda m: m["parts"].reverse(), "part 'g.1' reads 'a@b', which is not made by then"),
        (lambda m: m["config"].update(precision="TWICE"), "KeyError: 'TWICE'"),
        (lambda m: m["notes"].append(1), "is not a str"),
        (lambda m: m["bytes"].__setitem__(0, 9), "bytes/0 has 4 bytes"),
        (lambda m: m["nodes"][0]["op"].update(kind="step"), "an op is of kind 'step'"),
        (lambda m: m["nodes"][0]["op"]["fields"].update(steps="no"), "its attribute 'steps' is 'no'"),
        (lambda m: m["nodes"][0]["op"]["fields"].update(arity=None), "its attribute 'arity' is None"),
        (lambda m: m["nodes"][0].update(name=3), "is not a str"),
    ],
)
def test_F8_a_file_that_contradicts_itself_is_refused(
    change: Callable[[Any], object], why: str, tmp_path: Path, cpu_1_2: None
) -> None:
    saved = rewritten(content(small(), tmp_path), change)
    path = tmp_path / "refused.weft"
    path.write_bytes(saved)
    with pytest.raises(ModelError) as caught:
        load_saved(path)
    assert why in str(caught.value)


# -- any damage at all ---------------------------------------------------------------------------------------


def survives(saved: bytes, damaged: bytes, folder: Path) -> None:
    """Check that a damaged file is refused, or is still the same network."""
    path = folder / "damaged.weft"
    path.write_bytes(damaged)
    try:
        loaded = load_saved(path)
    except WeftError as e:
        assert e.where == str(path)
    else:
        assert content(loaded, folder) == saved


@given(data=st.data())
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_F8_flipped_bytes_are_noticed_or_change_nothing(
    data: st.DataObject, tmp_path: Path, cpu_1_2: None
) -> None:
    saved = content(small(), tmp_path)
    damaged = bytearray(saved)
    # Half of the places are in the directory at the end, which says where everything is.
    directory = saved.index(b"PK\1\2")
    places = st.integers(0, len(saved) - 1) | st.integers(directory, len(saved) - 1)
    for place in data.draw(st.lists(places, min_size=1, max_size=4)):
        damaged[place] = data.draw(st.integers(0, 255))
    survives(saved, bytes(damaged), tmp_path)


@given(data=st.data())
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_F8_files_that_are_cut_are_refused(data: st.DataObject, tmp_path: Path, cpu_1_2: None) -> None:
    saved = content(small(), tmp_path)
    start, end = (data.draw(st.integers(0, len(saved) - 1)) for _ in range(2))
    refusal(saved[:end], tmp_path)
    survives(saved, saved[:start] + saved[start + end :], tmp_path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Give every (container, key) in a JSON value."""
    for key in value if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], (dict, list)):
            yield from places(value[key])


@given(data=st.data())
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_F8_json_of_any_other_content_is_a_network_or_refused(
    data: st.DataObject, tmp_path: Path, cpu_1_2: None
) -> None:
    def change(manifest: Any) -> None:
        every = list(places(manifest))
        container, key = every[data.draw(st.integers(0, len(every) - 1))]
        other, from_ = every[data.draw(st.integers(0, len(every) - 1))]
        container[key] = data.draw(JSON | st.just(json.loads(json.dumps(other[from_]))))

    path = tmp_path / "changed.weft"
    path.write_bytes(rewritten(content(small(), tmp_path), change))
    try:
        str(load_saved(path))
    except WeftError as e:
        assert e.where == str(path)


def test_F8_the_codec_alone_gives_equal_ops() -> None:
    encoder = Encoder()
    decoder = Decoder(encoder.arrays.__getitem__, encoder.blobs.__getitem__, weft.registry.find)
    for row in all_cases():
        made = row.make_op()
        text = json.dumps(encoder.op(made))
        assert decoder.op(json.loads(text)) == made, row.id
    assert find_op("Fused") is Fused
