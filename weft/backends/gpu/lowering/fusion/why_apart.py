"""Say why element-wise launches and moves were not made part of another: what `weft inspect --fusion` prints."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from weft.backends.gpu.lowering.fusion.gates import GateFuser
from weft.backends.gpu.lowering.fusion.prologues import why_no_prologue_of
from weft.backends.gpu.lowering.layout.fold_moves import FoldedMoves
from weft.backends.gpu.lowering.layout.layouts import IsCustom, base_op
from weft.backends.gpu.lowering.rewrites.changing_graph import ChangingGraph
from weft.backends.gpu.lowering.rewrites.where_made import compute_where_made
from weft.core.graph.graph import Node
from weft.core.graph.layout import Layout
from weft.kernels.device_caps import DeviceCaps
from weft.kernels.gpu_op import find_gpu_op


def why_apart(
    folded: FoldedMoves, launched: Collection[str], is_custom: IsCustom, caps: DeviceCaps, *,
    split_products: bool, fusing: bool,
) -> dict[str, str]:
    """Return why each element-wise node and each move among the nodes `launched` is no part of another launch.

    Any other node computes something of its own.
    """
    reasons = _Reasons(folded, is_custom, caps, split_products, fusing)
    found = {node.name: reasons.of(node) for node in folded.graph.nodes if node.name in launched}
    return {name: reason for name, reason in found.items() if reason}


class _Reasons:
    def __init__(
        self, folded: FoldedMoves, is_custom: IsCustom, caps: DeviceCaps, split_products: bool, fusing: bool
    ) -> None:
        self.graph, self.folded, self.is_custom = folded.graph, folded, is_custom
        self.caps, self.split_products, self.fusing = caps, split_products, fusing
        self.makers, self.readers = self.graph.producers(), self.graph.readers()
        self.gates = GateFuser(self.graph, is_custom, caps, split_products)
        self.changing = ChangingGraph(self.graph)
        for node in self.graph.nodes:
            self.changing.reach(node)
        results, relayouts = set(self.graph.outputs), [n for n in self.graph.nodes if n.op.type == "Relayout"]
        self.results = results | {node.inputs[0] for node in relayouts if node.outputs[0] in results}

    def of(self, node: Node) -> str:
        form = None if self.is_custom(node.op) else find_gpu_op(node.op)
        if form is None:
            return ""
        if not self.fusing and (base_op(node.op).is_elementwise or form.moves_bits):
            return "fusing is switched off"
        if node.op.type == "Relayout":
            return self._of_relayout(node)
        if base_op(node.op).is_elementwise:
            operands = (self._of_operand(node, i) for i in node.inputs if i)
            reasons = (*operands, self._of_reader(node), self._of_gate(node))
            return "; ".join(dict.fromkeys(filter(None, reasons)))
        if form.moves_bits:
            return self.folded.apart.get(node.name, "") or self._of_move(node)
        return ""

    def _of_gate(self, node: Node) -> str:
        """Return why the product of which an element-wise node reads both halves does not compute it."""
        reason = self.gates.why_not(node)
        return f"the product of which it reads the halves does not compute it: {reason}" if reason else ""

    def _of_reader(self, node: Node) -> str:
        """Return why the convolution that alone reads an element-wise node does not compute it as it loads."""
        name = node.outputs[0]
        reader = next((each for each in self.graph.nodes if name in each.inputs), None)
        if reader is None or self.readers[name] != 1 or reader.inputs[0] != name:
            return ""
        reason = why_no_prologue_of(self.graph, node, reader, self.is_custom, self.caps, self.split_products)
        return f"{base_op(reader.op).type} {reader.name!r} does not compute it as it loads: {reason}" if reason else ""

    def _of_relayout(self, node: Node) -> str:
        source, target = node.inputs[0], node.outputs[0]
        layouts = [self.graph.layouts.get(name, Layout.NCHW).value for name in (source, target)]
        reads = next((each for each in self.graph.nodes if target in each.inputs), None)
        wants = f"{base_op(reads.op).type} {reads.name!r} reads" if reads else "the result is stored as"
        reason = f"{source!r} lies as {layouts[0]}, and {wants} {layouts[1]}"
        return "; ".join(filter(None, (reason, self.folded.apart.get(node.name, ""))))

    def _of_operand(self, node: Node, name: str) -> str:
        """Return why an element-wise node is not computed as one of its operands is stored."""
        if name in self.graph.constants:
            return ""
        maker = self.makers.get(name)
        read = name
        while maker is not None and maker.op.type == "Relayout":
            name = maker.inputs[0]
            maker = self.makers.get(name)
        if maker is None:
            return f"{name!r} is an input of this part of the network"
        by = f"{base_op(maker.op).type} {maker.name!r} makes {name!r}"
        alone = replace(node, inputs=tuple(name if i == read else i for i in node.inputs))
        others = self.readers[name] - (node.inputs.count(read) or 1)
        if name in self.results:
            by += ", which is a result as well"
        elif others > 0:
            by += f", which {others} other node{'s read' if others > 1 else ' reads'} too"
        found = compute_where_made(self.changing, maker, alone, self.is_custom, self.caps)
        return f"{by}: {found if isinstance(found, str) else 'they were apart when steps were fused'}"

    def _of_move(self, node: Node) -> str:
        packed = next((name for name in (*node.inputs, *node.outputs) if self._is_packed(name)), "")
        if packed:
            return f"{packed!r} lies in blocks of channels, which kernels do not reach through an index map"
        return f"where {base_op(node.op).type} puts each element is no index map"

    def _is_packed(self, name: str) -> bool:
        return self.graph.layouts.get(name, Layout.NCHW).packed
