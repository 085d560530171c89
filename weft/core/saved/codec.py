"""Ops and their attributes as JSON, arrays and bytes beside it; only what is listed here can be saved.

    None, bool, int, str, finite float    themselves
    tuple                                 a list
    any other                             {"kind": ...}: see `Encoder.value` and `Decoder.value`

Nothing in a file names a Python object: ops are found in the registry of ops, enums in the types of an op's
own attributes.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import fields
from enum import Enum
from functools import cache
from math import prod
from types import UnionType
from typing import (
    Any,
    Literal,
    Protocol,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    runtime_checkable,
)

import numpy as np

from weft.core.graph.dtypes import DType
from weft.core.graph.fused_op import Step
from weft.core.graph.graph import Declared, Graph, Node
from weft.core.graph.layout import Array, Layout
from weft.core.graph.op import Op, find_op
from weft.core.graph.quantisation import Grid
from weft.core.graph.tensor import SequenceSpec, TensorSpec
from weft.core.graph.validate import graph_problems
from weft.core.placement.optimized_network import PreCompiled
from weft.errors import WeftError, listing, said_of

Json = Any
T = TypeVar("T")
MOST_NESTED = 50
"""How deep graphs may lie in each other: each takes steps of Python's stack, when it is read and when it runs."""
MOST_BITS = 1024
"""Most bits of an integer: Python does not read back the text of a much longer one."""


@runtime_checkable
class SavesItself(Protocol):
    """A payload of a `PreCompiled` that is not bytes but can be saved."""

    def to_bytes(self) -> bytes:
        """Return bytes from which the creator's `load_payload` makes the object again."""
        ...


@runtime_checkable
class LoadsPayload(Protocol):
    """A `BackendCreator` that makes payloads from the bytes that their `to_bytes` returned."""

    def load_payload(self, content: bytes) -> object:
        """Return the payload; without this method the op holds the bytes."""
        ...


class Unsavable(Exception):
    """Raised for a value that no file can hold; the text says why."""


class Damaged(ValueError):
    """Raised for content that Weft cannot have written; the text names it."""


class UnknownOp(Exception):
    """Raised for an op type that is not registered."""


# -- arrays --------------------------------------------------------------------------------------------------


def stored(array: Array) -> Array:
    """Return the array as files store it: little-endian and C-contiguous, of the same shape."""
    dtype = DType.of(array.dtype)
    native = np.asarray(array, dtype.numpy, order="C")
    if dtype.raw == dtype.numpy:
        return np.asarray(native, dtype.numpy.newbyteorder("<"))
    little: Array = np.asarray(native.view(dtype.raw), dtype.raw.newbyteorder("<"))
    return little.view(dtype.raw).view(dtype.numpy)  # such a type has no byte order: the bytes alone are in it


