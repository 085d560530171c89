"""External data (contract row F1), and the published attacks on readers of it.

- CVE-2022-25882: a location with `..` reads files outside of the model's folder.
- CVE-2024-27318: the same through a path that a filter on its beginning lets pass.
- CVE-2026-27489: a symbolic link (or a second name of a file) in the folder leads out of it. Links that stay inside,
  and those of a cache that keeps a model and its data in one folder of blobs, are followed.
- CVE-2026-34445: keys and numbers of an entry are believed: attributes of objects are overwritten, and
  offsets and lengths beyond the file make the reader allocate what they say.
"""

from __future__ import annotations

import os
import socket
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnx.external_data_helper import ExternalDataInfo

from tests.helpers.onnx_models import make_model, node, run_graph
from weft.errors import ModelError
from weft.frontends import files_beside
from weft.frontends.onnx import load
from weft.frontends.onnx.external import ExternalFiles
from weft.ops.control import If

WEIGHTS = np.arange(6, dtype=np.float32).reshape(2, 3)
SECRET = b"s" * 64


def external(name: str = "w", dims: tuple[int, ...] = (2, 3), **entries: Any) -> TensorProto:
    """Return a float tensor whose data is said to be elsewhere."""
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=dims)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def save(folder: Path, *tensors: TensorProto) -> Path:
    """Write a model that adds the tensors to its input, and return its path."""
    names = ["x"] + [f"v{k}" for k in range(len(tensors) - 1)] + ["y"]
    nodes = [node("Add", f"{names[k]} {t.name}", names[k + 1]) for k, t in enumerate(tensors)]
    model = make_model(nodes)
    model.graph.initializer.extend(tensors)
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


