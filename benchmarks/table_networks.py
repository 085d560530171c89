"""The networks that nobody tuned Weft for: torchvision's definitions and a detector like YOLOv8n, exported on the spot.

Beside those of the table, any network of pictures of timm and torchvision goes by its name: `timm/resnext50_32x4d`,
`torchvision/wide_resnet50_2@288` with pictures of 288 x 288. Weights are random but the same in each run, and most
batch norms are measured on noise. TorchScript's exporter leaves batch norms to the runtime, which folds them itself.
The module goes along, for PyTorch's side. Where PyTorch or torchvision is missing, `made` raises, and the measurement
lists the network with that reason.
"""

from __future__ import annotations

import inspect
import io
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import onnx

from benchmarks import models

OPSET = 17
LIBRARIES = ("timm/", "torchvision/")
"""What the name of a network begins with that is not in the table."""
CALIBRATED = 4
"""Pictures of noise on which batch norms are measured."""


@dataclass(frozen=True)
class TableNetwork:
    """A network of pictures: the size of its picture, the smallest that serves a trial, and how its module is made."""

    image: int
    trial: int = 64
    module: Callable[[], Any] | None = None
    """Makes the module of PyTorch; None for one that `benchmarks.models` builds."""
    build: Callable[..., onnx.ModelProto] | None = None
    calibrated: bool = True
    """Whether batch norms are measured; not where rounding then grows beyond what an output may be off."""

    def made(self, batch: int, trial: bool) -> tuple[onnx.ModelProto, Any]:
        """Return the model for a batch and its module, if it comes from PyTorch."""
        image = self.trial if trial else self.image
        if self.module is None:
            assert self.build is not None
            return self.build(batch, image=image), None
        import torch

        torch.manual_seed(0)
        module = one_answer(self.module()).eval()
        fill_heads(module)
        if self.calibrated:
            calibrate(module, torch.randn(CALIBRATED, 3, image, image))
        file = io.BytesIO()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the exporter's age, and of sizes that a trace fixes
            self._export(module, batch, image, file)
        return onnx.load_from_string(file.getvalue()), module

    @staticmethod
    def _export(module: Any, batch: int, image: int, file: io.BytesIO) -> None:
        import torch

        torch.onnx.export(
            module, (torch.zeros(batch, 3, image, image),), file, input_names=["x"], opset_version=OPSET,
            training=torch.onnx.TrainingMode.PRESERVE, do_constant_folding=True, dynamo=False,
        )  # fmt: skip


def _vision(name: str, **options: Any) -> Callable[[], Any]:
    def make() -> Any:
        _import_torchvision()
        import torchvision

        taken = inspect.signature(torchvision.models.get_model_builder(name)).parameters
        none = {weights: None for weights in ("weights", "weights_backbone") if weights in taken}
        return torchvision.models.get_model(name, **none, **options)

    return make


def _import_torchvision() -> None:
    from benchmarks.zoo.torchvision_ops import define_where_missing

    define_where_missing()


def parted(name: str) -> tuple[str, str, int]:
    """Return the library, the network and the size of the picture that a name says, 0 for the usual one; ValueError."""
    known, at, size = name.partition("@")
    library, _, model = known.partition("/")
    if f"{library}/" not in LIBRARIES or not model:
        raise ValueError(f"{name} is no network of the table, and does not begin with {' or '.join(LIBRARIES)}")
    if at and not (size.isdecimal() and int(size)):
        raise ValueError(f"{name}: {size!r} is no size of a picture")
    return library, model, int(size or 0)


def named(name: str) -> TableNetwork:
    """Return a network of the table, of timm or of torchvision; ValueError if `parted` raises it."""
    if name in NETWORKS:
        return NETWORKS[name]
    library, model, size = parted(name)
    if library == "timm":
        return _timm(model, size)
    size = size or 224
    sized = {"image_size": size} if model.startswith("vit_") else {}
    return TableNetwork(size, size, module=_vision(model, **sized))


def _timm(name: str, size: int) -> TableNetwork:
    _import_torchvision()
    import timm

    usual = timm.get_pretrained_cfg(name, allow_unregistered=False)
    sized = {"img_size": size} if size and usual.fixed_input_size else {}
    image = size or usual.input_size[-1]
    return TableNetwork(image, image, module=lambda: timm.create_model(name, pretrained=False, **sized))


def _yolo() -> Any:
    from benchmarks.yolo import Yolo

    return Yolo()


def calibrate(module: Any, pictures: Any) -> None:
    """Set the statistics of batch norms to those of some pictures, so that signals neither die out nor blow up."""
    import torch

    norms = [m for m in module.modules() if isinstance(m, torch.nn.modules.batchnorm._BatchNorm)]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the statistics become those of the pictures
        norm.train()
    with torch.no_grad():
        module(pictures)
    module.eval()


def fill_heads(module: Any) -> None:
    """Give layers whose weights are all zero random ones: a head that begins like that makes zeros of any picture."""
    import torch

    for layer in module.modules():
        if isinstance(layer, torch.nn.Linear) and not layer.weight.any():
            torch.nn.init.normal_(layer.weight, std=layer.in_features**-0.5)


def tensors_of(answer: Any) -> list[Any]:
    """Return the tensors of what a module returns: one, several, or some by name."""
    if isinstance(answer, Mapping):
        return [answer["out"]] if "out" in answer else list(answer.values())
    return list(answer) if isinstance(answer, (list, tuple)) else [answer]


def one_answer(module: Any) -> Any:
    """Return a module that returns the tensors of another's answer."""
    import torch

    class Wrapped(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, x: Any) -> Any:
            found = tensors_of(self.inner(x))
            return found[0] if len(found) == 1 else tuple(found)

    return Wrapped()


NETWORKS: dict[str, TableNetwork] = {
    "efficientnet_b0": TableNetwork(224, module=_vision("efficientnet_b0")),
    "convnext_tiny": TableNetwork(224, module=_vision("convnext_tiny")),
    "yolov8n_like": TableNetwork(640, module=_yolo),
    "densenet121": TableNetwork(224, module=_vision("densenet121")),
    "swin_t": TableNetwork(224, module=_vision("swin_t")),
    "shufflenet_v2_x1_0": TableNetwork(224, module=_vision("shufflenet_v2_x1_0")),
    "regnet_y_400mf": TableNetwork(224, module=_vision("regnet_y_400mf")),
    "mobilenet_v3_large": TableNetwork(224, module=_vision("mobilenet_v3_large")),
    "inception_v3": TableNetwork(
        299, 96, module=_vision("inception_v3", init_weights=False, aux_logits=False), calibrated=False
    ),
    "deeplabv3_mobilenet_v3_large": TableNetwork(
        320, module=_vision("deeplabv3_mobilenet_v3_large")
    ),
    "vgg16": TableNetwork(224, 224, module=_vision("vgg16")),
    "resnet18": TableNetwork(224, module=_vision("resnet18")),
    "resnet50_384": TableNetwork(384, 96, build=models.resnet50),
}
"""By name, in the order of the table."""


def flops(model: onnx.ModelProto) -> int:
    """Return `models.flops`, or 0 where the shapes of an exported graph do not tell."""
    try:
        return models.flops(model, None if model.producer_name == "pytorch" else 1)
    except (KeyError, ValueError, IndexError, onnx.shape_inference.InferenceError):
        return 0
