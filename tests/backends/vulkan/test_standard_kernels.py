"""The kernels that a wheel brings: the list is up to date, the set is reproducible, and it suffices."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import zipfile
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

import weft
from scripts.plan_kernels import plan_kernels
from scripts.standard_kernels import MANIFEST, build, standard_requests, write_requests
from scripts.update_standard_kernels import (
    CASES,
    LIGHT,
    PRECISIONS,
    PROFILES,
    REAL,
    public_networks,
    real_networks,
)
from tests.helpers.run_length import is_long
from weft.backends.vulkan.dialect import GlslDialect
from weft.backends.vulkan.spirv import ShippedSet
from weft.core.contract.backend import Precision
from weft.errors import CompileError
from weft.kernels.template import KernelRequest, render

ROOT = Path(__file__).parents[3]
PUBLIC = public_networks()
HEAVY = {"light_vgg19", "light_zfnet512", "light_bvlc_alexnet"}
"""Networks of up to half a gigabyte of weights."""
ALIKE = {"light_resnet50", "light_densenet121", "light_inception_v1", "resnet50 x8", "mobilenet_v2 x8", "minilm_l6 x8"}
"""Networks of the kernels of another, or at a batch that others have."""
UPDATE = "run: python -m scripts.update_standard_kernels"


@cache
def listed() -> frozenset[KernelRequest]:
    return frozenset(standard_requests())


def missing(requests: set[KernelRequest]) -> list[str]:
    return sorted(f"{r.template} {dict(r.variant)}" for r in requests - listed())


def test_all_light_networks_are_planned_for() -> None:
    assert {p.stem for p in LIGHT.glob("light_*.onnx")} <= PUBLIC.keys()
    assert len([name for name in PUBLIC if name.startswith("light_")]) == 9


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.long] * (n in HEAVY | ALIKE)) for n in PUBLIC])
def test_a_public_network_finds_its_kernels_on_the_list(name: str) -> None:
    """In the short run on each device at one precision, which is the other one for the next network."""
    first = list(PUBLIC).index(name)
    # Planning also shows that GPUs run it whole: it raises if a node has no kernel.
    cases = CASES if is_long() else [(p, PRECISIONS[(first + k) % 2]) for k, p in enumerate(PROFILES)]
    assert not missing(PUBLIC[name]().requests(cases)), UPDATE


@pytest.mark.skipif(not REAL.is_dir(), reason=f"the real networks are not in {REAL}")
@pytest.mark.parametrize("name", real_networks())
def test_a_real_network_finds_its_kernels_on_the_list(name: str) -> None:
    assert not missing(real_networks()[name]().requests()), UPDATE


@pytest.mark.covering
@pytest.mark.parametrize("units", [20, 44, 84])
@pytest.mark.parametrize("name", ["light_densenet121", "resnet50 x1", "mobilenet_v2 x1", "shapes x1"])
def test_gpus_between_those_that_were_planned_for_find_theirs_too(name: str, units: int) -> None:
    network = PUBLIC[name]()
    caps = replace(PROFILES["middle"], compute_units=units)
    assert not missing(plan_kernels(network.graph, caps, Precision.HIGH, network.shapes))


def test_the_list_survives_being_written(tmp_path: Path) -> None:
    write_requests(reversed(standard_requests()), tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == MANIFEST.read_bytes()


def test_the_set_is_the_same_each_time_it_is_built(tmp_path: Path) -> None:
    some = standard_requests()[::9]
    assert build(tmp_path / "a.zip", some) == build(tmp_path / "b.zip", reversed(some)) == len(some)
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
    shipped, dialect = ShippedSet(tmp_path / "a.zip"), GlslDialect()
    for request in some:
        assert (shipped.get(render(request, dialect).digest) or b"").startswith(b"\x03\x02\x23\x07")


def test_without_a_compiler_no_set_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_NO_COMPILER", "1")
    with pytest.raises(CompileError, match="no GLSL compiler"):
        build(tmp_path / "a.zip")


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder that the wheel is unpacked in."""
    folder = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def in_the_wheel(installed: Path, code: str, tmp_path: Path, **environment: str) -> str:
    """Run Python where only the unpacked wheel is Weft, from a folder that has nothing to do with ours."""
    clean = {
        **os.environ,
        "PYTHONPATH": str(installed),
        "WEFT_CACHE_DIR": str(tmp_path / "cache"),
        **environment,
    }
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=clean, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_has_a_bill_of_what_it_carries(installed: Path) -> None:
    (path,) = installed.glob("weft-*.dist-info/sboms/*.cdx.json")
    bill = json.loads(path.read_text(encoding="utf-8"))
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert bill["metadata"]["component"]["purl"] == f"pkg:pypi/weft@{weft.__version__}"
    parts = {part["name"]: part for part in bill["components"]}
    for name, part in parts.items():
        digest = hashlib.sha256((installed / name).read_bytes()).hexdigest()
        assert part["hashes"] == [{"alg": "SHA-256", "content": digest}]
        assert part["description"] and part["licenses"]
    assert bill["dependencies"][0]["dependsOn"] == [part["bom-ref"] for part in bill["components"]]
    assert "slangpy" in parts["weft/spirv.zip"]["description"]
    # Python and templates are Weft's source; everything else is on the bill.
    source = {".py", ".mako", ".typed"}
    data = {p.relative_to(installed).as_posix() for p in (installed / "weft").rglob("*") if p.is_file()}
    assert {name for name in data if Path(name).suffix not in source} == set(parts)


