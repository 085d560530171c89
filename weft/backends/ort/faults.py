"""What ONNX Runtime takes, and then computes otherwise than ONNX says, or not at all.

`weft conformance ort` finds what is missing here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from weft.backends.ort.model import open_session, single, to_model
from weft.core.graph.dtypes import DType
from weft.core.graph.op import Op
from weft.core.graph.tensor import Tensor

Inputs = Sequence[Tensor | None]
Outputs = Sequence[Tensor]

IN_DOUBT = {
    "ArgMax": "what is largest beside NaN",
    "ArgMin": "what is smallest beside NaN",
    "Hardmax": "what is largest beside NaN",
    "DeformConv": "what places outside of a picture with infinite pixels are worth",
    "GridSample": "what places that are infinite or NaN are worth",
    "MaxUnpool": "where a given output shape puts the values",
    "TensorScatter": "what is written where indices lie beyond the cache",
}
"""Ops whose results differ for some values or shapes."""
LOSES_NAN = ("GlobalMaxPool", "ReduceMax", "ReduceMin")
"""Ops that give a number, for some shapes, where there is NaN among the floats."""
MOST_SKIPPED = 1000
"""The largest max_skip_count that takes no time."""
NARROW = ("bfloat16", "float8", "float4", "int4", "uint4", "int2", "uint2")
"""What the names of types begin with that numpy knows by ml_dtypes only."""


def _fits(shape: tuple[int, ...], whole: tuple[int, ...]) -> bool:
    """Tell whether a shape broadcasts to another one as numpy has it."""
    return all(size in (1, most) for size, most in zip(reversed(shape), reversed(whole), strict=False))


def _reflects_too_far(inputs: Inputs) -> bool:
    """Tell whether a Pad has a side as long as its axis, or may have one."""
    x, pads = inputs[:2]
    axes = inputs[3] if len(inputs) > 3 else None
    if x is None or pads is None or pads.constant is None:
        return True
    sizes = list(x.shape)
    if axes is not None:
        if axes.constant is None:
            return True
        sizes = [x.shape[axis] for axis in axes.constant.tolist()]
    return any(side >= size for side, size in zip(pads.constant.tolist(), 2 * sizes, strict=False))


def _grows_by_whole(x: Tensor | None, y: Tensor) -> bool:
    """Tell whether each size of a result is a multiple of that of the input."""
    return x is not None and not any(after % before for before, after in zip(x.shape, y.shape, strict=True))


def _has_int64(inputs: Inputs) -> bool:
    return any(t is not None and t.dtype is DType.INT64 for t in inputs)


def _pads(values: Mapping[str, object]) -> bool:
    """Tell whether a convolution may have padding."""
    pads = values["pads"]
    return values["auto_pad"] not in ("NOTSET", "VALID") or (isinstance(pads, tuple) and any(pads))


def _is_finite(value: Tensor) -> bool:
    """Tell whether all elements of a tensor are known, and finite."""
    with np.errstate(all="ignore"):
        return value.constant is not None and bool(np.isfinite(np.sum(value.constant, dtype=np.float64)))


def _divides(divisor: Tensor | None) -> bool:
    """Tell whether a divisor is known, and neither 0 nor -1."""
    return divisor is not None and divisor.constant is not None and not np.isin(divisor.constant, (0, -1)).any()


def why_not_right(inputs: Inputs, outputs: Outputs, op: Op) -> str | None:
    """Return what ONNX Runtime takes, and then fails to run or computes otherwise than ONNX says."""
    values = op.attributes()
    for kind in (t.dtype.value for t in (*inputs, *outputs) if t is not None):
        if kind.startswith(NARROW):
            return f"ONNX Runtime takes no arrays of {kind} from numpy"
    if any(0 in t.shape for t in (*inputs, *outputs) if t is not None and t.constant is None):
        return "ONNX Runtime does not run every op on tensors without elements, and some end the process"
    if op.type in ("Div", "Mod") and not outputs[0].dtype.is_float and not _divides(inputs[1]):
        return "ONNX Runtime divides no integers by 0, and the smallest one by -1 ends the process"
    if op.type == "Mod" and outputs[0].dtype.is_float and not values["fmod"]:
        return "ONNX Runtime has no Mod of floats with fmod=0"
    if op.type in ("LSTM", "GRU") and outputs[0].dtype is DType.FLOAT64:
        return f"ONNX Runtime loads {op.type} of float64, and does not run it"
    if op.type.startswith("Scatter") and values["reduction"] != "none" and outputs[0].dtype is DType.FLOAT16:
        return f"ONNX Runtime has no {op.type} of float16 with a reduction"
    dilations = values.get("dilations")
    if isinstance(dilations, tuple) and any(d > 1 for d in dilations) and "SAME" in str(values.get("auto_pad")):
        return "ONNX Runtime has no dilated windows with auto_pad SAME_UPPER or SAME_LOWER"
    if op.type == "MaxPool" and len(outputs) > 1 and outputs[0].dtype.is_float:
        return "ONNX Runtime does not find every NaN in MaxPool with indices"
    if op.type in LOSES_NAN and outputs[0].dtype.is_float:
        return f"ONNX Runtime does not find every NaN in {op.type}"
    if op.type == "Clip" and any(t is not None and not _is_finite(t) for t in inputs[1:]):
        return "ONNX Runtime takes no notice of a limit of Clip that is NaN, and this one may be"
    if op.type == "Conv" and inputs[1] is not None and _pads(values) and not _is_finite(inputs[1]):
        return "ONNX Runtime does not multiply padding, and an infinite weight, which there may be, makes NaN of it"
    if op.type == "MeanVarianceNormalization" and inputs[0] is not None and inputs[0].dtype.is_float:
        return "ONNX Runtime divides by no epsilon in MeanVarianceNormalization, so that equal numbers become NaN"
    if op.type in ("LogSoftmax", "Softmax") and outputs[0].dtype is DType.FLOAT64:
        return f"ONNX Runtime does not find every NaN in {op.type} of float64"
    if op.type == "Cast" and outputs[0].dtype is DType.UINT32 and inputs[0] is not None and inputs[0].dtype.is_float:
        return "ONNX Runtime makes other integers of floats that are beyond uint32 than Weft's devices"
    if op.type == "TfIdfVectorizer" and int(str(values["max_skip_count"])) > MOST_SKIPPED:
        return "ONNX Runtime tries every skip of TfIdfVectorizer up to max_skip_count, which is large"
    if op.type in IN_DOUBT:
        return f"ONNX Runtime and ONNX differ in {op.type}: {IN_DOUBT[op.type]}"
    if op.type in ("Pow", "ReduceMean", "ReduceSum") and _has_int64(inputs[:2]):
        return f"ONNX Runtime computes {op.type} of large numbers of int64 otherwise than ONNX"
    if op.type == "Resize" and not outputs[0].dtype.is_float:
        return "ONNX Runtime resizes integers otherwise than ONNX, or not at all"
    if op.type == "Resize" and values["mode"] == "nearest" and not _grows_by_whole(inputs[0], outputs[0]):
        return "ONNX Runtime rounds places that lie between two otherwise than ONNX says"
    if op.type == "Resize" and inputs[0] is not None and inputs[0].shape[:2] != outputs[0].shape[:2]:
        return "ONNX Runtime does not interpolate between images or channels"
    if op.type == "Pad" and values["mode"] == "reflect" and _reflects_too_far(inputs):
        return "ONNX Runtime reflects an axis once, so that a pad is shorter than the axis"
    if op.type == "Gelu" and outputs[0].dtype is DType.FLOAT64:
        return "ONNX Runtime computes Gelu of float64 no better than in float32"
    if op.type == "DFT" and values["inverse"] and values["onesided"]:
        return "ONNX Runtime computes a onesided inverse DFT otherwise than ONNX"
    if op.type == "PRelu" and inputs[1] is not None and not _fits(inputs[1].shape, outputs[0].shape):
        return "ONNX Runtime aligns the slope of PRelu with the last axis alone"
    if op.type in ("Max", "Min") and outputs[0].dtype is DType.INT64:
        return "ONNX Runtime does not tell large numbers of int64 apart in Max and Min"
    if values.get("coordinate_transformation_mode") == "half_pixel_symmetric" and values["mode"] == "nearest":
        return "ONNX Runtime picks other neighbours for half_pixel_symmetric than ONNX says"
    return None


EXPONENTIALS = frozenset(
    "Celu Elu LogSoftmax Mish ReduceLogSumExp Selu Sigmoid Softmax Softplus Swish Tanh".split()
)
"""Ops of one input whose textbook formula overflows at large numbers, although the result does not."""


def why_not_at_large_numbers(inputs: Inputs, op: Op) -> str | None:
    """Return what ONNX Runtime computes of numbers near 1000 and -1000, if that is not what ONNX says.

    Where a version has no kernel for an op in the model's opset, it computes the formula that ONNX gives in its
    place, which may overflow. No table of versions says where, so a small model is run, once for each op and type.
    """
    x, *others = inputs
    if op.type not in EXPONENTIALS or x is None or not x.dtype.is_float:
        return None
    axes = [t.constant for t in others if t is not None and t.constant is not None]
    return _at_large_numbers(op, x.dtype, len(x.shape), tuple(axes[0].tolist()) if axes else None)


@lru_cache(1024)
def _at_large_numbers(op: Op, dtype: DType, rank: int, axes: tuple[int, ...] | None) -> str | None:
    # Rows of large and of small numbers, and of both, along every axis.
    x = np.resize(np.array([1000, 1001, -1000], dtype.numpy), (3,) * rank)
    inputs = [Tensor("x", x.shape, dtype)]
    if axes is not None:
        constant = np.array(axes, np.int64)
        inputs.append(Tensor("axes", constant.shape, DType.INT64, constant=constant))
    with np.errstate(all="ignore"):
        expected = np.asarray(op.reference(x, *(t.constant for t in inputs[1:])))
    graph, _ = single(inputs, [Tensor("y", expected.shape, dtype)], op)
    session = open_session(to_model(graph), threads=1)
    (result,) = session.run(None, {"x0": x})
    wrong = ~np.isclose(result, expected, rtol=0.01, atol=0.01, equal_nan=True)
    if not wrong.any():
        return None
    one = f"it gives {result[wrong][0]} for {expected[wrong][0]}"
    return f"ONNX Runtime's {op.type} of {dtype.value} is wrong for large numbers: {one}"
