"""`weft optimize`: divide a network over devices once, and keep the result in a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from weft.cli.console import line, note, working
from weft.cli.inputs import shaped
from weft.cli.json_output import JsonOption, answer
from weft.cli.model import read_model
from weft.cli.options import BackendPathOption, ModelArgument, load_flags
from weft.cli.parsing import device_orders
from weft.core.graph.graph import bind
from weft.core.graph.layout import Shape
from weft.core.placement.optimized_network import OptimizedNetwork
from weft.errors import ConfigError
from weft.frontends import SAVED
from weft.loading import check_sizes
from weft.loading import optimize as optimize_model


@load_flags(
    "device", "precision", "memory", "shapes", "hints", "fallback", "backend_options", "fusing", "winograd", "limits",
    "signature", shapes="needed",
)
def optimize(
    options: dict[str, Any],
    model: ModelArgument,
    output: Annotated[Path | None, typer.Option("--output", "-o", help=f"The file to write, *{SAVED}.")] = None,
    backend_path: BackendPathOption = None,
    as_json: JsonOption = None,
) -> None:
    """Rewrite a network, divide it over devices in order of preference ("vulkan+cpu"), and save it.

    `weft run` and `weft.load` take the file in the place of the model. It fits the shapes, the devices and
    the versions of the backends that it was made with, and no others.
    """
    device = options.pop("device")
    orders = device_orders(device)
    if len(orders) > 1:
        raise ConfigError(
            "an optimised network is for one order of devices",
            where=f"--device {device!r}",
            why="commas separate runs",
            fix=f'join devices with +: "{"+".join(name for names in orders for name in names)}"',
        )
    target = output or Path(model.name).with_suffix(SAVED)
    if target.suffix != SAVED:
        raise ConfigError(f"{str(target)!r} does not end in {SAVED}", fix=f"write -o {target.with_suffix(SAVED)}")
    graph, shapes = shaped(read_model(model, options["limits"], options.pop("signature")), options.pop("shapes"))
    check_sizes(bind(graph, shapes), _as_options)
    with working(f"optimising {model.name}"):
        network = optimize_model(graph, orders[0], shapes=shapes, **options)
        network.save(target)
    later = [] if network.tail is None else network.tail.says()
    for text in (*later, *network.notes):
        note(text)
    facts = {
        "model": model,
        "file": target,
        "precision": options["precision"].value,
        "subgraphs": [{"device": part.device, "nodes": len(part.graph.nodes)} for part in network.parts],
        "stages": len(network.stages),
        "notes": [*later, *network.notes],
    }
    answer(as_json, lambda: facts, lambda: _print(network, target))


def _print(network: OptimizedNetwork, target: Path) -> None:
    order = " -> ".join(f"{part.device} ({len(part.graph.nodes)})" for part in network.parts)
    line(f"wrote {target}: {len(network.parts)} subgraph(s): {order or 'none'}")
    if network.tail is not None:
        line(f"this is the first of {len(network.stages)} stages; the others wait for values, and a run may add some")


def _as_options(shapes: Mapping[str, Shape]) -> str:
    """Say how shapes are given on the command line."""
    options = (f"--shape {name}={','.join(map(str, shape))}" for name, shape in shapes.items())
    return f"write, for instance, {' '.join(options)}"
