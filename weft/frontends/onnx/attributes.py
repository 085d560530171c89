"""ONNX attributes to Python values, and those to the fields of an op."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import Any, get_type_hints

from onnx import AttributeProto, TensorProto

from weft.core.graph.dtypes import DType
from weft.core.graph.op import Op
from weft.errors import ModelError
from weft.frontends.onnx.external import ExternalFiles
from weft.frontends.onnx.tensors import element_type, to_array
from weft.frontends.wording import quote


def read_attribute(proto: AttributeProto, files: ExternalFiles) -> object:
    """Return an attribute's value: number, text, tuple of these, or array; ModelError for another kind."""
    if proto.ref_attr_name:
        raise ModelError(f"attribute {quote(proto.name)} refers to a function's, but is in no function")
    if proto.type == AttributeProto.INT:
        return proto.i
    if proto.type == AttributeProto.FLOAT:
        return proto.f
    if proto.type == AttributeProto.STRING:
        return _text(proto.s, proto.name)
    if proto.type == AttributeProto.INTS:
        return tuple(proto.ints)
    if proto.type == AttributeProto.FLOATS:
        return tuple(proto.floats)
    if proto.type == AttributeProto.STRINGS:
        return tuple(_text(s, proto.name) for s in proto.strings)
    if proto.type == AttributeProto.TENSOR:
        return to_array(proto.t, files)
    raise ModelError(
        f"attribute {quote(proto.name)} is of the kind {kind_of(proto.type)}, which is not supported"
    )


_KINDS = {int(v): str(k) for k, v in AttributeProto.AttributeType.items()}


def kind_of(code: int) -> str:
    """Return the name of a kind of attribute."""
    return _KINDS.get(code, str(code))


def _text(value: bytes, name: str) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as e:
        raise ModelError(f"attribute {quote(name)} is not UTF-8 text", why=str(e)) from e


@cache
def op_fields(op: type[Op]) -> Mapping[str, Any]:
    """Return the attributes of an op class and their types."""
    try:
        hints = get_type_hints(op)
    except (NameError, TypeError):  # a user's op whose annotations only a type checker can resolve
        hints = {}
    return {field.name: hints.get(field.name, field.type) for field in fields(op)}


def field_value(op: type[Op], name: str, value: object) -> object:
    """Return an attribute's value as the op's field of that name takes it."""
    hint = op_fields(op)[name]
    if hint in (DType, DType | None) and not isinstance(value, DType):
        if not isinstance(value, int):
            raise ModelError(f"attribute {quote(name)} = {str(value)[:60]} is no element type")
        if value == TensorProto.UNDEFINED and hint == DType | None:
            return None  # as QuantizeLinear says that a type follows from its inputs
        return element_type(value, f"attribute {quote(name)}")
    if isinstance(value, int) and hint in (bool, bool | None):
        if value not in (0, 1):
            raise ModelError(f"attribute {quote(name)} is {value}; it must be 0 or 1")
        return bool(value)
    return value


def make_op(op: type[Op], attributes: Mapping[str, object]) -> Op:
    """Return the op with those attributes; ModelError, saying why, if it cannot be made."""
    try:
        made = op(**{name: field_value(op, name, value) for name, value in attributes.items()})
    except (TypeError, ValueError, OverflowError) as e:
        raise ModelError(f"the attributes do not fit: {e}") from e
    wrong = made.wrong_flags()
    if wrong:
        raise ModelError("; ".join(wrong))
    return made
