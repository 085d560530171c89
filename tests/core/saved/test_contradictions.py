"""Contract row F8: a file is not trusted. Its shapes, types, inputs and parts are inferred again and compared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import weft
from tests.helpers.fakes import Creator, mock, registered
from tests.helpers.nets import Net, chain
from tests.helpers.saved_networks import content, refusal, rewritten
from weft.backends.cpu.backend import CpuBackend, ReferenceExecution
from weft.core.graph.graph import Graph
from weft.core.graph.op import Op
from weft.core.host.host_backend import HostBackend
from weft.core.placement.optimized_network import Copy, OptimizedNetwork, PreCompiled
from weft.core.saved.network_file import load_saved
from weft.errors import BackendError, ModelError, UnsupportedOps, WeftError
from weft.ops.unary import Relu

Change = Callable[[Any], object]


def network(device: str = "opencl") -> OptimizedNetwork:
    """Return a network with a fused convolution, a resize, a reshape and a product, some of it on the CPU."""
    net = Net()
    x = net.input("x", 1, 3, 8, 8)
    y = net.add("Relu", net.conv(x, 8, 3, pads=(1, 1, 1, 1), name="conv"), name="relu")
    y = net.add("Resize", y, "", np.array([1, 1, 2, 2], np.float32), name="large") if device == "cpu" else y
    y = net.add("MaxPool", y, name="pool", kernel_shape=(2, 2), strides=(2, 2))
    y = net.add("Reshape", y, np.array([1, -1]), name="flat")
    y = net.add("MatMul", y, net.random(net.shape(y)[1], 4), name="y")
    return weft.optimize(net.finish(y), [device] if device == "cpu" else [device, "cpu"], hints={"n_pool": "cpu"})


def resize() -> Graph:
    """Return a graph of one resize."""
    net = Net()
    x = net.input("x", 1, 3, 8, 8)
    return net.finish(net.add("Resize", x, "", np.array([1, 1, 2, 2], np.float32), name="y"))


def everywhere(manifest: Any, value: str, **changed: object) -> None:
    """Change what is said of a value, in the whole and in its parts."""
    graphs = [manifest["graph"], *(p["graph"] for p in manifest["parts"])]
    for spec in (g["specs"][value] for g in graphs if value in g["specs"]):
        spec.update(changed)


def node_of(manifest: Any, name: str) -> Any:
    """Return what is said of a node."""
    return next(n for n in manifest["nodes"] if n["name"] == name)


def part_of(manifest: Any, value: str) -> Any:
    """Return the graph of the part that makes a value."""
    return next(p["graph"] for p in manifest["parts"] if value in p["graph"]["outputs"])


@pytest.mark.parametrize("device", ["cpu", "opencl", "vulkan"])
@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda m: everywhere(m, "x", shape=[1, 3, 16, 8]), "has the spec float32[1x8x8x8]"),
        (lambda m: everywhere(m, "x", shape=[1, 4, 8, 8]), "4 input channels do not fit"),
        (lambda m: everywhere(m, "x", shape=["n", 3, 8, 8]), "not of known size"),
        (lambda m: everywhere(m, "pool", shape=[1, 8, 64, 64]), "'pool' has the spec float32[1x8x64x64]"),
        (lambda m: everywhere(m, "pool", dtype="FLOAT16"), "'pool' has the spec float16[1x8x"),
        (lambda m: everywhere(m, "y", shape=[1, 4000]), "'y' has the spec float32[1x4000]"),
        (lambda m: part_of(m, "y")["specs"]["y"].update(shape=[1, 9]), "'y' is float32[1x9] in part"),
        (lambda m: m["graph"]["specs"]["y"].update(shape=[1, 9]), "'y' is float32[1x4] in part"),
        (lambda m: node_of(m, "n_pool")["inputs"].append("x"), "it has 2 inputs and takes at most 1"),
        (lambda m: node_of(m, "n_y")["inputs"].pop(), "takes 2 inputs"),
        (lambda m: node_of(m, "n_pool")["outputs"].append("more"), "no shape and type of 'more'"),
        (lambda m: node_of(m, "n_pool")["op"]["fields"].update(ceil_mode=-3), "'ceil_mode' is -3; it must be 0 or 1"),
        (lambda m: m["graph"]["layouts"].update(pool="NHWC"), "'pool' has one layout in part"),
        (lambda m: m["graph"]["layouts"].update(x="NC4HW4"), "'x' lies as NC4HW4, and parts hand over NCHW"),
        (lambda m: part_of(m, "y")["outputs"].append("x"), "makes no 'x'"),
        (lambda m: m["graph"].update(aliases={"y": "x"}), "which makes 'y', does not write it into 'x'"),
        (lambda m: part_of(m, "y").update(aliases={"y": "x"}), "'y' cannot lie in 'x'"),
        (lambda m: m["parts"][0].update(device="cpu"), "'cpu' is not the name of a device"),
        (lambda m: m["devices"].append("auto"), "'auto' is not the name of a device"),
    ],
)
def test_F8_a_file_is_not_believed(change: Change, why: str, device: str, tmp_path: Path) -> None:
    assert why in refusal(rewritten(content(network(device), tmp_path), change), tmp_path)


@pytest.mark.parametrize("device", ["cpu", "opencl", "vulkan"])
def test_F8_an_input_too_many_is_refused(device: str, tmp_path: Path) -> None:
    saved = content(weft.optimize(resize(), [device, "cpu"] if device != "cpu" else device), tmp_path)
    other = rewritten(saved, lambda m: node_of(m, "n_y")["inputs"].extend(["x", "x"]))
    assert "it has 5 inputs and takes at most 4" in refusal(other, tmp_path)
    fourth = rewritten(saved, lambda m: node_of(m, "n_y")["inputs"].append("x"))
    assert "input 3 (sizes) is not a constant" in refusal(fourth, tmp_path)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda fields: fields.update(arity=7), "its base takes 7 of 3 inputs"),
        (lambda fields: fields.update(arity=-1), "its base takes -1 of 3 inputs"),
        (lambda fields: fields["steps"][0]["operands"].append(-4), "reads the operands (-1, -4)"),
        (lambda fields: fields["steps"][0].update(operands=[0]), "nothing reads what comes before its step"),
        (lambda fields: fields["steps"][0]["operands"].append(9), "reads the operands (-1, 9)"),
        (lambda fields: fields["steps"][0].update(op=fields["base"]), "its step Conv is not element-wise"),
    ],
)
def test_F8_a_fused_node_is_made_as_fusing_makes_it(change: Change, why: str, tmp_path: Path) -> None:
    saved = content(network("vulkan"), tmp_path)
    said = refusal(rewritten(saved, lambda m: change(node_of(m, "n_conv")["op"]["fields"])), tmp_path)
    assert why in said


def as_capitals(manifest: Any) -> None:
    """Name the devices in capitals, which a user may and a file does not."""
    manifest["devices"] = [d.upper() for d in manifest["devices"]]
    for part in manifest["parts"]:
        part["device"] = part["device"].upper()


def on_no_device(manifest: Any) -> None:
    manifest["devices"], manifest["parts"] = [], []


@pytest.mark.parametrize("change", [as_capitals, on_no_device])
def test_F8_devices_are_named_as_optimising_names_them(change: Change, tmp_path: Path) -> None:
    path = tmp_path / "other.weft"
    path.write_bytes(rewritten(content(network("cpu"), tmp_path), change))
    with pytest.raises(ModelError):
        weft.load(path)


@pytest.mark.parametrize(("value", "loads"), [(1, True), (True, False), (1.0, False)])
def test_F8_a_number_is_no_flag(value: object, loads: bool, tmp_path: Path) -> None:
    net = Net()
    whole = weft.optimize(net.finish(net.add("Softmax", net.input("x", 2, 3), name="y", axis=1)), "cpu")
    path = tmp_path / "other.weft"
    path.write_bytes(
        rewritten(content(whole, tmp_path), lambda m: node_of(m, "n_y")["op"]["fields"].update(axis=value))
    )
    if loads:
        weft.load(path).close()
    else:
        with pytest.raises(ModelError, match="axis"):
            weft.load(path)


def test_F8_all_contradictions_are_told_at_once(tmp_path: Path) -> None:
    def change(manifest: Any) -> None:
        everywhere(manifest, "pool", shape=[1, 8, 2, 2])
        everywhere(manifest, "y", shape=[7])
        manifest["graph"]["layouts"]["x"] = "NHWC"

    said = refusal(rewritten(content(network("cpu"), tmp_path), change), tmp_path)
    assert all(words in said for words in ("'pool' has the spec", "'y' has the spec", "'x' lies as NHWC"))


def refused_by_device(saved: bytes, folder: Path) -> str:
    """Return why no session is made of a file that is whole."""
    path = folder / "refused.weft"
    path.write_bytes(saved)
    load_saved(path)
    with pytest.raises(UnsupportedOps) as caught:
        weft.load(path)
    return str(caught.value)


@pytest.mark.parametrize("device", ["opencl", "vulkan"])
def test_F8_a_device_is_asked_whether_it_takes_the_nodes_of_a_file(device: str, tmp_path: Path) -> None:
    net = Net()
    x = net.input("x", 4, 4, dtype=weft.DType.INT64)
    wide = net.finish(net.add("Pow", x, net.input("e", 4, 4), name="y"))
    saved = content(weft.optimize(wide, "cpu"), tmp_path)

    def move(manifest: Any) -> None:
        manifest["devices"], manifest["versions"] = [f"{device}:0"], {device: manifest["versions"]["cpu"]}
        manifest["parts"][0]["device"] = f"{device}:0"

    said = refused_by_device(rewritten(saved, move), tmp_path)
    assert f"'n_y' (Pow): {device}:0: GPU kernels compute powers of integers for exponents that are integers" in said


def test_F8_a_part_reads_no_memory_of_another_device(tmp_path: Path) -> None:
    def change(manifest: Any) -> None:
        copies = (n for n in manifest["nodes"] if n["op"]["type"] == "Copy")
        copy = next(n for n in copies if n["op"]["fields"]["target"] == "vulkan:0")
        (value,), (copied,) = copy["inputs"], copy["outputs"]
        manifest["graph"]["nodes"].remove(manifest["nodes"].index(copy))
        for node in manifest["nodes"]:
            node["inputs"] = [value if i == copied else i for i in node["inputs"]]
        for graph in (manifest["graph"], *(p["graph"] for p in manifest["parts"])):
            graph["inputs"] = [value if i == copied else i for i in graph["inputs"]]
            if copied in graph["specs"]:
                graph["specs"][value] = graph["specs"].pop(copied)

    said = refused_by_device(rewritten(content(network("vulkan"), tmp_path), change), tmp_path)
    assert "of cpu:0 is read by vulkan:0, which needs a copy of it" in said


@pytest.mark.parametrize("device", ["opencl", "vulkan"])
def test_F8_a_device_takes_no_layouts_from_a_file(device: str, tmp_path: Path) -> None:
    def change(manifest: Any) -> None:
        for graph in (manifest["graph"], *(p["graph"] for p in manifest["parts"])):
            if "flat" in graph["specs"]:
                graph["layouts"]["flat"] = "NHWC4"

    said = refused_by_device(rewritten(content(network(device), tmp_path), change), tmp_path)
    assert "'flat' lies as NHWC4 before layouts are chosen" in said


@pytest.mark.alike
@pytest.mark.covering
@pytest.mark.parametrize("device", ["cpu", "opencl", "vulkan"])
@pytest.mark.parametrize("precision", ["high", "low"])
def test_F8_every_shipped_network_passes(device: str, precision: str, tmp_path: Path) -> None:
    from weft.models import path

    made = weft.optimize(path("shapes"), [device, "cpu"], shapes={"image": (1, 3, 128, 128)}, precision=precision)
    content(made, tmp_path)
    with weft.load(tmp_path / "content.weft") as session, weft.load(made) as other:
        feed = np.linspace(0, 1, 3 * 128 * 128, dtype=np.float32).reshape(1, 3, 128, 128)
        for a, b in zip(session.run(feed), other.run(feed), strict=True):
            np.testing.assert_array_equal(a, b)


def test_F8_errors_that_are_not_ours_come_as_model_errors_with_their_cause(tmp_path: Path) -> None:
    saved = content(network("cpu"), tmp_path)
    for change in (
        lambda m: m.update(nodes={}),
        lambda m: m.update(graph=[]),
        lambda m: m["graph"].update(specs=[]),
        lambda m: node_of(m, "n_pool").update(op=7),
        lambda m: m["passes"].append([1]),
        lambda m: m["journal"].append(["a", "b", [["lost", "n", "", "", [], []]]]),
        lambda m: node_of(m, "n_pool")["op"]["fields"].update(kernel_shape=[[]]),
    ):
        path = tmp_path / "refused.weft"
        path.write_bytes(rewritten(saved, change))  # type: ignore[arg-type]
        with pytest.raises(WeftError) as caught:
            load_saved(path)
        assert isinstance(caught.value, ModelError)
        assert caught.value.where == str(path)


# -- what a backend in Python takes -------------------------------------------------------------------------------


class FewRows(HostBackend):
    """Computes everything by reference, and takes 4 rows at most, as its `why_not` says alone."""

    def why_not(self, inputs: Any, outputs: Any, op: Op) -> str | None:
        rows = outputs[0].shape[0]
        return f"it takes at most 4 rows, not {rows}" if rows > 4 else None

    def onCreate(self, inputs: Any, outputs: Any, op: Op) -> Any:
        return ReferenceExecution(op)


class FewRowsOnTheCpu(CpuBackend):
    """The same, by inheritance from the CPU's backend."""

    why_not = FewRows.why_not


