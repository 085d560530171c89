"""Contract row F7: fusing and Winograd's method can be switched off, and the errors are those that the docs state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from tests.helpers.cli import Cli
from tests.helpers.nets import Net
from tests.helpers.op_rows import GPUS
from weft.core.graph.graph import Graph
from weft.core.graph.interpreter import outputs
from weft.core.graph.layout import Array
from weft.errors import ConfigError
from weft.models import path


def residual() -> Graph:
    """Return convolutions with all that is fused to them: biases, activations, products and sums."""
    net = Net()
    x = net.input("x", 2, 12, 16, 16)
    a = net.add("Relu", net.conv(x, 16, 3, pads=(1, 1, 1, 1)))
    b = net.add("Mul", net.add("Tanh", net.conv(a, 16, 3, pads=(1, 1, 1, 1))), np.full((16, 1, 1), 1.7, np.float32))
    return net.finish(net.add("Sigmoid", net.add("Add", a, b), name="y"))


def exact(graph: Graph, x: Array) -> Array:
    """Return the output of a network, computed in float64 by the ops' references."""
    wide = {name: value.astype(np.float64) for name, value in {**graph.constants, "x": x}.items()}
    return outputs(graph, wide)[0]


def off(a: Array, b: Array) -> float:
    """Return how far two arrays are apart, by norm."""
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


@pytest.mark.alike
@pytest.mark.parametrize("device", GPUS)
def test_F7_fusing_changes_no_more_than_the_docs_state(device: str) -> None:
    graph, x = residual(), np.random.default_rng(2).standard_normal((2, 12, 16, 16)).astype(np.float32)
    true, got, nodes = exact(graph, x), [], []
    for fusing in (True, False):
        with weft.load(graph, device, fusing=fusing, fallback="error") as session:
            got.append(session.run(x)[0])
            nodes.append(sum(session.report.nodes_by_device.values()))
            assert ("fusing: off" in str(session.report)) is not fusing
    assert nodes[0] < len(graph.nodes) <= nodes[1]
    assert off(got[0], got[1].astype(np.float64)) < 2e-7
    assert max(off(y, true) for y in got) < 1e-6


@pytest.mark.alike
@pytest.mark.parametrize("device", GPUS)
def test_F7_at_low_precision_fusing_spares_roundings(device: str) -> None:
    graph, x = residual(), np.random.default_rng(2).standard_normal((2, 12, 16, 16)).astype(np.float32)
    true, errors = exact(graph, x), []
    for fusing in (True, False):
        with weft.load(graph, device, precision="low", fusing=fusing, fallback="error") as session:
            errors.append(off(session.run(x)[0], true))
    assert errors[0] < errors[1] < 2e-3


def test_F7_no_convolutions_are_joined_and_no_pool_is_fused_then() -> None:
    with weft.load(path("shapes"), "opencl", shapes={"image": (1, 3, 128, 128)}, fusing=False) as session:
        plain = weft.optimize(path("shapes"), "opencl", shapes={"image": (1, 3, 128, 128)}, fusing=False)
        (pipeline,) = session.pipelines
        made = [n.op.type for n in pipeline.graph.nodes if n.op.type != "Relayout"]
        assert sorted(made) == sorted(n.op.type for n in plain.graph.nodes)
        assert "Fused" not in made and all(type(n.op).__name__ != "MergedConv" for n in pipeline.graph.nodes)


@pytest.mark.parametrize("name", ["fusing", "winograd"])
@pytest.mark.parametrize("value", [0, None, "no", np.int64(1)])
def test_F7_an_option_is_on_or_off(name: str, value: Any) -> None:
    for make in (weft.load, weft.optimize):
        with pytest.raises(ConfigError, match=f"{name}=.* is neither on nor off"):
            make(residual(), "cpu", **{name: value})


@pytest.mark.parametrize("name", ["fusing", "winograd"])
def test_F7_numpys_booleans_are_booleans_as_for_backend_options(name: str) -> None:
    for value in (np.True_, np.False_):
        network = weft.optimize(residual(), "cpu", **{name: value})  # type: ignore[arg-type]
        assert getattr(network.config, name) is bool(value)


def test_F7_a_saved_network_keeps_them(tmp_path: Path) -> None:
    network = weft.optimize(residual(), "opencl", fusing=False, winograd=False)
    network.save(tmp_path / "a.weft")
    for each in (network, tmp_path / "a.weft"):
        with weft.load(each) as session:
            assert session.report.config.switched_off == ("fusing", "winograd")
    with pytest.raises(ConfigError, match="loaded as it is"):
        weft.load(network, fusing=False)


def test_F7_the_command_line_has_them(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    cli, saved = Cli(capsys), tmp_path / "a.weft"
    said = cli("run", path("shapes"), "--device", "opencl", "--no-fusing", "--no-winograd").out
    assert "fusing: off" in said and "winograd: off" in said
    cli("optimize", path("shapes"), "--device", "opencl", "--shape", "image=1,3,128,128", "--no-fusing", "-o", saved)
    assert "fusing: off" in cli("run", saved).out
    assert "optimised for its devices" in cli("run", saved, "--no-winograd", status=2).err
