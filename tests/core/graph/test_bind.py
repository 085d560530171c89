"""A graph with its shapes bound: every output has a name."""

from __future__ import annotations

from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph, Node, bind
from weft.core.graph.tensor import TensorSpec
from weft.ops.concat import Split


def test_an_output_that_nobody_reads_gets_a_name_that_no_value_has() -> None:
    nodes = [
        Node("a", Split(axis=0, outputs=2), ("x",), ("", "y")),
        Node("b", Split(axis=0, outputs=2), ("x",), ("a.unused0", "z")),
    ]
    graph = bind(Graph("net", ["x"], ["y", "z"], nodes, specs={"x": TensorSpec(("N",), DType.FLOAT32)}), {"x": (4,)})
    names = [o for node in graph.nodes for o in node.outputs]
    assert len(set(names)) == 4 and "" not in names