def npy_header(dtype: DType, shape: Sequence[int]) -> bytes:
    """Return the start of a .npy file (version 1.0): the same bytes with every version of numpy."""
    size = "".join(f"{n}, " for n in shape[:-1]) + (f"{shape[-1]}{',' if len(shape) == 1 else ''}" if shape else "")
    text = f"{{'descr': '{dtype.raw.newbyteorder('<').str}', 'fortran_order': False, 'shape': ({size}), }}"
    text += " " * (-(len(text) + 11) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode("ascii")


def parse_npy(content: bytes, spec: TensorSpec) -> Array:
    """Return the array of a .npy file whose type and shape are known, as a read-only array."""
    if not spec.is_static:
        raise Damaged(f"{spec} is not of an array")
    dtype, shape = spec.dtype, spec.dims
    header = npy_header(dtype, shape)
    if not content.startswith(header):
        raise Damaged(f"its header does not say {spec}")
    if len(content) - len(header) != prod(shape) * dtype.itemsize:
        raise Damaged(f"it has {len(content) - len(header):,} bytes for {spec}")
    if dtype is DType.BOOL and content[len(header) :].strip(b"\0\1"):
        raise Damaged("it has a bool that is neither 0 nor 1")
    array = np.ndarray(shape, dtype.raw.newbyteorder("<"), content, len(header))
    return array.astype(dtype.raw, copy=False).view(dtype.numpy)


# -- writing -------------------------------------------------------------------------------------------------


class Encoder:
    """Turns values into JSON, and collects the distinct arrays and bytes that they hold."""

    def __init__(self) -> None:
        self.arrays: list[Array] = []
        self.blobs: list[bytes] = []
        self._known: dict[object, int] = {}
        self._kept: list[Array] = []
        self._depth = 0

    def array(self, value: Array) -> int:
        """Return the number of an array."""
        if ("id", id(value)) not in self._known:
            try:
                array = stored(value)
            except WeftError as e:
                raise Unsavable(f"an array is of type {value.dtype}: {e.why}") from e
            digest = hashlib.blake2b(array.reshape(-1).view(np.uint8).data).digest()
            index = self._known.setdefault((array.dtype.name, array.shape, digest), len(self.arrays))
            if index == len(self.arrays):
                self.arrays.append(array)
            self._known["id", id(value)] = index
            self._kept.append(value)  # while it lives, no other array gets its id
        return self._known["id", id(value)]

    def graph(self, graph: Graph) -> Json:
        """Return the JSON of a graph of a model, as ops hold them; Unsavable, with the reason, for what it may hold."""
        if self._depth > MOST_NESTED:
            raise Unsavable(f"graphs lie in each other more than {MOST_NESTED} deep")
        self._depth += 1
        nodes = [self._node(node) for node in graph.nodes]
        self._depth -= 1
        return {
            "name": graph.name,
            "inputs": graph.inputs,
            "outputs": graph.outputs,
            "nodes": nodes,
            "specs": {name: spec_json(spec) for name, spec in graph.specs.items()},
            "constants": {name: self.array(graph.constants[name]) for name in sorted(graph.constants)},
            "declared": {name: _declared_json(each) for name, each in graph.declared.items()},
            "wide": sorted(graph.wide),
        }

    def _node(self, node: Node) -> Json:
        try:
            return [node.name, self.op(node.op), list(node.inputs), list(node.outputs)]
        except Unsavable as e:
            raise Unsavable(f"node {node.name!r} ({node.op.type}): {e}") from e

    def blob(self, value: bytes) -> int:
        """Return the number of a bytes object."""
        index = self._known.setdefault(value, len(self.blobs))
        if index == len(self.blobs):
            self.blobs.append(value)
        return index

    def op(self, op: Op) -> Json:
        """Return the JSON of an op; Unsavable, with the reason, if an attribute cannot be saved."""
        cls = type(op)
        if find_op(op.type) is not cls:
            raise Unsavable(f"{cls.__module__}.{cls.__qualname__} is not the op registered as {op.type!r}")
        made = {}
        for f in fields(op):
            if f.init and not (isinstance(op, PreCompiled) and f.name == "payload"):
                value = getattr(op, f.name)
                try:
                    made[f.name] = self.value(value, cls)
                except Unsavable as e:
                    raise Unsavable(f"attribute {f.name!r}: {e}") from e
                if not fits(value, hints_of(cls).get(f.name, Any)):
                    raise Unsavable(f"attribute {f.name!r}: {value!r:.40} is not a {f.type}")
        if isinstance(op, PreCompiled):
            made["payload"] = self._payload(op)
        return {"kind": "op", "type": op.type, "fields": made}

    def _payload(self, op: PreCompiled) -> Json:
        if type(op.payload) is bytes:
            return {"kind": "bytes", "bytes": self.blob(op.payload)}
        what = f"the payload of backend {op.backend!r}, a {type(op.payload).__qualname__},"
        if not isinstance(op.payload, SavesItself):
            raise Unsavable(f"{what} is not bytes and has no method to_bytes")
        try:
            content = op.payload.to_bytes()
        except Exception as e:
            raise Unsavable(f"{what} failed in to_bytes: {said_of(e)}") from e
        if type(content) is not bytes:
            raise Unsavable(f"{what} returned a {type(content).__qualname__} from to_bytes")
        return {"kind": "payload", "bytes": self.blob(content)}

    def value(self, value: object, cls: type[Op]) -> Json:
        """Return the JSON of an attribute of an op of that class."""
        if value is None or type(value) in (bool, str):
            return value
        if type(value) is int and value.bit_length() <= MOST_BITS:
            return value
        if type(value) is float:
            if math.isfinite(value):
                return value
            return {"kind": "float", "bits": struct.pack(">d", value).hex()}
        if type(value) is tuple:
            return [self.value(v, cls) for v in value]
        if isinstance(value, Enum):
            return _enum(value, cls)
        if isinstance(value, np.generic):
            return {"kind": "scalar", "array": self.array(np.asarray(value))}
        if type(value) is np.ndarray:
            return {"kind": "array", "array": self.array(value)}
        if type(value) is TensorSpec:
            return spec_json(value)
        if type(value) is Step:
            return {"kind": "step", "op": self.op(value.op), "operands": list(value.operands)}
        if isinstance(value, Op):
            return self.op(value)
        if type(value) is Graph:
            return {"kind": "graph", "graph": self.graph(value)}
        if type(value) is bytes:
            return {"kind": "bytes", "bytes": self.blob(value)}
        raise Unsavable(f"a {type(value).__module__}.{type(value).__qualname__} cannot be saved")


def _enum(value: Enum, cls: type[Op]) -> Json:
    kind = type(value)
    if enums_of(cls).get(kind.__name__) is not kind or value.name not in kind.__members__:
        raise Unsavable(f"{value!r} is not of an enum that the attribute's type names")
    return {"kind": "enum", "type": kind.__name__, "name": value.name}


def spec_json(spec: TensorSpec) -> Json:
    """Return the JSON of a spec."""
    kind = "sequence" if isinstance(spec, SequenceSpec) else "spec"
    made: dict[str, Json] = {"kind": kind, "dtype": spec.dtype.name, "shape": list(spec.shape)}
    if spec.grid is not None:
        grid = spec.grid
        made["grid"] = {
            "dtype": grid.dtype.name, "scale": list(grid.scale), "zero": list(grid.zero), "axis": grid.axis
        }
    return made


def _declared_json(declared: Declared) -> Json:
    dtype, shape = declared.dtype, declared.shape
    return [None if dtype is None else dtype.name, None if shape is None else list(shape)]


@cache
def hints_of(cls: type) -> dict[str, Any]:
    """Return the types of a class's attributes; none if they name types that are imported for type checking only."""
    try:
        return get_type_hints(cls)
    except (NameError, TypeError):
        return {}


@cache
def enums_of(cls: type[Op]) -> dict[str, type[Enum]]:
    """Return the enums that an op's attributes may hold: the enums of their types, element types and layouts."""
    todo: list[Any] = list(hints_of(cls).values())
    found: dict[str, type[Enum]] = {}
    while todo:
        hint = todo.pop()
        todo += get_args(hint)
        if get_origin(hint) is None and isinstance(hint, type) and issubclass(hint, Enum):
            found[hint.__name__] = hint
    return found | {"DType": DType, "Layout": Layout}


_NUMBERS: dict[Any, tuple[type, ...]] = {float: (float, int, np.floating, np.integer), int: (int, np.integer)}


def fits(value: object, hint: Any) -> bool:
    """Tell whether a value is of an attribute's type; True for types that cannot be checked."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(fits(value, arg) for arg in args)
    if origin is Literal:
        return value in args
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        if len(args) == 2 and args[1] is ...:
            return all(fits(v, args[0]) for v in value)
        return len(value) == len(args) and all(map(fits, value, args))
    kind = origin or (type(None) if hint is None else hint)
    if kind in _NUMBERS and isinstance(value, (bool, np.bool_)):
        return False
    try:
        return not isinstance(kind, type) or isinstance(value, _NUMBERS.get(kind, kind))
    except TypeError:  # a protocol
        return True


# -- reading -------------------------------------------------------------------------------------------------


class Decoder:
    """Turns JSON back into values; Damaged, KeyError or the like for JSON that Weft cannot have written.

    `array` and `blob` return an array and bytes by their number, `creator` a backend's creator by its id.
    """

    def __init__(
        self, array: Callable[[int], Array], blob: Callable[[int], bytes], creator: Callable[[str], object]
    ) -> None:
        self._array, self._blob, self._creator = array, blob, creator
        self._depth = 0

    def op(self, value: Json) -> Op:
        """Return an op; UnknownOp if its type is not registered, Damaged if its attributes do not fit it."""
        kind, type_ = expect(value, dict)["kind"], expect(value["type"], str)
        if kind != "op":
            raise Damaged(f"an op is of kind {kind!r}")
        cls = find_op(type_)
        if cls is None:
            raise UnknownOp(type_)
        made = {expect(k, str): self.value(v, cls) for k, v in expect(value["fields"], dict).items()}
        if issubclass(cls, PreCompiled):
            made["payload"] = self._payload(value["fields"]["payload"], expect(made["backend"], str))
        for key, v in made.items():
            if not fits(v, hints_of(cls).get(key, Any)):
                raise Damaged(f"its attribute {key!r} is {v!r:.40}")
        try:
            return cls(**made)
        except Exception as e:  # whatever a foreign op's own checks raise
            raise Damaged(f"its attributes do not fit: {said_of(e)}") from e

    def graph(self, value: Json, before: Sequence[str] = ()) -> Graph:
        """Return a graph of a model; Damaged if its names contradict each other.

        Values of `before` may be outputs without being made.
        """
        if self._depth > MOST_NESTED:
            raise Damaged(f"graphs lie in each other more than {MOST_NESTED} deep")
        self._depth += 1
        nodes = [self._node(*expect(each, list)) for each in expect(value["nodes"], list)]
        self._depth -= 1
        made = Graph(
            expect(value["name"], str),
            list(texts(value["inputs"])),
            list(texts(value["outputs"])),
            nodes,
            {name: parse_input_spec(spec) for name, spec in expect(value["specs"], dict).items()},
            {name: self._array(expect(k, int)) for name, k in expect(value["constants"], dict).items()},
            declared={name: _declared(*each) for name, each in expect(value["declared"], dict).items()},
            wide=frozenset(texts(value["wide"])),
        )
        checked = made.copy()
        checked.outputs = [o for o in made.outputs if o not in before]
        checked.specs = {**dict.fromkeys(made.inputs, TensorSpec((), DType.FLOAT32)), **made.specs}  # a run has them
        problems = graph_problems(checked)
        problems += [f"constant {v!r} has no spec" for v in made.constants if v not in made.specs]
        if problems:
            raise Damaged(f"graph {made.name!r}: {listing(problems)}")
        return made

    def _node(self, name: Json, op: Json, inputs: Json, outputs: Json) -> Node:
        return Node(expect(name, str), self.op(op), texts(inputs), texts(outputs))

    def _payload(self, value: Json, backend: str) -> object:
        content = self._blob(expect(value["bytes"], int))
        if value["kind"] == "bytes":
            return content
        creator = self._creator(backend)
        if not isinstance(creator, LoadsPayload):
            return content
        try:
            return creator.load_payload(content)
        except Exception as e:
            raise Damaged(f"backend {backend!r} failed in load_payload: {said_of(e)}") from e

    def value(self, value: Json, cls: type[Op]) -> Any:
        """Return an attribute of an op of that class."""
        if type(value) is list:
            return tuple(self.value(v, cls) for v in value)
        if type(value) is not dict:
            return value
        kind = value["kind"]
        if kind == "op":
            return self.op(value)
        if kind == "float":
            return float(struct.unpack(">d", bytes.fromhex(value["bits"]))[0])
        if kind == "enum":
            return enums_of(cls)[value["type"]][value["name"]]
        if kind in ("array", "scalar"):
            array = self._array(expect(value["array"], int))
            return array[()] if kind == "scalar" else array
        if kind == "spec":
            return parse_spec(value)
        if kind == "graph":
            return self.graph(value["graph"])
        if kind == "step":
            return Step(self.op(value["op"]), ints(value["operands"]))
        if kind in ("bytes", "payload"):
            return self._blob(expect(value["bytes"], int))
        raise Damaged(f"there is no kind {kind!r}")


def expect(value: Json, kind: type[T]) -> T:
    """Return the value if it is exactly of that type; Damaged otherwise."""
    if type(value) is not kind:
        raise Damaged(f"{str(value)[:40]!r} is not a {kind.__name__}")
    return value


def ints(value: Json) -> tuple[int, ...]:
    """Return a list of integers as a tuple."""
    return tuple(expect(v, int) for v in expect(value, list))


def texts(value: Json) -> tuple[str, ...]:
    """Return a list of strings as a tuple."""
    return tuple(expect(v, str) for v in expect(value, list))


def record(cls: type[T], value: Json) -> T:
    """Return the dataclass whose fields are the values of a list, in order; Damaged if these are of other types."""
    held = [tuple(v) if type(v) is list else v for v in expect(value, list)]
    hints = hints_of(cls)  # type: ignore[arg-type]  # mypy does not see that any class has a hash
    if len(held) != len(hints) or not all(map(fits, held, hints.values())):
        raise Damaged(f"{str(value)[:80]} is not a {cls.__name__}")
    return cls(*held)


def parse_spec(value: Json) -> TensorSpec:
    """Return a spec from its JSON."""
    dims = expect(value["shape"], list)
    if any(type(d) not in (int, str) or (type(d) is int and d < 0) for d in dims):
        raise Damaged(f"{str(dims)[:40]} is not a shape")
    return TensorSpec(tuple(dims), DType[value["dtype"]], _parse_grid(value.get("grid"), tuple(dims)))


def _parse_grid(value: Json, shape: tuple[int | str, ...]) -> Grid | None:
    """Return the grid of a constant from its JSON."""
    if value is None:
        return None
    scale, zero = expect(value["scale"], list), expect(value["zero"], list)
    dtype, axis = DType[value["dtype"]], value["axis"]
    sizes = {1} | ({shape[axis]} if type(axis) is int and 0 <= axis < len(shape) else set())
    if type(axis) is not int or len(scale) not in sizes or len(zero) != len(scale) or not dtype.is_integer:
        raise Damaged("a quantised constant has scales that do not fit it")
    if not all(type(s) is float and s > 0 for s in scale) or not all(type(z) is int for z in zero):
        raise Damaged("a quantised constant has scales or zero points that are none")
    return Grid(dtype, tuple(scale), tuple(zero), axis)


def parse_input_spec(value: Json) -> TensorSpec:
    """Return a spec that may be of a sequence or an optional."""
    spec = parse_spec(value)
    if value["kind"] != "sequence":
        return spec
    if spec.shape:
        raise Damaged(f"a sequence has the shape {spec.shape}")
    return SequenceSpec((), spec.dtype)


def _declared(dtype: Json, shape: Json) -> Declared:
    sizes = None if shape is None else tuple(None if d is None else expect(d, int) for d in expect(shape, list))
    return Declared(None if dtype is None else DType[dtype], sizes)
