"""A network of PyTorch through the three doors: `weft.load`, `torch.compile` and `weft.torch.compile`."""

from __future__ import annotations

import copy
import logging
import re
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from tests.helpers.docs_page import read
from weft.errors import ConfigError, InputError, UnsupportedOps

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")
nn: Any = torch.nn
DEVICES = ("cpu", "opencl", "vulkan")


class Net(nn.Module):  # type: ignore[misc]
    """A picture network that counts its calls in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 5)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: Any) -> Any:
        self.calls.add_(1)
        y = torch.relu(self.norm(self.conv(x)))
        return {"classes": self.head(y.mean((2, 3))).softmax(-1), "calls": self.calls * 2}


@pytest.fixture
def net() -> Any:
    torch.manual_seed(0)
    return Net().eval()


@pytest.fixture(autouse=True)
def _fresh() -> Any:
    torch._dynamo.reset()
    with torch.no_grad():
        yield


def same(found: Any, wanted: Any) -> None:
    assert found.keys() == wanted.keys()
    for name in wanted:
        np.testing.assert_allclose(found[name].numpy(), wanted[name].numpy(), atol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
def test_a_program_is_loaded(device: str) -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(144, 5))
    program = torch.export.export(
        net.eval(), (torch.zeros(2, 3, 8, 8),), dynamic_shapes=({0: torch.export.Dim("n", min=1)},)
    )
    with weft.load(program, device, fallback="error") as session:
        for count in (2, 3, 1):
            x = torch.randn(count, 3, 8, 8)
            y, = session.run(x)
            np.testing.assert_allclose(y, net(x).numpy(), atol=1e-5)
        assert {*session.report.nodes_by_device} == {f"{device}"}
        assert session.outputs == ["output"]


@pytest.mark.parametrize("device", DEVICES)
def test_torch_compile(net: Any, device: str) -> None:
    """Batches of any size after the second are one network of Weft; buffers and weights change as in PyTorch."""
    import weft.torch
    from weft.torch.dynamo import heard

    eager = copy.deepcopy(net)
    fast = torch.compile(net, backend=weft.torch.backend, options={"device": device, "fallback": "error"})
    with heard() as made:
        for count in (2, 3, 5, 1, 7):
            x = torch.randn(count, 3, 8, 8)
            same(fast(x), eager(x))
            assert net.calls.equal(eager.calls)
    assert [graph.reused for graph in made] == [False, False, True]
    assert sum(runner.times_loaded for runner in {id(r): r for g in made for r in g.runners}.values()) == 2
    for each in (net, eager):
        each.head.bias.add_(torch.arange(5.0))
    same(fast(x), eager(x))


@pytest.mark.parametrize("device", DEVICES)
def test_a_model_is_compiled_for_an_example(net: Any, device: str) -> None:
    import weft.torch

    eager, x = copy.deepcopy(net), torch.randn(2, 3, 8, 8)
    with weft.torch.compile(net, (x,), device=device, fallback="error") as fast:
        for _ in range(2):
            same(fast(x), eager(x))
        assert net.calls.equal(eager.calls)
        assert {*fast.session.report.nodes_by_device} == {device}
        session = fast.session
        assert fast.session is session
        net.head.weight.mul_(2)
        net.conv.bias = nn.Parameter(torch.ones(4))
        eager.load_state_dict(net.state_dict())
        same(fast(x), eager(x))
        for strange, why in ((torch.zeros(1, 3, 8, 8), "1, 3, 8, 8"), (x.double(), "float64")):
            with pytest.raises(InputError, match=why):
                fast(strange)


@pytest.mark.parametrize("device", ["opencl", "vulkan"])
def test_buffers_may_stay_on_the_device(net: Any, device: str) -> None:
    """They are sent once; a change in the program counts, and `write_back` brings them into the model."""
    import weft.torch

    x = torch.zeros(2, 3, 8, 8)
    with weft.torch.compile(net, (x,), device=device, buffers="device") as fast:
        compiled = torch.compile(net, backend=weft.torch.backend, options={"device": device, "buffers": "device"})
        fast(x)
        before = fast.session.transfers
        assert [fast(x)["calls"].item(), compiled(x)["calls"].item(), fast(x)["calls"].item()] == [4, 6, 8]
        assert fast.session.transfers.to_devices - before.to_devices == 2 * x.numel() * 4
        assert net.calls.item() == 0
        weft.torch.write_back(net)
        assert net.calls.item() == 4
        net.calls.fill_(10)
        assert fast(x)["calls"].item() == 22


def test_buffers_of_a_program_are_state(net: Any) -> None:
    net.calls.fill_(3)
    program = torch.export.export(net, (torch.zeros(2, 3, 8, 8),))
    with weft.load(program, "opencl") as session:
        assert session.outputs == ["classes", "calls"]
        assert [session.run(torch.zeros(2, 3, 8, 8))[1].item() for _ in range(2)] == [8, 10]
        session.state.reset()
        assert session.run(torch.zeros(2, 3, 8, 8))[1].item() == 8


def test_an_export_is_kept_in_a_file(net: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second start does not export; another shape, weight or attribute does, and weights are not in the file."""
    import weft.torch

    eager, x, file = copy.deepcopy(net), torch.randn(2, 3, 8, 8), tmp_path / "net.export"
    same(weft.torch.compile(net, (x,), device="cpu", cache=file)(x), eager(x))
    calls, export = list[Any](), torch.export.export

    def counted(*given: Any, **named: Any) -> Any:
        calls.append(given)
        return export(*given, **named)

    monkeypatch.setattr(torch.export, "export", counted)
    net.head.weight.mul_(2)
    eager.head.weight.mul_(2)
    same(weft.torch.compile(net, (x,), device="cpu", cache=file)(x), eager(x))
    assert not calls
    net.norm.eps = eager.norm.eps = 0.5
    same(weft.torch.compile(net, (x,), device="cpu", cache=file)(x), eager(x))
    assert len(calls) == 1
    file.write_bytes(file.read_bytes()[:-50])
    same(weft.torch.compile(net, (x,), device="cpu", cache=file)(x), eager(x))
    assert len(calls) == 2


