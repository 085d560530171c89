"""What a call costs through PyTorch's doors of Weft, beside a session and beside PyTorch itself, host to host.

    python -m benchmarks.torch_doors --device vulkan --networks mlp,cnn,encoder

Tensors begin and end on the CPU in every row. PyTorch's own rows, where CUDA is there, copy them to pinned memory, to
the device and back: eager, and Inductor in a CUDA graph (mode "reduce-overhead"). TF32 is off. `guards` is a network of
many small layers, whose weights PyTorch guards one by one. A row says how far the result is from eager's on the CPU.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import nn

import weft
import weft.torch
from weft.torch.explanation import explain

WARM_UP, SECONDS = 20, 1.0


class Residual(nn.Module):
    """Two convolutions with batch norms and what is passed around them."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU(inplace=True),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels),
        )

    def forward(self, x: Any) -> Any:
        """Return the sum, without what is negative."""
        return torch.relu(x + self.body(x))


def _cnn() -> Any:
    layers: list[Any] = [nn.Conv2d(3, 64, 7, 2, 3), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    for channels in (64, 128, 256, 512):
        if channels > 64:
            layers.append(nn.Conv2d(channels // 2, channels, 1, 2))
        layers += [Residual(channels), Residual(channels)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))


def _encoder() -> Any:
    layer = nn.TransformerEncoderLayer(384, 12, 1536, activation="gelu", batch_first=True)
    return nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)


NETWORKS: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10)), (1, 256)),
    "guards": (lambda: nn.Sequential(*(nn.Linear(16, 16) for _ in range(150))), (1, 16)),
    "cnn": (_cnn, (1, 3, 224, 224)),
    "encoder": (_encoder, (1, 128, 384)),
}


def main() -> None:
    """Time what the command line names, and print a table and a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="vulkan")
    parser.add_argument("--precision", default="high")
    parser.add_argument("--networks", default=",".join(NETWORKS))
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    rows = []
    for name in given.networks.split(","):
        with torch.no_grad():
            rows += _rows(name, {"device": given.device, "precision": given.precision})
    print(f"{'network':10} {'through':26} {'us a call':>10} {'first, s':>9} {'apart':>9}")
    for row in rows:
        print(f"{row['network']:10} {row['way']:26} {row['us']:10.0f} {row['first']:9.2f} {row['apart']:9.1e}")
    facts = {"torch": torch.__version__, "cuda": torch.cuda.is_available(), "device": _name(given.device)}
    print(json.dumps({**facts, "rows": rows}))


def _name(device: str) -> str:
    return next((d.name for d in weft.devices() if d.id == device.partition(":")[0]), device)


def _rows(name: str, options: dict[str, Any]) -> list[dict[str, Any]]:
    torch.manual_seed(0)
    make, shape = NETWORKS[name]
    model, x = make().eval(), torch.randn(shape)
    wanted = model(x).numpy()
    ways: dict[str, Callable[[], Callable[[Any], Any]]] = {
        "session.run": lambda: _session(model, x, options),
        "weft.torch.compile": lambda: weft.torch.compile(model, (x,), **options),
        "torch.compile, Weft": lambda: torch.compile(model, backend=weft.torch.backend, options=options),
        "PyTorch on the CPU": lambda: model,
    }
    if torch.cuda.is_available():
        ways["eager, CUDA"] = lambda: _on_cuda(model)
        ways["Inductor, CUDA graph"] = lambda: _on_cuda(torch.compile(model, mode="reduce-overhead"))
    rows = []
    for way, prepare in ways.items():
        torch.compiler.reset()
        begun = time.perf_counter()
        call = prepare()
        found = np.asarray(call(x))
        first = time.perf_counter() - begun
        apart = float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))
        us = _microseconds(partial(call, x))
        rows.append({"network": name, "way": way, "us": us, "first": first, "apart": apart})
        model.cpu()
    torch.compiler.reset()
    print(name, str(explain(model, x, options=options)).splitlines()[1])
    return rows


def _session(model: Any, x: Any, options: dict[str, Any]) -> Callable[[Any], Any]:
    session = weft.load(torch.export.export(model, (x,)), wait="all", **options)
    return lambda given: session.run(given)[0]


def _on_cuda(model: Any) -> Callable[[Any], Any]:
    model.cuda()
    held: dict[Any, Any] = {}

    def call(x: Any) -> Any:
        if x.shape not in held:
            held[x.shape] = torch.empty_like(x, pin_memory=True)
        pinned = held[x.shape]
        pinned.copy_(x)
        return model(pinned.cuda(non_blocking=True)).cpu()

    return call


def _microseconds(call: Callable[[], object]) -> float:
    for _ in range(WARM_UP):
        call()
    times = []
    stop = time.perf_counter() + SECONDS
    while time.perf_counter() < stop:
        begun = time.perf_counter()
        call()
        times.append(time.perf_counter() - begun)
    return 1e6 * median(times)


if __name__ == "__main__":
    main()