def many_rows(tmp_path: Path, kind: type[Any]) -> Path:
    """Return a file with 8 rows for a backend that a direct load would not give them to."""
    taking = type("Taking", (kind,), {"why_not": lambda *_: None})
    with registered(Creator(taking), "few"):
        weft.optimize(chain("Relu", n=8), "few").save(tmp_path / "a.weft")
    return tmp_path / "a.weft"


@pytest.mark.parametrize("kind", [FewRows, FewRowsOnTheCpu])
def test_F8_a_backends_why_not_is_asked_about_the_nodes_of_a_file(kind: type[Any], tmp_path: Path) -> None:
    path = many_rows(tmp_path, kind)
    with registered(Creator(kind), "few"), pytest.raises(UnsupportedOps, match="at most 4 rows, not 8"):
        weft.load(path)


def test_F8_why_not_is_not_asked_about_what_only_optimisers_make() -> None:
    backend: Any = FewRows(weft.BackendInfo("few"))
    rows = [SimpleNamespace(shape=(8, 3))]
    assert backend.why_not_optimized((), rows, Copy("a:0", "b:0")) is None
    assert backend.why_not_optimized((), rows, PreCompiled("few", b"")) is None
    assert "not 8" in backend.why_not_optimized((), rows, Relu())


def test_F8_whether_a_part_can_be_imported_is_held_against_the_table(tmp_path: Path) -> None:
    one, other = mock("Relu", imports=True), mock("Tanh", imports=True)
    with registered(Creator(one), "one"), registered(Creator(other), "two"):
        network = weft.optimize(chain("Relu", "Tanh"), ["one", "two"])
        assert not network.copies
        other.canImport = lambda *_: None  # type: ignore[method-assign, assignment]
        with pytest.raises(BackendError, match="canImport returned None"):
            weft.load(network)
