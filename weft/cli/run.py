"""`weft run`: a network on some inputs, on one device or on several."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.cli.console import line, note, working
from weft.cli.difference import difference, tensors
from weft.cli.inputs import Preparation, collect, shaped, without_state
from weft.cli.json_output import JsonOption, answer, prints_text
from weft.cli.measure import Timing, measure
from weft.cli.model import is_optimized, read_model, read_optimized
from weft.cli.options import (
    BackendPathOption,
    BgrOption,
    InputOption,
    IterationsOption,
    LabelsOption,
    MeanOption,
    OutputOption,
    RunnableArgument,
    ScaleOption,
    SoftmaxOption,
    TopOption,
    WarmupOption,
    load_flags,
)
from weft.cli.parsing import device_orders, parse_pairs
from weft.cli.results import Ranking, Writer, facts_of, facts_of_report, file_name, summary
from weft.core.graph.graph import Graph
from weft.core.graph.layout import Array
from weft.core.placement.optimized_network import OptimizedNetwork
from weft.core.session.report import Report
from weft.loading import load


@load_flags(
    "device", "precision", "memory", "shapes", "hints", "fallback", "backend_options", "fusing", "winograd",
    "overflow_check", "limits", "signature", "state",
)
def run(
    options: dict[str, Any],
    model: RunnableArgument,
    inputs: InputOption = None,
    output: OutputOption = None,
    iterations: IterationsOption = 1,
    warmup: WarmupOption = 0,
    top: TopOption = None,
    labels: LabelsOption = None,
    softmax: SoftmaxOption = False,
    mean: MeanOption = "0",
    scale: ScaleOption = "1",
    bgr: BgrOption = False,
    backend_path: BackendPathOption = None,
    as_json: JsonOption = None,
) -> None:
    """Run a network and show its outputs, its time, and what ran where.

    A picture is resized to the input's height and width (bilinear), as floats in 0..255, red first; then
    its channels are reversed (--bgr), --mean is subtracted and the result multiplied by --scale. Inputs
    without a file get random numbers. A file that `weft optimize` wrote runs as it was optimised.
    """
    device, shape = options["device"], options.pop("shapes")
    source, graph, orders = _read(model, device, options)
    writer, ranking = Writer.parse(output, len(orders)), Ranking.parse(top, labels, softmax)
    files, how = parse_pairs(inputs, "--input", "x=picture.png"), Preparation.parse(mean, scale, bgr)
    arrays, remarks = collect(*shaped(graph, shape), files, how)
    writer.prepare(graph.outputs)
    for remark in remarks:
        note(remark)
    runs: list[dict[str, Any]] = []
    first: Run | None = None
    for names in orders:
        done = _run(source, names, options, arrays, (iterations, warmup))
        prefix = f"{file_name(done.label)}." if len(orders) > 1 else ""
        written = writer.write(done.outputs, prefix)
        runs.append(_facts(done, ranking, first, written))
        if prints_text(as_json):
            _show(runs[-1], done.report)
        first = first or done
    given = {name: {"dtype": str(a.dtype), "shape": a.shape, "file": files.get(name)} for name, a in arrays.items()}
    answer(as_json, lambda: {"model": model, "inputs": given, "runs": runs})


def _read(
    model: Path, device: str, options: dict[str, Any]
) -> tuple[Graph | OptimizedNetwork, Graph, list[list[str]]]:
    """Return what to load, its inputs and outputs as a graph, and for each run the devices in order."""
    if is_optimized(model):
        network = read_optimized(model)
        return network, network.interface, [list(network.devices)]
    orders = device_orders(device)
    graph = read_model(model, options["limits"], options.pop("signature"))
    return graph, without_state(graph, options["state"]), orders


@dataclass(frozen=True)
class Run:
    """One run: its devices, outputs, times and report."""

    label: str
    outputs: dict[str, Array]
    """Tensors by name; a sequence counts as its tensors."""
    timing: Timing
    report: Report


def _run(
    source: Graph | OptimizedNetwork, names: list[str], options: Mapping[str, Any], arrays: Mapping[str, Array],
    times: tuple[int, int],
) -> Run:
    label = "+".join(names)
    if not isinstance(source, OptimizedNetwork):
        shapes = {name: a.shape for name, a in arrays.items()}
        options = {**options, "device": names, "shapes": shapes}
    with working(f"preparing for {label}") as progress:
        # A single run has what is there first; times are those of runs with all kernels.
        session = load(source, progress=progress, wait="auto" if sum(times) == 1 else "all", **options)
    with session:
        outputs, timing = measure(session, arrays, *times)
        return Run(label, tensors(session.outputs, outputs), timing, session.report)


def _facts(done: Run, ranking: Ranking | None, first: Run | None, written: Mapping[str, Path]) -> dict[str, Any]:
    """Return what a run came to, as data."""
    outputs = [
        {**facts_of(name, output), "best": ranking.best(output) if ranking else None, "file": written.get(name)}
        for name, output in done.outputs.items()
    ]
    apart = None
    if first:
        found = difference([*done.outputs.values()], [*first.outputs.values()])
        apart = {"from": first.label, "largest": found.bound, "text": found.text(".3g")}
    return {
        "device": done.label, **facts_of_report(done.report), **done.timing.as_json(), "outputs": outputs,
        "difference": apart,
    }


def _show(run: Mapping[str, Any], report: Report) -> None:
    count = len(run["runs_ms"])
    line(f"{run['device']}: {run['median_ms']:.3f} ms" + (f" (median of {count} runs)" if count > 1 else ""), "bold")
    for output in run["outputs"]:
        line(summary(output))
        for item in output["best"] or ():
            for each in item:
                line(f"    {each['value']:8.4f}  {each['name']}")
    if run["difference"]:
        line(f"  largest difference from {run['difference']['from']}: {run['difference']['text']}")
    for text in str(report).splitlines():
        line(f"  {text}", "dim")
    for output in run["outputs"]:
        if output["file"]:
            line(f"  wrote {output['file']}")
