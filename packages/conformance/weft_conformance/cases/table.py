"""The test table: `case("Softmax", f32(2, 3, 1003), axis=1)` is a row, and a family of rows is a file.

A row gives the inputs. Who runs it knows the expected outputs: a device is compared with the op's own reference,
and that reference with onnxruntime or onnx's evaluator. Inputs are drawn from a generator seeded by the row's id,
so a row means the same numbers everywhere.
"""

from __future__ import annotations

import importlib
import pkgutil
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from weft.core.graph.dtypes import DType
from weft.core.graph.layout import Array, Shape
from weft.core.graph.op import Op, OpClass, find_op
from weft.core.graph.run_sized import RunSized
from weft.core.graph.tensor import TensorSpec

NOT_ONNX = frozenset({"bounded", "flatten", "most", "outputs"})
"""Fields of ops that are no ONNX attributes; the row's opset implies them."""


@dataclass(frozen=True, eq=False)
class Input:
    """What one input of a row holds: random numbers of a shape, or a given array."""

    dtype: str
    shape: Shape = ()
    low: float = -1.0
    high: float = 1.0
    value: Array | None = None
    constant: bool = False

    def draw(self, rng: np.random.Generator) -> Array:
        """Return the array; integers are drawn from low to high, both included."""
        if self.value is not None:
            return self.value
        if self.dtype == "bool":
            return rng.random(self.shape) < 0.5
        dtype = DType(self.dtype)
        if dtype.is_integer:
            kind = np.uint64 if dtype is DType.UINT64 else np.int64
            return rng.integers(int(self.low), int(self.high), self.shape, kind, endpoint=True).astype(dtype.numpy)
        numbers = np.asarray(rng.uniform(self.low, self.high, self.shape))
        if dtype.is_complex:
            numbers = numbers + 1j * rng.uniform(self.low, self.high, self.shape)
        return numbers.astype(dtype.numpy)

    def __str__(self) -> str:
        dtype = DType(self.dtype)
        plain = dtype.is_integer or dtype.raw == dtype.numpy
        kind = f"{'!' if self.constant else ''}{f'{self.dtype[0]}{dtype.bits}' if plain else self.dtype}"
        if self.value is not None and self.value.ndim < 2 and self.value.size <= 4:
            return f"{kind}={','.join(map(str, self.value.reshape(-1).tolist()))}"
        return f"{kind}[{'x'.join(map(str, self.shape))}]"


def f32(*shape: int, low: float = -1, high: float = 1) -> Input:
    """Return a float32 input."""
    return Input("float32", shape, low, high)


def f16(*shape: int, low: float = -1, high: float = 1) -> Input:
    """Return a float16 input."""
    return Input("float16", shape, low, high)


def f64(*shape: int, low: float = -1, high: float = 1) -> Input:
    """Return a float64 input."""
    return Input("float64", shape, low, high)


def i64(*shape: int, low: int = -9, high: int = 9) -> Input:
    """Return an int64 input."""
    return Input("int64", shape, low, high)


def i32(*shape: int, low: int = -9, high: int = 9) -> Input:
    """Return an int32 input."""
    return Input("int32", shape, low, high)


def i8(*shape: int, low: int = -9, high: int = 9) -> Input:
    """Return an int8 input."""
    return Input("int8", shape, low, high)


def u8(*shape: int, low: int = 0, high: int = 9) -> Input:
    """Return a uint8 input."""
    return Input("uint8", shape, low, high)


def boolean(*shape: int) -> Input:
    """Return a bool input."""
    return Input("bool", shape)


def of_type(dtype: str, *shape: int, low: float = -1, high: float = 1) -> Input:
    """Return an input of the element type of that name."""
    return Input(dtype, shape, low, high)


def given(value: Any, dtype: str = "float32") -> Input:
    """Return an input of exactly these values, rounded to the type; what it does not hold becomes infinite."""
    with np.errstate(over="ignore", invalid="ignore"):
        array = np.asarray(value).astype(DType(dtype).numpy)
    return Input(dtype, array.shape, value=array)


def const(value: Any, dtype: str | None = None) -> Input:
    """Return an input that must be a constant; integers without a `dtype` are int64, floats float32."""
    if isinstance(value, Input):
        return Input(value.dtype, value.shape, value.low, value.high, value.value, constant=True)
    array = np.asarray(value)
    short = {"f": "float32", "i": "int64"}.get(array.dtype.kind, array.dtype.name)
    name = dtype or (array.dtype.name if isinstance(value, np.ndarray) and array.size else short)
    return Input(name, array.shape, value=array.astype(DType(name).numpy), constant=True)


