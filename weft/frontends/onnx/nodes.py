"""ONNX nodes to nodes of Weft's ops; collects the nodes that are not supported, each with the reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from onnx import AttributeProto, GraphProto, NodeProto

from weft.core.graph.graph import Graph, Node
from weft.core.graph.op import Op, find_op, op_types
from weft.errors import ModelError, Problem, UnsupportedOps, WeftError
from weft.frontends.onnx.attributes import make_op, op_fields, read_attribute
from weft.frontends.onnx.external import ExternalFiles
from weft.frontends.onnx.importers import RENAMED, ImportedNode, Scope, lift
from weft.frontends.onnx.reading import NEWEST_OPSET, domain_of
from weft.frontends.onnx.schemas import (
    check_node,
    defaults,
    is_optional_output,
    missing_input,
    missing_reason,
    schema_of,
    unknown_attribute,
)
from weft.frontends.wording import quote

HARMLESS = ("consumed_inputs", "is_test")
"""Attributes of old exporters that never changed what inference computes."""

HARMLESS_FOR = (("BatchNormalization", "momentum"), ("Dropout", "seed"))
HELD_APART = (AttributeProto.GRAPH, AttributeProto.TYPE_PROTO)
"""Kinds of attributes that are no fields of ops as they are: graphs are read on their own, types follow from values."""
STRINGS = "it works on strings, and Weft has no element type for them: do this before the network"
REFUSED = {
    **dict.fromkeys(("StringConcat", "StringNormalizer", "StringSplit", "RegexFullMatch"), STRINGS),
    "ImageDecoder": "Weft decodes no image files: decode them before the network, with Pillow for one",
}
"""Why Weft has no form of some of ONNX's ops."""
AS_ONNX = {"com.microsoft::GatherND": 12, "com.microsoft::GridSample": 16, "com.microsoft::Trilu": 14}
"""Ops that ONNX Runtime had before ONNX, and the opset of ONNX whose op they are."""
REFUSED_DOMAINS = {
    "com.microsoft.nchwc": "ONNX Runtime writes such nodes for the processor of one machine: save the file at level "
    "ORT_ENABLE_EXTENDED",
}


@dataclass(frozen=True)
class Body:
    """A graph that a node holds, and the values around the node that it reads."""

    made: Graph
    captured: tuple[str, ...]

    def with_captures(self, every: Sequence[str]) -> Graph:
        """Return the graph with all these values as its last inputs."""
        graph = self.made.copy()
        graph.inputs += every
        return graph


