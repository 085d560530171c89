"""Write scripts/standard_kernels.json, the list of kernels that a wheel has compiled to SPIR-V.

Run it after a change of an op, a template or a tile that a test calls for (about 15 s, no device needed):

    python -m scripts.update_standard_kernels

The list holds the kernels of a few common networks on several kinds of devices. See scripts/standard_kernels.py.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path

import onnx

from benchmarks.models import MODELS
from scripts.plan_kernels import plan_kernels, prepare
from scripts.standard_kernels import MANIFEST, standard_requests, write_requests
from weft import models as shipped
from weft.backends.gpu.device.device import DeviceCaps
from weft.cli.trial_run import small_network
from weft.core.contract.backend import Precision
from weft.core.graph.graph import Graph
from weft.core.graph.layout import Shape
from weft.frontends.onnx import load
from weft.kernels.template import KernelRequest

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
"""Nine networks with artificial weights in the onnx package."""
REAL = Path(__file__).parents[2] / "shared" / "models"
"""Real networks, if present; not part of the project."""
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
    "fewer": replace(_GPU, compute_units=32),
    "some": replace(_GPU, compute_units=40),
    "middle": replace(_GPU, compute_units=46),
    "more": replace(_GPU, compute_units=72),
    "many": replace(_GPU, compute_units=96),
    "large": replace(_GPU, local_memory=48 << 10, compute_units=132),
}
"""Several kinds of devices; their differences decide which variant of a kernel is used."""
PRECISIONS = (Precision.HIGH, Precision.LOW)
CASES = tuple(product(PROFILES, PRECISIONS))


@dataclass(frozen=True)
class KernelNetwork:
    """A network and the shapes to plan it for."""

    name: str
    graph: Graph = field(repr=False)
    shapes: dict[str, Shape] = field(default_factory=dict)

    def requests(self, cases: Iterable[tuple[str, Precision]] = CASES) -> set[KernelRequest]:
        """Return the kernels that it needs on profiles at precisions, by default on all of them as fp32 and as fp16."""
        prepared = {each: prepare(self.graph, each, self.shapes) for each in PRECISIONS}
        return {
            request
            for name, precision in cases
            for request in plan_kernels(
                self.graph, PROFILES[name], precision, self.shapes, prepared=prepared[precision]
            )
        }


def public_networks() -> dict[str, Callable[[], KernelNetwork]]:
    """Return makers of the networks that are always present: those of onnx, of the benchmarks, and our own."""
    makers: dict[str, Callable[[], KernelNetwork]] = {"doctor": lambda: KernelNetwork("doctor", small_network())}
    for path in sorted(LIGHT.glob("light_*.onnx")):
        makers[path.stem] = partial(_from_file, path)
    for batch in BATCHES:
        for name in MODELS:
            makers[f"{name} x{batch}"] = partial(_of_the_benchmarks, name, batch)
        makers[f"shapes x{batch}"] = partial(
            _from_file, shipped.path("shapes"), {"image": (batch, 3, 128, 128)}
        )
    return makers


def _from_file(path: Path, shapes: dict[str, Shape] | None = None) -> KernelNetwork:
    return KernelNetwork(path.stem, load(path), shapes or {})


def _of_the_benchmarks(name: str, batch: int) -> KernelNetwork:
    return KernelNetwork(f"{name} x{batch}", load(MODELS[name](batch)))


def real_networks(folder: Path = REAL) -> dict[str, Callable[[], KernelNetwork]]:
    """Return makers of the networks in a folder of real ones."""
    return {name: partial(_from_file, folder / f"{name}.onnx") for name in REAL_NAMES}


def main() -> None:
    """Plan all networks and write the list, printing what changed."""
    parser = argparse.ArgumentParser(
        description="Write the list of the kernels that a wheel brings compiled."
    )
    parser.add_argument("--models", type=Path, default=REAL, help="the folder with the real networks")
    folder = parser.parse_args().models
    if not folder.is_dir():
        sys.exit(f"{folder} is not there: the list would lose the kernels of {', '.join(REAL_NAMES)}")
    requests: set[KernelRequest] = set()
    for name, make in {**public_networks(), **real_networks(folder)}.items():
        wanted = make().requests()
        print(f"{name}: {len(wanted)} kernels, {len(wanted - requests)} of them new")
        requests |= wanted
    before = set(standard_requests()) if MANIFEST.exists() else set()
    write_requests(requests)
    print(f"{len(requests)} kernels; {len(requests - before)} came, {len(before - requests)} went")


if __name__ == "__main__":
    main()
