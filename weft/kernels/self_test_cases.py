"""Cases of the self-test of kernels: small graphs with their inputs, and the numbers to fill these with."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from weft.core.contract.session_config import Precision
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Node
from weft.core.graph.layout import Array, Shape
from weft.core.graph.op import Op
from weft.core.graph.quantisation import Grid
from weft.core.graph.tensor import TensorSpec

TOLERANCES = {Precision.LOW: 4e-3, Precision.NORMAL: 1e-5, Precision.HIGH: 1e-5}
"""Relative to the largest result: fp16 rounds by 5e-4; fp32 sums of a few thousand products are off by about 1e-6."""


@dataclass(frozen=True, eq=False)
class SelfTestCase:
    """A small graph with its inputs; the kernel's result must match that of the ops' references.

    Its outputs are the outputs of the last node. Arrays have the stored types: float16 for precision LOW.
    """

    text: str
    """Its name in reports: "Conv of (2, 13, 9, 7) with (20, 13, 1, 1)"."""
    nodes: tuple[Node, ...]
    inputs: Mapping[str, Array]
    constants: Mapping[str, Array]
    precision: Precision = Precision.HIGH
    tolerance: float = 0.0
    """Relative to the largest value of the result; 0 for the precision's own."""
    prefer: str = ""
    """The beginning of the `repr` of the candidate to test, if the op leaves a choice to tuning."""
    grids: Mapping[str, Grid] = field(default_factory=dict)
    """The grids of constants that were integers."""
    before: Mapping[str, Array] | None = None
    """Inputs of other shapes for which it is made ready first, so that its kernels read what varies with the shape."""

    @property
    def allowed(self) -> float:
        """Return how far the result may be from the reference, relative to its largest value."""
        return self.tolerance or TOLERANCES[self.precision]


def one_node(
    op: Op, *inputs: Shape | Array | None, constants: Sequence[int] = (), precision: Precision = Precision.HIGH,
    tolerance: float = 0.0, prefer: str = "",
) -> SelfTestCase:
    """Return the case for a single node.

    `inputs` are arrays, shapes to fill with noise of the precision's type, or None for a missing one;
    `constants` are the positions of the weights.
    """
    rng = np.random.default_rng(0)
    kind = np.float16 if precision is Precision.LOW else np.float32
    arrays = {
        f"i{k}": given if isinstance(given, np.ndarray) else rng.standard_normal(given).astype(kind)
        for k, given in enumerate(inputs)
        if given is not None
    }
    weights = {f"i{k}" for k in constants}
    outputs = tuple(f"y{k}" for k in range(len(_specs(op, inputs, arrays, weights))))
    node = Node("case", op, tuple("" if i is None else f"i{k}" for k, i in enumerate(inputs)), outputs)
    return SelfTestCase(
        f"{op.type} of {' with '.join(str(a.shape) for a in arrays.values())}",
        (node,),
        {name: a for name, a in arrays.items() if name not in weights},
        {name: a for name, a in arrays.items() if name in weights},
        precision,
        tolerance,
        prefer,
    )


def several_nodes(
    text: str,
    nodes: Sequence[tuple[Op, tuple[str, ...], str | tuple[str, ...]]],
    inputs: Mapping[str, Array],
    constants: Mapping[str, Array] | None = None,
    before: Mapping[str, Array] | None = None,
    grids: Mapping[str, Grid] | None = None,
) -> SelfTestCase:
    """Return the case for several nodes, each (op, inputs, outputs).

    Unlike a single node, they run as a network does, with conversions of layouts between them.
    """
    outputs = [(out,) if isinstance(out, str) else out for _, _, out in nodes]
    made = tuple(Node(outs[0], op, names, outs) for (op, names, _), outs in zip(nodes, outputs, strict=True))
    return SelfTestCase(text, made, inputs, constants or {}, before=before, grids=grids or {})


def _specs(
    op: Op, inputs: Sequence[object], arrays: Mapping[str, Array], weights: Collection[str]
) -> Sequence[TensorSpec]:
    """Return the specs of the op's outputs."""
    given = [arrays.get(f"i{k}") for k in range(len(inputs))]
    specs = [None if a is None else TensorSpec(a.shape, DType.of(a.dtype)) for a in given]
    return op.infer(specs, [a if f"i{k}" in weights else None for k, a in enumerate(given)])


def noise(*shape: int) -> Array:
    """Return fp32 numbers."""
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


def noise64(*shape: int) -> Array:
    """Return numbers in float64, most of which float32 would round."""
    return np.random.default_rng(4).standard_normal(shape)


def indices(shape: Shape, below: int) -> Array:
    """Return indices."""
    return np.random.default_rng(2).integers(0, below, shape)


def truths(*shape: int) -> Array:
    """Return truth values."""
    return np.random.default_rng(3).integers(0, 2, shape).astype(bool)
