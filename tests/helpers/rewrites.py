"""What every rewrite of a graph must hold, and the loosest of backends to fuse for."""

from __future__ import annotations

from tests.helpers.nets import assert_near, feeds
from weft.backends.gpu.lowering.fusion.epilogues import why_not_joined
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph, Node
from weft.core.graph.interpreter import outputs, values
from weft.core.graph.tensor import TensorSpec
from weft.core.graph.validate import validate
from weft.ops.elementwise import Elementwise


def assert_same(before: Graph, after: Graph, tolerance: float = 1e-5) -> None:
    """Fail unless both graphs have the same outputs, well formed and with true specs."""
    validate(after)
    assert (after.inputs, after.outputs) == (before.inputs, before.outputs)
    fed = feeds(before)
    known = values(after, fed)
    for node in after.nodes:
        for o in node.outputs:
            if o:
                assert after.specs[o] == TensorSpec(known[o].shape, DType.of(known[o].dtype))
    for name, expected in zip(before.outputs, outputs(before, fed), strict=True):
        assert (known[name].shape, known[name].dtype) == (expected.shape, expected.dtype)
        assert_near(known[name], expected, tolerance)


def fusable(graph: Graph, base: Node, step: Node, inside: frozenset[int]) -> bool:
    """Return what the loosest of backends would fuse."""
    same = graph.specs[step.outputs[0]] == graph.specs[base.outputs[0]]
    return isinstance(step.op, Elementwise) and same and step.op.type != "Cast"


def gpu_fuses(graph: Graph, base: Node, step: Node, inside: frozenset[int]) -> bool:
    """Tell whether a GPU without custom ops or limits fuses a step."""
    return why_not_joined(graph, base, step, inside, lambda op: False, 64) is None


def assert_identical(before: Graph, after: Graph) -> None:
    """Fail unless both graphs have the same outputs, bit for bit."""
    assert_same(before, after)
    fed = feeds(before)
    for name, a, b in zip(before.outputs, outputs(before, fed), outputs(after, fed), strict=True):
        assert a.tobytes() == b.tobytes(), name


def text(graph: Graph) -> list[str]:
    """Return the nodes as they are printed, without their names."""
    return [str(n).partition("  #")[0] for n in graph.nodes]
