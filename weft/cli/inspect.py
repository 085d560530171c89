"""`weft inspect`: what is in a model, and which devices take it."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

import typer

from weft.cli.console import error, line, note, table, working
from weft.cli.options import DeviceOption, ModelArgument, ShapeOption
from weft.cli.targets import parse_shapes
from weft.core.assign import described
from weft.core.backend import BackendInfo
from weft.core.graph import Graph, bind
from weft.core.layout import Shape
from weft.core.optimize import PASSES, run_passes
from weft.core.registry import Choice, registry
from weft.errors import UnsupportedOps
from weft.frontends.onnx import load as load_onnx


def inspect(
    model: ModelArgument,
    device: DeviceOption = "all",
    shape: ShapeOption = None,
    nodes: Annotated[bool, typer.Option("--nodes", help="Print every node.")] = False,
    passes: Annotated[bool, typer.Option("--passes", help="Print the network after each rewrite.")] = False,
    unsupported: Annotated[bool, typer.Option("--unsupported", help="Print only what cannot run.")] = False,
) -> None:
    """Show a network's inputs, outputs and ops, and the nodes that a device does not take, with the reason.

    The exit status is 1 if the network has ops that Weft does not know.
    """
    try:
        with working(f"reading {model.name}"):
            graph = load_onnx(model)
    except UnsupportedOps as e:
        error(e.what)
        for problem in e.problems:
            line(f"  {problem}")
        raise typer.Exit(1) from None
    if not unsupported:
        _describe(graph, nodes)
    if graph.symbols():
        _note_open(graph, parse_shapes(shape))
    bound = bind(graph, {**_ones(graph), **parse_shapes(shape)})
    if passes:
        _passes(bound)
    _support(run_passes(bound), device)


def _describe(graph: Graph, nodes: bool) -> None:
    weights = [graph.constants[name] for name in sorted(graph.constants)]
    line(f"{graph.name}: {len(graph.nodes)} nodes, {sum(w.size for w in weights)} numbers of weights, "
         f"{sum(w.nbytes for w in weights) / 2**20:.1f} MiB", "bold")  # fmt: skip
    for name in graph.inputs:
        line(f"  input  {name}: {graph.specs[name]}")
    for name in graph.outputs:
        line(f"  output {name}" + (f": {graph.specs[name]}" if name in graph.specs else ""))
    if nodes:
        for node in graph.nodes:
            line(f"  {node}")
    counts = Counter(node.op.type for node in graph.nodes)
    table(("op", "nodes"), [(op, str(n)) for op, n in counts.most_common()], numbers=("nodes",))


def _ones(graph: Graph) -> dict[str, Shape]:
    """Return the shapes of the inputs with 1 for every dimension that the model leaves open."""
    return {i: tuple(d if isinstance(d, int) else 1 for d in graph.specs[i].shape) for i in graph.inputs}


def _note_open(graph: Graph, shapes: dict[str, Shape]) -> None:
    left = [i for i in graph.inputs if not graph.specs[i].is_static and i not in shapes]
    if left:
        note(f"sizes that the model leaves open are taken as 1 for {', '.join(left)}; --shape gives others")


def _passes(graph: Graph) -> None:
    line(f"as read: {len(graph.nodes)} nodes", "bold")
    line(str(graph))
    for each in PASSES:
        graph = run_passes(graph, (each,))
        line(f"after {each.name}: {len(graph.nodes)} nodes", "bold")
        line(str(graph))


def _support(graph: Graph, device: str) -> None:
    names = [name for part in device.split(",") for name in part.split("+")]
    if "all" in names:
        names = [f"{d.id}:{d.index}" for d in registry.devices()]
    for choice in registry.choose(names):
        refused = _refusals(graph, choice)
        line(
            f"{choice.device}: {len(graph.nodes) - len(refused)} of {len(graph.nodes)} nodes after the rewrites",
            "bold",
        )
        for text in refused:
            line(f"  {text}")


def _refusals(graph: Graph, choice: Choice) -> list[str]:
    """Return, for each node that a device does not take, the reason."""
    backend = choice.creator.onCreate(BackendInfo(choice.creator.id, choice.index))
    try:
        reasons = [(node, backend.why_not(*described(graph, node), node.op)) for node in graph.nodes]
    finally:
        backend.close()
    return [f"{node.name!r} ({node.op.type}): {why}" for node, why in reasons if why is not None]