@dataclass(frozen=True, eq=False)
class Case:
    """One row: an op with its attributes, and what goes in (None: a missing optional input).

    `opset` is the newest in which the row means this, None for no limit. `oracles` are asked in turn; a row
    leaves one out where it is known to be wrong or coarse, and says so in a comment. `unverified` says why no
    oracle implements the row; it is a mistake where one does.
    """

    id: str
    op: str
    inputs: tuple[Input | None, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    opset: int | None = None
    unverified: str = ""
    oracles: tuple[str, ...] = ("ort", "onnx")

    def __str__(self) -> str:
        return self.id

    def make_op(self) -> Op:
        """Return the op with the row's attributes."""
        cls = find_op(self.op)
        assert cls is not None, f"no op {self.op} is registered"
        return cls(**self.attributes)

    def onnx_op(self) -> Op:
        """Return the op as ONNX has it: of a bounded form, which is Weft's own, that of which it is the form."""
        op = self.make_op()
        return replace(op, bounded=False) if isinstance(op, RunSized) else op

    def onnx_specs(self) -> tuple[TensorSpec, ...]:
        """Return the specs of the outputs of `onnx_op`."""
        op = self.onnx_op()
        return op.infer(self.specs(), self.arrays() if isinstance(op, RunSized) else self.constants())

    def arrays(self, draw: int = 0) -> list[Array | None]:
        """Return the inputs; the same ones at every call, and other random numbers for another `draw`."""
        rng = np.random.default_rng(zlib.crc32(self.id.encode()) + draw)
        return [None if i is None else i.draw(rng) for i in self.inputs]

    def specs(self) -> list[TensorSpec | None]:
        """Return shape and type of the inputs."""
        return [None if i is None else TensorSpec(i.shape, DType(i.dtype)) for i in self.inputs]

    def constants(self) -> list[Array | None]:
        """Return the inputs that are constant, None for the others."""
        if not any(i is not None and i.constant for i in self.inputs):
            return [None] * len(self.inputs)
        pairs = zip(self.inputs, self.arrays(), strict=True)
        return [array if i is not None and i.constant else None for i, array in pairs]


def case(
    op: str,
    *inputs: Input | None,
    name: str = "",
    opset: int | None = None,
    unverified: str = "",
    oracles: tuple[str, ...] = ("ort", "onnx"),
    **attributes: Any,
) -> Case:
    """Return a row; `name` distinguishes rows whose inputs and attributes read the same."""
    parts = [op, *(str(i) if i else "-" for i in inputs)]
    parts += [f"{k}={getattr(v, 'value', v)}" for k, v in attributes.items()]
    label = "-".join([*parts, name] if name else parts).replace(" ", "")
    return Case(label, op, inputs, attributes, opset, unverified, oracles)


def all_cases() -> list[Case]:
    """Return the rows of every family: the `CASES` of each module beside this one."""
    _import_all("weft.ops")
    modules = [m for m in _import_all("weft_conformance.cases") if hasattr(m, "CASES")]
    rows: list[Case] = [row for module in modules for row in module.CASES]
    seen: set[str] = set()
    for row in rows:
        assert row.id not in seen, f"two rows are called {row.id}; give one a name="
        seen.add(row.id)
    return rows


def _import_all(package: str) -> list[Any]:
    """Import and return the modules of a package."""
    path: Iterable[str] = importlib.import_module(package).__path__
    names = [m.name for m in pkgutil.iter_modules(path) if not m.ispkg]
    return [importlib.import_module(f"{package}.{name}") for name in names]


def build_model(row: Case, opset: int | None = None) -> onnx.ModelProto:
    """Return a model of one node, `Case.onnx_op`: constants are initializers `x<i>`, other inputs inputs `x<i>`.

    The opset is the one given, the newest that onnx knows where none is, and never above the row's. An op of
    another domain, "acme::PixelNorm", is imported at version 1.
    """
    version = min(opset or onnx.defs.onnx_opset_version(), row.opset or 10**6)
    outputs = row.onnx_specs()
    names = [f"x{k}" if i is not None else "" for k, i in enumerate(row.inputs)]
    attributes = {k: _attribute(v) for k, v in row.attributes.items() if k not in NOT_ONNX and v is not None}
    if row.op == "ConstantOfShape":
        op: Any = row.make_op()
        attributes = {"value": numpy_helper.from_array(np.array([op.value], op.dtype.numpy))}
    reads = names
    if attributes.get("nearest_mode") == "ceil_if_shrunk":  # Resize of opset 10: neither a region nor how to sample
        reads, attributes = [names[0], names[2]], {}
    domain, _, kind = row.op.rpartition("::")
    node = helper.make_node(kind, reads, [f"y{k}" for k in range(len(outputs))], domain=domain, **attributes)
    graph = helper.make_graph(
        [node],
        "case",
        [
            _value(n, s)
            for n, s, i in zip(names, row.specs(), row.inputs, strict=True)
            if s and i and not i.constant
        ],
        [_value(f"y{k}", s) for k, s in enumerate(outputs)],
        [numpy_helper.from_array(a, n) for n, a in zip(names, row.constants(), strict=True) if a is not None],
    )
    imports = [helper.make_opsetid("", version), *([helper.make_opsetid(domain, 1)] if domain else [])]
    return helper.make_model(
        graph, opset_imports=imports, ir_version=helper.find_min_ir_version_for(imports, ignore_unknown=True)
    )


def feeds(row: Case) -> dict[str, Array]:
    """Return the arrays for the graph inputs of `build_model`."""
    rows = enumerate(zip(row.inputs, row.arrays(), strict=True))
    return {f"x{k}": a for k, (i, a) in rows if i is not None and a is not None and not i.constant}


def _value(name: str, spec: TensorSpec) -> onnx.ValueInfoProto:
    """Return the declaration of a graph input or output."""
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(spec.dtype.numpy), spec.shape)