def test_functions_that_do_different_things_share_no_export(tmp_path: Path) -> None:
    import weft.torch

    x, slope = torch.tensor([-1.0, 2.0]), nn.functional.leaky_relu
    doings: list[Any] = [partial(slope, negative_slope=a) for a in (0.25, 0.5)]
    for do in (*doings, lambda v: v * 2, lambda v: -v):
        model = Fn(do).eval()
        np.testing.assert_allclose(weft.torch.compile(model, (x,), device="cpu", cache=tmp_path / "f")(x), do(x))


def test_the_result_has_the_memory_that_the_session_made(net: Any) -> None:
    """Tensors on the CPU are shared, not copied: the network reads and writes the buffer of the model."""
    import weft.torch

    place = net.calls.data_ptr()
    fast = weft.torch.compile(net, (torch.zeros(2, 3, 8, 8),), device="cpu")
    version = net.calls._version
    fast(torch.zeros(2, 3, 8, 8))
    assert net.calls.data_ptr() == place and net.calls.item() == 1 and net.calls._version > version


def test_what_weft_lacks_goes_back_to_pytorch(caplog: pytest.LogCaptureFixture) -> None:
    import weft.torch

    def odd(x: Any) -> Any:
        return torch.special.i0(x.relu() + 1).sigmoid() * torch.special.i1(x + 1)

    x = torch.randn(3, 4)
    with caplog.at_level(logging.WARNING, "weft.torch"):
        found = torch.compile(odd, backend=weft.torch.backend, options={"device": "cpu"})(x)
    torch.testing.assert_close(found, odd(x))
    (warning,) = (r.getMessage() for r in caplog.records if r.name == "weft.torch")
    assert "2 of 7 node(s)" in warning and "aten.special_i1" in warning and "aten.i0" in warning
    with pytest.raises(Exception, match="2 of the 7 nodes") as refused:
        torch.compile(odd, backend=weft.torch.backend, options={"device": "cpu", "fallback": "error"})(x)
    assert isinstance(refused.value.__cause__, UnsupportedOps) or "UnsupportedOps" in str(refused.value)
    program = torch.export.export(Fn(odd), (x,))
    with pytest.raises(UnsupportedOps, match=r"aten.special_i1.default"):
        weft.load(program, "cpu")


