"""The networks beside those of `models.py`: torchvision's definitions, and a detector and U-Nets of our own.

Where PyTorch or torchvision is missing, `made` raises, and the measurement lists the network with that reason.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import onnx

from benchmarks import library_networks, models
from benchmarks.exported import Exported, volumes
from benchmarks.library_networks import vision


class Network(Protocol):
    """Something that is measured."""

    def made(self, batch: int, trial: bool) -> tuple[onnx.ModelProto, Any]:
        """Return the model for a batch, small in a trial, and its module, if it comes from PyTorch."""


@dataclass(frozen=True)
class Built:
    """A network that `benchmarks.models` builds, for pictures of a size."""

    size: int
    trial: int
    build: Callable[..., onnx.ModelProto]

    def made(self, batch: int, trial: bool) -> tuple[onnx.ModelProto, Any]:
        """Return the model for a batch, and no module."""
        return self.build(batch, image=self.trial if trial else self.size), None


def named(name: str) -> Network:
    """Return a network of the table or of a library; ValueError if there is none."""
    return NETWORKS[name] if name in NETWORKS else library_networks.named(name)


def _yolo() -> Any:
    from benchmarks.yolo import Yolo

    return Yolo()


def _unet() -> Any:
    from benchmarks.unet import UNet

    return UNet()


def _volume_unet() -> Any:
    from benchmarks.unet import VolumeUNet

    return VolumeUNet()


NETWORKS: dict[str, Network] = {
    "efficientnet_b0": Exported(224, 64, vision("efficientnet_b0")),
    "convnext_tiny": Exported(224, 64, vision("convnext_tiny")),
    "yolov8n_like": Exported(640, 64, _yolo),
    "densenet121": Exported(224, 64, vision("densenet121")),
    "swin_t": Exported(224, 64, vision("swin_t")),
    "shufflenet_v2_x1_0": Exported(224, 64, vision("shufflenet_v2_x1_0")),
    "regnet_y_400mf": Exported(224, 64, vision("regnet_y_400mf")),
    "mobilenet_v3_large": Exported(224, 64, vision("mobilenet_v3_large")),
    "inception_v3": Exported(
        299, 96, vision("inception_v3", init_weights=False, aux_logits=False), calibrated=False
    ),
    "deeplabv3_mobilenet_v3_large": Exported(320, 64, vision("deeplabv3_mobilenet_v3_large")),
    "vgg16": Exported(224, 224, vision("vgg16")),
    "resnet18": Exported(224, 64, vision("resnet18")),
    "unet": Exported(256, 64, _unet),
    "unet_3d": Exported(64, 16, _volume_unet, volumes),
    "resnet50_384": Built(384, 96, models.resnet50),
}
"""By name, in the order of the table."""


def flops(model: onnx.ModelProto) -> int:
    """Return `models.flops`, or 0 where the shapes of an exported graph do not tell."""
    try:
        return models.flops(model, None if model.producer_name == "pytorch" else 1)
    except (KeyError, ValueError, IndexError, onnx.shape_inference.InferenceError):
        return 0