def _attribute(value: Any) -> Any:
    """Return an attribute as ONNX writes it."""
    if isinstance(value, DType):
        return helper.np_dtype_to_tensor_dtype(value.numpy)
    return list(value) if isinstance(value, tuple) else int(value) if isinstance(value, bool) else value


def comparable(array: Array) -> Array:
    """Return an array in a type of numpy's that has all of its numbers, for functions that know no other."""
    dtype = DType.of(array.dtype)
    return array if dtype.raw == dtype.numpy else array.astype(np.int8 if dtype.is_integer else np.float32)


def tolerance(dtype: DType, op_class: OpClass) -> tuple[float, float]:
    """Return (rtol, atol) for comparing an implementation with a reference: the only place with numbers."""
    return _TOLERANCES.get(dtype, {}).get(op_class, (0.0, 0.0))


_TOLERANCES: dict[DType, dict[OpClass, tuple[float, float]]] = {
    DType.FLOAT32: {
        # A device may flush subnormal numbers to zero.
        "exact": (0.0, 1.2e-38),
        # Rounding once or twice in another order, or a division by reciprocal (2.5 ulp in Vulkan): 16 ulp.
        # The absolute part is that of a sum of two terms near 1 that cancel.
        "arithmetic": (2e-6, 5e-7),
        # OpenCL allows 16 ulp for pow, erf and tan and 4 for the rest; a few of them composed: 10^2 ulp.
        "transcendental": (1e-5, 2e-6),
        # A sum of n terms in [-1, 1] in any order errs by about sqrt(n) * 6e-8 of its largest partial sum;
        # this covers n near 10^4. Relative error alone says nothing where the sum cancels.
        "reduction": (2e-5, 1e-5),
    },
    DType.FLOAT64: {
        # The float32 rows, scaled by what a polynomial erf in double still reaches.
        "arithmetic": (1e-14, 1e-15),
        "transcendental": (1e-12, 1e-12),
        "reduction": (1e-12, 1e-12),
    },
    DType.FLOAT16: {
        # Computed in float32 and rounded once, so at most neighbouring halves: 1 ulp = 2^-10, and one
        # more where an evaluator rounds between steps. 6e-8 is the smallest half.
        "arithmetic": (2e-3, 1.2e-7),
        # The same; near 0 the float32 result itself may be off by the float32 row's absolute part.
        "transcendental": (2e-3, 2e-5),
        # The same, and products of halves that a device may round before it adds them: 2^-11 of the terms.
        "reduction": (2e-3, 1e-3),
    },
    DType.BFLOAT16: {
        # As float16, with three bits fewer behind the point: 1 ulp = 2^-7. A device may lose subnormal numbers.
        "exact": (0.0, 1.2e-38),
        "arithmetic": (1.6e-2, 1.2e-38),
        "transcendental": (1.6e-2, 2e-5),
        "reduction": (1.6e-2, 8e-3),
    },
    # Its smallest number, 2^-127, is subnormal in float32.
    DType.FLOAT8E8M0: dict.fromkeys(("exact", "arithmetic"), (0.0, 1.2e-38)),
}