def test_the_wheel_holds_all_that_is_needed(installed: Path) -> None:
    for name in (
        "py.typed",
        "spirv.zip",
        "models/shapes.onnx",
        "shaders/conv_gemm.mako",
    ):
        assert (installed / "weft" / name).is_file(), name
    assert not (installed / "tests").exists() and not (installed / "scripts").exists()
    names = {p.relative_to(installed / "weft") for p in (installed / "weft").rglob("*.mako")}
    assert names == {p.relative_to(ROOT / "weft") for p in (ROOT / "weft").rglob("*.mako")}


NETWORKS = """
import sys, numpy, weft
from weft import models
assert weft.__file__.startswith(sys.argv[1] if len(sys.argv) > 1 else ""), weft.__file__
def check(model, shape, precision):
    x = numpy.random.default_rng(0).random(shape, dtype="float32")
    with weft.load(model, "cpu") as cpu:
        expected, = cpu.run(x)
    with weft.load(model, "vulkan", precision=precision, fallback="error") as session:
        y, = session.run(x)
    error = float(abs(y - expected).max() / abs(expected).max())
    assert error < (1e-4 if precision == "high" else 2e-2), error
"""


def test_networks_run_on_vulkan_without_a_compiler(installed: Path, tmp_path: Path) -> None:
    code = f"""{NETWORKS}
for precision in {("high", "low") if is_long() else ("high",)}:
    check(models.path("shapes"), (1, 3, 128, 128), precision)
if {is_long()}:
    sys.path.append({str(ROOT)!r})
    from benchmarks.models import squeezenet1_1
    check(squeezenet1_1(), (1, 3, 224, 224), "high")
print(weft.__file__)
"""
    assert str(installed) in in_the_wheel(installed, code, tmp_path, WEFT_NO_COMPILER="1")


def test_a_kernel_that_is_not_brought_asks_for_a_compiler(installed: Path, tmp_path: Path) -> None:
    code = """
import numpy, weft, weft.ops
from weft import registry
from weft.core.graph.graph import Graph, Node
from weft.core.graph.dtypes import DType
from weft.core.graph.tensor import TensorSpec
from weft.core.graph.op import find_op
names = ["x", *(f"v{k}" for k in range(9))]
ops = ("Sinh", "Asinh", "Atanh", "Cosh", "Tan", "Sin", "Cos", "Exp", "Sinh")
nodes = [Node(f"n{k}", find_op(op)(), (names[k],), (names[k + 1],)) for k, op in enumerate(ops)]
graph = Graph("odd", ["x"], [names[-1]], nodes, {"x": TensorSpec((1, 7), DType.FLOAT32)}, {})
try:
    weft.load(graph, "vulkan", fallback="error")
except weft.WeftError as e:
    print(type(e).__name__, e)
"""
    said = in_the_wheel(installed, code, tmp_path, WEFT_NO_COMPILER="1")
    assert said.startswith("CompileError") and "needs a GLSL compiler" in said and "slangpy" in said


def test_an_install_without_a_compiler_builds_a_wheel_and_warns(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    environment = {**os.environ, "WEFT_NO_COMPILER": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert "NO VULKAN KERNELS ARE IN THIS WHEEL" in done.stdout + done.stderr
    (wheel,) = tmp_path.glob("weft-*.whl")
    assert "weft/spirv.zip" not in zipfile.ZipFile(wheel).namelist()
