"""A callback fills memory and changes nothing else: no op, and no other field of a tensor (M4, M11)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from weft.core.graph.graph import Graph, Node, infer_shapes
from weft_conformance.checks.optimizing import optimized
from weft_conformance.drive import Called, Drive, NotCreated
from weft_conformance.kit import Kit, check
from weft_conformance.report import Finding
from weft_conformance.traces import changes, traces


@check("tensors", "M4 M11", "onCreate, onResize and onExecute change no op, and of tensors nothing but what they hold")
def tensors(kit: Kit) -> Iterable[Finding]:
    """Compare ops and tensors before and after each callback of several networks."""
    for name, graph in kit.blocks.all().items():
        yield kit.attempt(name, _unchanged, kit, infer_shapes(graph))


class _Observed(Drive):
    """Notes what callbacks change."""

    changed = ""

    def _call(self, name: str, node: Node, do: Callable[[], Called]) -> Called:
        inputs, outputs = self._operands(node)
        # Where tensors lie is known, and fixed, once a resize is over.
        memory = name == "onExecute"
        before = traces(node, inputs, outputs, memory=memory)
        result = do()
        found = changes(before, traces(node, inputs, outputs, memory=memory))
        if found:
            self.changed = self.changed or f"{name} of {node.op.type} changed {found}"
        return result


def _unchanged(kit: Kit, graph: Graph) -> str:
    changed = optimized(kit, graph)
    fed = kit.blocks.feeds(5)
    drive = _Observed(kit.choice.open(kit.config), changed)
    try:
        with drive:
            problem = kit.compare(graph, fed, drive.run(fed))
    except NotCreated as e:
        return f"{e}, which OptimizeSubgraph left or made"
    except Exception:
        if drive.changed:
            return drive.changed  # the error follows from the change
        raise
    return drive.changed or problem
