"""Contract row A22: a worked example of each kind, by path, by package, and the tutorial's pre-compiled addition."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import weft
import weft_conformance
from tests.helpers.examples import EXAMPLES, load_example
from tests.helpers.run_length import is_long
from tests.helpers.warm_python import WarmPython
from weft import Network, Node

ROOT = Path(__file__).parents[2]
PICTURE = np.random.default_rng(0).random((1, 3, 128, 128), np.float32)


@pytest.fixture
def registered() -> Iterator[list[str]]:
    """Give a list of ids that are removed from the registry after the test."""
    ids: list[str] = []
    yield ids
    for id_ in ids:
        weft.registry.remove(id_)


# -- a Python backend in one file, loaded from a folder --------------------------------------------------------


@pytest.fixture
def two_ops(tmp_path: Path) -> Iterator[weft.Runtime]:
    """Give a runtime that has the example, under the name that backends in folders have."""
    (tmp_path / "acme_twoops_backend.py").symlink_to(EXAMPLES / "two_ops_backend.py")
    with weft.Runtime(dynamic_backend_paths=[tmp_path]) as runtime:
        yield runtime


def perceptron() -> Network:
    """Return a network of two matrix products, one of a stack of matrices, and what is around them."""
    net = Network("perceptron")
    x = net.add_input("x", (3, 4))
    rng = np.random.default_rng(1)
    hidden = net.add_layer("MatMul", x, rng.random((4, 5), np.float32), name="first")
    hidden = net.add_layer("Relu", hidden, name="relu")
    stack = net.add_layer("MatMul", hidden, rng.random((2, 5, 6), np.float32), name="stack")
    net.add_output("y", net.add_layer("Softmax", stack, name="softmax"))
    return net


def test_A22_a_backend_of_two_ops_runs_them_and_refuses_the_rest(two_ops: weft.Runtime) -> None:
    x = np.random.default_rng(2).standard_normal((3, 4)).astype(np.float32)
    with weft.load(perceptron(), "cpu") as cpu:
        (expected,) = cpu.run(x)
    with weft.load(perceptron(), ["twoops", "cpu"], runtime=two_ops) as session:
        (y,) = session.run(x)
        report = session.report
    np.testing.assert_allclose(y, expected, rtol=1e-6)
    assert report.nodes_by_device == {"twoops": 2, "cpu": 2}
    assert {node: reasons["twoops:0"] for node, reasons in report.refusals.items()} == {
        "stack": "the engine multiplies matrices; these have [2, 3] dimensions",
        "softmax": "twoops has no implementation of Softmax",
    }


def test_A22_a_backend_of_two_ops_refuses_other_types(two_ops: weft.Runtime) -> None:
    net = Network("doubles")
    net.add_output("y", net.add_layer("Relu", net.add_input("x", (3,), "float64"), name="relu"))
    with pytest.raises(weft.errors.UnsupportedOps, match="the engine computes in float32 alone; 'x' is float64"):
        weft.load(net, "twoops", fallback="error", runtime=two_ops)


# -- an installed package with an entry point --------------------------------------------------------------------


def in_environment(python: Path, *arguments: str, folder: Path) -> str:
    """Return what a command prints in an environment that has Weft and what this one has."""
    libraries = dict.fromkeys((str(ROOT), *(sysconfig.get_paths()[kind] for kind in ("purelib", "platlib"))))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(libraries), "COLUMNS": "200"}
    done = subprocess.run(
        [str(python), *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def small_model(file: Path) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Write a model with a Softsign in the middle of two products; return an input and its output."""
    rng = np.random.default_rng(3)
    a, b, x = (rng.standard_normal(shape).astype(np.float32) for shape in ((4, 5), (5, 2), (3, 4)))
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["h"]),
        helper.make_node("Softsign", ["h"], ["s"]),
        helper.make_node("MatMul", ["s", "b"], ["y"]),
    ]
    declared = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", (3, 4)), ("y", (3, 2)))]
    weights = [numpy_helper.from_array(a, "a"), numpy_helper.from_array(b, "b")]
    graph = helper.make_graph(nodes, "small", declared[:1], declared[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), file)
    h = x @ a
    return x, (h / (1 + np.abs(h))) @ b


def test_A22_a_package_is_there_after_pip_install_and_gone_after_uninstall(
    tmp_path: Path, warm_python: WarmPython
) -> None:
    # The environment has no package but what is installed here; libraries come from where this test runs.
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True, timeout=120)
    python = tmp_path / "venv" / "bin" / "python"
    package = shutil.copytree(EXAMPLES / "package_backend", tmp_path / "package")
    x, expected = small_model(tmp_path / "small.onnx")
    np.save(tmp_path / "x.npy", x)

    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")

    def weft_command(*arguments: str) -> str:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(site)]), "COLUMNS": "200"}
        done = warm_python.run("-m", "weft", *arguments, cwd=tmp_path, env=environment)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert "Acme softener" not in weft_command("devices")
    pip = ("-m", "pip", "--disable-pip-version-check")
    offline = ("--no-deps", "--no-build-isolation", "--no-index")
    in_environment(python, *pip, "install", *offline, str(package), folder=tmp_path)
    listed = in_environment(python, "-m", "weft", "devices", folder=tmp_path)
    assert "Acme softener" in listed and "acme is from entry point acme (package weft-acme 0.1.0)" in listed
    out = weft_command("run", "small.onnx", "--device", "acme+cpu", "--input", "x=x.npy", "--output", "results")
    assert "nodes: cpu 2, acme 1" in out
    (result,) = (tmp_path / "results").rglob("*.npy")
    np.testing.assert_allclose(np.load(result), expected, rtol=1e-5, atol=1e-6)
    in_environment(python, *pip, "uninstall", "--yes", "weft-acme", folder=tmp_path)
    assert "Acme softener" not in weft_command("devices")


