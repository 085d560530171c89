"""Time quantised networks beside the same ones in fp16, check every output, and print how they compare.

    python -m benchmarks.quantised --write FOLDER            # needs ONNX Runtime
    python -m benchmarks.quantised --folder FOLDER --launches FOLDER2

The first command quantises ResNet-50 and MobileNetV2 of `benchmarks/models.py` by ONNX Runtime (QDQ, int8, weights by
channel), and keeps what ONNX Runtime computes at each batch size. The second one times them on both APIs, at precision
HIGH, and the float networks at LOW, as `own.py` says; the table comes last, with products of a few rows and weights of
four bits (MatMulNBits, K=8192, N=16384, which no cache holds) in fp16. An error is the norm of the difference from ONNX
Runtime over the norm of its output. `--image 64` makes and runs small pictures, as a trial.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

import weft
from benchmarks import models, own
from benchmarks.measure import Array, Counts, Record, Row, Workload, shown
from benchmarks.options import number, numbers, words

NETWORKS = ("resnet50", "mobilenet_v2")
BLOCK = 32
"""Weights of four bits that share a scale."""
CALIBRATED = 4
"""Pictures by which ranges are found."""


def picture(batch: int, image: int, seed: int) -> Array:
    """Return random pictures."""
    return np.random.default_rng(seed).standard_normal((batch, 3, image, image), dtype=np.float32)


def quantise(name: str, image: int, folder: Path) -> Path:
    """Write a network, quantised by ONNX Runtime, and return the file."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Pictures(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._left: Iterator[dict[str, Array]] = ({"x": picture(1, image, 100 + k)} for k in range(CALIBRATED))

        def get_next(self) -> dict[str, Array] | None:
            return next(self._left, None)

    made = folder / f"{name}.int8.onnx"
    with tempfile.TemporaryDirectory() as scratch:
        plain, ready = Path(scratch, "plain.onnx"), Path(scratch, "ready.onnx")
        onnx.save(models.MODELS[name](batch="N", image=image), plain)
        quant_pre_process(str(plain), str(ready), skip_symbolic_shape=True)
        quantize_static(
            str(ready), str(made), Pictures(), quant_format=QuantFormat.QDQ, per_channel=True,
            activation_type=QuantType.QInt8, weight_type=QuantType.QInt8,
        )
    return made


def write(folder: Path, names: list[str], batches: list[int], image: int) -> None:
    """Write the quantised networks and what ONNX Runtime computes."""
    import onnxruntime

    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        made = quantise(name, image, folder)
        floats = models.MODELS[name](batch="N", image=image).SerializeToString()
        outputs = {}
        for kind, model in (("int8", str(made)), ("fp16", floats)):
            session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
            for batch in batches:
                outputs[f"{kind}.{batch}"] = session.run(None, {"x": picture(batch, image, batch)})[0]
        np.savez(folder / f"{name}.npz", image=np.asarray(image), **outputs)
        print(f"{made}: {made.stat().st_size / 1e6:.1f} MB")


def workload(folder: Path, name: str, kind: str, batch: int) -> Workload:
    """Return a network with its inputs and what ONNX Runtime computes."""
    with np.load(folder / f"{name}.npz") as held:
        image, expected = int(held["image"]), held[f"{kind}.{batch}"]
    if kind == "int8":
        model = onnx.load(folder / f"{name}.int8.onnx")
        for value in (*model.graph.input, *model.graph.output):
            value.type.tensor_type.shape.dim[0].dim_value = batch
    else:
        model = models.MODELS[name](batch=batch, image=image)
    return Workload(name, batch, model, {"x": picture(batch, image, batch)}, [expected], 0)


