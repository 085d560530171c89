"""Write weft/backends/vulkan/standard.json, the kernels that a wheel brings compiled to SPIR-V.

Run it after a change of an op, a template or a tile that a test calls for (about 15 s, no device needed):

    python -m scripts.update_standard_kernels

The list is what a few common networks ask for on devices of several kinds. See weft.backends.vulkan.prebuild.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import onnx

from benchmarks.models import MODELS
from scripts.null_device import plan_kernels
from weft import models as shipped
from weft.backends.gpu.device import DeviceCaps
from weft.backends.vulkan.prebuild import MANIFEST, standard_requests, write_requests
from weft.cli.probe import small_network
from weft.core.backend import Precision
from weft.core.graph import Graph
from weft.core.layout import Shape
from weft.frontends.onnx import load
from weft.kernels.template import KernelRequest

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
"""Nine networks with made-up weights inside the onnx package."""
REAL = Path(__file__).parents[2] / "shared" / "models"
"""Real networks, where they are at hand; not part of the project."""
REAL_NAMES = ("squeezenet", "squeezenet_fp16", "ultraface_rfb_320")
BATCHES = (1, 8)

SOFTWARE = DeviceCaps(
    max_local_items=1024,
    max_local_size=(1024, 1024, 1024),
    local_memory=32 << 10,
    max_buffer_range=1 << 27,
    fp16_storage=True,
    int8_storage=True,
    compute_units=8,
    software=True,
)
_GPU = replace(SOFTWARE, max_local_size=(1024, 1024, 64), max_buffer_range=1 << 30, software=False)
PROFILES = {
    "llvmpipe": SOFTWARE,
    "unknown": replace(_GPU, compute_units=1),
    "small": replace(_GPU, max_local_items=256, compute_units=8),
    "middle": replace(_GPU, compute_units=40),
    "large": replace(_GPU, local_memory=48 << 10, compute_units=132),
}
"""Devices of several kinds; what they differ in decides which variant of a kernel is taken."""


@dataclass(frozen=True)
class Network:
    """A network with the shapes that it is planned for."""

    name: str
    graph: Graph = field(repr=False)
    shapes: dict[str, Shape] = field(default_factory=dict)

    def requests(self) -> set[KernelRequest]:
        """Return the kernels that it asks for on all profiles, stored as fp32 and as fp16."""
        return {
            request
            for caps in PROFILES.values()
            for precision in (Precision.HIGH, Precision.LOW)
            for request in plan_kernels(self.graph, caps, precision, self.shapes)
        }


def public_networks() -> Iterator[Network]:
    """Give the networks that are at hand everywhere: of onnx, of the benchmarks, and our own."""
    for path in sorted(LIGHT.glob("light_*.onnx")):
        yield Network(path.stem, load(path))
    for name, make in MODELS.items():
        for batch in BATCHES:
            yield Network(f"{name} x{batch}", load(make(batch)))
    shapes = load(shipped.path("shapes"))
    for batch in BATCHES:
        yield Network(f"shapes x{batch}", shapes, {"image": (batch, 3, 128, 128)})
    yield Network("doctor", small_network())


def real_networks(folder: Path = REAL) -> Iterator[Network]:
    """Give the networks of a folder of real ones."""
    for name in REAL_NAMES:
        yield Network(name, load(folder / f"{name}.onnx"))


def main() -> None:
    """Plan everything and write the list, saying what changed."""
    parser = argparse.ArgumentParser(
        description="Write the list of the kernels that a wheel brings compiled."
    )
    parser.add_argument("--models", type=Path, default=REAL, help="the folder with the real networks")
    folder = parser.parse_args().models
    if not folder.is_dir():
        sys.exit(f"{folder} is not there: the list would lose the kernels of {', '.join(REAL_NAMES)}")
    logging.getLogger("weft.session").setLevel(logging.ERROR)
    requests: set[KernelRequest] = set()
    for network in (*public_networks(), *real_networks(folder)):
        wanted = network.requests()
        print(f"{network.name}: {len(wanted)} kernels, {len(wanted - requests)} of them new")
        requests |= wanted
    before = set(standard_requests()) if MANIFEST.exists() else set()
    write_requests(requests)
    print(f"{len(requests)} kernels; {len(requests - before)} came, {len(before - requests)} went")


if __name__ == "__main__":
    main()