# -- the tutorial: an addition becomes a pre-compiled node -------------------------------------------------------


@pytest.fixture
def custom(registered: list[str]) -> ModuleType:
    """Register the tutorial's backend and return its module."""
    module = load_example("precompiled_add")
    weft.registry.insert("custom", module.CustomBackend)
    registered.append("custom")
    return module


def test_A22_the_tutorial_runs_as_it_is() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "error", str(EXAMPLES / "precompiled_add.py")]
    out = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert out.returncode == 0, out.stderr
    assert "PreCompiled(backend=custom)(input1, input2)" in out.stdout
    numbers = out.stdout[out.stdout.index("[[") :].replace("[", " ").replace("]", " ").split()
    assert [float(n) for n in numbers] == [101 * k for k in range(1, 13)]


def sums(count: int, *, other: str = "") -> Network:
    """Return a network of additions, one after the other, and of another op behind them."""
    net = Network("sums")
    value: Any = net.add_input("input1", (1, 1, 3, 4))
    second = net.add_input("input2", (1, 1, 3, 4))
    for k in range(count):
        value = net.add_layer("Add", value, second, name=f"add{k}")
    net.add_output("output", net.add_layer(other, value, name="other") if other else value)
    return net


INPUT = np.arange(1, 13, dtype=np.float32).reshape(1, 1, 3, 4)


@pytest.mark.parametrize(
    ("net", "ops", "expected"),
    [
        (sums(1), {"PreCompiled": "custom:0"}, 101 * INPUT),
        (sums(2), {"Add": "custom:0"}, 201 * INPUT),
        (sums(1, other="Neg"), {"PreCompiled": "custom:0", "Neg": "cpu:0"}, -101 * INPUT),
    ],
    ids=["alone", "two", "with another op"],
)
def test_A22_an_addition_alone_is_compiled_and_all_else_untouched(
    custom: ModuleType, net: Network, ops: dict[str, str], expected: np.ndarray[Any, Any]
) -> None:
    optimized = weft.optimize(net, ["custom", "cpu"])
    nodes: list[Node] = optimized.graph.nodes
    assert {n.op.type: optimized.placement[n.name] for n in nodes} == ops
    with weft.Runtime() as runtime:
        network_id = runtime.load(optimized)
        (output,) = runtime.run(network_id, INPUT, 100 * INPUT)
    np.testing.assert_array_equal(output, expected)


def test_A22_the_compiled_object_outlives_the_backend_that_made_it(custom: ModuleType) -> None:
    (node,) = weft.optimize(sums(1), ["custom", "cpu"]).graph.nodes
    assert isinstance(node.op, weft.PreCompiled)
    assert node.op.payload == custom.CompiledAddition(12)


def test_A22_a_resize_makes_another_object(custom: ModuleType) -> None:
    net = Network("open")
    x = net.add_input("x", ("n", 2))
    net.add_output("y", net.add_layer("Add", x, np.ones((1, 2), np.float32)))
    with weft.load(net, ["custom", "cpu"]) as session:
        for n in (1, 3, 2):
            np.testing.assert_array_equal(session.run(np.zeros((n, 2), np.float32))[0], np.ones((n, 2)))


# -- all of them against the contract ----------------------------------------------------------------------------


OPS = ["Softmax", "Relu", "Sigmoid", "Add", "MatMul", "Concat", "Split", "Gather", "ReduceLogSumExp"]
"""Ops whose rows stand for the table in the short run: those of the examples, and some that they refuse."""
OTHERS = [name for name in weft_conformance.CHECKS if name != "table" and (is_long() or name != "outputs")]
"""All checks of an example, in the short run without the one that takes most of the kit's time."""
ROWS = [pytest.param(OPS, id="some rows"), pytest.param(["table"], id="all rows", marks=pytest.mark.long)]


@pytest.mark.usefixtures("passes_unchecked")  # tests/conformance/test_our_backends.py has them checked
@pytest.mark.parametrize("rows", ROWS)
def test_A22_the_backend_of_two_ops_keeps_the_contract(registered: list[str], rows: list[str]) -> None:
    module = load_example("two_ops_backend")
    weft.registry.insert(module.GetBackendId(), module.BackendFactory())
    registered.append("twoops")
    report = weft_conformance.run("twoops", only=[*OTHERS, *rows])
    assert report.ok, str(report)


@pytest.mark.usefixtures("passes_unchecked")  # tests/conformance/test_our_backends.py has them checked
@pytest.mark.parametrize("rows", ROWS)
def test_A22_the_backend_that_compiles_keeps_the_contract(custom: ModuleType, rows: list[str]) -> None:
    report = weft_conformance.run("custom", only=[*OTHERS, *rows])
    assert report.ok, str(report)
