"""The networks of the table: exported on the spot, the same in PyTorch and in ONNX, and missing where PyTorch is."""

from __future__ import annotations

from argparse import ArgumentTypeError
from importlib.util import find_spec

import pytest

import weft
from benchmarks import gpu, library_networks, measure, models, own, table_networks
from benchmarks.measure import Counts, relative_error
from benchmarks.options import words


def test_one_that_needs_no_pytorch_has_pictures_of_its_own() -> None:
    case = measure.build("resnet50_384", 1, trial=True)
    assert case.inputs["x"].shape == (1, 3, 96, 96) and case.module is None and case.flops > 0


def test_the_session_s_arrays_are_timed_without_the_tables() -> None:
    case = measure.build("squeezenet1_1", 1, 32)
    row = own.row(case, "opencl", "low", Counts(1, 2, 0.1, 0.0), tables=False)
    assert row.more["arrays_ms"] > 0 and row.more["tuned"] == 0 and row.error is not None and row.error < 5e-2


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of PyTorch's older exporter, by PyTorch itself
@pytest.mark.parametrize("name", ["yolov8n_like", "mobilenet_v3_large"])
def test_pytorch_and_the_export_compute_the_same(name: str) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch's side needs PyTorch")
    if name != "yolov8n_like" and find_spec("torchvision") is None:
        pytest.skip("the network is torchvision's")
    from benchmarks.peers_torch import torch_side

    case = measure.build(name, 2, trial=True)
    assert any(node.op_type == "BatchNormalization" for node in case.model.graph.node), "the runtime folds them"
    for fold in (False, True):
        side = torch_side(case, fold).to("cpu", torch.float32, "nchw")
        with torch.inference_mode():
            got = side(*(torch.from_numpy(a.copy()) for a in case.inputs.values()))
        assert relative_error([y.numpy() for y in got], case.outputs) < 1e-4
    with weft.load(case.model, "cpu") as session:
        assert relative_error(session.run(case.inputs), case.outputs) < 1e-4


def test_a_network_outside_the_table_goes_by_its_library_and_name() -> None:
    known = words(["resnet18"], library_networks.LIBRARIES)
    asked = ["resnet18", "timm/resnext50_32x4d", "torchvision/resnet34@96"]
    assert known(",".join(asked)) == asked
    with pytest.raises(ArgumentTypeError, match=r"keras/resnet is none of resnet18, timm/..., torchvision/..."):
        known("resnet18,keras/resnet")
    sized = library_networks.Asked("torchvision", "resnet34", 96, {})
    assert library_networks.Asked.by("torchvision/resnet34@96") == sized
    configured = library_networks.Asked("transformers", "llama", 0, {"hidden_size": 64, "hidden_act": "gelu"})
    assert library_networks.Asked.by("transformers/llama:hidden_size=64:hidden_act=gelu") == configured
    deep = "timm/convnext_tiny:depths=[1,1,2,1]"
    assert known(f"resnet18,{deep}") == ["resnet18", deep]
    assert library_networks.Asked.by(deep).options == {"depths": [1, 1, 2, 1]}
    with pytest.raises(ValueError, match="does not begin with timm/ or torchvision/ or transformers/"):
        table_networks.named("resnet34")


@pytest.mark.parametrize(
    "name", ["timm/resnet18@0", "timm/resnet18@big", "torchvision/resnet18@", "timm/", "timm/resnet18:width"]
)
def test_a_size_is_checked_before_anything_runs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        gpu.parse(["--networks", name])
    told = capsys.readouterr().err
    assert f"{name}: " in told or f"{name} names no network of timm" in told


def test_every_network_of_the_table_is_known_by_one_name() -> None:
    assert not table_networks.NETWORKS.keys() & models.MODELS.keys()
