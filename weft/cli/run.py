"""`weft run`: a network on some inputs, on one device or on several."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from weft.cli.console import line, note, working
from weft.cli.inputs import Preparation, collect
from weft.cli.measure import Timing, measure
from weft.cli.options import (
    BackendPathOption,
    BgrOption,
    DeviceOption,
    InputOption,
    IterationsOption,
    LabelsOption,
    MeanOption,
    ModelArgument,
    OutputOption,
    PrecisionOption,
    ScaleOption,
    ShapeOption,
    SoftmaxOption,
    StrictOption,
    TopOption,
    WarmupOption,
)
from weft.cli.results import Ranking, Writer, file_name, largest_difference, summary
from weft.cli.targets import device_orders, parse_pairs, parse_shapes
from weft.core.backend import Precision
from weft.core.graph import Graph
from weft.core.layout import Array
from weft.core.report import Report
from weft.frontends.onnx import load as load_onnx
from weft.loading import load


def run(
    model: ModelArgument,
    inputs: InputOption = None,
    device: DeviceOption = "auto",
    precision: PrecisionOption = Precision.HIGH,
    shape: ShapeOption = None,
    output: OutputOption = None,
    iterations: IterationsOption = 1,
    warmup: WarmupOption = 0,
    top: TopOption = None,
    labels: LabelsOption = None,
    softmax: SoftmaxOption = False,
    mean: MeanOption = "0",
    scale: ScaleOption = "1",
    bgr: BgrOption = False,
    strict: StrictOption = False,
    backend_path: BackendPathOption = None,
) -> None:
    """Run a network and show its outputs, its time, and what ran where.

    A picture is resized to the input's height and width (bilinear), as floats in 0..255, red first; then
    its channels are reversed (--bgr), --mean is subtracted and the result multiplied by --scale. Inputs
    without a file get random numbers.
    """
    orders = device_orders(device)
    writer, ranking = Writer.parse(output, len(orders)), Ranking.parse(top, labels, softmax)
    with working(f"reading {model.name}"):
        graph = load_onnx(model)
    files = parse_pairs(inputs, "--input", "x=picture.png")
    arrays, remarks = collect(graph, files, parse_shapes(shape), Preparation.parse(mean, scale, bgr))
    for remark in remarks:
        note(remark)
    first: Run | None = None
    for names in orders:
        done = _run(graph, names, precision, arrays, (iterations, warmup), strict)
        _show(done, graph, ranking, first)
        prefix = f"{file_name(done.label)}." if len(orders) > 1 else ""
        for path in writer.write(dict(zip(graph.outputs, done.outputs, strict=True)), prefix):
            line(f"  wrote {path}")
        first = first or done


@dataclass(frozen=True)
class Run:
    """What came of one run: where, the outputs, the times, the report."""

    label: str
    outputs: list[Array]
    timing: Timing
    report: Report


def _run(
    graph: Graph,
    names: list[str],
    precision: Precision,
    arrays: Mapping[str, Array],
    times: tuple[int, int],
    strict: bool,
) -> Run:
    label = "+".join(names)
    shapes = {name: a.shape for name, a in arrays.items()}
    fallback = "error" if strict else "cpu"
    with working(f"preparing for {label}") as progress:
        session = load(graph, names, precision=precision, shapes=shapes, fallback=fallback, progress=progress)
    with session:
        outputs, timing = measure(session, arrays, *times)
        return Run(label, outputs, timing, session.report)


def _show(done: Run, graph: Graph, ranking: Ranking | None, first: Run | None) -> None:
    count = len(done.timing.runs)
    line(
        f"{done.label}: {done.timing.median:.3f} ms" + (f" (median of {count} runs)" if count > 1 else ""),
        "bold",
    )
    for name, output in zip(graph.outputs, done.outputs, strict=True):
        line(summary(name, output))
        if ranking:
            ranking.show(output)
    if first:
        line(
            f"  largest difference from {first.label}: {largest_difference(done.outputs, first.outputs):.3g}"
        )
    for text in str(done.report).splitlines():
        line(f"  {text}", "dim")
