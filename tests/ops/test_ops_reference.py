"""Every op's numpy reference and its rule for shapes, against onnxruntime and onnx's own evaluator."""

from __future__ import annotations

import ctypes
import math
import shutil
import subprocess
import warnings
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime  # type: ignore[import-untyped]
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

from tests.helpers.rows_together import by_family, check_each
from tests.helpers.run_length import examples
from weft.core.graph.control_op import ControlOp
from weft.core.graph.dtypes import DType
from weft.core.graph.interpreter import evaluate
from weft.core.graph.layout import Array
from weft.core.graph.op import Op, op_types
from weft.core.graph.tensor import TensorSpec
from weft.errors import ModelError, ValueNeeded
from weft.kernels.formats import ROUNDED, functions
from weft.ops.elementwise import Elementwise
from weft.ops.reduce import ReduceL1
from weft.ops.unary import Cast, Gelu, erf_array
from weft_conformance.cases.table import Case, all_cases, build_model, case, comparable, f32, feeds, tolerance

CASES = all_cases()
FAMILIES = by_family(CASES)
OP_MODULES = ("elementwise", "unary", "binary", "matmul", "reduce", "softmax")


def run_reference(row: Case, op: Op | None = None) -> list[Array]:
    """Return the outputs of the row's op, or of another form of it, by its own reference."""
    with np.errstate(all="ignore"):  # as in a run
        out = (op or row.make_op()).reference(*row.arrays())
    return list(out) if isinstance(out, tuple) else [out]


def assert_close(actual: Sequence[Array], expected: Sequence[Any], row: Case) -> None:
    """Fail unless shapes and types are equal and values within the row's tolerance."""
    assert len(actual) == len(expected)
    for mine, theirs in zip(actual, expected, strict=True):
        theirs = np.asarray(theirs)
        assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype)
        rtol, atol = tolerance(DType.of(mine.dtype), row.make_op().op_class)
        np.testing.assert_allclose(comparable(mine), comparable(theirs), rtol, atol, equal_nan=True)


@cache
def ort_opset() -> int:
    """Return the newest opset that the installed onnxruntime loads."""
    row = case("Relu", f32(1))
    for version in range(onnx.defs.onnx_opset_version(), 0, -1):
        if run_ort(row, version) is not None:
            return version
    raise AssertionError("onnxruntime loads no model at all")


def run_ort(row: Case, opset: int) -> list[Array] | None:
    """Return what onnxruntime computes, or None if it does not implement the row."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    # Its rewrites are not what is asked about: the oracle is the plain kernel.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    model = build_model(row, opset).SerializeToString()
    try:
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        results = list(session.run(None, feeds(row)))
    except Exception:
        return None
    return [as_declared(result, spec.dtype) for result, spec in zip(results, row.onnx_specs(), strict=True)]


def as_declared(result: Array, dtype: DType) -> Array:
    """Return a result of onnxruntime in its type: what numpy lacks comes as unsigned integers."""
    return result.view(dtype.numpy) if result.dtype == dtype.raw != dtype.numpy else result


def run_onnx(row: Case) -> list[Array] | None:
    """Return what onnx's evaluator computes, or None if it does not implement the row."""
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return list(ReferenceEvaluator(build_model(row)).run(None, feeds(row)))
    except Exception:
        return None


@pytest.mark.parametrize("family", FAMILIES)
def test_references_agree_with_an_oracle(family: str) -> None:
    check_each(FAMILIES[family], agrees_with_an_oracle)


def agrees_with_an_oracle(row: Case) -> None:
    """Compare with onnxruntime, or with onnx's evaluator where onnxruntime does not implement the row."""
    expected = run_ort(row, ort_opset()) if "ort" in row.oracles else None
    expected = run_onnx(row) if expected is None and "onnx" in row.oracles else expected
    if expected is None:
        assert row.unverified, "neither onnxruntime nor onnx.reference runs this row: say why in `unverified`"
        return
    assert not row.unverified, "an oracle runs this row: drop `unverified`"
    assert_close(run_reference(row, row.onnx_op()), expected, row)


def test_what_works_by_image_gives_each_image_the_same_beside_others() -> None:
    rows = [row for row in CASES if op_types()[row.op].by_image]
    assert {row.op for row in rows} >= {"Conv", "LRN", "AveragePool", "DepthToSpace"}
    check_each(rows, gives_images_the_same_beside_others)


