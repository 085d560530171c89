"""What a caller gives for an array, as an array of an element type."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from weft.core.contract.error_context import is_error
from weft.core.graph.dtypes import DType
from weft.core.graph.layout import Array
from weft.core.host.dlpack import host_array, is_foreign, why_not_shared
from weft.errors import ModelError, brief


def is_masked_array(value: Any) -> bool:
    """Tell whether it is a masked array, without importing `numpy.ma`, which is slow."""
    module = sys.modules.get("numpy.ma")
    return module is not None and isinstance(value, module.MaskedArray)


def to_array(value: Any) -> tuple[Array, str]:
    """Return the value as an array of its own type, and what is wrong with it, if anything."""
    if is_masked_array(value) and np.ma.is_masked(value):
        return np.empty(0), "has masked elements, which a network does not know (fill them: x.filled(0))"
    value = host_array(value)
    unshared = f"is a {type(value).__name__} {why_not_shared(value)}" if is_foreign(value) else ""
    if unshared and not hasattr(value, "__array__"):
        return np.empty(0), unshared
    try:
        return np.asarray(value), ""
    except Exception as e:  # of an object's own conversion, whatever it raises
        if not is_error(e):
            raise
        return np.empty(0), unshared or f"is not an array ({brief(str(e) or type(e).__name__)})"


def fit_array(value: Any, dtype: DType) -> tuple[Array, str]:
    """Return the value as an array of the type, and what is wrong with it, if anything."""
    array, problem = to_array(value)
    if problem:
        return array, problem
    want = dtype.numpy
    if array.dtype == want:
        return array, ""
    if array.dtype == np.dtype(f"V{want.itemsize}") and dtype.raw != want:
        return array.view(want), ""  # numpy.load knows the bytes of a type that numpy lacks, not the type
    wrong = f"has element type {array.dtype} and {want} is needed"
    given = _number_type(array)
    if given is None or not (dtype.is_float or (dtype.is_integer and given.is_integer)):
        return array, wrong
    if dtype.is_integer and array.size:
        least, most = dtype.limits
        if int(array.min()) < least or int(array.max()) > most:
            return array, f"{wrong}, which does not hold all of its values"
    try:
        with np.errstate(over="ignore"):
            converted: Array = array.astype(want)
    except MemoryError:
        return array, f"{wrong}; there is no memory for its {array.size * want.itemsize:,} bytes in that type"
    if dtype.is_float and bool(np.any(np.isinf(converted) & np.isfinite(array))):
        return array, f"{wrong}, which does not hold all of its values"
    return converted, ""


def _number_type(array: Array) -> DType | None:
    """Return the element type of an array of integers or floats, None for any other."""
    if array.dtype.kind not in "iufV":
        return None
    try:
        dtype = DType.of(array.dtype)
    except ModelError:
        return DType.FLOAT64 if array.dtype.kind == "f" else None  # numpy's longdouble
    return dtype if dtype.is_float or dtype.is_integer else None
