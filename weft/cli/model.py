"""The ONNX file that a command reads."""

from __future__ import annotations

from pathlib import Path

from weft.cli.console import working
from weft.core.graph.graph import Graph
from weft.core.graph.limits import Limits
from weft.errors import ConfigError
from weft.frontends.onnx import load as load_onnx
from weft.loading import SAVED


def read_model(path: Path, limits: Limits) -> Graph:
    """Return the network in an ONNX file, within limits; ConfigError for one that `weft optimize` saved."""
    if path.suffix == SAVED:
        raise ConfigError(
            f"{path.name} is a saved network, and this command takes an ONNX file",
            where=str(path),
            why="it was rewritten and divided over its devices already",
            fix=f"name the ONNX file that it was made from; `weft run {path}` runs it as it is",
        )
    with working(f"reading {path.name}"):
        return load_onnx(path, limits=limits)
