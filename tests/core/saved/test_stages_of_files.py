"""Contract row F8: later stages of a file are not trusted: what they are, read and make, their hints and limits."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from scripts.fuzz.staged_cases import fixed_loop, pairs, sequences
from tests.helpers.saved_networks import content, manifest_of, members_of, packed, refusal, rewritten
from tests.helpers.staged_models import boxes, condition
from weft.core.graph.limits import Limits
from weft.core.placement.stage_split import Corner
from weft.core.saved.codec import MOST_NESTED
from weft.core.saved.network_file import load_saved
from weft.errors import ExecutionError, ModelError

Change = Callable[[Any], object]


def saved(device: str, folder: Path) -> bytes:
    return content(weft.optimize(condition().SerializeToString(), list(dict.fromkeys([device, "cpu"]))), folder)


def other_input(manifest: Any) -> None:
    """Let each later stage that reads x read a value that nobody has."""
    for stage in manifest["tail"]["stages"]:
        for number in stage["graph"]["nodes"]:
            manifest["nodes"][number] = renamed(manifest["nodes"][number])
        stage["graph"], stage["parts"] = renamed(stage["graph"]), renamed(stage["parts"])


def renamed(value: Any) -> Any:
    return json.loads(json.dumps(value).replace('"x"', '"foo"'))


def other_shape(manifest: Any) -> None:
    """Let each later stage read another shape of x."""
    for stage in manifest["tail"]["stages"]:
        for graph in (stage["graph"], *(p["graph"] for p in stage["parts"])):
            for name, spec in graph["specs"].items():
                if spec["shape"] == [3] and name in graph["inputs"]:
                    spec["shape"] = [4]


@pytest.mark.parametrize(
    ("change", "why"), [(other_input, "does not fit its place"), (other_shape, "contradicts|does not fit")]
)
@pytest.mark.parametrize("device", ["cpu", "opencl"])
def test_a_stage_that_reads_what_no_run_has_is_refused(
    device: str, change: Change, why: str, tmp_path: Path
) -> None:
    path = tmp_path / "changed.weft"
    path.write_bytes(rewritten(saved(device, tmp_path), change))
    with pytest.raises(ModelError, match=why), weft.load(path) as session:
        session.run({"x": np.array([1, 2, 3], np.float32)})


def test_a_hint_for_a_device_that_the_network_lacks_is_refused(tmp_path: Path) -> None:
    def hint(manifest: Any) -> None:
        manifest["tail"]["hints"] = {"*": "nonsense:9"}

    assert "'nonsense:9'" in refusal(rewritten(saved("cpu", tmp_path), hint), tmp_path)


def test_a_file_cannot_raise_the_limits_that_protect_from_it(tmp_path: Path) -> None:
    def raised(manifest: Any) -> None:
        manifest["tail"]["limits"] |= {"nodes": 10**15, "folding_seconds": 1e18, "folding_bytes": 5}

    path = tmp_path / "raised.weft"
    path.write_bytes(rewritten(saved("cpu", tmp_path), raised))
    network = load_saved(path)
    assert network.tail is not None
    limits = network.tail.options.limits
    assert (limits.nodes, limits.folding_seconds) == (Limits().nodes, Limits().folding_seconds)
    assert limits.folding_bytes == 5


def swapped_plans(manifest: Any) -> None:
    first, second, *_ = manifest["tail"]["stages"]
    for key in ("graph", "parts"):
        first[key], second[key] = second[key], first[key]


def other_key(manifest: Any) -> None:
    first, second, *_ = manifest["tail"]["stages"]
    first["key"] = second["key"]


def other_op(manifest: Any) -> None:
    """Let a node of a plan compute something else of the same shape."""
    relu = next(n for n in manifest["nodes"] if n["op"]["type"] == "Neg")
    relu["op"]["type"] = "Abs"


@pytest.mark.parametrize("change", [swapped_plans, other_key, other_op])
def test_a_plan_in_another_s_place_is_noticed(change: Change, tmp_path: Path) -> None:
    members = members_of(saved("cpu", tmp_path))
    manifest = json.loads(members["network.json"])
    change(manifest)
    members["network.json"] = json.dumps(manifest).encode()
    said = refusal(packed(members), tmp_path)
    assert "later stage(s) of the saved network are not as they were saved" in said
    assert "stage 0" in said


def test_a_constant_in_another_s_place_is_noticed(tmp_path: Path) -> None:
    members = members_of(content(weft.optimize(boxes(), "cpu"), tmp_path))
    arrays = manifest_of(packed(members))["arrays"]
    one, other = (k for k, each in enumerate(arrays) if (each["dtype"], each["shape"]) == ("INT64", [1]))
    names = f"arrays/{one}.npy", f"arrays/{other}.npy"
    members |= {names[0]: members[names[1]], names[1]: members[names[0]]}
    said = refusal(packed(members), tmp_path)
    assert f"member '{names[0]}' is not the one that was saved; member '{names[1]}' is not" in said


def test_outputs_of_one_spec_in_another_order_are_refused(tmp_path: Path) -> None:
    def swap(manifest: Any) -> None:
        for stage in manifest["tail"]["stages"]:
            for graph in (stage["graph"], *(p["graph"] for p in stage["parts"])):
                graph["outputs"].reverse()

    network = weft.optimize(pairs(), "cpu")
    assert network.tail is not None
    specs = [str(s.network.graph.specs[o]) for s in network.tail.stages for o in s.network.graph.outputs]
    assert len(specs) > len(set(specs))
    path = tmp_path / "swapped.weft"
    path.write_bytes(rewritten(content(network, tmp_path), swap))
    with pytest.raises(ModelError, match="does not fit its place"), weft.load(path) as session:
        session.run(np.ones((3, 4), np.float32), np.ones(4, np.bool_))


def corner(manifest: Any) -> list[Any]:
    (name,) = manifest["tail"]["corners"]
    held: list[Any] = manifest["tail"]["corners"][name]
    return held


def repeated_corner(manifest: Any) -> None:
    manifest["tail"]["corners"]["another"] = corner(manifest)[:]


def input_made_twice(manifest: Any) -> None:
    manifest["tail"]["inputs"].append(["rows", {"kind": "spec", "dtype": "FLOAT32", "shape": [3]}])


def open_input(manifest: Any) -> None:
    manifest["tail"]["inputs"].append(["more", {"kind": "spec", "dtype": "FLOAT32", "shape": ["n"]}])


def spec_before_a_run(manifest: Any) -> None:
    manifest["tail"]["rest"]["specs"]["rows"] = {"kind": "spec", "dtype": "INT64", "shape": [2, 3]}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (repeated_corner, "'another' and 'rows' have their sizes in one place"),
        (input_made_twice, "value 'rows' is made 2 times"),
        (open_input, "'more' is float32[n], not of known size"),
        (spec_before_a_run, "'rows' waits for a run and has a spec before it"),
        (lambda m: corner(m).__setitem__(1, corner(m)[0]), "'rows' is no part of 'rows.room0', which is int64[4x3]"),
        (lambda m: m["tail"]["inputs"].append(m["tail"]["inputs"][0]), "of 3 inputs, some have one name"),
    ],
)
def test_what_joins_the_stages_is_not_believed(change: Change, why: str, tmp_path: Path) -> None:
    file = content(weft.optimize(boxes(), "cpu"), tmp_path)
    assert why in refusal(rewritten(file, change), tmp_path)


@pytest.mark.parametrize("sizes", [[-1, 3], [5, 3], [2, 2**62]])
def test_a_count_beyond_the_room_is_refused(sizes: list[int]) -> None:
    values = {"room": np.zeros((4, 3), np.int64), "sizes": np.array([7, *sizes])}
    with pytest.raises(ExecutionError, match="more elements than there is room for") as caught:
        Corner("room", "sizes", 1, 2).of(values)
    assert str(sizes) in caught.value.why


def loop_of(manifest: Any) -> Any:
    return next(node for node in manifest["tail"]["rest"]["nodes"] if node[1]["type"] == "Loop")


def scan_of(manifest: Any) -> Any:
    return next(node for node in manifest["tail"]["rest"]["nodes"] if node[1]["type"] == "Scan")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda m: loop_of(m)[2].pop(), "node 'last' (Loop): its graph has 5 input(s) and gets 4"),
        (lambda m: loop_of(m)[3].append("third"), "node 'last' (Loop): its graph makes 3 output(s), and 4 are needed"),
        (lambda m: loop_of(m)[1]["fields"].update(captures=-1), "node 'last' (Loop): it captures -1 of 5 input(s)"),
        (lambda m: loop_of(m)[1]["fields"].update(body=None), "node 'last' (Loop): a graph is missing"),
        (lambda m: scan_of(m)[1]["fields"].update(num_scan_inputs=3), "it scans 3 of 2 input(s)"),
        (lambda m: scan_of(m)[3].append("third"), "node 'end' (Scan): its graph makes 2 output(s), and 3 are needed"),
    ],
)
def test_a_graph_that_does_not_fit_its_op_is_refused(change: Change, why: str, tmp_path: Path) -> None:
    file = content(weft.optimize(fixed_loop(), "cpu"), tmp_path)
    assert why in refusal(rewritten(file, change), tmp_path)


def test_an_op_on_a_sequence_without_one_is_refused(tmp_path: Path) -> None:
    def change(manifest: Any) -> None:
        next(n for n in manifest["tail"]["rest"]["nodes"] if n[1]["type"] == "SequenceInsert")[2].pop()

    def more(manifest: Any) -> None:
        next(n for n in manifest["tail"]["rest"]["nodes"] if n[1]["type"] == "SequenceInsert")[3].append("second")

    file = content(weft.optimize(sequences(), "cpu"), tmp_path)
    assert "node 'more' (SequenceInsert): it has 1 of 2 input(s)" in refusal(rewritten(file, change), tmp_path)
    assert "node 'more' (SequenceInsert): it makes 1 output and names 2" in refusal(rewritten(file, more), tmp_path)


def test_an_identity_of_a_sequence_names_one_output(tmp_path: Path) -> None:
    def change(manifest: Any) -> None:
        rest = manifest["tail"]["rest"]
        rest["nodes"].append(["same", {"kind": "op", "type": "Identity", "fields": {}}, ["more"], ["", "copied"]])
        for names in (rest["outputs"], manifest["tail"]["outputs"]):
            names[names.index("more")] = "copied"

    path = tmp_path / "changed.weft"
    path.write_bytes(rewritten(content(weft.optimize(sequences(), "cpu"), tmp_path), change))
    pieces = [np.ones((2, 3), np.float32)]
    why = "it names 2 and makes 1"
    with weft.load(path) as session, pytest.raises(ModelError, match=why):
        session.run({"x": np.ones((4, 3), np.float32), "pieces": pieces})  # type: ignore[dict-item]


def test_a_branch_that_does_not_fit_its_op_is_refused(tmp_path: Path) -> None:
    def change(manifest: Any) -> None:
        (node,) = (n for n in manifest["tail"]["rest"]["nodes"] if n[1]["type"] == "If")
        node[2].append("x")

    assert "(If): it captures 2 of 4 input(s)" in refusal(rewritten(saved("cpu", tmp_path), change), tmp_path)


def test_a_loop_that_no_run_ends_loads(tmp_path: Path) -> None:
    """A load takes no longer for more iterations; what is stacked of so many fits no memory, and a run tells it."""
    file = content(weft.optimize(fixed_loop(), "cpu"), tmp_path)
    manifest, members = manifest_of(file), members_of(file)
    number = manifest["tail"]["rest"]["constants"]["five"]
    name = f"arrays/{number}.npy"
    members[name] = members[name][:-8] + np.array(2**62).tobytes()
    path = tmp_path / "long.weft"
    path.write_bytes(rewritten(packed(members), lambda _: None))
    with weft.load(path) as session:  # the sum ends it
        assert session.run(np.ones((2, 3), np.float32))[2].shape == (2, 2, 3)


def test_the_inputs_of_a_file_are_in_the_order_of_the_model(tmp_path: Path) -> None:
    network = weft.optimize(pairs(), "cpu")
    again = load_saved(saved_to(network, tmp_path))
    assert again.interface.inputs == network.interface.inputs == ["x", "c"]


def saved_to(network: weft.OptimizedNetwork, folder: Path) -> Path:
    network.save(folder / "saved.weft")
    return folder / "saved.weft"


def test_boxes_are_counted_as_planned(tmp_path: Path) -> None:
    members = members_of(content(weft.optimize(boxes(), "cpu"), tmp_path))
    manifest = json.loads(members["network.json"])
    name = f"arrays/{manifest['graph']['constants']['most']}.npy"
    members[name] = members[name][:-8] + np.array(9).tobytes()
    why = "it was planned for at most 4 boxes, and its input says 9"
    assert why in refusal(rewritten(packed(members), lambda _: None), tmp_path)


@pytest.mark.parametrize("depth", [MOST_NESTED, MOST_NESTED + 1])
def test_graphs_lie_in_each_other_so_deep_and_no_deeper(depth: int, tmp_path: Path) -> None:
    def nested(manifest: Any) -> None:
        (node,) = (n for n in manifest["tail"]["rest"]["nodes"] if n[1]["type"] == "If")
        op, held = json.dumps(node[1]), node[1]
        for _ in range(depth - 1):
            inner = json.loads(op)
            graph = held["fields"]["then_branch"]["graph"]
            graph["nodes"].append(["inner", inner, ["", *graph["inputs"]], ["made"]])
            held = inner

    path = tmp_path / "deep.weft"
    path.write_bytes(rewritten(saved("cpu", tmp_path), nested))
    if depth > MOST_NESTED:
        assert f"graphs lie in each other more than {MOST_NESTED} deep" in refusal(path.read_bytes(), tmp_path)
    else:
        network = load_saved(path)
        assert load_saved(saved_to(network, tmp_path)).tail is not None
