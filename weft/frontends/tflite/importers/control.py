"""Graphs that operators call: IF, WHILE, CALL and composites."""

from __future__ import annotations

from weft.core.graph.graph import Node
from weft.core.graph.op import new_op
from weft.errors import ModelError
from weft.frontends.tflite.node import TFLiteNode
from weft.frontends.tflite.registry import importer


@importer("CALL", "STABLEHLO_COMPOSITE", moves=True)
def call(node: TFLiteNode) -> list[str]:
    """Write a subgraph in the place of the operator."""
    return node.builder.inline(node.option("subgraph"), _raw(node, 0))


def _raw(node: TFLiteNode, first: int) -> list[str]:
    """Return inputs as the file has them: subgraphs see integers with their scales themselves."""
    return [node.builder.raw(node.tensor(k)) for k in range(first, len(node))]


@importer("IF", moves=True)
def if_(node: TFLiteNode) -> list[str]:
    """Run one of two subgraphs; inputs the condition, and theirs."""
    builder, given = node.builder, _raw(node, 1)
    branches = {
        name: builder.body_of(node.option(option), f"{node.name}/{name}")
        for name, option in (("then_branch", "then_subgraph"), ("else_branch", "else_subgraph"))
    }
    for graph in branches.values():
        if len(graph.inputs) != len(given) or len(graph.outputs) != node.outputs:
            raise ModelError(f"a branch takes {len(graph.inputs)} and makes {len(graph.outputs)} values")
    condition = node.reshaped(node.value(0), ())
    return node.add_many("If", node.outputs, condition, *given, captures=len(given), **branches)


@importer("WHILE", moves=True)
def while_(node: TFLiteNode) -> list[str]:
    """Run a subgraph on its own results as long as another one says so."""
    builder, given = node.builder, _raw(node, 0)
    condition, body = node.option("cond_subgraph"), node.option("body_subgraph")
    begins = builder.inline(condition, given)
    inner = builder.body(f"{node.name}/body")
    graph = inner.graph
    step, before = inner.names.fresh("iteration"), inner.names.fresh("goes_on")
    carried = [inner.names.fresh(f"value{k}") for k in range(len(given))]
    graph.inputs = [step, before, *carried]
    made = inner.inline(body, carried)
    if len(made) != len(given) or len(begins) != 1:
        raise ModelError(f"the body makes {len(made)} values of {len(given)}, and the condition {len(begins)}")
    ends = [*(inner.add(node.name, "Squeeze", (value,), 1, {})[0] for value in inner.inline(condition, made)), *made]
    for value in ends:  # an output has a name of its own, made here
        name = inner.names.fresh(f"{value}/next")
        graph.nodes.append(Node(inner.names.fresh(f"{name}/Identity"), new_op("Identity"), (value,), (name,)))
        graph.outputs.append(name)
    first = node.reshaped(begins[0], ())
    return node.add_many("Loop", len(given), "", first, *given, body=graph)


@importer("CALL_ONCE")
def call_once(node: TFLiteNode) -> list[str]:
    """Set the first values of variables."""
    node.builder.initialise(node.option("init_subgraph"))
    return []
