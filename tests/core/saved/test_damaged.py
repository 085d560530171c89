"""Contract row F8: a damaged file is refused with a reason, or is still the same network."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.helpers.run_length import examples
from tests.helpers.saved_networks import changed, content, of_ops, refusal, rewritten, small, whole
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph
from weft.core.graph.tensor import TensorSpec
from weft.core.saved.network_file import load_saved
from weft.errors import ModelError, WeftError


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
        (lambda m: m["parts"].reverse(), "'copy a' copies 'a' from cpu:0 to cpu:1; it is not made by then"),
        (lambda m: m["config"].update(precision="TWICE"), "KeyError: 'TWICE'"),
        (lambda m: m["notes"].append(1), "is not a str"),
        (lambda m: m["bytes"][0].__setitem__(0, 9), "bytes/0 has 4 bytes"),
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
@settings(max_examples=examples(400), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
@settings(max_examples=examples(400), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
