"""The interpreter of graphs: it computes values by the ops' numpy references, node by node, on the host.

The passes fold constants with it, the CPU backend runs with it, and checks and tests hold devices against it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from weft.core.graph.graph import Graph
from weft.core.graph.layout import Array
from weft.core.graph.op import Op


def evaluate(op: Op, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
    """Return the results of an op for logical arrays, None for an optional input that is missing.

    Exceptions of the reference pass unchanged; numpy's warnings (overflow, division by zero) are off.
    """
    reference = op.reference
    if getattr(reference, "is_silent", False):
        result = reference(*inputs)
    else:
        with np.errstate(all="ignore"):
            result = reference(*inputs)
    if type(result) is np.ndarray:
        return (result,)
    return tuple(map(np.asarray, result)) if isinstance(result, tuple) else (np.asarray(result),)


def values(graph: Graph, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Return every value of a graph by its name, constants included.

    `feeds` has an array for each input; an array under a constant's name replaces the constant.
    """
    known: dict[str, Array] = {**graph.constants, **feeds}
    for node in graph.nodes:
        results = evaluate(node.op, [known[i] if i else None for i in node.inputs])
        known.update((name, value) for name, value in zip(node.outputs, results, strict=False) if name)
    return known


def outputs(graph: Graph, feeds: Mapping[str, Array]) -> list[Array]:
    """Return the outputs of a graph, in order, for an array for each input."""
    known = values(graph, feeds)
    return [known[name] for name in graph.outputs]