def product(rows: int, k: int, n: int) -> Workload:
    """Return a product of rows with weights of four bits in blocks of 32, and what it is."""
    rng = np.random.default_rng(rows)
    packed = np.random.default_rng(0).integers(0, 256, (n, k // BLOCK, BLOCK // 2), np.uint8)
    scales = np.random.default_rng(1).uniform(0.01, 0.02, (n, k // BLOCK)).astype(np.float16)
    x = rng.standard_normal((rows, k)).astype(np.float16)
    node = helper.make_node(
        "MatMulNBits", ["x", "w", "s"], ["y"], domain="com.microsoft", K=k, N=n, bits=4, block_size=BLOCK
    )
    graph = helper.make_graph(
        [node], "product", [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT16, [rows, k])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT16, [rows, n])],
        [numpy_helper.from_array(packed, "w"), numpy_helper.from_array(scales, "s")],
    )
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    some = np.stack([packed & 15, packed >> 4], -1).reshape(n, k // BLOCK, BLOCK)
    weights = ((some - np.float32(8)) * scales[..., None].astype(np.float32)).reshape(n, k)
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    return Workload(f"4 bits {k}x{n}", rows, model, {"x": x}, [x.astype(np.float32) @ weights.T], 0)


def same_classes(case: Workload, device: str, precision: str) -> float:
    """Return the share of pictures of which the device finds ONNX Runtime's class."""
    with weft.load(case.model, device, precision=precision, fallback="error") as session:
        (got,) = session.run(case.inputs)
    return float((got.argmax(1) == case.outputs[0].argmax(1)).mean())


def main() -> None:
    """Do what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="write the networks there, and time nothing")
    parser.add_argument("--folder", type=Path, help="where they are")
    parser.add_argument("--networks", type=words(NETWORKS), default=list(NETWORKS))
    parser.add_argument("--batch", type=numbers, default=[1, 32])
    parser.add_argument("--image", type=number, default=224, help="of what --write makes")
    parser.add_argument("--devices", type=words(("vulkan", "opencl")), default=["vulkan", "opencl"])
    parser.add_argument("--kinds", type=words(("int8", "fp16")), default=["int8", "fp16"])
    parser.add_argument("--rows", type=numbers, default=[1, 2, 4, 8, 16, 17, 64], help="of products of four bits")
    parser.add_argument("--product", type=numbers, default=[8192, 16384], help="K and N of these")
    parser.add_argument("--iterations", type=number, default=40)
    parser.add_argument("--seconds", type=float, default=1.5, help="after which a row's runs end")
    parser.add_argument("--budget", type=float, default=330.0, help="seconds after which nothing new is begun")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--launches", type=Path, metavar="FOLDER", help="for what each launch took")
    options = parser.parse_args()
    if options.write:
        write(options.write, options.networks, options.batch, options.image)
        return
    if not options.folder:
        parser.error("--folder: where --write wrote the networks")
    if options.launches:
        options.launches.mkdir(parents=True, exist_ok=True)
    record = Record({"devices": [str(each) for each in weft.devices()]}, options.json, options.budget)
    counts = Counts(3, options.iterations, options.seconds, 0.2)
    classes: dict[tuple[str, int, str, str], float] = {}
    # Large batches first: they matter most.
    for name, batch, device, kind in (
        (n, b, d, k) for b in sorted(options.batch, reverse=True) for n in options.networks
        for d in options.devices for k in options.kinds
    ):
        def measure(name: str = name, batch: int = batch, device: str = device, kind: str = kind) -> None:
            case, precision = workload(options.folder, name, kind, batch), "high" if kind == "int8" else "low"
            row = own.prepared(case, device, precision, counts, launches=options.launches)()
            row.precision = kind
            classes[name, batch, device, kind] = same_classes(case, device, precision)
            record.add(row)

        record.attempt(f"{name} x{batch} {device} {kind}", measure)
    products = Record({}, None, options.budget - record.seconds)
    k, n = options.product
    for rows, device in ((r, d) for r in options.rows for d in options.devices):
        products.attempt(
            f"{rows} rows {device}",
            lambda rows=rows, device=device: products.add(  # type: ignore[misc]
                own.prepared(product(rows, k, n), device, "low", counts, launches=options.launches)()
            ),
        )
    print(table(record.rows, classes))
    moved = n * k // 2 + n * k // BLOCK * 2
    for row in products.rows:
        if row.device_ms:
            rate = moved / row.device_ms / 1e6
            took = f"{row.device_ms * 1e3:8.1f} us, {rate:6.0f} GB/s"
            print(f"{row.network}, {row.batch:3} rows, {row.who:14} {took}, error {row.error:.1e}")
    sys.exit(1 if record.absent else 0)


def table(rows: list[Row], classes: dict[tuple[str, int, str, str], float]) -> str:
    """Return the times of both kinds side by side."""
    by_key = {(r.network, r.batch, r.who.removeprefix("weft "), r.precision): r for r in rows}
    lines = ["network        batch api     int8 device/host ms   fp16 device/host ms   faster   error  same class"]
    for network, batch, device in dict.fromkeys(key[:3] for key in by_key):
        pair = [by_key.get((network, batch, device, kind)) for kind in ("int8", "fp16")]
        times = [f"{shown(r.device_ms if r else None):>9} / {shown(r.host_ms if r else None):<9}" for r in pair]
        both = [r.device_ms for r in pair if r is not None and r.device_ms]
        ratio = f"{both[1] / both[0]:.2f}" if len(both) == 2 else "-"
        error = f"{pair[0].error:.1e}" if pair[0] is not None and pair[0].error is not None else "-"
        same = classes.get((network, batch, device, "int8"))
        shown_same = "-" if same is None else f"{same:.0%}"
        lines.append(f"{network:14} {batch:5} {device:7} {times[0]} {times[1]} {ratio:>6} {error:>9} {shown_same:>6}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
