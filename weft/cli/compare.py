"""`weft compare`: two devices, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import numpy as np
import typer

from weft.cli.console import line, note, table, working
from weft.cli.inputs import Preparation, collect
from weft.cli.model import read_model
from weft.cli.options import BackendPathOption, DeviceOption, InputOption, ModelArgument, ShapeOption
from weft.cli.results import largest_difference, precision_notes
from weft.cli.targets import device_orders, parse_pairs, parse_shapes
from weft.core.backend import Precision
from weft.core.graph import Graph, bind
from weft.core.layout import Array
from weft.core.optimize import run_passes
from weft.core.registry import registry
from weft.errors import ConfigError
from weft.loading import load


def compare(
    model: ModelArgument,
    device: DeviceOption = "cpu,auto",
    inputs: InputOption = None,
    precision: Annotated[
        Precision, typer.Option(help="Of the second device; the first has high.")
    ] = Precision.HIGH,
    shape: ShapeOption = None,
    threshold: Annotated[
        float, typer.Option(min=0, help="Show nodes that differ by more, relative to the range.")
    ] = 0.0,
    backend_path: BackendPathOption = None,
) -> None:
    """Run a network on two devices and compare every value on the way.

    So that they can be seen, all values are outputs here: nodes are not fused as they are in a usual run. Two
    runs on the same device at the same precision are refused.
    """
    graph = read_model(model)
    orders = _two_runs(device, precision)
    files = parse_pairs(inputs, "--input", "x=x.npy")
    arrays, remarks = collect(graph, files, parse_shapes(shape), Preparation())
    for remark in remarks:
        note(remark)
    shown = _expose(run_passes(bind(graph, {name: a.shape for name, a in arrays.items()})))
    first, second = (
        _values(shown, names, arrays, level)
        for names, level in zip(orders, (Precision.HIGH, precision), strict=True)
    )
    _print(shown, first, second, threshold)


def _two_runs(device: str, precision: Precision) -> list[list[str]]:
    """Return the devices of both runs; ConfigError unless there are two runs, which are not the same."""
    orders, where = device_orders(device), f"--device {device}"
    if len(orders) != 2:
        raise ConfigError(f"{len(orders)} runs were named", where=where, fix='name two: "cpu,vulkan"')
    first, second = (registry.choose(names) for names in orders)
    label = _label(orders[0])
    if label == _label(orders[1]) and precision is Precision.HIGH:
        raise ConfigError(
            f"both runs would be on {label} at precision high",
            where=where,
            why="; ".join(dict.fromkeys(c.why for c in (*first, *second) if c.why)) or "it was named twice",
            fix='name two devices that `weft devices` lists ("cpu,vulkan"), or --precision low for the second run',
        )
    return orders


def _label(names: list[str]) -> str:
    """Return the devices that are chosen by names, of which AUTO is none."""
    return "+".join(choice.device.removesuffix(":0") for choice in registry.choose(names))


def _expose(graph: Graph) -> Graph:
    """Return the graph with every value as an output."""
    out = graph.copy()
    out.outputs = list(dict.fromkeys([*(o for n in graph.nodes for o in n.outputs if o), *graph.outputs]))
    return out


def _values(
    graph: Graph, names: list[str], arrays: Mapping[str, Array], precision: Precision
) -> dict[str, Array]:
    """Return every value of a run, and say where it was and at which precision."""
    label = _label(names)
    with working(f"running on {label}"), load(graph, names, precision=precision) as session:
        values, report = dict(zip(session.outputs, session.run(arrays), strict=True)), session.report
    nodes = ", ".join(f"{device} {count}" for device, count in report.nodes_by_device.items())
    line(f"{label} at precision {precision.value}, nodes: {nodes}", "bold")
    for text in precision_notes(label, precision.value, report.notes):
        line(f"note: {text}")
    return values


def _print(graph: Graph, first: Mapping[str, Array], second: Mapping[str, Array], threshold: float) -> None:
    rows, worst = [], 0.0
    for node in graph.nodes:
        for name in filter(None, node.outputs):
            difference = largest_difference([second[name]], [first[name]])
            finite = np.abs(first[name][np.isfinite(first[name])]) if first[name].size else first[name]
            reach = float(finite.max()) if finite.size else 0.0
            relative = difference / reach if reach else difference
            worst = max(worst, relative)
            if not relative <= threshold:
                rows.append(
                    (node.name, node.op.type, name, f"{reach:.3g}", f"{difference:.2e}", f"{relative:.2e}")
                )
    numbers = ("range", "difference", "relative")
    table(("node", "op", "value", *numbers), rows, numbers=numbers)
    line(
        f"{len(rows)} of {len(first)} values differ by more than {threshold:g}; the largest is {worst:.2e} of the range"
    )
