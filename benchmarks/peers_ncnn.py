"""ncnn's side of the measurement: its Vulkan back end on its own benchmark networks.

These come without weights: ncnn fills them with zeros, so there is nothing to compare with ONNX Runtime. ncnn has
no batch axis: a batch is that many runs one after the other. The picture is made once and not timed. A run is from
the `ncnn.Mat` on the host to one on the host, because numpy's array of it costs nothing. Device times are not taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import Counts, Row

NETWORKS = {
    "resnet50": ("resnet50", 224),
    "mobilenet_v2": ("mobilenet_v2", 224),
    "squeezenet1_1": ("squeezenet", 227),
    "efficientnet_b0": ("efficientnet_b0", 224),
    "shufflenet_v2_x1_0": ("shufflenet_v2", 224),
    "regnet_y_400mf": ("regnety_400m", 224),
    "mobilenet_v3_large": ("mobilenet_v3", 224),
    "vgg16": ("vgg16", 224),
    "resnet18": ("resnet18", 224),
}
"""The file and the picture size of ncnn's own version of each network."""
PRECISIONS = ("fp32", "fp16")
SHAPES = "-23330"
"""The key of a layer's output shapes in a .param file: a count, then rank, width, height and channels of each."""


def facts() -> str:
    """Return the version and the device; an error if there is none."""
    import ncnn

    ncnn.create_gpu_instance()
    return f"{ncnn.__version__}, {ncnn.get_gpu_device(0).info().device_name()}"


def row(network: str, batch: int, precision: str, folder: Path, counts: Counts) -> Row:
    """Time ncnn on a network."""
    file, size = NETWORKS[network]
    path = folder / f"{file}.param"
    once = _runner(path, size, precision == "fp16")
    found = Row(network, batch, "ncnn vulkan", precision, note=f"its own network, {size} x {size}")

    def run() -> None:
        for _ in range(batch):
            once()

    found.time(run, counts)
    found.more["gflop"] = batch * flops(path) / 1e9
    return found


def flops(path: Path) -> int:
    """Count two operations per multiply-add of one picture, from the shapes that the .param file states."""
    total = 0
    for line in path.read_text().splitlines()[2:]:
        kind, _, inputs, outputs, *rest = line.split()
        values = dict(item.split("=", 1) for item in rest[int(inputs) + int(outputs) :])
        if kind in ("Convolution", "ConvolutionDepthWise"):
            _, _, width, height, *_ = map(int, values[SHAPES].split(","))
            total += 2 * width * height * int(values["6"])
        elif kind == "InnerProduct":
            total += 2 * int(values["2"])
    return total


def _runner(path: Path, size: int, half: bool) -> Callable[[], object]:
    import ncnn

    device = ncnn.get_gpu_device(0)
    blobs, staging = ncnn.VkBlobAllocator(device), ncnn.VkStagingAllocator(device)
    option = ncnn.Option()
    option.lightmode = option.use_vulkan_compute = True
    option.blob_vkallocator = option.workspace_vkallocator = blobs
    option.staging_vkallocator = staging
    option.use_fp16_packed = option.use_fp16_storage = option.use_fp16_arithmetic = half
    option.num_threads = 1
    net = ncnn.Net()
    net.opt = option
    net.set_vulkan_device(device)
    if net.load_param(str(path)) or net.load_model(ncnn.DataReaderFromEmpty()):
        raise OSError(f"ncnn cannot load {path}")
    picture = np.random.default_rng(0).standard_normal((3, size, size), np.float32)
    x = ncnn.Mat(picture).clone()
    first, last = net.input_names()[0], net.output_names()[0]

    def run(held: Any = (blobs, staging)) -> object:
        with net.create_extractor() as extractor:
            extractor.input(first, x)
            code, y = extractor.extract(last)
        if code or not math.prod((y.w, y.h, y.c)):
            raise RuntimeError(f"ncnn returned {code}")
        return y

    return run