def gives_images_the_same_beside_others(row: Case) -> None:
    """Compare the result for a batch with that for a batch that begins with other images."""
    x, *rest = row.arrays()
    assert x is not None
    with np.errstate(all="ignore"):
        longer = row.make_op().reference(np.concatenate([np.flip(x), x]), *rest)
    first = longer[0] if isinstance(longer, tuple) else longer
    assert_close([first[len(x) :]], run_reference(row)[:1], row)


def test_what_is_not_negative_is_not() -> None:
    rows = [row for row in CASES if op_types()[row.op].not_negative]
    assert {row.op for row in rows} >= {"Relu", "Softmax", "HardSigmoid"}
    check_each(rows, is_not_negative)


def is_not_negative(row: Case) -> None:
    """Compute a row of such an op for its inputs and for the opposite numbers."""
    (x,) = row.arrays()
    assert x is not None
    for fed in (x, -x) if x.dtype.kind == "f" else ():
        y = np.asarray(row.make_op().reference(fed))
        assert not (y < 0).any(), f"{y.min()} is negative"


@pytest.mark.parametrize("family", FAMILIES)
def test_infer_agrees_with_reference(family: str) -> None:
    check_each(FAMILIES[family], infers_what_comes_out)


def infers_what_comes_out(row: Case) -> None:
    """Compare the inferred specs with the shapes and types that come out."""
    specs = row.make_op().infer(row.specs(), row.constants())
    actual = tuple(TensorSpec(a.shape, DType.of(a.dtype)) for a in run_reference(row))
    assert specs == actual
    if onnx.defs.has(row.op) or "::" in row.op:  # ONNX Runtime puts an op of its own into ONNX's domain
        onnx.checker.check_model(build_model(row))


@pytest.mark.parametrize(("dtype", "error"), [(np.float32, 2.5e-7), (np.float64, 1e-15)])
def test_erf_is_accurate(dtype: type[np.floating[Any]], error: float) -> None:
    """Compare with the C library, relatively where erf is small; no oracle computes a double erf."""
    ends = [-30, -np.inf, np.inf, np.nan]
    points = np.concatenate([np.linspace(-7, 7, 4001), np.logspace(-30, 0, 301), ends]).astype(dtype)
    expected = [math.erf(x) for x in points]
    actual = erf_array(points)
    np.testing.assert_allclose(actual, expected, rtol=error)
    assert np.array_equal(actual[points <= -6], np.full((points <= -6).sum(), -1))
    assert np.all(Gelu().reference(-np.array([30, 1e30], dtype)) == 0)


def test_every_op_has_a_row() -> None:
    """Name the ops without any row, but for those that only a session or an optimiser runs."""
    ops = {name: cls for name, cls in op_types().items() if cls.__module__.startswith("weft.ops.")}
    models = {name for name, cls in ops.items() if not (cls.from_optimizing or issubclass(cls, ControlOp))}
    in_loops = {"weft::InStep"}  # what a random op in the body of a loop becomes: tests/ops/test_random.py
    assert models - {row.op for row in CASES} == in_loops


C_PRELUDE = """#include <math.h>
#include <string.h>
typedef unsigned int uint;
typedef float f32;
typedef float real;
#define round_near(v) ((v) + 12582912.0f - 12582912.0f)
#define TO_F32(v) ((float)(v))
#define TO_REAL(v) ((float)(v))
#define TO_U32(v) ((uint)(v))
static uint BITS_OF(float v) { uint u; memcpy(&u, &v, sizeof(u)); return u; }
static float FLOAT_OF(uint u) { float v; memcpy(&v, &u, sizeof(v)); return v; }
#define inf INFINITY
#define fabs fabsf
#define exp expf
static float nan_max(float a, float b) { return isnan(a) || isnan(b) ? NAN : fmaxf(a, b); }
static float nan_min(float a, float b) { return isnan(a) || isnan(b) ? NAN : fminf(a, b); }
"""
C_FUNCTIONS = (
    "expm1 log log1p sqrt tanh erf pow floor ceil rint fmod sin cos tan asin acos atan sinh cosh "
    "asinh acosh atanh"
)