@pytest.fixture(params=[True, False], ids=["descriptors", "paths"])
def folder(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a model folder with weights in it and a secret file beside it; opened as here, and as on Windows."""
    monkeypatch.setattr("weft.frontends.files_beside.BY_DESCRIPTORS", request.param)
    (tmp_path / "secret").write_bytes(SECRET)
    inside = tmp_path / "model"
    inside.mkdir()
    (inside / "w.bin").write_bytes(b"head" * 4 + WEIGHTS.tobytes())
    return inside


def refused(path: Path, reason: str) -> None:
    """Check that loading is refused for that reason, and that the message names the tensor."""
    with pytest.raises(ModelError, match="external data of the model is refused") as caught:
        load(path)
    assert reason in str(caught.value)
    assert "tensor 'w'" in str(caught.value)


@pytest.mark.parametrize("length", [{}, {"length": 24}])
def test_weights_are_mapped_not_read(folder: Path, length: dict[str, Any]) -> None:
    graph = load(save(folder, external(location="w.bin", offset=16, **length)))
    weights = graph.constants["w"]
    np.testing.assert_array_equal(weights, WEIGHTS)
    assert isinstance(weights, np.memmap)
    assert not weights.flags.writeable
    (out,) = run_graph(graph, {"x": WEIGHTS})
    np.testing.assert_array_equal(out, WEIGHTS * 2)


def test_a_file_is_mapped_once_for_all_its_tensors(folder: Path) -> None:
    tensors = [external(f"w{k}", location="w.bin", offset=16) for k in range(5)]
    graph = load(save(folder, *tensors))
    assert len({id(graph.constants[t.name].base) for t in tensors}) <= 5
    first, second = (graph.constants[name] for name in ("w0", "w1"))
    assert np.shares_memory(first, second)


def test_a_mapped_file_costs_no_memory(folder: Path) -> None:
    size = 64 << 20
    with open(folder / "big.bin", "wb") as file:
        file.truncate(size)
    path = save(folder, external(dims=(size // 4,), location="big.bin"))
    tracemalloc.start()
    try:
        load(path)
        assert tracemalloc.get_traced_memory()[1] < size // 8
    finally:
        tracemalloc.stop()


def test_folders_below_the_models_and_files_of_no_bytes_are_fine(folder: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "sub" / "w..bin").write_bytes(WEIGHTS.tobytes())
    (folder / "empty.bin").touch()
    empty = external("e", (0, 3), location="empty.bin")
    graph = load(save(folder, external(location="./sub/w..bin"), external("v", (), location="w.bin"), empty))
    assert graph.constants["e"].shape == (0, 3)


def test_the_model_itself_may_be_reached_by_a_link(folder: Path, tmp_path: Path) -> None:
    save(folder, external(location="w.bin", offset=16))
    (tmp_path / "link").symlink_to(folder)
    assert load(tmp_path / "link" / "model.onnx").constants["w"].shape == (2, 3)


def test_what_onnx_saves_is_loaded(tmp_path: Path) -> None:
    model = make_model([node("Add", "x w")], constants={"w": WEIGHTS})
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    np.testing.assert_array_equal(load(tmp_path / "m.onnx").constants["w"], WEIGHTS)


def test_data_at_an_odd_place_is_moved_to_an_aligned_one(folder: Path) -> None:
    (folder / "odd.bin").write_bytes(b"!" + WEIGHTS.tobytes())
    weights = load(save(folder, external(location="odd.bin", offset=1))).constants["w"]
    np.testing.assert_array_equal(weights, WEIGHTS)
    assert weights.flags.aligned


@pytest.mark.parametrize("location", ["../secret", "./../secret", "../model/w.bin", "..", "../"])
def test_cve_2022_25882_a_path_that_climbs_out(folder: Path, location: str) -> None:
    refused(save(folder, external(dims=(16,), location=location)), "it must stay in the model's folder")


@pytest.mark.parametrize(
    "location",
    [
        "sub/../../secret",
        "sub/..//../secret",
        ".//../secret",
        "..\\secret",
        "sub\\..\\..\\secret",
        "w.bin/../../secret",
    ],
)
def test_cve_2024_27318_a_path_that_climbs_out_in_the_middle(folder: Path, location: str) -> None:
    (folder / "sub").mkdir()
    refused(save(folder, external(dims=(16,), location=location)), "it must stay in the model's folder")


@pytest.mark.parametrize(
    "location", ["/etc/passwd", "//etc/passwd", "C:\\secret", "C:secret", "\\\\host\\share\\x"]
)
def test_absolute_paths(folder: Path, location: str) -> None:
    refused(save(folder, external(dims=(16,), location=location)), "the path is absolute")


def test_an_absolute_path_into_the_folder(folder: Path) -> None:
    refused(save(folder, external(location=folder / "w.bin")), "the path is absolute")


@pytest.mark.parametrize("target", ["../secret", "sub/../../secret", "out/secret", "twice", "/etc/passwd"])
@pytest.mark.parametrize("inside", ["", "deep/"])
def test_cve_2026_27489_a_symbolic_link_out_of_the_folder(
    folder: Path, tmp_path: Path, target: str, inside: str
) -> None:
    (folder / "deep" / "sub").mkdir(parents=True)
    (folder / "sub").mkdir()
    (folder / inside / "out").symlink_to(tmp_path)
    (folder / inside / "twice").symlink_to("out/secret")
    (folder / inside / "link").symlink_to("../" + target if inside and target[0] in ".s" else target)
    refused(save(folder, external(dims=(4,), location=f"{inside}link")), "a link leads out of the model's folder")
    refused(save(folder, external(dims=(4,), location=f"{inside}out/secret")), "a link leads out of the model's folder")


def test_links_that_stay_in_the_folder_are_followed(folder: Path) -> None:
    (folder / "sub" / "deep").mkdir(parents=True)
    (folder / "sub" / "up").symlink_to("../w.bin")
    (folder / "sub" / "whole").symlink_to(folder / "w.bin")
    (folder / "dir").symlink_to("sub/deep")
    (folder / "sub" / "deep" / "self").symlink_to("../../w.bin")
    ways = ["sub/up", "sub/whole", "dir/self", "sub/../w.bin", "dir/../up", "sub/deep/../../w.bin"]
    graph = load(save(folder, *(external(f"w{k}", location=way, offset=16) for k, way in enumerate(ways))))
    for k in range(len(ways)):
        np.testing.assert_array_equal(graph.constants[f"w{k}"], WEIGHTS)


def test_links_that_lead_nowhere(folder: Path) -> None:
    (folder / "gone").symlink_to("nothing")
    (folder / "round").symlink_to("round")
    (folder / "here").symlink_to(".")
    refused(save(folder, external(location="gone")), "No such file")
    refused(save(folder, external(location="round")), "symbolic links")
    refused(save(folder, external(location="here")), "it is not a regular file")


def blobs(folder: Path, *names: str) -> Path:
    """Move files of a folder to where Hugging Face's cache keeps them, leave links, and return the new folder."""
    snapshot, kept = folder / "models--a--b" / "snapshots" / "0f0f" / "onnx", folder / "models--a--b" / "blobs"
    snapshot.mkdir(parents=True)
    kept.mkdir()
    for k, name in enumerate(names):
        (folder / name).rename(kept / (f"{k}f" * 20))
        (snapshot / name).symlink_to(f"../../../blobs/{f'{k}f' * 20}")
    return snapshot


def test_a_model_and_its_data_are_links_into_one_folder_of_blobs(folder: Path, tmp_path: Path) -> None:
    save(folder, external(location="w.bin", offset=16))
    snapshot = blobs(folder, "model.onnx", "w.bin")
    np.testing.assert_array_equal(load(snapshot / "model.onnx").constants["w"], WEIGHTS)
    (tmp_path / "model.onnx").symlink_to(snapshot / "model.onnx")  # its data is beside neither end of this link
    refused(tmp_path / "model.onnx", "No such file")


def test_data_beside_the_file_that_a_link_names(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "other.onnx").symlink_to(save(folder, external(location="w.bin", offset=16)))
    np.testing.assert_array_equal(load(tmp_path / "other.onnx").constants["w"], WEIGHTS)


@pytest.mark.parametrize(
    "target", ["../../../../secret", "../../../refs/main", "../../../../models--c--d/blobs/x", "/etc/passwd"]
)
def test_cve_2026_27489_a_link_out_of_the_blobs(folder: Path, target: str) -> None:
    (folder / "secret").write_bytes(SECRET)
    snapshot = blobs(folder, save(folder, external(dims=(4,), location="w.bin")).name)
    for other in ("models--a--b/refs/main", "models--c--d/blobs/x"):
        (folder / other).parent.mkdir(parents=True)
        (folder / other).write_bytes(SECRET)
    (snapshot / "w.bin").symlink_to(target)
    refused(snapshot / "model.onnx", "a link leads out of the model's folder")


def test_a_model_without_a_name_has_only_the_folder_of_its_path(folder: Path) -> None:
    """A descriptor of memory is a link to a name in the root folder that is none."""
    path = save(folder, external(dims=(4,), location="etc/passwd"))
    descriptor = os.memfd_create("model")
    try:
        os.write(descriptor, path.read_bytes())
        refused(Path(f"/proc/self/fd/{descriptor}"), "it cannot be opened")
    finally:
        os.close(descriptor)


def test_cve_2026_27489_a_hard_link(folder: Path, tmp_path: Path) -> None:
    os.link(tmp_path / "secret", folder / "linked")
    refused(save(folder, external(dims=(16,), location="linked")), "2 names (hard links)")


@pytest.mark.parametrize("look", ["stat", "lstat"])
def test_cve_2026_27489_a_link_put_in_after_the_check(
    folder: Path, tmp_path: Path, look: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder that was checked is read from, or nothing is."""
    (folder / "sub").mkdir()
    (folder / "sub" / "secret").write_bytes(b"0" * 64)
    path, real = save(folder, external(dims=(16,), location="sub/secret")), getattr(os, look)
    swapped: list[Path] = []

    def look_then_swap(name: Any, **options: Any) -> os.stat_result:
        status: os.stat_result = real(name, **options)
        if Path(name).name == "secret" and not swapped:
            swapped.append((folder / "sub").rename(folder / "old"))
            (folder / "sub").symlink_to(tmp_path)
        return status

    monkeypatch.setattr(f"weft.frontends.files_beside.os.{look}", look_then_swap)
    try:
        assert load(path).constants["w"].tobytes() == b"0" * 64
    except ModelError as e:
        assert swapped and any(why in str(e) for why in ("leads elsewhere, or changed", "it cannot be opened"))
    if look == ("stat" if files_beside.BY_DESCRIPTORS else "lstat"):
        assert swapped


def test_cve_2026_34445_keys_of_an_entry_are_no_attributes() -> None:
    hostile: dict[str, Any] = dict.fromkeys(
        ("folders", "_maps", "view", "__class__", "__dict__", "basepath"), "/etc"
    )
    files = ExternalFiles()
    before = dict(vars(files))
    with pytest.raises(ModelError, match="given as bytes"):
        files.view(external(location="passwd", **hostile), 24)
    assert vars(files) == before
    assert type(files) is ExternalFiles


def test_cve_2026_34445_basepath_and_unknown_keys_do_nothing(folder: Path, tmp_path: Path) -> None:
    entries: dict[str, Any] = {
        "basepath": str(tmp_path),
        "__class__": "x",
        "prepacked_0": "1",
        "checksum": "0",
    }
    graph = load(save(folder, external(location="w.bin", offset=16, **entries)))
    np.testing.assert_array_equal(graph.constants["w"], WEIGHTS)
    refused(save(folder, external(dims=(16,), location="secret", basepath=tmp_path)), "it cannot be opened")


@pytest.mark.parametrize("key", ["offset", "length"])
@pytest.mark.parametrize(
    "value", ["-1", "-0", "1e3", "0x10", "16.0", " 16", "1_6", "", "\u0661\u0666", "None", "9" * 40, "\0"]
)
def test_cve_2026_34445_numbers_that_are_none(folder: Path, key: str, value: str) -> None:
    entry: dict[str, Any] = {key: value}
    refused(save(folder, external(location="w.bin", **entry)), f"{key} ")


@pytest.mark.parametrize(
    ("entries", "dims", "reason"),
    [
        ({"offset": 17}, (2, 3), "bytes 17 to 41 are asked for, the file has 40"),
        ({"offset": 41, "length": 0}, (0,), "the file has 40"),
        ({"offset": 9 * 10**18}, (2, 3), "the file has 40"),
        ({"length": 4 * 10**11}, (10**11,), "bytes 0 to 400000000000 are asked for, the file has 40"),
        ({}, (10**11,), "the file has 40"),
        ({"length": 40}, (2, 3), "the entry says 40 bytes, its shape and element type say 24"),
    ],
)
def test_cve_2026_34445_nothing_is_allocated_by_a_declared_size(
    folder: Path, entries: dict[str, Any], dims: tuple[int, ...], reason: str
) -> None:
    path = save(folder, external(dims=dims, location="w.bin", **entries))
    tracemalloc.start()
    try:
        refused(path, reason)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_entries_that_are_no_text(folder: Path) -> None:
    for text in (b"location", b"w.bin"):
        path = save(folder, external(location="w.bin"))
        path.write_bytes(path.read_bytes().replace(text, b"\xff" * len(text)))
        refused(path, "an entry is not UTF-8 text")


def test_an_entry_that_is_there_twice(folder: Path) -> None:
    tensor = external(location="w.bin", offset=16)
    tensor.external_data.add(key="location", value="../secret")
    refused(save(folder, tensor), "there twice")


@pytest.mark.parametrize("location", ["", ".", "./", "w.bin\0.txt"])
def test_a_location_that_names_no_file(folder: Path, location: str) -> None:
    with pytest.raises(ModelError, match="external data of the model is refused"):
        load(save(folder, external(location=location)))
    with pytest.raises(ModelError, match="names no file"):
        load(save(folder, external()))


def test_files_that_are_no_regular_files(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    refused(save(folder, external(location="pipe")), "it is not a regular file")
    (folder / "sub").mkdir()
    refused(save(folder, external(location="sub")), "it is not a regular file")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(folder / "socket"))
        refused(save(folder, external(location="socket")), "it is not a regular file")


def test_a_missing_file_and_a_file_on_the_way(folder: Path) -> None:
    refused(save(folder, external(location="nothing.bin")), "No such file")
    refused(save(folder, external(location="w.bin/x")), "Not a directory")


def test_bytes_have_no_folder(folder: Path) -> None:
    path = save(folder, external(location="w.bin", offset=16))
    for model in (path.read_bytes(), onnx.load(path, load_external_data=False)):
        with pytest.raises(ModelError, match="given as bytes or as an object") as caught:
            load(model)
        assert "load the model by its path" in str(caught.value)


def test_external_data_of_a_constant_node(folder: Path) -> None:
    path = folder / "model.onnx"
    for location, offset in (("w.bin", 16), ("../secret", 0)):
        tensor = external(location=location, offset=offset)
        path.write_bytes(_with_attribute(node("Constant", "", "c", value=tensor)).SerializeToString())
        if location == "w.bin":
            np.testing.assert_array_equal(load(path).constants["c"], WEIGHTS)
        else:
            refused(path, "it must stay in the model's folder")


def test_external_data_of_another_attribute_and_of_a_function(folder: Path) -> None:
    hostile = external(dims=(1,), location="../secret")
    path = folder / "model.onnx"
    made = make_model([node("ConstantOfShape", "n", value=hostile)], {}, constants={"n": np.array([2])})
    path.write_bytes(made.SerializeToString())
    refused(path, "it must stay in the model's folder")
    imports = [helper.make_opsetid("", 17)]
    body = [node("Constant", "", "c", value=hostile), node("Add", "a c", "b")]
    function = helper.make_function("local", "f", ["a"], ["b"], body, imports)
    imports.append(helper.make_opsetid("local", 1))
    model = make_model([node("f", domain="local")], functions=[function], opset_imports=imports)
    path.write_bytes(model.SerializeToString())
    refused(path, "it must stay in the model's folder")


@pytest.mark.parametrize("location", ["w.bin", "../secret"])
def test_external_data_in_a_subgraph_is_held_to_the_same_rules(folder: Path, location: str) -> None:
    inner = helper.make_graph(
        [node("Identity", "w", "z")], "g", [], [helper.make_empty_tensor_value_info("z")]
    )
    inner.initializer.append(external(location=location))
    model = make_model(
        [node("If", "c", then_branch=inner, else_branch=inner)], constants={"c": np.array(True)}
    )
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    if location == "w.bin":
        (read,) = load(path).nodes
        assert isinstance(read.op, If) and read.op.then_branch is not None
        whole = load(save(folder, external(location=location)))
        np.testing.assert_array_equal(read.op.then_branch.constants["w"], whole.constants["w"])
    else:
        with pytest.raises(ModelError, match=r"If_0(?s:.)*it must stay in the model's folder"):
            load(path)


def test_the_entries_are_spelt_as_onnx_spells_them() -> None:
    info = ExternalDataInfo(external(location="w.bin", offset=16, length=24))
    assert vars(info).items() >= {"location": "w.bin", "offset": 16, "length": 24}.items()


def _with_attribute(constant: object) -> ModelProto:
    return make_model([constant, node("Add", "x c")])  # type: ignore[list-item]


def test_all_bad_tensors_are_reported_at_once(folder: Path) -> None:
    bad = [
        external("a", location="../secret"),
        external("b", location="/etc/passwd"),
        external("c", location="gone"),
    ]
    bad.append(numpy_helper.from_array(np.array(["text"], object), "d"))
    with pytest.raises(ModelError, match="4 of the model's constants cannot be read") as caught:
        load(save(folder, *bad))
    assert all(f"tensor '{name}'" in str(caught.value) for name in "abcd")


def test_tensors_of_one_missing_file_are_told_in_one_line(tmp_path: Path) -> None:
    tensors = [external(name=f"w{k}", location="gone.bin") for k in range(17)]
    path = save(tmp_path, *tensors)
    with pytest.raises(ModelError, match="17 of the model's constants cannot be read") as caught:
        load(path)
    said = str(caught.value)
    assert said.count("external data of the model is refused") == 1
    assert "tensor 'w0', 'w1', 'w2' and 14 more, external file 'gone.bin'" in said and "copy the file there" in said
