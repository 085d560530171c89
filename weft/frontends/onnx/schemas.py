"""What each opset says about an op: its inputs, outputs, attributes and their defaults."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from onnx import NodeProto
from onnx.defs import OpSchema, SchemaError, get_schema

from weft.core.graph.dtypes import DType
from weft.errors import ModelError, listing
from weft.frontends.onnx.attributes import kind_of, read_attribute
from weft.frontends.onnx.external import ExternalFiles
from weft.frontends.onnx.reading import NEWEST_OPSET, domain_of
from weft.frontends.onnx.tensors import DTYPES
from weft.frontends.wording import quote

NUMPY_NAMES = {"float": "float32", "double": "float64"}
REPLACED = {"GroupNormalization"}
"""Ops of which onnx withdrew a form, because a later one means something else; an importer knows both."""
LENIENT = {("Cast", "to")}
"""Attributes whose kind is not checked: an importer takes several."""


@dataclass(frozen=True, slots=True)
class Schema:
    """A copy of onnx's schema of an op, under onnx's names; onnx's own object makes new lists at each access."""

    deprecated: bool
    since_version: int
    min_input: int
    max_input: int
    min_output: int
    max_output: int
    inputs: tuple[OpSchema.FormalParameter, ...]
    outputs: tuple[OpSchema.FormalParameter, ...]
    attributes: Mapping[str, OpSchema.Attribute]
    output_types: tuple[str, ...]
    """For each output "tensor(int64)", or the name of the types that it shares with inputs, as "T"."""

    @classmethod
    def of(cls, schema: OpSchema) -> Schema:
        """Return what a schema of onnx says."""
        single = {c.type_param_str: t[0] for c in schema.type_constraints if len(t := c.allowed_type_strs) == 1}
        return cls(
            deprecated=schema.deprecated,
            since_version=schema.since_version,
            min_input=schema.min_input,
            max_input=schema.max_input,
            min_output=schema.min_output,
            max_output=schema.max_output,
            inputs=tuple(schema.inputs),
            outputs=tuple(schema.outputs),
            attributes=dict(schema.attributes),
            output_types=tuple(single.get(o.type_str, o.type_str) for o in schema.outputs),
        )


@lru_cache(maxsize=4096)
def schema_of(op_type: str, opset: int) -> Schema | None:
    """Return what an opset says about an ONNX op; None if it has no such op."""
    try:
        return Schema.of(get_schema(op_type, opset, ""))
    except SchemaError:
        return None


def missing_reason(op_type: str) -> str:
    """Return why an opset that lacks an op has none of that type."""
    newest = schema_of(op_type, NEWEST_OPSET)
    if newest is None:
        return "ONNX has no such op and none is registered with Weft"
    first = next(v for v in range(1, NEWEST_OPSET + 1) if schema_of(op_type, v))
    return f"ONNX has this op since opset {first}"


def check_node(node: NodeProto, schema: Schema) -> str | None:
    """Return why a node is not what its opset asks for, or None."""
    if schema.deprecated and node.op_type not in REPLACED:
        return f"opset {schema.since_version} withdrew this op"
    for what, names, least, most in (
        ("inputs", node.input, schema.min_input, schema.max_input),
        ("outputs", node.output, schema.min_output, schema.max_output),
    ):
        if not least <= len(names) <= most:
            lacking = schema.inputs[len(names) : least] if what == "inputs" else ()
            missing = f"; missing: {', '.join(each.name for each in lacking)}" if lacking else ""
            return f"it has {len(names)} {what}; allowed: {least} to {most}{missing}"
    given = {attribute.name: attribute for attribute in node.attribute}
    problems = []
    for name, declared in schema.attributes.items():
        if declared.required and name not in given:
            problems.append(f"attribute {name!r} is missing")
        if name in given and (node.op_type, name) not in LENIENT:
            kind, want = kind_of(given[name].type), kind_of(declared.type.value)  # type: ignore[attr-defined]
            if kind != want:
                problems.append(f"attribute {name!r} is {kind}; it must be {want}")
    return "; ".join(problems) or None


def unknown_attribute(node: NodeProto, schema: Schema, harmless: Collection[str]) -> str | None:
    """Return which attribute of a node neither its opset nor the newest knows, or None.

    Weft's ops have a few fields beyond ONNX's attributes; a file must not be able to set those.
    """
    if not node.attribute:
        return None
    newest = schema_of(node.op_type, NEWEST_OPSET)
    known = {*harmless, *schema.attributes, *(newest.attributes if newest else ())}
    unknown = [quote(attribute.name) for attribute in node.attribute if attribute.name not in known]
    return f"it has attributes that ONNX does not know: {listing(unknown, ', ')}" if unknown else None


