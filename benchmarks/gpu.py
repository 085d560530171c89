"""Time Weft and ncnn side by side on one GPU, host array to host array, and check every output.

    python -m benchmarks.gpu [--ncnn FOLDER] [--json FILE] [--iterations 100] [--only resnet50,...]

The networks are those of `benchmarks/models.py` (random weights). Outputs are compared with ONNX
Runtime on the CPU. ncnn runs its own benchmark networks (FOLDER holds resnet50.param and so on, weights
random), on the same device, in the same process. Times are medians and 90th percentiles, in ms.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

import weft
from benchmarks import models

NCNN_NAMES = {
    "resnet50": ("resnet50", 224),
    "mobilenet_v2": ("mobilenet_v2", 224),
    "squeezenet1_1": ("squeezenet", 227),
}
"""The file and the picture size of ncnn's own version of each network."""
HEADERS = ("network", "who", "precision", "median ms", "p90 ms", "error (norm)", "best ncnn / this")
Row = dict[str, Any]


def timed(run: Callable[[], object], iterations: int, seconds: float = 4.0) -> tuple[float, float]:
    """Return median and 90th percentile of the milliseconds that `run` takes, after ten warm-up calls."""
    for _ in range(10):
        run()
    times: list[float] = []
    stop = time.perf_counter() + seconds
    while len(times) < iterations and time.perf_counter() < stop:
        start = time.perf_counter()
        run()
        times.append((time.perf_counter() - start) * 1e3)
    return float(np.median(times)), float(np.percentile(times, 90))


def reference(model: Any, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return ONNX Runtime's output on the CPU."""
    import onnxruntime as ort

    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": x})[0])


def weft_rows(name: str, model: Any, iterations: int, batch: int, software: bool = False) -> list[Row]:
    """Return the rows of Weft for one network: every GPU device, both precisions."""
    x = np.random.default_rng(0).standard_normal((batch, 3, 224, 224), np.float32)
    want = reference(model, x)
    rows = []
    for device in weft.devices():
        if device.id == "cpu" or (device.software and not software):
            continue
        for precision in ("high", "low"):
            name_of_device = f"{device.id}:{device.index}"
            start = time.perf_counter()
            with weft.load(model, name_of_device, precision=precision, fallback="error") as session:
                loaded = time.perf_counter() - start
                (got,) = session.run(x)
                error = float(np.linalg.norm(got - want) / np.linalg.norm(want))
                median, p90 = timed(lambda s=session: s.run(x), iterations)  # type: ignore[misc]
            kind = "fp32" if precision == "high" else "fp16"
            rows.append(_row(f"weft {device.id}", name, batch, kind, median, p90, error=error, load_s=loaded))
    return rows


def ncnn_rows(name: str, folder: Path, iterations: int) -> list[Row]:
    """Return the rows of ncnn's Vulkan back end for one network at batch 1."""
    import ncnn

    ncnn.create_gpu_instance()
    device = ncnn.get_gpu_device(0)
    file, size = NCNN_NAMES[name]
    rows = []
    for kind in ("fp32", "fp16"):
        blobs, staging = ncnn.VkBlobAllocator(device), ncnn.VkStagingAllocator(device)
        option = ncnn.Option()
        option.lightmode = option.use_vulkan_compute = True
        option.blob_vkallocator = option.workspace_vkallocator = blobs
        option.staging_vkallocator = staging
        option.use_fp16_packed = option.use_fp16_storage = option.use_fp16_arithmetic = kind == "fp16"
        option.num_threads = 1
        net = ncnn.Net()
        net.opt = option
        net.set_vulkan_device(device)
        net.load_param(str(folder / f"{file}.param"))
        net.load_model(ncnn.DataReaderFromEmpty())
        x = ncnn.Mat(size, size, 3)
        x.fill(0.01)

        def run(net: Any = net, x: Any = x) -> object:
            with net.create_extractor() as extractor:
                extractor.input(net.input_names()[0], x)
                return extractor.extract(net.output_names()[0])

        median, p90 = timed(run, iterations)
        rows.append(_row("ncnn vulkan", name, 1, kind, median, p90))
    return rows


def _row(who: str, network: str, batch: int, precision: str, median: float, p90: float, **more: float) -> Row:
    row = {"who": who, "network": network, "batch": batch, "precision": precision, "median_ms": median, "p90_ms": p90}
    return row | more


def table(rows: list[Row]) -> str:
    """Return the rows as a table; `best ncnn / this` is against ncnn's better precision."""
    best: dict[str, float] = {}
    for r in rows:
        if r["who"].startswith("ncnn"):
            best[r["network"]] = min(best.get(r["network"], r["median_ms"]), r["median_ms"])
    lines = ["| " + " | ".join(HEADERS) + " |", "|---" * len(HEADERS) + "|"]
    for r in rows:
        ratio = f"{best[r['network']] / r['median_ms']:.2f}" if r["network"] in best else "-"
        error = f"{r['error']:.1e}" if "error" in r else "-"
        times = f"{r['median_ms']:.3f} | {r['p90_ms']:.3f}"
        lines.append(f"| {r['network']} | {r['who']} | {r['precision']} | {times} | {error} | {ratio} |")
    return "\n".join(lines)


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ncnn", type=Path, help="folder of ncnn's benchmark networks")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--only", default=",".join(models.MODELS))
    parser.add_argument("--software", action="store_true", help="time software devices too (to try the script)")
    arguments = parser.parse_args()
    rows: list[Row] = []
    for name in arguments.only.split(","):
        model = models.MODELS[name](arguments.batch)
        rows += weft_rows(name, model, arguments.iterations, arguments.batch, arguments.software)
        if arguments.ncnn:
            rows += ncnn_rows(name, arguments.ncnn, arguments.iterations)
    devices = [f"{d.id}:{d.index} {d.name}, {d.driver}" for d in weft.devices()]
    print(f"{date.today()}  python -m benchmarks.gpu {' '.join(sys.argv[1:])}")
    print("\n".join(devices))
    print(table(rows))
    if arguments.json:
        arguments.json.write_text(json.dumps({"date": str(date.today()), "devices": devices, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
