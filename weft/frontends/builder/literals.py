"""Python numbers and lists as inputs of a layer: the element types that they get."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.core.graph.dtypes import DType
from weft.core.graph.layout import Array
from weft.errors import ModelError
from weft.frontends.builder.layers import OpLayer
from weft.frontends.builder.slots import Layer, OutputSlot, checked

if TYPE_CHECKING:
    from weft.frontends.builder.signatures import Signature


def is_literal(source: object) -> bool:
    """Tell whether a source has no element type of its own."""
    return isinstance(source, (bool, int, float, list, tuple)) and not isinstance(source, np.generic)


def array_of(source: Any, layer: OpLayer, index: int, sources: Sequence[Any]) -> Array:
    """Return the array that a layer is to read as its input `index`, where `sources` are all its sources.

    A Python number or list gets the type that ONNX gives the input, else that of an input that must have
    the same type, else that of any other that it may have. Where none of these holds the value, or none is
    known, fractions are float32 and whole numbers int64. ModelError if the source is no array.
    """
    if isinstance(source, str):
        raise ModelError(
            f"{source!r} is a name, and a layer reads what makes a value",
            fix="pass the layer itself, which add_input and add_layer return; network.layer(name) finds it",
        )
    if isinstance(source, (list, tuple)) and any(isinstance(each, (Layer, OutputSlot)) for each in source):
        raise ModelError(f"input {index} of {layer.op.type} is a list of layers", fix="pass them one after the other")
    if not is_literal(source):
        return checked(source)
    value = checked(source)
    fitting = (dtype for dtype in _candidates(layer.signature, index, sources) if _holds(dtype, value))
    plain = {"f": DType.FLOAT32, "i": DType.INT64}.get(value.dtype.kind, DType.of(value.dtype))
    return value.astype(next(fitting, plain).numpy)


def _candidates(known: Signature, index: int, sources: Sequence[Any]) -> list[DType]:
    """Return the element types that a literal may get, the likeliest first."""
    name = known.type_of(index)
    allowed = known.allowed.get(name, frozenset(DType))
    if len(allowed) == 1:
        return list(allowed)
    types = [(known.type_of(k), _type_of(s)) for k, s in enumerate(sources) if k != index]
    others = sorted(((n, t) for n, t in types if t is not None), key=lambda entry: entry[0] != name)
    return [t for _, t in others if t in allowed]


def _type_of(source: Any) -> DType | None:
    """Return the element type of a source, as far as it is known."""
    if isinstance(source, Layer):
        source = source.outputs[0] if len(source.outputs) == 1 else None
    if isinstance(source, OutputSlot):
        return source.spec.dtype if source.spec else None
    return None if source is None or is_literal(source) else DType.of(np.asarray(source).dtype)


def _holds(dtype: DType, value: Array) -> bool:
    """Tell whether values of that kind can be of the type: fractions of a float, numbers not of a bool."""
    if value.dtype.kind == "f":
        return dtype.is_float or dtype.is_small_float
    if value.dtype.kind == "b":
        return dtype is DType.BOOL
    if dtype is DType.BOOL or not value.size:
        return dtype is not DType.BOOL
    with np.errstate(all="ignore"):
        return bool(np.array_equal(value.astype(dtype.numpy), value))
