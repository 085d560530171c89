"""`weft compare`: two devices, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

import numpy as np
import typer

from weft.cli.console import line, note, table, working
from weft.cli.difference import difference, not_finite
from weft.cli.inputs import Preparation, collect, shaped
from weft.cli.model import read_model
from weft.cli.options import (
    BackendOptionOption,
    BackendPathOption,
    DeviceOption,
    FusingOption,
    InputOption,
    LimitOption,
    ModelArgument,
    ShapeOption,
    WinogradOption,
)
from weft.cli.parsing import device_orders, parse_backend_options, parse_limits, parse_pairs
from weft.cli.results import precision_notes
from weft.core.contract.backend import Precision
from weft.core.graph.control_op import Value
from weft.core.graph.graph import Graph, bind
from weft.core.graph.layout import Array
from weft.core.graph.limits import Budget
from weft.core.passes import PassContext, run_passes
from weft.core.placement.stage_split import is_staged
from weft.core.registry.backend_registry import registry
from weft.errors import ConfigError
from weft.loading import load


def compare(
    model: ModelArgument,
    device: DeviceOption = "cpu,auto",
    inputs: InputOption = None,
    precision: Annotated[
        Precision, typer.Option(help="Precision of the second device; the first runs at high.")
    ] = Precision.HIGH,
    shape: ShapeOption = None,
    threshold: Annotated[
        float, typer.Option(min=0, help="Show values that differ by more than this share of their range.")
    ] = 0.0,
    backend_path: BackendPathOption = None,
    backend_option: BackendOptionOption = None,
    fusing: FusingOption = True,
    winograd: WinogradOption = True,
    limit: LimitOption = None,
) -> None:
    """Run a network on two devices and compare every value on the way.

    Every value becomes an output, so nodes are not fused as in a usual run. A number that is finite on one side only
    is a difference; the lines below the table say where numbers that are not finite begin. Two runs on the same
    device at the same precision are refused.
    """
    limits = parse_limits(limit)
    graph = read_model(model, limits)
    orders = _two_runs(device, precision)
    files = parse_pairs(inputs, "--input", "x=x.npy")
    arrays, remarks = collect(*shaped(graph, shape), files, Preparation())
    for remark in remarks:
        note(remark)
    bound = bind(graph, {name: a.shape for name, a in arrays.items()})
    if is_staged(bound):
        note("sizes follow from values: nodes are compared as the model has them, without those inside If and loops")
    shown = _expose(bound if is_staged(bound) else run_passes(bound, context=PassContext(Budget(limits))))
    levels = (Precision.HIGH, precision)
    own = parse_backend_options(backend_option)
    options = {"backend_options": own, "fusing": fusing, "winograd": winograd, "limits": limits}
    first, second = (_values(shown, names, arrays, p, options) for names, p in zip(orders, levels, strict=True))
    _print(shown, first, second, threshold)
    labels = (f"{_label(names)} at precision {p.value}" for names, p in zip(orders, levels, strict=True))
    _say_not_finite(shown, arrays, dict(zip(labels, (first, second), strict=True)))


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
    """Return the devices that names choose, with AUTO replaced by what it picks."""
    return "+".join(choice.device.removesuffix(":0") for choice in registry.choose(names))


def _expose(graph: Graph) -> Graph:
    """Return the graph with every value as an output."""
    out = graph.copy()
    out.outputs = list(dict.fromkeys([*(o for n in graph.nodes for o in n.outputs if o), *graph.outputs]))
    return out


def _values(
    graph: Graph, names: list[str], arrays: Mapping[str, Array], precision: Precision, options: Mapping[str, Any]
) -> dict[str, Array]:
    """Return every value of a run, and say where it was and at which precision."""
    label = _label(names)
    session_of = partial(load, graph, names, precision=precision, **options)
    with working(f"running on {label}"), session_of() as session:
        values, report = _tensors(dict(zip(session.outputs, session.run(arrays), strict=True))), session.report
    nodes = ", ".join(f"{device} {count}" for device, count in report.nodes_by_device.items())
    line(f"{label} at precision {precision.value}, nodes: {nodes}", "bold")
    for text in precision_notes(label, precision.value, report.notes):
        line(f"note: {text}")
    return values


def _tensors(values: Mapping[str, Value]) -> dict[str, Array]:
    """Return the values as tensors: a sequence as all its elements one after the other, an empty optional as none."""
    made = {}
    for name, value in values.items():
        each = [] if value is None else [value] if isinstance(value, np.ndarray) else value
        made[name] = each[0] if isinstance(value, np.ndarray) else np.concatenate([np.zeros(0), *map(np.ravel, each)])
    return made


def _print(graph: Graph, first: Mapping[str, Array], second: Mapping[str, Array], threshold: float) -> None:
    """Print a row for each value that differs, and a summary of all."""
    rows, worst = [], 0.0
    for node in graph.nodes:
        for name in filter(None, node.outputs):
            if first[name].shape != second[name].shape:
                shapes = " and ".join("x".join(map(str, side[name].shape)) or "()" for side in (first, second))
                rows.append((node.name, node.op.type, name, "-", f"shapes {shapes}", "-"))
                continue
            found = difference([second[name]], [first[name]])
            reach = _range(first[name])
            relative = found.largest / reach if reach else found.largest
            worst = max(worst, relative)
            if found.unlike or not relative <= threshold:
                share = "-" if found.unlike else f"{relative:.2e}"
                rows.append((node.name, node.op.type, name, f"{reach:.3g}", found.text(".2e"), share))
    numbers = ("range", "difference", "relative")
    table(("node", "op", "value", *numbers), rows, numbers=numbers)
    alike = [name for name in first if first[name].shape == second[name].shape]
    whole = difference([second[name] for name in alike], [first[name] for name in alike])
    said = f"{len(rows)} of {len(first)} values differ by more than {threshold:g}; "
    if whole.alike + whole.unlike == sum(first[name].size for name in alike) > 0:
        line(f"{said}no number is finite on both sides")
    else:
        where = " where both sides are finite" if whole.alike or whole.unlike else ""
        line(f"{said}the largest is {worst:.2e} of the range{where}")
    if whole.alike:
        line(f"{whole.alike} numbers in all are not finite on both sides, and the same there")
    if whole.unlike:
        line(f"{whole.unlike} numbers in all are finite on one side only, or not finite in another way")


def _range(values: Array) -> float:
    """Return the largest absolute value of the finite numbers."""
    finite = np.abs(values[np.isfinite(values)])
    return float(finite.max()) if finite.size else 0.0


def _say_not_finite(
    graph: Graph, arrays: Mapping[str, Array], sides: Mapping[str, Mapping[str, Array]]
) -> None:
    """Say which inputs hold numbers that are not finite, and where such numbers begin on each side."""
    for name, array in arrays.items():
        if not_finite(array):
            line(f"the input {name!r} has {not_finite(array)} of {array.size} numbers that are not finite")
    if not any(not_finite(a) for values in sides.values() for a in values.values()):
        return
    for label, values in sides.items():
        found = ((node, name) for node in graph.nodes for name in node.outputs if name and not_finite(values[name]))
        begin = next(found, None)
        if begin is None:
            line(f"{label}: all numbers are finite")
            continue
        node, name = begin
        count = f"{not_finite(values[name])} of {values[name].size} of {name!r}"
        line(f"{label}: numbers that are not finite begin at node {node.name!r} ({node.op.type}): {count}")
