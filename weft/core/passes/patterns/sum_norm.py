"""Find values that are divided by their sum or mean along an axis, as global response norms are exported."""

from __future__ import annotations

from weft.core.graph.graph import Graph, Node
from weft.core.graph.op import new_op
from weft.core.passes.manager import PassContext, graph_pass
from weft.core.passes.reader import LEAST, Reader


@graph_pass()
def fuse_sum_norm(graph: Graph, context: PassContext) -> Graph:
    """Replace x / (sum or mean of x along one axis, and a number) by a `weft::SumNormalization`.

    The number may be absent, but is no smaller than what fp32 has a reciprocal of. No part may have another reader.
    """
    if not Reader.has(graph, "ReduceSum", "ReduceMean"):
        return graph
    reader = Reader(graph)
    for quotient, x, divisor in reader.quotients():
        epsilon, total = _raised(reader, divisor)
        reduction = reader.maker(total, "ReduceSum", "ReduceMean")
        axes = reader.reduced(reduction, x)
        if len(axes) == 1 and (epsilon == 0 or epsilon >= LEAST):
            mean = int(reduction is not None and reduction.op.type == "ReduceMean")
            op = new_op("weft::SumNormalization", axis=axes[0] - len(reader.dims(x)), mean=mean, epsilon=epsilon)
            reader.put(quotient, Node(quotient.name, op, (x,), quotient.outputs))
    return reader.finish()


def _raised(reader: Reader, value: str) -> tuple[float, str]:
    """Return the number that is added to make a value, and the value before that; 0 if there is none."""
    found = reader.with_number(reader.maker(value, "Add"))
    return found if found and reader.is_read_once(found[1]) else (0.0, value)
