"""The Open Inference Protocol, version 2: requests and responses of its REST form, with binary tensors."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph
from weft.core.graph.layout import Array, Shape
from weft.core.graph.tensor import SequenceSpec
from weft.errors import brief

HEADER_LENGTH = "inference-header-content-length"
"""The header with the bytes of the JSON part of a body; binary tensors follow it."""
MOST_DIMENSIONS = 32
_TYPES = {
    DType.BOOL: "BOOL", DType.FLOAT16: "FP16", DType.FLOAT32: "FP32", DType.FLOAT64: "FP64", DType.BFLOAT16: "BF16",
    **{dtype: dtype.value.upper() for dtype in DType if dtype.is_integer and dtype.bits >= 8},
}
"""The names of element types in the protocol."""
_NAMED = {name: dtype for dtype, name in _TYPES.items()}
_BINARY_ALONE = (DType.FLOAT16, DType.BFLOAT16)
"""Types that have no form in JSON."""


class RefusedError(Exception):
    """A request that is not carried out: its HTTP status, and why."""

    def __init__(self, status: int, why: str) -> None:
        self.status, self.why = status, why
        super().__init__(why)


@dataclass(frozen=True)
class InferRequest:
    """What a client asks a model."""

    inputs: dict[str, Array]
    outputs: tuple[str, ...]
    """The outputs that it wants, in order; none: all."""
    binary: Mapping[str, bool]
    """Which outputs it wants in binary form, by name; "" says it of all others."""
    id: str = ""


def read_request(body: bytes, header_length: str | None) -> InferRequest:
    """Return the request that a body holds; RefusedError says what is wrong with it."""
    length = len(body)
    if header_length is not None:
        if not (header_length.isascii() and header_length.isdigit() and int(header_length) <= len(body)):
            raise _bad(f"{HEADER_LENGTH} is {brief(repr(header_length), 60)}, and the body has {len(body)} bytes")
        length = int(header_length)
    head = _object(_parsed(body[:length]), "the request")
    binary_by_default = _parameters(head, "the request", ("sequence_id",)).get("binary_data_output", False)
    inputs: dict[str, Array] = {}
    at = length
    for each in _listed(head, "inputs"):
        name = _text(each, "name", "an input")
        if name in inputs:
            raise _bad(f"input {name!r} is given twice")
        inputs[name], at = _tensor(each, name, body, at)
    if at != len(body):
        raise _bad(f"{len(body) - at} bytes follow the last binary tensor")
    wanted: dict[str, bool] = {}
    for each in _listed(head, "outputs") if head.get("outputs") is not None else ():
        name = _text(each, "name", "an output")
        given = _parameters(each, f"output {name!r}", ("classification", "shared_memory_region"))
        wanted[name] = bool(given.get("binary_data", binary_by_default))
    identity = head.get("id", "")
    if not isinstance(identity, str):
        raise _bad("the id is no text")
    return InferRequest(inputs, tuple(wanted), {**wanted, "": bool(binary_by_default)}, identity)


def write_response(
    request: InferRequest, model: str, version: str, outputs: Sequence[str], results: Sequence[Any]
) -> tuple[dict[str, str], bytes]:
    """Return the headers and the body with the outputs of a model; RefusedError if JSON cannot hold one."""
    made = dict(zip(outputs, results, strict=True))
    described, chunks = list[dict[str, Any]](), list[bytes]()
    for name in request.outputs or outputs:
        array = made[name]
        dtype = DType.of(array.dtype) if isinstance(array, np.ndarray) else None
        if dtype is None or dtype not in _TYPES:
            what = "a sequence" if dtype is None else f"of {dtype.value}"
            raise RefusedError(501, f"output {name!r} is {what}, which the protocol has no form for")
        each: dict[str, Any] = {"name": name, "datatype": _TYPES[dtype], "shape": list(array.shape)}
        if request.binary.get(name, request.binary[""]):
            chunks.append(np.ascontiguousarray(array).tobytes())
            each["parameters"] = {"binary_data_size": len(chunks[-1])}
        else:
            each["data"] = _as_json(array, name, dtype)
        described.append(each)
    head: dict[str, Any] = {"model_name": model, "model_version": version, "outputs": described}
    if request.id:
        head["id"] = request.id
    text = json.dumps(head, separators=(",", ":")).encode()
    if not chunks:
        return {"content-type": "application/json"}, text
    headers = {"content-type": "application/octet-stream", HEADER_LENGTH: str(len(text))}
    return headers, b"".join([text, *chunks])


def read_parameters(body: bytes) -> dict[str, Any]:
    """Return the parameters of a request that has nothing else; RefusedError if the body is not of that form."""
    return _parameters(_object(_parsed(body), "the request"), "the request", ())


def check_outputs(request: InferRequest, outputs: Sequence[str]) -> None:
    """Raise RefusedError if a request wants an output that the network does not have."""
    unknown = [name for name in request.outputs if name not in outputs]
    if unknown:
        raise _bad(f"there is no output {', '.join(map(repr, unknown))}; the model has {', '.join(outputs)}")


def metadata(graph: Graph, name: str, versions: Sequence[str]) -> dict[str, Any]:
    """Return what the protocol tells of a model. Open sizes are -1; what is not known of an output is left out."""
    outputs = [{"name": output, **_declared(graph, output)} for output in graph.outputs]
    inputs = [{"name": i, **_spec(graph, i)} for i in graph.inputs]
    return {"name": name, "versions": list(versions), "platform": "weft", "inputs": inputs, "outputs": outputs}


def _spec(graph: Graph, name: str) -> dict[str, Any]:
    spec = graph.specs[name]
    kind = {"datatype": _TYPES.get(spec.dtype, spec.dtype.value.upper())}
    if isinstance(spec, SequenceSpec) or spec.has_open_rank:
        return kind | {"shape": [-1]}
    return kind | {"shape": [d if isinstance(d, int) else -1 for d in spec.shape]}


def _declared(graph: Graph, name: str) -> dict[str, Any]:
    if name in graph.specs:
        return _spec(graph, name)
    told, known = graph.declared.get(name), dict[str, Any]()
    if told is not None and told.dtype is not None:
        known["datatype"] = _TYPES.get(told.dtype, told.dtype.value.upper())
    if told is not None and told.shape is not None:
        known["shape"] = [-1 if d is None else d for d in told.shape]
    return known


# -- tensors ---------------------------------------------------------------------------------------------------


def _tensor(told: Mapping[str, Any], name: str, body: bytes, at: int) -> tuple[Array, int]:
    """Return an input, and where the next binary tensor begins."""
    where = f"input {name!r}"
    shape = told.get("shape")
    if not isinstance(shape, list) or len(shape) > MOST_DIMENSIONS or not all(type(d) is int and d >= 0 for d in shape):
        raise _bad(f"the shape of {where} is no list of sizes from 0 on: {brief(repr(shape), 60)}")
    dtype = _NAMED.get(_text(told, "datatype", where))
    if dtype is None:
        raise _bad(f"{where} is of type {brief(repr(told['datatype']), 60)}; known are {', '.join(_NAMED)}")
    size = _parameters(told, where, ("shared_memory_region",)).get("binary_data_size")
    if (size is None) == ("data" not in told):
        raise _bad(f"{where} needs either data or a binary_data_size")
    if size is None:
        return _of_json(told["data"], tuple(shape), dtype, where), at
    needed = prod(shape) * dtype.itemsize
    if size != needed or at + needed > len(body):
        left = len(body) - at
        raise _bad(f"{where} needs {needed} bytes; its size is {brief(repr(size), 60)}, and {left} bytes are left")
    array = np.frombuffer(body, dtype.numpy, prod(shape), at) if needed else np.empty(0, dtype.numpy)
    return np.require(array, requirements=["ALIGNED"]).reshape(shape), at + needed


def _of_json(data: object, shape: Shape, dtype: DType, where: str) -> Array:
    if dtype in _BINARY_ALONE:
        raise _bad(f"{where} is of {_TYPES[dtype]}, which JSON cannot hold: send it as a binary tensor")
    array: Array | None = None
    with suppress(ValueError, OverflowError):  # lists of unequal lengths
        array = np.asarray(data)
    kinds = "b" if dtype is DType.BOOL else "iu" if dtype.is_integer else "iuf"
    if array is None or (array.size and array.dtype.kind not in kinds):
        raise _bad(f"the data of {where} are no numbers of {_TYPES[dtype]} in equal rows")
    if array.size != prod(shape):
        raise _bad(f"the data of {where} are {array.size} numbers; its shape {list(shape)} has {prod(shape)}")
    if dtype.is_integer and array.size and (array.min() < dtype.limits[0] or array.max() > dtype.limits[1]):
        raise _bad(f"a number of {where} is out of the range of {_TYPES[dtype]}")
    with np.errstate(over="ignore"):
        return array.astype(dtype.numpy).reshape(shape)


def _as_json(array: Array, name: str, dtype: DType) -> list[Any]:
    if dtype in _BINARY_ALONE:
        raise _bad(f"output {name!r} is of {_TYPES[dtype]}, which JSON cannot hold: ask for binary_data")
    if dtype.is_float and not np.isfinite(array).all():
        raise _bad(f"output {name!r} has a NaN or an infinity, which JSON cannot hold: ask for binary_data")
    data: list[Any] = array.reshape(-1).tolist()
    return data


# -- JSON ------------------------------------------------------------------------------------------------------


def _bad(why: str) -> RefusedError:
    return RefusedError(400, why)


def _parsed(text: bytes) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as e:
        raise _bad(f"the request is no JSON: {brief(str(e))}") from None


def _object(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _bad(f"{where} is no JSON object")
    return value


def _listed(head: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    found = head.get(key)
    if not isinstance(found, list):
        raise _bad(f"{key!r} is no list")
    return [_object(each, f"an entry of {key!r}") for each in found]


def _text(value: Mapping[str, Any], key: str, where: str) -> str:
    found = value.get(key)
    if not isinstance(found, str):
        raise _bad(f"the {key} of {where} is no text")
    return found


def _parameters(value: Mapping[str, Any], where: str, unsupported: Sequence[str]) -> dict[str, Any]:
    """Return the parameters of a request, an input or an output; RefusedError for what would change the answer."""
    given = _object(value.get("parameters") or {}, f"'parameters' of {where}")
    wrong = [name for name in unsupported if given.get(name)]
    if wrong:
        raise RefusedError(501, f"{where} has {', '.join(wrong)}, which this server does not support")
    return given
