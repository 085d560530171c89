"""Rows of the ops that make a tensor."""

from __future__ import annotations

from weft.core.graph.dtypes import DType
from weft_conformance.cases.table import Case, case, const, f32, given, i64

CASES: list[Case] = [
    case("ConstantOfShape", const([2, 3])),
    case("ConstantOfShape", const([4]), value=2.5),
    case("ConstantOfShape", const([2, 0, 3]), value=7, dtype=DType.INT64),
    case("ConstantOfShape", const([], "int64"), value=True, dtype=DType.BOOL),
    case("ConstantOfShape", const([5, 1]), value=-1, dtype=DType.INT32),
    case("Range", const(0), const(10), const(3)),
    case("Range", const(10), const(-1), const(-2)),
    case("Range", const(0.0, "float16"), const(9.0, "float16"), const(1.5, "float16"), stash_type=1),
    case("Range", const(5), const(5), const(1)),
    case("Range", const(5), const(0), const(1)),
    case("Range", const(1, "int32"), const(7, "int32"), const(2, "int32")),
    case("Range", const(0.5, "float32"), const(3, "float32"), const(0.25, "float32")),
    case("Range", const(1, "float32"), const(-2.1, "float32"), const(-0.5, "float32")),
    case("OneHot", given([0, 2, -1, 5, -6], "int64"), const(5), given([0, 1], "float32")),
    case("OneHot", given([[0, 2], [1, -3]], "int64"), const(3), given([-1, 4], "float32"), axis=1),
    case("OneHot", given([[0, 2], [1, -3]], "int64"), const(3), given([2, 5], "int64"), axis=0),
    case("OneHot", given([[0, 2], [1, -3]], "int64"), const([4]), given([2, 5], "float32"), axis=-2),
    case("OneHot", given([2**32, -(2**32), 2**33 + 1, 1, -(2**31)], "int64"), const(3), given([0, 1]), name="wide"),
    case("OneHot", given([0, 2, -1, 5, -6], "float64"), const(3), given([0, 1])),
    case("OneHot", given([0, 2, 2**63 + 1], "uint64"), const(3), given([0, 1])),
    case("OneHot", given([0, 2, -3, -4], "int16"), const(3), given([0, 1])),
    case("EyeLike", f32(3, 5)),
    case("EyeLike", f32(4, 3), k=-1),
    case("EyeLike", i64(3, 3), k=1, dtype=DType.FLOAT32),
]
