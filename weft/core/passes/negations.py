"""Let the other factor of a product take the signs of what a Concat joins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from weft.core.graph.graph import Node, infer_node
from weft.core.graph.layout import Array
from weft.core.graph.op import new_op
from weft.core.passes.constants import fold_node
from weft.core.passes.manager import PassContext
from weft.core.passes.reader import Reader, reader_pass


@reader_pass("Neg", rounds=2)
def fold_negations(reader: Reader, context: PassContext) -> None:
    """Replace Concat(-b, a) * c by Concat(b, a) * d, where d is c with the signs of its first part changed.

    Exporters write rotary embeddings so. A Concat of slices moves elements alone, and takes no launch on a GPU; with a
    Neg in front of it, both take one. Mostly c is a constant, and so is d; else it is computed once for all products,
    if one of them repeats it. A Reshape may follow the Concat, and another one the Neg: the parts are
    interleaved then. There is a second round for a c that is such a Concat as well.
    """
    places = [_found(reader, product, value) for product in reader.nodes("Mul") for value in product.inputs]
    found = [each for each in places if each is not None]
    signs = _Signs(reader, context, found)
    for each in found:
        factor = signs.factor(each) if each.product.name not in reader.replaced else None
        if factor is not None:
            reader.put(each.product, *_without_negations(reader, each, factor))


@dataclass(frozen=True, slots=True)
class _Joined:
    """A product with what a Concat joins, of which some parts are negative."""

    concat: Node
    path: list[list[Node]]
    """For each part the nodes from its Neg down to the Concat; nothing for a part without one."""
    behind: Node | None
    """The Reshape between the Concat and the product."""
    product: Node
    signs: Array
    """1 or -1 for each index along the axis of the Concat, which counts from the end."""
    axis: int

    @property
    def value(self) -> str:
        """Return what is multiplied."""
        return (self.behind or self.concat).outputs[0]


def _found(reader: Reader, product: Node, value: str) -> _Joined | None:
    """Return what a product reads under a name, if that is joined of parts of which some are negative."""
    behind = reader.maker(value, "Reshape") if reader.is_read_once(value) else None
    joined = behind.inputs[0] if behind else value
    concat = reader.maker(joined, "Concat") if reader.is_read_once(joined) else None
    path = [_path(reader, part) for part in concat.inputs] if concat else []
    if concat is None or not any(path):
        return None
    op: Any = concat.op
    rank = len(reader.dims(joined))
    axis = op.axis % rank - rank
    lengths = [reader.dims(part)[axis] for part in concat.inputs]
    if any(type(length) is not int for length in lengths):
        return None
    signs = np.repeat([-1 if nodes else 1 for nodes in path], lengths)
    if behind is not None:
        # Of the last axis of a Concat, each row of a multiple of its length has the signs as often.
        wide = reader.dims(behind.outputs[0])[-1:]
        if axis != -1 or not wide or type(wide[0]) is not int or not signs.size or wide[0] % signs.size:
            return None
        signs = np.tile(signs, wide[0] // signs.size)
    return _Joined(concat, path, behind, product, signs, axis)


def _path(reader: Reader, value: str) -> list[Node]:
    """Return the Neg that makes a value, alone or with a Reshape or Unsqueeze behind it; each is read once."""
    nodes: list[Node] = []
    while reader.is_read_once(value) and len(nodes) < 2:
        node = reader.maker(value, "Neg") or reader.maker(value, "Reshape", "Unsqueeze")
        if node is None:
            break
        nodes.insert(0, node)
        if node.op.type == "Neg":
            return nodes
        value = node.inputs[0]
    return []


class _Signs:
    """Makes factors with other signs, each once."""

    def __init__(self, reader: Reader, context: PassContext, found: Sequence[_Joined]) -> None:
        self.reader, self.context = reader, context
        self._made: dict[tuple[str, int, bytes], tuple[str, list[Node]]] = {}
        self._repeated = {self._factor(each) for each in found if self._is_repeated(each)}

    def _factor(self, found: _Joined) -> str:
        return self.reader.other(found.product, found.value)

    def _is_repeated(self, found: _Joined) -> bool:
        """Tell whether a product repeats its other factor. An open size is taken for more than 1, without a guard."""
        dims, whole = self.reader.dims(self._factor(found)), self.reader.dims(found.value)
        pairs = zip((*(1 for _ in whole[len(dims) :]), *dims), whole, strict=False)
        return any(type(a) is int and a == 1 and not (type(b) is int and b == 1) for a, b in pairs)

    def factor(self, found: _Joined) -> tuple[str, list[Node]] | None:
        """Return the other factor of a product with the signs of its parts, and a node if one must compute it.

        None if the factor does not vary along the parts' axis, or if to change it takes as much as the Neg does.
        """
        reader, graph, factor = self.reader, self.reader.graph, self._factor(found)
        dims, value = reader.dims(factor), reader.dims(found.value)
        if reader.dims(found.product.outputs[0]) != value:
            return None
        if len(dims) < -found.axis or dims[found.axis] != found.signs.size:
            return None
        key = (factor, found.axis, found.signs.tobytes())
        if key in self._made:
            return self._made[key][0], []
        if factor not in graph.constants and factor not in self._repeated:
            return None
        signs = found.signs.astype(graph.specs[factor].dtype.numpy).reshape(-1, *(1,) * (-found.axis - 1))
        name = reader.names.fresh(f"{factor}.signed")
        node = Node(name, new_op("Mul"), (factor, reader.add(f"{factor}.signs", signs)), (name,))
        infer_node(graph, node)
        values = fold_node(graph, node, self.context)
        if values is not None:
            graph.constants[name] = values[0]
        elif factor in graph.constants:
            why = self.context.left.pop(name, "")
            self.context.budget.left.pop(name, None)
            self.context.leave(found.concat.name, f"the signs of its parts stay: {why}")
            return None
        self._made[key] = name, [] if values is not None else [node]
        return self._made[key]


def _without_negations(reader: Reader, found: _Joined, factor: tuple[str, list[Node]]) -> list[Node]:
    """Return the nodes of a product that reads the parts as they were before their Negs."""
    nodes: list[Node] = list(factor[1])

    def again(node: Node, inputs: tuple[str, ...]) -> str:
        """Add a node with other inputs, whose output is another value and has another name."""
        output = reader.names.fresh(f"{node.outputs[0]}.unsigned")
        reader.graph.specs[output] = reader.graph.specs[node.outputs[0]]
        nodes.append(replace(node, inputs=inputs, outputs=(output,)))
        return output

    parts = []
    for value, path in zip(found.concat.inputs, found.path, strict=True):
        for node in path:
            value = node.inputs[0] if node.op.type == "Neg" else again(node, (value, *node.inputs[1:]))
        parts.append(value)
    joined = again(found.concat, tuple(parts))
    if found.behind is not None:
        joined = again(found.behind, (joined, *found.behind.inputs[1:]))
    inputs = tuple(joined if value == found.value else factor[0] for value in found.product.inputs)
    return [*nodes, replace(found.product, inputs=inputs)]
