"""The registry of front ends: by suffix and by type, of Weft, of a program and of packages."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from tests.helpers.nets import Net
from tests.helpers.plugins import package
from tests.helpers.warm_python import WarmPython
from weft.core.registry.front_ends import FrontEndRegistry
from weft.errors import ConfigError, ModelError
from weft.extend import FrontEnd, ReadOptions, front_ends, register_front_end
from weft.frontends import FRONT_ENDS
from weft.models import path

ROOT = Path(__file__).parents[3]
X = np.array([[-1.0, 2.0, 3.0]], np.float32)

PACKAGE = """
import weft
from weft.extend import FrontEnd

def read(path, options):
    net, value = weft.Network(path.stem), None
    for word in path.read_text().split():
        value = net.add_layer(word, value) if value else net.add_input("x", (1, 3))
    net.add_output("y", value)
    return net

words = FrontEnd("words", read, suffixes=(".words",))
taken = FrontEnd("another ONNX", read, suffixes=(".onnx",))
"""


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    held = dict(front_ends._held)
    yield
    front_ends._held = held


def chain(*ops: str) -> weft.Graph:
    net = Net()
    value = net.input("x", 1, 3)
    for kind in ops:
        value = net.add(kind, value)
    return net.finish(value)


def words(file: Path, options: ReadOptions) -> weft.Graph:
    return chain(*file.read_text().split())


def insert(read: Any = words, **changed: Any) -> FrontEnd:
    made = FrontEnd("words", read, **{"suffixes": (".words",), **changed})
    register_front_end(made)
    return made


@pytest.mark.parametrize("device", ["cpu", "opencl", "vulkan"])
def test_a_model_of_another_format_runs_like_any(device: str, tmp_path: Path) -> None:
    insert()
    for name in ("m.words", "M.WORDS", "m.v2.words"):
        (tmp_path / name).write_text("Relu Neg")
        with weft.load(tmp_path / name, device, fallback="error") as session:
            np.testing.assert_array_equal(session.run(X)[0], [[0, -2, -3]])
            assert set(session.report.placement.values()) == {device}
    network = weft.optimize(str(tmp_path / "m.words"), device)
    network.save(tmp_path / "m.weft")
    with weft.Runtime() as runtime, weft.load(tmp_path / "m.weft") as saved:
        np.testing.assert_array_equal(runtime.run(runtime.load(tmp_path / "m.weft"), X)[0], saved.run(X)[0])
    assert [layer.op.type for layer in weft.parse(tmp_path / "m.words").layers.values()] == ["Relu", "Neg"]


@dataclass
class Recipe:
    """A model of a package that has objects."""

    ops: tuple[str, ...]


class Derived(Recipe):
    """One of another class."""


NAME = f"{Recipe.__module__}.{Recipe.__qualname__}"


@pytest.mark.parametrize("kind", [Recipe, NAME])
def test_objects_are_known_by_their_class_or_its_name(kind: type | str) -> None:
    insert(lambda recipe, options: chain(*recipe.ops), suffixes=(), types=(kind,))
    for made in (Recipe(("Neg",)), Derived(("Neg",))):
        np.testing.assert_array_equal(weft.load(made, "cpu").run(X)[0], -X)


def test_onnx_graphs_networks_and_saved_ones_go_the_same_way(tmp_path: Path) -> None:
    import onnx

    network = weft.optimize(path("shapes"), "cpu", shapes={"image": (1, 3, 128, 128)})
    network.save(tmp_path / "m.weft")
    model = onnx.load(path("shapes"))
    for given, name in {
        path("shapes"): "ONNX",
        str(path("shapes")): "ONNX",
        b"": "ONNX",
        "without_a_suffix": "ONNX",
        tmp_path / "m.weft": "saved networks",
    }.items():
        assert front_ends.choose(given).name == name
    for thing, name in ((model, "ONNX"), (network, "saved networks"), (chain("Neg"), "graphs")):
        assert front_ends.choose(thing).name == name
    assert front_ends.choose(weft.Network("n")).name == "networks built by hand"
    assert {*front_ends.known().values()} == {"weft"}
    with pytest.raises(ConfigError, match="an optimised network is not optimised again"):
        weft.optimize(tmp_path / "m.weft")


def test_what_no_front_end_reads_is_an_error_with_those_that_are_known(tmp_path: Path) -> None:
    insert()
    for use in (weft.load, weft.optimize, weft.parse):
        with pytest.raises(ModelError, match=r"no front end reads \.xyz") as caught:
            use("dir/m.xyz")  # type: ignore[operator]
        assert caught.value.why.startswith("known are .onnx (ONNX); ")
        assert caught.value.why.endswith("; .words (words, from register_front_end)")
    with pytest.raises(ModelError, match="cannot load a model from int") as caught:
        weft.load(3)
    assert "Graph (graphs)" in caught.value.fix and "onnx.ModelProto" in caught.value.fix


def test_what_is_taken_or_makes_no_sense_is_refused() -> None:
    insert()
    for changed, why in (
        ({}, "the name 'words' is taken, by one of register_front_end"),
        ({"suffixes": (".a", ".onnx")}, "'.onnx' is read by 'ONNX', of weft"),
        ({"types": (weft.Graph,)}, "is read by 'graphs', of weft"),
        ({"suffixes": ("onnx",)}, "'onnx' is no suffix"),
        ({"suffixes": (".NET",)}, "'.NET' is no suffix"),
        ({"suffixes": ()}, "it reads neither a suffix nor a type"),
        ({"suffixes": ".net"}, "suffixes and types must be tuples"),
        ({"types": (3,)}, "neither a class nor its name"),
        ({"read": 3}, "cannot be called"),
    ):
        with pytest.raises(ConfigError, match="the front end 'words' cannot be registered") as caught:
            insert(**changed)
        assert why in caught.value.why
    with pytest.raises(ConfigError, match="is no FrontEnd"):
        register_front_end(3)  # type: ignore[arg-type]
    front_ends.remove("words")
    insert()
    with pytest.raises(ConfigError, match="there is no front end 'lost'"):
        front_ends.remove("lost")


@pytest.mark.parametrize(
    ("read", "what", "why"),
    [
        (lambda m, o: 1 / 0, "the front end 'words' failed to read the file", "ZeroDivisionError"),
        (lambda m, o: None, "the front end 'words' did not return a network", "it returned None"),
        (lambda m, o: "m.words", "the front end 'words' did not return a network", "m.words"),
        (lambda m, o: weft.Graph("g", [], ["y"]), "graph 'g' is not well formed", "nothing makes the output 'y'"),
    ],
)
def test_a_front_end_that_fails_is_named(read: Any, what: str, why: str) -> None:
    insert(read)
    with pytest.raises(ModelError, match=what) as caught:
        weft.load("m.words", "cpu")
    assert why in caught.value.why


@pytest.mark.parametrize("use", [weft.load, weft.optimize])
def test_a_wrong_device_is_told_before_the_model_is_read(use: Any) -> None:
    asked: list[Any] = []
    insert(lambda file, options: asked.append(file))
    for device, options, what in (
        ("abacus", {}, "no backend is registered for 'abacus'"),
        (["cpu", "abacus:1"], {}, "no backend is registered for 'abacus'"),
        ("cpu:x", {}, "'cpu:x' is not a device"),
        ("cpu", {"fallback": "gpu"}, "fallback='gpu' is not known"),
    ):
        with pytest.raises(weft.WeftError, match=what):
            use("m.words", device, **options)
    assert not asked


def test_the_limits_hold_for_what_other_front_ends_read(tmp_path: Path) -> None:
    insert()
    (tmp_path / "m.words").write_text("Relu " * 9)
    with pytest.raises(ModelError, match="limit 'nodes'"):
        weft.load(tmp_path / "m.words", "cpu", limits={"nodes": 8})


UNTRIED = """
import sys
from weft.cli import doctor, main
doctor.trial_run = lambda device: 0.0  # takes seconds; tests/cli/test_commands.py lets it
main(sys.argv[1:])
"""


def test_a_package_adds_one_and_the_commands_take_its_files(tmp_path: Path, warm_python: WarmPython) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])}
    run = partial(warm_python.run, "-W", "error", "-m", "weft", env=environment)
    folder = package(tmp_path, "acme_words", PACKAGE, "")
    announced = "a = acme_words:words\nb = acme_words:taken\nc = acme_words:read\nd = acme_lost:x\ne = acme_words:???"
    (folder / "entry_points.txt").write_text(f"[weft.front_ends]\n{announced}\n")
    (tmp_path / "m.words").write_text("x Relu Neg")
    for device in ("cpu", "opencl"):
        done = run("run", tmp_path / "m.words", "-d", device, "--strict")
        assert done.returncode == 0, done.stderr
        assert f"{device}: " in done.stdout and "1x3" in done.stdout
    assert "entry point b (package acme-words 1.2) is skipped: the front end 'another ONNX'" in done.stderr
    assert "'.onnx' is read by 'ONNX', of weft" in done.stderr
    assert "entry point c" in done.stderr and "which is no weft.extend.FrontEnd" in done.stderr
    assert "entry point d" in done.stderr and "acme_lost" in done.stderr
    assert "entry point e" in done.stderr and "names no module and nothing in one" in done.stderr
    examined = warm_python.run("-W", "error", "-c", UNTRIED, "doctor", env=environment).stdout
    assert "reads .words, from entry point a (package acme-words 1.2)" in " ".join(examined.split())
    assert "entry point b" in examined
    unknown = run("run", tmp_path / "m.xyz")
    assert unknown.returncode == 2 and "no front end reads .xyz" in unknown.stderr
    assert ".words (words, from entry point a (package acme-words 1.2))" in unknown.stderr
    assert "entry point b (package acme-words 1.2) was skipped" in unknown.stderr


def test_a_front_end_that_reads_what_another_returned_is_guarded_too(tmp_path: Path) -> None:
    register_front_end(FrontEnd("recipes", lambda recipe, options: 1 / 0, types=(Recipe,)))
    insert(lambda file, options: Recipe(("Neg",)))
    with pytest.raises(ModelError, match="the front end 'recipes' failed to read a Recipe") as caught:
        weft.load("m.words", "cpu")
    assert caught.value.where == "register_front_end" and "ZeroDivisionError" in caught.value.why


@pytest.mark.parametrize("kinds", [(Recipe, NAME), (NAME, Recipe), (bytes, "builtins.bytes")])
def test_a_class_and_its_name_are_the_same_type(kinds: tuple[type | str, type | str]) -> None:
    registry = FrontEndRegistry()
    registry.insert(FrontEnd("one", words, types=kinds[:1]))
    with pytest.raises(ConfigError, match="cannot be registered") as caught:
        registry.insert(FrontEnd("two", words, types=kinds[1:]))
    assert "is read by 'one', of register_front_end" in caught.value.why


def test_packages_are_looked_for_once_and_only_if_a_model_needs_them() -> None:
    asked = []

    class Finder:
        def insert_installed(self, registry: FrontEndRegistry) -> None:
            asked.append(registry)

    registry = FrontEndRegistry(Finder())
    for each in FRONT_ENDS:
        registry.insert(each, origin="weft")
    assert registry.find(b"") and registry.find("m.onnx") and registry.find(chain("Neg")) and not asked
    assert registry.find("m.xyz") is None and registry.find(3) is None and asked == [registry]
