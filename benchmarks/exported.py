"""Networks that are exported from PyTorch on the spot, with random weights that are the same in each run.

Batch norms are measured on noise where a network has any, so that signals neither die out nor blow up. TorchScript's
exporter leaves them to the runtime, which folds them itself. PyTorch's newer exporter is for what that one cannot
trace. The module goes along, for PyTorch's side.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import onnx

OPSET = 17
FRAMES = 16
"""Pictures of a video."""
CALIBRATED = 4
"""Examples of noise on which batch norms are measured."""


def pictures(batch: int, size: int) -> Mapping[str, Any]:
    """Return pictures of noise, as the only input."""
    import torch

    return {"x": torch.randn(batch, 3, size, size)}


def volumes(batch: int, size: int) -> Mapping[str, Any]:
    """Return volumes of noise of one channel, as the only input."""
    import torch

    return {"x": torch.randn(batch, 1, size, size, size)}


def videos(batch: int, size: int) -> Mapping[str, Any]:
    """Return videos of noise, as the only input."""
    import torch

    return {"x": torch.randn(batch, 3, FRAMES, size, size)}


@dataclass(frozen=True)
class Exported:
    """A network of PyTorch: how large its input is, in a trial too, and how its module is made."""

    size: int
    """The side of a picture, or the count of tokens or samples."""
    trial: int
    """The smallest size that serves a trial."""
    module: Callable[[], Any]
    example: Callable[[int, int], Mapping[str, Any]] = pictures
    """Makes the inputs by name for a batch and a size."""
    calibrated: bool = True
    """Whether batch norms are measured; not where rounding then grows beyond what an output may be off."""
    traced: bool = True
    """Whether TorchScript's exporter can trace the network."""

    def made(self, batch: int, trial: bool) -> tuple[onnx.ModelProto, Any]:
        """Return the model for a batch, and its module; both take the inputs in the order of the example."""
        import torch

        size = self.trial if trial else self.size
        torch.manual_seed(0)
        module = one_answer(self.module()).eval()
        fill_heads(module)
        if self.calibrated:
            calibrate(module, lambda: tuple(self.example(CALIBRATED, size).values()))
        return _exported(module, self.example(batch, size), self.traced), module


def _exported(module: Any, example: Mapping[str, Any], traced: bool) -> onnx.ModelProto:
    import torch

    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter's age, and of sizes that a trace fixes
        if traced:
            torch.onnx.export(
                module, tuple(example.values()), file, input_names=list(example), opset_version=OPSET,
                training=torch.onnx.TrainingMode.PRESERVE, do_constant_folding=True, dynamo=False,
            )
        else:
            torch.onnx.export(module, tuple(example.values()), file, input_names=list(example), verbose=False)
    return onnx.load_from_string(file.getvalue())


def calibrate(module: Any, example: Callable[[], tuple[Any, ...]]) -> None:
    """Set the statistics of batch norms, if there are any, to those of an example."""
    import torch

    norms = [m for m in module.modules() if isinstance(m, torch.nn.modules.batchnorm._BatchNorm)]
    if not norms:
        return
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the statistics become those of the example
        norm.train()
    with torch.no_grad():
        module(*example())
    module.eval()


def fill_heads(module: Any) -> None:
    """Give layers whose weights are all zero random ones: a head that begins like that makes zeros of any input."""
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

        def forward(self, *inputs: Any) -> Any:
            found = tensors_of(self.inner(*inputs))
            return found[0] if len(found) == 1 else tuple(found)

    return Wrapped()
