"""Sizes that are no numbers yet: int64 values of no dimensions, and Python's arithmetic with them."""

from __future__ import annotations

from typing import Any

from weft.core.graph.dtypes import DType
from weft.frontends.torch.builder import Builder, Operand, Size, Value
from weft.frontends.torch.elementwise import promoted
from weft.frontends.torch.rules import aten


@aten("sym_size.int")
def sym_size(g: Builder, x: Value, dim: int) -> Size:
    return g.size(x, dim)


@aten("sym_numel numel")
def sym_numel(g: Builder, x: Value) -> Value:
    return g.op("Size", x, dtype=DType.INT64, shape=())


@aten("item _local_scalar_dense")
def item(g: Builder, x: Value) -> Value:
    return g.reshape(x, [], ())


@aten(
    "_assert_scalar _assert_async _assert_async.msg _assert_tensor_metadata sym_constrain_range "
    "sym_constrain_range_for_size"
)
def checked_by_torch(g: Builder, *_: object) -> None:
    """Add nothing: torch has checked the values of the example."""


def _arithmetic(kind: str, dtype: DType | None = None) -> Any:
    def compute(g: Builder, *values: Operand) -> Value:
        held = promoted(*values)
        given = [g.as_type(v, held) for v in values]
        return g.op(kind, *given, dtype=dtype or held, shape=())

    return compute


for _kind, _names in {"Add": "add", "Sub": "sub", "Mul": "mul", "Neg": "neg", "Mod": "mod", "Pow": "pow",
                      "Max": "sym_max", "Min": "sym_min"}.items():  # fmt: skip
    aten(_names, "sym")(_arithmetic(_kind))
for _kind, _names in {"Equal": "eq", "Less": "lt", "LessOrEqual": "le", "Greater": "gt",
                      "GreaterOrEqual": "ge"}.items():  # fmt: skip
    aten(_names, "sym")(_arithmetic(_kind, DType.BOOL))


@aten("floordiv", "sym")
def floordiv(g: Builder, a: Operand, b: Operand) -> Value:
    x, y = g.as_type(a, DType.INT64), g.as_type(b, DType.INT64)
    return g.op("Div", g.op("Sub", x, g.op("Mod", x, y, shape=()), shape=()), y, shape=())


@aten("truediv", "sym")
def truediv(g: Builder, a: Operand, b: Operand) -> Value:
    return g.op("Div", g.as_type(a, DType.FLOAT32), g.as_type(b, DType.FLOAT32), shape=())


@aten("sym_float", "sym")
def sym_float(g: Builder, a: Operand) -> Value:
    return g.as_type(a, DType.FLOAT32)


@aten("sym_int trunc", "sym")
def sym_int(g: Builder, a: Operand) -> Value:
    return g.as_type(a, DType.INT64)


@aten("floor", "sym")
def floor(g: Builder, a: Operand) -> Value:
    value = g.as_type(a, DType.FLOAT32)
    return g.cast(g.op("Floor", value, shape=()), DType.INT64)


@aten("ceil", "sym")
def ceil(g: Builder, a: Operand) -> Value:
    value = g.as_type(a, DType.FLOAT32)
    return g.cast(g.op("Ceil", value, shape=()), DType.INT64)


@aten("ne", "sym")
def ne(g: Builder, a: Operand, b: Operand) -> Value:
    held = promoted(a, b)
    same = g.op("Equal", g.as_type(a, held), g.as_type(b, held), dtype=DType.BOOL, shape=())
    return g.op("Not", same, shape=())


@aten("sym_not not_", "sym")
def sym_not(g: Builder, a: Operand) -> Value:
    return g.op("Not", g.as_type(a, DType.BOOL), shape=())