def expression_rows() -> list[Case]:
    """Return the rows of float32, but casts to other types, whose op has an expression."""
    return [
        row
        for row in CASES
        if isinstance(op := row.make_op(), Elementwise)
        and op.expression(tuple(i is not None for i in row.inputs))
        and all(i is None or i.dtype == "float32" for i in row.inputs)
        and not (isinstance(op, Cast) and op.to is not DType.FLOAT32)
        and not (row.op == "PRelu" and row.unverified)  # slopes by channel do not broadcast
    ]


@pytest.fixture(scope="session")
def compiled_expressions(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """Return a library with a C function for each row of `expression_rows`."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    text = C_PRELUDE + "".join(f"#define {f} {f}f\n" for f in C_FUNCTIONS.split())
    text += "#define fmax nan_max\n#define fmin nan_min\n"
    text += "".join([*functions(ROUNDED), *ROUNDED.values()])
    for k, row in enumerate(expression_rows()):
        op = row.make_op()
        assert isinstance(op, Elementwise)
        expression = op.expression(tuple(i is not None for i in row.inputs))
        assert expression is not None
        arguments = ", ".join(f"const float* a{i}" for i in range(len(row.inputs)))
        numbers = (f"({number!r})" for number in expression.numbers)
        body = expression.text.format(*(f"a{i}[n]" for i in range(len(row.inputs))), *numbers)
        text += f"void row{k}({arguments}, float* y, long size)\n"
        text += f"{{ for (long n = 0; n < size; n++) y[n] = {body}; }}\n"
    folder: Path = tmp_path_factory.mktemp("expressions")
    (folder / "all.c").write_text(text)
    flags = ["-O1", "-shared", "-fPIC", "-fsingle-precision-constant", "-ffp-contract=off"]
    subprocess.run([compiler, *flags, "all.c", "-o", "all.so", "-lm"], cwd=folder, check=True)
    return ctypes.CDLL(str(folder / "all.so"))


def test_expressions_agree_with_references(compiled_expressions: ctypes.CDLL) -> None:
    """Compare every expression, compiled as C, with the numpy reference of the same op."""
    for k, row in enumerate(expression_rows()):
        (expected,) = run_reference(row)
        inputs = [a if a is None else np.broadcast_to(a, expected.shape) for a in row.arrays()]
        inputs = [a if a is None else np.ascontiguousarray(a) for a in inputs]
        actual = np.empty(expected.shape, np.float32)
        arrays = [None if a is None else a.ctypes.data_as(ctypes.c_void_p) for a in (*inputs, actual)]
        compiled_expressions[f"row{k}"](*arrays, ctypes.c_long(actual.size))
        try:
            assert_close([actual], [expected], row)
        except AssertionError as error:
            raise AssertionError(f"{row.id}: {error}") from None


SHAPES = st.lists(st.integers(0, 4), max_size=5).map(tuple)
FAST = settings(max_examples=examples(200), deadline=None)


@FAST
@given(st.lists(SHAPES, min_size=1, max_size=4))
def test_broadcasting_is_that_of_numpy(shapes: list[tuple[int, ...]]) -> None:
    """Compare the shape of a sum of any number of inputs with numpy's."""
    op = op_types()["Sum"]()
    specs = [TensorSpec(s, DType.FLOAT32) for s in shapes]
    try:
        expected = np.broadcast_shapes(*shapes)
    except ValueError:
        with pytest.raises(ModelError):
            op.infer(specs, [None] * len(specs))
        return
    assert op.infer(specs, [None] * len(specs))[0].shape == expected
    assert op.reference(*(np.zeros(s, np.float32) for s in shapes)).shape == expected  # type: ignore[union-attr]


@FAST
@given(SHAPES, st.lists(st.integers(-6, 6), max_size=6), st.integers(0, 1), st.integers(0, 1))
def test_reduced_axes_are_those_of_numpy(
    shape: tuple[int, ...], axes: list[int], keep: int, noop: int
) -> None:
    """Compare shape and value of a sum over any axes with numpy's; what numpy refuses is a ModelError.

    An axis may be named twice, as in ONNX Runtime, which numpy refuses.
    """
    op = op_types()["ReduceSum"](keepdims=keep, noop_with_empty_axes=noop)  # type: ignore[call-arg]
    x = np.arange(np.prod(shape), dtype=np.float64).reshape(shape)
    given_axes = np.array(axes, np.int64)
    specs = [TensorSpec(shape, DType.FLOAT64), TensorSpec(given_axes.shape, DType.INT64)]
    try:
        once = tuple({axis + len(shape) if -len(shape) <= axis < 0 else axis for axis in axes})
        expected = x.sum(once if axes else () if noop else None, keepdims=bool(keep))
    except ValueError:
        with pytest.raises(ModelError):
            op.infer(specs, [None, given_axes])
        return
    assert op.infer(specs, [None, given_axes])[0].shape == expected.shape
    np.testing.assert_array_equal(op.reference(x, given_axes), expected)


SPECS = st.builds(
    TensorSpec,
    st.lists(st.sampled_from([0, 1, 2, 3, 1 << 62]), max_size=4).map(tuple),
    st.sampled_from(DType),
)
MINE = sorted(n for n, c in op_types().items() if c.__module__ in {f"weft.ops.{m}" for m in OP_MODULES})


@settings(max_examples=examples(1000), deadline=None)
@given(st.sampled_from(MINE), st.lists(st.none() | SPECS, max_size=4), st.integers(-(1 << 63), 1 << 63))
def test_infer_refuses_but_never_crashes(name: str, specs: list[TensorSpec | None], axis: int) -> None:
    """Give ops absurd inputs and attributes: they infer something or raise ModelError."""
    cls = op_types()[name]
    fields = cls.__dataclass_fields__.keys()
    absurd = {"axis": axis, "approximate": "?", "comparison": "?", "direction": "?"}
    op = cls(**{k: v for k, v in absurd.items() if k in fields})
    constants = [None if s is None or sum(s.dims) > 9 else np.full(s.dims, 1, s.dtype.numpy) for s in specs]
    try:
        assert all(isinstance(s, TensorSpec) for s in op.infer(specs, constants))
    except ModelError as error:
        assert error.why


def test_a_shape_that_waits_for_a_value_says_for_which() -> None:
    axes = TensorSpec((1,), DType.INT64)
    with pytest.raises(ValueNeeded) as error:
        ReduceL1(keepdims=0).infer([TensorSpec((2, 3), DType.FLOAT32), axes], [None, None])
    assert error.value.why == "input 1 is not a constant"


FIRST = {row.op: row for row in reversed(CASES)}
"""A row of each op."""


@pytest.mark.parametrize("op", sorted(op for op in FIRST if onnx.defs.has(op)))
def test_no_op_takes_more_inputs_than_onnx_lets_it(op: str) -> None:
    """What a rule does not look at, a kernel may still read."""
    row, most = FIRST[op], onnx.defs.get_schema(op).max_input
    if most > 1000:  # any number
        return
    specs, constants = row.specs(), row.constants()
    more = most + 1 - len(specs)
    with pytest.raises(ModelError):
        other = specs[0] if specs else TensorSpec((1,), DType.FLOAT32)
        row.make_op().inferred([*specs, *[other] * more], [*constants, *[None] * more])


@pytest.mark.parametrize("row", [r for r in FIRST.values() if r.make_op().flags], ids=str)
def test_flags_that_are_neither_no_nor_yes_are_refused(row: Case) -> None:
    for flag in row.make_op().flags:
        wrong = replace(row.make_op(), **{flag: 2})
        with pytest.raises(ModelError, match=f"'{flag}' is 2; it must be 0 or 1"):
            wrong.inferred(row.specs(), row.constants())


def test_attributes_that_onnx_has_as_flags_are_flags_here() -> None:
    known = {flag for cls in op_types().values() for flag in cls.flags}
    for cls in (cls for cls in op_types().values() if onnx.defs.has(cls.type)):
        names = {f.name for f in fields(cls)} & known
        assert names <= {*cls.flags}, f"{cls.type}: {names}"


def test_an_input_that_is_missing_at_the_end_is_no_input() -> None:
    """Every op that takes one more input, if it is missing, computes the same with it."""
    taken = set()
    for row in {row.op: row for row in CASES}.values():
        op, inputs = row.make_op(), row.arrays()
        specs = [None if a is None else TensorSpec(a.shape, DType.of(a.dtype)) for a in inputs]
        try:
            made = op.inferred([*specs, None], [*inputs, None])
        except ModelError:
            continue
        taken.add(row.op)
        assert made == op.inferred(specs, inputs)
        for mine, right in zip(evaluate(op, [*inputs, None]), evaluate(op, inputs), strict=True):
            np.testing.assert_array_equal(mine, right, err_msg=row.op)
    assert taken > {"Add", "Cast", "CumSum", "MatMul", "QuantizeLinear"}