class Fn(nn.Module):  # type: ignore[misc]
    """A function as a module."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"devise": "cpu"}, "did you mean 'device'"), ({"precision": "tiny"}, "precision"),
        ({"shapes": {}}, "sizes follow"), ({"buffers": "disk"}, 'use "host"'),
    ],
)
def test_options_are_checked(options: dict[str, Any], words: str) -> None:
    import weft.torch

    with pytest.raises(Exception, match=words):
        torch.compile(torch.relu, backend=weft.torch.backend, options=options)(torch.zeros(2))
    with pytest.raises(ConfigError, match=words):
        weft.torch.compile(nn.ReLU().eval(), (torch.zeros(2),), **options)


def test_a_constant_tensor_is_in_the_graph() -> None:
    import weft.torch
    from weft.torch.dynamo import heard

    def scaled(x: Any) -> Any:
        return x / torch.sqrt(torch.tensor(8.0)) + torch.tensor([1.0, 2.0])

    fast = torch.compile(scaled, backend=weft.torch.backend, options={"device": "cpu", "fallback": "error"})
    with heard() as made:
        for count in (2, 3, 1):
            torch.testing.assert_close(fast(torch.ones(count, 2)), scaled(torch.ones(count, 2)))
    assert made[-1].reused


def test_training_is_refused(net: Any) -> None:
    import weft.torch

    with torch.enable_grad(), pytest.raises(Exception, match=r"torch.no_grad\(\)"):
        torch.compile(net, backend=weft.torch.backend)(torch.zeros(1, 3, 8, 8))
    with pytest.raises(ConfigError, match=r"model.eval\(\)"):
        weft.torch.compile(net.train(), (torch.zeros(1, 3, 8, 8),))


def test_an_explanation_tells_breaks_and_places() -> None:
    import weft.torch

    def branches(x: Any) -> Any:
        y = x.relu() + 1
        return y * 2 if y.sum() > 0 else torch.special.i0(y)

    told = weft.torch.explain(branches, torch.ones(3), options={"device": "cpu"})
    assert len(told.graphs) == 2 and sum(told.breaks.values()) == 1
    assert told.graphs[0].nodes_by_device == {"cpu": told.graphs[0].nodes_by_device["cpu"]}
    assert "test_doors.py" in str(told) and "1 graph break" in str(told)


def test_the_guide_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Blocks of PyTorch are marked `py`: the test of all pages runs those without PyTorch."""
    import weft.torch

    dynamo = import_module("torch._dynamo.backends.registry")
    monkeypatch.setitem(dynamo._COMPILER_FNS, "weft", weft.torch.backend)
    names: dict[str, Any] = {}
    for block in read(Path(__file__).parents[2] / "docs" / "guides" / "pytorch.md"):
        if block.language == "py":
            exec(block.text, names)
        elif block.language == "text" and (printed := capsys.readouterr().out):
            assert printed == block.text


def test_pytorch_finds_the_backend_by_its_name() -> None:
    import weft.torch

    project = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    (module, name), = re.findall(r'\[project.entry-points.torch_dynamo_backends\]\nweft = "(.*):(.*)"', project)
    assert getattr(import_module(module), name) is weft.torch.backend
