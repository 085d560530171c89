"""Debug nodes: they report the outputs of every node to a user's function (A9)."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from math import isinf
from pathlib import Path

import numpy as np

from weft.core.contract.error_context import users_function
from weft.core.graph.graph import Graph, Names, Node
from weft.core.graph.layout import Array, Shape
from weft.core.graph.op import Constants, Op, register_op
from weft.core.graph.tensor import TensorSpec


@dataclass(frozen=True, slots=True)
class DebugRecord:
    """What one output of a node held. `minimum` and `maximum` ignore NaN, and are None if there is no other number."""

    node: str
    slot: int
    device: str
    shape: Shape
    dtype: str
    minimum: float | None
    maximum: float | None
    nan_count: int


DebugSink = Callable[[DebugRecord], None]


@register_op
@dataclass(frozen=True, eq=False)
class Debug(Op):
    """Report a value to the sink. The node has no outputs and runs on the host."""

    node: str
    slot: int
    device: str
    sink: DebugSink

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        """Return nothing: there are no outputs."""
        return ()

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        """Report the value to the sink."""
        (value,) = inputs
        assert value is not None
        numbers = value.astype(np.float64) if value.dtype.kind != "f" else value
        real = numbers[~np.isnan(numbers)]
        low, high = (float(real.min()), float(real.max())) if real.size else (None, None)
        missing = numbers.size - real.size
        record = DebugRecord(self.node, self.slot, self.device, value.shape, value.dtype.name, low, high, missing)
        with nullcontext() if isinstance(self.sink, FileSink) else users_function():
            self.sink(record)
        return ()

    def __str__(self) -> str:
        return f"Debug(node={self.node}, slot={self.slot})"


@dataclass(frozen=True)
class FileSink:
    """Appends each record to a file as a line of JSON; infinities, which JSON lacks, become "inf" and "-inf"."""

    path: Path

    def __call__(self, record: DebugRecord) -> None:
        """Write one record."""
        facts = {k: str(v) if isinstance(v, float) and isinf(v) else v for k, v in asdict(record).items()}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(facts, allow_nan=False) + "\n")


def add_debug_nodes(graph: Graph, device: dict[str, str], host: str, sink: DebugSink) -> Graph:
    """Return the graph with a `Debug` node for every output of every node, all on the device `host`.

    `device` receives the device of each new node. They come last in the order, so they divide no other part.
    """
    out, names = graph.copy(), Names(graph)
    for node in graph.nodes:
        for slot, value in enumerate(node.outputs):
            if value:
                name = names.fresh(f"debug {node.name}:{slot}")
                out.nodes.append(Node(name, Debug(node.name, slot, device[node.name], sink), (value,), ()))
                device[name] = host
    return out
