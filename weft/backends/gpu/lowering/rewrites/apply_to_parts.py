"""Compute element-wise nodes on the parts of a Concat, where each part would have to be copied to be joined.

A part is copied if it lies in another value as well, or in an image: so a launch for each part copies it, and one more
computes the node. Computed on the parts, the node's results are written where the Concat has them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from weft.backends.gpu.lowering.layout.layouts import IsCustom, base_op
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph, Names, Node
from weft.core.graph.op import new_op
from weft.core.graph.symbolic import int_array
from weft.core.graph.tensor import TensorSpec
from weft.core.passes.moves import is_move
from weft.core.passes.parts import axis_of
from weft.kernels.gpu_op import WantedLayout, find_gpu_op
from weft.ops.concat import Concat

MOST_PARTS = 4
"""Each part is a launch of its own, as its copy was."""
PARTS = ("Split", "Slice")
"""Ops whose results have some elements of a value."""


def apply_to_parts(graph: Graph, is_custom: IsCustom) -> Graph:
    """Return the graph with element-wise nodes computed on parts of rows of channels that would be copied."""
    if not any(isinstance(node.op, Concat) for node in graph):
        return graph
    return _Parts(graph, is_custom).run()


class _Parts:
    def __init__(self, graph: Graph, is_custom: IsCustom) -> None:
        self.source, self.is_custom = graph, is_custom
        self.makers, self.readers = graph.producers(), graph.readers()
        self.out, self.names = graph.copy(), Names(graph)

    def run(self) -> Graph:
        nodes, gone = list[Node](), set[str]()
        for node in self.source.nodes:
            join = self._join_before(node)
            if join is not None:
                nodes += self._on_parts(node, join)
                gone.add(join.name)
            else:
                nodes.append(node)
        self.out.nodes = [node for node in nodes if node.name not in gone]
        return self.out

    def _join_before(self, node: Node) -> Node | None:
        """Return the Concat of copied parts that only this element-wise node reads, if it can be computed on them."""
        if not base_op(node.op).is_elementwise or self.is_custom(node.op) or len(node.outputs) != 1:
            return None
        joins = [self.makers[i] for i in dict.fromkeys(node.inputs) if i in self.makers]
        join = next((each for each in joins if isinstance(each.op, Concat) and self._copies(each)), None)
        if join is None or self.readers[join.outputs[0]] != node.inputs.count(join.outputs[0]):
            return None
        spec = self.source.specs[node.outputs[0]]
        if join.outputs[0] in self.source.outputs or self.source.specs[join.outputs[0]].dims != spec.dims:
            return None
        given = (i for i in node.inputs if i and i not in self.source.constants)
        return join if all(self.source.specs[i].dims == spec.dims for i in given) else None

    def _copies(self, join: Node) -> bool:
        """Tell whether a Concat of rows of channels has to copy each of its parts."""
        rank = len(self.source.specs[join.outputs[0]].dims)
        if self.is_custom(join.op) or rank < 2 or axis_of(join, rank) != rank - 1:
            return False
        parts = join.inputs
        if not 1 < len(set(parts)) == len(parts) <= MOST_PARTS:
            return False
        # Parts of one value, such as halves that change places, may be read where they lie.
        return len(set(map(self._moved_from, parts))) > 1 and all(map(self._is_copied, parts))

    def _moved_from(self, name: str) -> str:
        """Return the value of which this one has elements."""
        while (maker := self.makers.get(name)) is not None and (is_move(maker) or maker.op.type in PARTS):
            name = maker.inputs[0]
        return name

    def _is_copied(self, name: str) -> bool:
        """Tell whether a value lies in another one, or in an image, so that its maker cannot write it elsewhere."""
        if name in self.source.constants:
            return False
        maker = self.makers.get(name)
        while maker is not None and is_move(maker) and self.readers[name] == 1:
            name = maker.inputs[0]
            maker = self.makers.get(name)
        if maker is None or self.readers[name] != 1 or maker.op.type in PARTS:
            return True
        form = None if self.is_custom(maker.op) else find_gpu_op(base_op(maker.op))
        return form is not None and form.wanted_layout is WantedLayout.CHANNELS

    def _on_parts(self, node: Node, join: Node) -> list[Node]:
        """Return the nodes that compute one on each part, and the Concat of what they make."""
        (whole,), (target,) = join.outputs, node.outputs
        sizes = [self.source.specs[part].dims[-1] for part in join.inputs]
        bounds = list(pairwise(int(n) for n in np.cumsum([0, *sizes])))
        made, results = list[Node](), list[str]()
        for part, span in zip(join.inputs, bounds, strict=True):
            inputs = tuple(part if i == whole else self._part_of(i, span, made) if i else "" for i in node.inputs)
            spec, result = self.source.specs[target], self.names.fresh(f"{target}.part")
            self.out.specs[result] = TensorSpec((*spec.dims[:-1], span[1] - span[0]), spec.dtype)
            made.append(replace(node, name=self.names.fresh(f"{node.name}.part"), inputs=inputs, outputs=(result,)))
            results.append(result)
        return [*made, replace(join, name=node.name, inputs=tuple(results), outputs=(target,))]

    def _part_of(self, name: str, span: tuple[int, int], made: list[Node]) -> str:
        """Return some channels of an operand; `made` gets the node that takes them, if it is no constant."""
        spec, (start, stop) = self.source.specs[name], span
        if not spec.dims or spec.dims[-1] == 1:
            return name
        part = self.names.fresh(f"{name}.part")
        self.out.specs[part] = TensorSpec((*spec.dims[:-1], stop - start), spec.dtype)
        if name in self.source.constants:
            self.out.constants[part] = np.ascontiguousarray(self.source.constants[name][..., start:stop])
            return part
        added = [self._numbers(f"{part}.{what}", [k]) for what, k in (("start", start), ("stop", stop), ("axis", -1))]
        made.append(Node(part, new_op("Slice"), (name, *added), (part,)))
        return part

    def _numbers(self, name: str, numbers: Sequence[int]) -> str:
        name, array = self.names.fresh(name), int_array(list(numbers))
        self.out.constants[name] = array
        self.out.specs[name] = TensorSpec(array.shape, DType.of(array.dtype))
        return name
