"""What callbacks must not change: the op of a node, and the tensors that they are shown."""

from __future__ import annotations

from collections.abc import Sequence

from weft.core.graph.graph import Node
from weft.core.graph.tensor import Tensor

Traces = dict[str, object]


def traces(node: Node, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], *, memory: bool = True) -> Traces:
    """Return what must not change about a node and its tensors, by its name in messages.

    `memory` adds the tensors' memory, which a resize may set.
    """
    found: Traces = {f"{k} of the op": _frozen(v) for k, v in node.op.attributes().items()}
    found["the type of the op"] = node.op.type
    found["the list of inputs"] = [id(t) for t in inputs]
    found["the list of outputs"] = [id(t) for t in outputs]
    for kind, tensors in (("input", inputs), ("output", outputs)):
        for k, t in enumerate(tensors):
            if t is not None:
                found |= {f"{part} of {kind} {k}": value for part, value in _tensor(t, memory).items()}
    return found


def _tensor(t: Tensor, memory: bool) -> Traces:
    found: Traces = {"the name": t.name, "the shape": t.shape, "the type": t.dtype, "the layout": t.layout}
    found["the constant"] = (id(t.constant), b"" if t.constant is None else t.constant.tobytes())
    if memory:
        found |= {"the memory": id(t.memory), "the backend": id(t.backend)}
    return found


def _frozen(value: object) -> object:
    """Return the value of an attribute in a form to compare later; objects of other classes are compared by id."""
    if isinstance(value, (list, tuple)):
        return type(value).__name__, tuple(_frozen(v) for v in value)
    return value if isinstance(value, (bool, int, float, str, bytes)) else id(value)


def changes(before: Traces, after: Traces) -> str:
    """Return what differs, as a part of a sentence, "" if nothing does."""
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return ", ".join(names)
