"""What is known of an op before it runs: its attributes, and how many inputs and outputs it has.

ONNX's own definitions tell it for ops that bear an ONNX name. Of other ops only the attributes are known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from typing import Any

import numpy as np
from onnx.defs import OpSchema

import weft.ops  # noqa: F401  (registers the ops)
from weft.core.graph.dtypes import DType
from weft.core.graph.op import Op, find_op, op_types
from weft.errors import ModelError
from weft.frontends.builder.conversion import near
from weft.frontends.onnx.attributes import make_op, op_fields
from weft.frontends.onnx.reading import NEWEST_OPSET
from weft.frontends.onnx.schemas import schema_of

UNBOUNDED = 2**16
"""More inputs or outputs than a layer can have."""

_OPTION = OpSchema.FormalParameterOption


@dataclass(frozen=True, slots=True)
class Signature:
    """The inputs of an op in order, and how many of them and of its outputs there must and may be."""

    inputs: tuple[str, ...] = ()
    least_inputs: int = 0
    most_inputs: int = UNBOUNDED
    optional: frozenset[int] = frozenset()
    """The inputs before the last required one that may be left out."""
    least_outputs: int = 1
    most_outputs: int = UNBOUNDED
    is_known: bool = False
    types: tuple[str, ...] = ()
    """ONNX's name of the element type of each input: "T", which others may share, or "tensor(int64)"."""
    allowed: Mapping[str, frozenset[DType]] = field(default_factory=dict)
    """The element types that each of those names stands for."""

    def needs(self, index: int) -> bool:
        """Tell whether that input must be connected."""
        return index < self.least_inputs and index not in self.optional

    def label(self, index: int) -> str:
        """Return ONNX's name of an input; all of a variadic one share it. "" where there is none."""
        return self.inputs[min(index, len(self.inputs) - 1)] if self.inputs else ""

    def type_of(self, index: int) -> str:
        """Return the name of the element type of an input; "" where there is none."""
        return self.types[min(index, len(self.types) - 1)] if self.types else ""


@cache
def signature_of(op_type: str) -> Signature:
    """Return the signature of an op type; it allows everything if ONNX does not define the op."""
    schema = schema_of(op_type, NEWEST_OPSET)
    if schema is None:
        return Signature()
    optional = frozenset(k for k, formal in enumerate(schema.inputs) if formal.option == _OPTION.Optional)
    return Signature(
        tuple(formal.name for formal in schema.inputs),
        schema.min_input,
        min(schema.max_input, UNBOUNDED),
        optional,
        schema.min_output,
        min(schema.max_output, UNBOUNDED),
        True,
        tuple(formal.type_str for formal in schema.inputs),
        {formal.type_str: _elements(formal.types) for formal in schema.inputs},
    )


def _elements(types: Iterable[str]) -> frozenset[DType]:
    """Return the element types of ONNX's "tensor(float)" and the like, as far as Weft knows them."""
    return frozenset(_ONNX_TYPES[t] for t in types if t in _ONNX_TYPES)


_ONNX_NAMES = {DType.FLOAT32: "float", DType.FLOAT64: "double"}
_ONNX_TYPES = {f"tensor({_ONNX_NAMES.get(d, d.value)})": d for d in DType}


def op_of(op_type: str, attributes: Mapping[str, object]) -> Op:
    """Return the op of that type with those attributes; ModelError with all that is wrong with them."""
    cls = find_op(op_type)
    if cls is None:
        raise _unknown_type(op_type)
    known = op_fields(cls)
    problems, values = [], {}
    for name, value in attributes.items():
        if name not in known:
            problems.append(f"there is no attribute {name!r}{near(name, known)}")
            continue
        try:
            values[name] = _fitted(known[name], value)
        except (ModelError, TypeError, ValueError) as e:
            problems.append(f"attribute {name!r} = {str(value)[:60]}: {getattr(e, 'what', e)}")
    required = [f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING]
    problems += [f"attribute {name!r} is missing" for name in required if name not in attributes]
    if problems:
        raise ModelError(
            f"{op_type} cannot be made with these attributes",
            why="; ".join(problems),
            fix=f"its attributes are {', '.join(known)}" if known else "it has no attributes",
        )
    return make_op(cls, values)


def _unknown_type(op_type: str) -> ModelError:
    if schema_of(op_type, NEWEST_OPSET):
        return ModelError(
            f"Weft has no op {op_type!r}", why="ONNX defines it, no op of that type is registered", fix=_REGISTER
        )
    return ModelError(f"there is no op {op_type!r}{near(op_type, op_types())}", fix=_REGISTER)


_REGISTER = "use the name of a registered op, or register one with weft.register_op"


def _fitted(hint: Any, value: object) -> object:
    """Return an attribute's value in the type that the op declares; TypeError where it is of another kind."""
    text = str(hint)
    if hint in (DType, DType | None):
        # ONNX numbers its element types; make_op knows the numbers.
        return value if value is None or isinstance(value, (DType, int)) else DType.of(value)
    if isinstance(value, (np.ndarray, np.generic)):
        value = value.tolist()
    if isinstance(value, list):
        value = tuple(value)
    if isinstance(value, int) and not isinstance(value, bool) and hint is float:
        return float(value)
    kinds: dict[Any, type | tuple[type, ...]] = {int: int, float: float, str: str, bool: (bool, int)}
    if hint in kinds and not isinstance(value, kinds[hint]):
        raise TypeError(f"it must be a {hint.__name__}")
    if text.startswith("tuple[") and not isinstance(value, Sequence):
        raise TypeError(f"it must be a {text}")
    return value