def missing_input(inputs: Sequence[str], schema: Schema) -> str | None:
    """Return which input that the schema requires is not given, or None."""
    for index in range(schema.min_input):
        formal = schema.inputs[min(index, len(schema.inputs) - 1)]
        if formal.option == OpSchema.FormalParameterOption.Optional:
            continue  # Loop's: the ones behind them are required, so it counts them
        if index >= len(inputs) or not inputs[index]:
            return f"input {index} ({formal.name}) is missing"
    return None


@lru_cache(maxsize=4096)
def defaults(op_type: str, opset: int) -> Mapping[str, object]:
    """Return the values that the opset gives to attributes of an ONNX op which a node leaves out."""
    schema = schema_of(op_type, opset)
    declared = (a.default_value for a in schema.attributes.values()) if schema else ()
    return {value.name: read_attribute(value, ExternalFiles()) for value in declared if value.name}


def is_optional_output(schema: Schema, index: int) -> bool:
    """Tell whether a node may leave out that output."""
    outputs = schema.outputs
    return index < len(outputs) and outputs[index].option == OpSchema.FormalParameterOption.Optional


class ElementTypes:
    """The element types of a graph's values as far as they follow without shapes."""

    def __init__(
        self, known: Mapping[str, DType], nodes: Iterable[NodeProto], opset_of: Callable[[NodeProto], int]
    ) -> None:
        self._known = dict(known)
        self._makers = {out: (node, k) for node in nodes for k, out in enumerate(node.output) if out}
        self._opset_of = opset_of

    def of(self, name: str) -> DType | None:
        """Return the element type of a value, None where only its shapes or a run could tell it."""
        path: list[str] = []
        seen: set[str] = set()
        while name not in self._known and name in self._makers and name not in seen:
            path.append(name)
            seen.add(name)
            step = self._step(*self._makers[name])
            if isinstance(step, DType):
                self._known[name] = step
            elif step:
                name = step
        dtype = self._known.get(name)
        if dtype is not None:
            self._known.update(dict.fromkeys(path, dtype))
        return dtype

    def _step(self, node: NodeProto, index: int) -> DType | str | None:
        """Return the type of an output, or the name of an input that has the same."""
        schema = None if domain_of(node.domain) else schema_of(node.op_type, self._opset_of(node))
        if schema is None or not schema.outputs:
            return None
        place = min(index, len(schema.outputs) - 1)
        if not schema.outputs[place].is_homogeneous:
            return _of_body(node, index)
        label = schema.output_types[place]
        if label.startswith("tensor("):
            text = label.removeprefix("tensor(").removesuffix(")")
            return _dtype(NUMPY_NAMES.get(text, text))
        for attribute in node.attribute:
            if attribute.name in ("to", "dtype", "output_dtype") and attribute.i in DTYPES:
                return DTYPES[attribute.i]
            if attribute.name == "value" and attribute.t.data_type in DTYPES:
                return DTYPES[attribute.t.data_type]
        for k, value in enumerate(node.input):
            formal = schema.inputs[min(k, len(schema.inputs) - 1)] if schema.inputs else None
            if value and formal is not None and formal.type_str == label:
                return str(value)
        return None


def _of_body(node: NodeProto, index: int) -> DType | str | None:
    """Return the type of a Loop's or Scan's output as its body declares it, or the name of the state that it ends.

    Their outputs share the name of a type, but each has its own.
    """
    if node.op_type not in ("Loop", "Scan"):
        return None
    # Before its states a Loop has a condition inside, and a number of turns and a condition outside.
    inside, outside = (1, 2) if node.op_type == "Loop" else (0, 0)
    scanned = 0
    for attribute in node.attribute:
        scanned += attribute.i if attribute.name == "num_scan_inputs" else 0
        made = attribute.g.output[inside + index :] if attribute.name == "body" else []
        if made and made[0].type.tensor_type.elem_type in DTYPES:
            return DTYPES[made[0].type.tensor_type.elem_type]
    is_state = index < len(node.input) - outside - scanned
    return str(node.input[outside + index]) if is_state else None


def _dtype(name: str) -> DType | None:
    try:
        return DType.of(name)
    except ModelError:
        return None