@dataclass
class NodeReader:
    """Reads the nodes of one model.

    `opsets` are the versions by domain, `read` the names of all values that something reads. `opset_of` gives the
    version of ONNX's own domain that a node is of.
    """

    opsets: Mapping[str, int]
    files: ExternalFiles
    scope: Scope
    read: Collection[str]
    opset_of: Callable[[NodeProto], int]
    body: Callable[[GraphProto, str, NodeReader], Body]
    """Reads a graph that a node holds, under that name; what it cannot read is added to the reader's problems."""
    problems: list[str] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    """How many nodes of each op are not supported."""

    def add(self, proto: NodeProto, name: str) -> Node | None:
        """Return the node under that name; None, with a line in `problems`, if it is not supported."""
        try:
            return self._custom_node(proto, name) if domain_of(proto.domain) else self._node(proto, name)
        except WeftError as e:
            reason = e.short + (f" [{e.where}]" if e.where else "")
            self.problems.append(self._problem(proto, name, reason))
            self.refused[quote(proto.op_type)[1:-1]] += 1
            return None

    def raise_problems(self, label: str, total: int, others: Graph) -> None:
        """Raise UnsupportedOps if there are nodes that were not supported; `others` are the other nodes."""
        if self.problems:
            raise UnsupportedOps(
                f"{len(self.problems)} of the {total} nodes of {label} are not supported",
                self.problems,
                fix="register the missing ops (weft.register_op), or export the model without them",
                by_op=self.refused,
                others=others,
            )

    def _problem(self, proto: NodeProto, name: str, reason: str) -> Problem:
        domain = domain_of(proto.domain)
        opset = self.opset_of(proto) if not domain else self.opsets.get(domain)
        version = "of no declared opset" if opset is None else f"opset {opset}"
        op_type = quote(proto.op_type)[1:-1]
        return Problem(name, f": {op_type}, domain {quote(domain or 'ai.onnx')}, {version}: {reason}")

    def _custom_node(self, proto: NodeProto, name: str) -> Node:
        label = f"{domain_of(proto.domain)}::{proto.op_type}"
        op = find_op(label)
        if op is None and label in AS_ONNX:
            return self._of_onnx(proto, name, AS_ONNX[label])
        if op is None:
            raise ModelError(REFUSED_DOMAINS.get(proto.domain) or _why_unknown(proto.domain))
        made = self._op(op, proto.op_type, self._attributes(proto), {}, len(proto.output))
        return Node(name, made, _without_tail(proto.input), tuple(proto.output))

    def _node(self, proto: NodeProto, name: str) -> Node:
        return self._of_onnx(proto, name, self.opset_of(proto))

    def _of_onnx(self, proto: NodeProto, name: str, opset: int) -> Node:
        schema = schema_of(proto.op_type, opset)
        if schema is None and (find_op(proto.op_type) is None or schema_of(proto.op_type, NEWEST_OPSET)):
            raise ModelError(missing_reason(proto.op_type))
        problem = check_node(proto, schema) or unknown_attribute(proto, schema, HARMLESS) if schema else None
        if problem:
            raise ModelError(problem)
        if find_op(RENAMED.get(proto.op_type, proto.op_type)) is None:
            # Before the attributes are looked at, because those of control flow hold whole graphs.
            raise ModelError(REFUSED.get(proto.op_type, "Weft has no such op"))
        outputs, attributes = self._outputs(proto, opset), self._attributes(proto)
        captured = self._bodies(proto, name, attributes)
        form = ImportedNode(name, proto.op_type, opset, list(proto.input), outputs, attributes, self.scope)
        lift(form)
        return self._lifted(form, defaults(proto.op_type, opset), captured)

    def _bodies(self, proto: NodeProto, name: str, attributes: dict[str, object]) -> tuple[str, ...]:
        """Read the graphs that a node holds into its attributes; return the values around it that they read.

        Each gets all of these as its last inputs.
        """
        held = {a.name: self.body(a.g, f"{name}/{a.name}", self) for a in proto.attribute if a.type == a.GRAPH}
        if not held:
            return ()
        captured = tuple(dict.fromkeys(value for body in held.values() for value in body.captured))
        for attribute, body in held.items():
            attributes[attribute] = body.with_captures(captured)
        attributes["captures"] = len(captured)
        return captured

    def _lifted(self, form: ImportedNode, implied: Mapping[str, object], captured: tuple[str, ...] = ()) -> Node:
        op = find_op(form.type)
        assert op is not None
        inputs = _without_tail(form.inputs)
        newest = schema_of(form.type, NEWEST_OPSET)
        problem = missing_input(inputs, newest) if newest else None
        if problem:
            raise ModelError(problem)
        made = self._op(op, form.type, form.attributes, implied, len(form.outputs))
        return Node(form.name, made, (*inputs, *captured), tuple(form.outputs))

    def _attributes(self, proto: NodeProto) -> dict[str, object]:
        kept = (a for a in proto.attribute if a.name not in HARMLESS and a.type not in HELD_APART)
        return {a.name: read_attribute(a, self.files) for a in kept}

    def _outputs(self, proto: NodeProto, opset: int) -> list[str]:
        """Return the outputs without optional ones at the end that nothing reads."""
        schema = schema_of(proto.op_type, opset)
        outputs = list(proto.output)
        while schema and len(outputs) > 1 and is_optional_output(schema, len(outputs) - 1):
            if outputs[-1] and outputs[-1] in self.read:
                break
            outputs.pop()
        return outputs

    def _op(
        self,
        op: type[Op],
        op_type: str,
        attributes: Mapping[str, object],
        implied: Mapping[str, object],
        outputs: int,
    ) -> Op:
        """Return the op with the node's attributes and, for those not given, what its opset implies."""
        fields = op_fields(op)
        values = {name: value for name, value in implied.items() if name in fields}
        for name, value in attributes.items():
            if name in fields:
                values[name] = value
            elif (op_type, name) not in HARMLESS_FOR and not (name in implied and implied[name] == value):
                raise ModelError(f"attribute {quote(name)} = {str(value)[:60]} is not supported")
        if "outputs" in fields:
            values["outputs"] = outputs
        return make_op(op, values)


def _why_unknown(domain: str) -> str:
    others = sum(op_type.startswith(f"{domain}::") for op_type in op_types())
    if not others:
        return "no op of that domain is registered with Weft"
    return f"Weft has {others} ops of that domain, and not this one (docs/ops.md lists them)"


def _without_tail(inputs: Sequence[str]) -> tuple[str, ...]:
    end = len(inputs)
    while end and not inputs[end - 1]:
        end -= 1
    return tuple(inputs[:end])
