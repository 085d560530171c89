"""Small TensorFlow Lite networks, one for each op and form of it, with what goes in."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.helpers.tflite_files import File, flexbuffer, one_op, quantized

F, N, Q, B = "float32", "int32", "int64", "bool"
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Case:
    """A network and its inputs."""

    name: str
    op: str
    file: File
    runs: Sequence[Sequence[Array]]
    """The inputs of each run."""
    steps: int = 0
    """By how many steps integers may differ from LiteRT's; 0 for floats, which may differ by rounding."""
    needs_delegate: bool = False
    """Whether LiteRT has no kernel of its own for the op."""


def numbers(shape: Sequence[int], dtype: str = F, seed: int = 0) -> Array:
    """Return numbers of both signs, none of which lies at a tie of a rounding."""
    rng = np.random.default_rng(seed + sum(shape))
    if dtype in (F, "float16", "float64"):
        return (rng.integers(-40, 41, shape) / 16 + 0.03).astype(dtype)
    if dtype == B:
        return rng.integers(0, 2, shape).astype(bool)
    low = 0 if dtype.startswith("u") else -7
    return rng.integers(low, 8, shape).astype(dtype)


CASES: dict[str, Case] = {}


def case(
    name: str, op: str, inputs: Sequence[Any], outputs: Sequence[Any], *, values: Sequence[Array] | None = None,
    **options: Any,
) -> None:
    """Add a case of one operator; `values` are what goes in, random by default."""
    file = one_op(op, inputs, outputs, **options)
    open_ = [each for each in inputs if isinstance(each, tuple) and not isinstance(each[0], np.ndarray)]
    random = [numbers([abs(d) for d in each[0]], each[1], k) for k, each in enumerate(open_)]
    given = random if values is None else values
    keep(Case(name, op, file, [given], needs_delegate=op == "Convolution2DTransposeBias"))


def keep(each: Case) -> None:
    """Add a case."""
    assert each.name not in CASES, each.name
    CASES[each.name] = each


def constant(*values: Any, dtype: str = N) -> Array:
    """Return a list as an array."""
    return np.array(values, dtype)


# -- convolutions and pools ------------------------------------------------------------------------------

for padding in (0, 1):
    for act in ("", "RELU6"):
        case(f"conv {padding}{act}", "CONV_2D", [((1, 7, 6, 3), F), numbers((4, 3, 2, 3)), numbers((4,))],
             [((1, 4 - padding, 3, 4), F)], padding=padding, stride_w=2, stride_h=2, activation=act)  # fmt: skip
case("conv dilated", "CONV_2D", [((2, 7, 7, 2), F), numbers((3, 3, 3, 2)), numbers((3,))], [((2, 7, 7, 3), F)],
     stride_w=1,
     stride_h=1, dilation_w=2, dilation_h=2, activation="RELU")  # fmt: skip
case("conv groups", "CONV_2D", [((1, 5, 5, 4), F), numbers((6, 3, 3, 2)), numbers((6,))], [((1, 3, 3, 6), F)],
     padding=1,
     stride_w=1, stride_h=1)  # fmt: skip
case("depthwise", "DEPTHWISE_CONV_2D", [((1, 5, 5, 3), F), numbers((1, 3, 3, 6)), numbers((6,))], [((1, 5, 5, 6), F)],
     stride_w=1, stride_h=1, multiplier=2, activation="RELU_N1_TO_1")  # fmt: skip
case("depthwise strided", "DEPTHWISE_CONV_2D", [((1, 6, 6, 3), F), numbers((1, 3, 3, 3)), numbers((3,))],
     [((1, 3, 3, 3), F)], stride_w=2, stride_h=2, multiplier=1, activation="RELU")  # fmt: skip
case("conv 3d", "CONV_3D", [((1, 4, 5, 5, 2), F), numbers((2, 3, 3, 2, 3)), numbers((3,))], [((1, 4, 5, 5, 3), F)],
     stride_d=1, stride_w=1, stride_h=1)  # fmt: skip
case("conv 3d transposed", "CONV_3D_TRANSPOSE", [constant(1, 4, 6, 6, 2), numbers((2, 2, 2, 2, 3)), ((1, 2, 3, 3, 3),
     F),
     numbers((2,))], [((1, 4, 6, 6, 2), F)], stride_d=2, stride_w=2, stride_h=2)  # fmt: skip
for name, shape, pad in (("same", (1, 6, 6, 2), 0), ("odd", (1, 5, 5, 2), 0), ("valid", (1, 7, 7, 2), 1),
                         ("longer", (1, 8, 8, 2), 1)):  # fmt: skip
    case(f"transposed conv {name}", "TRANSPOSE_CONV", [constant(*shape), numbers((2, 3, 3, 4)), ((1, 3, 3, 4), F),
         numbers((2,))], [(shape, F)], padding=pad, stride_w=2, stride_h=2)  # fmt: skip
case("transposed conv bias", "Convolution2DTransposeBias", [((1, 3, 3, 4), F), numbers((2, 2, 2, 4)), numbers((2,))],
     [((1, 6, 6, 2), F)], custom=struct.pack("<3i", 1, 2, 2))  # fmt: skip
for op in ("AVERAGE_POOL_2D", "MAX_POOL_2D", "L2_POOL_2D"):
    for padding in (0, 1):
        case(f"{op} {padding}", op, [((1, 5, 5, 2), F)], [((1, 3 - padding, 3 - padding, 2), F)], padding=padding,
             stride_w=2, stride_h=2, filter_w=2, filter_h=3 - padding, activation="RELU")  # fmt: skip

# -- element by element ----------------------------------------------------------------------------------

for op in ("LOGISTIC", "TANH", "EXP", "ABS", "NEG", "FLOOR", "CEIL", "ROUND", "SIGN", "ELU", "HARD_SWISH", "RELU",
           "RELU6", "RELU_N1_TO_1", "RELU_0_TO_1", "SIN", "COS", "SQUARE", "SOFTMAX", "LOG_SOFTMAX",
           "L2_NORMALIZATION", "GELU",
           "LEAKY_RELU"):  # fmt: skip
    more: dict[str, Any] = {"SOFTMAX": {"beta": 1.5}, "LEAKY_RELU": {"alpha": 0.3}}.get(op, {})
    case(op, op, [((2, 3, 4), F)], [((2, 3, 4), F)], **more)
case("GELU tanh", "GELU", [((2, 3), F)], [((2, 3), F)], approximate=1)
for op in ("SQRT", "RSQRT", "LOG"):
    case(op, op, [((2, 5), F)], [((2, 5), F)], values=[np.abs(numbers((2, 5))) + 0.1])
case("LOGICAL_NOT", "LOGICAL_NOT", [((2, 3), B)], [((2, 3), B)])
case("PRELU", "PRELU", [((1, 4, 4, 3), F), numbers((1, 1, 3))], [((1, 4, 4, 3), F)])
case("LRN", "LOCAL_RESPONSE_NORMALIZATION", [((1, 2, 2, 7), F)], [((1, 2, 2, 7), F)], radius=2, bias=1.5, alpha=0.3,
     beta=0.7)  # fmt: skip
case("CAST to int", "CAST", [((6,), F)], [((6,), N)], in_type=0, out_type=2)
case("CAST from bool", "CAST", [((6,), B)], [((6,), F)], in_type=6, out_type=0)
case("FAKE_QUANT", "FAKE_QUANT", [((3, 5), F)], [((3, 5), F)], min=-1.1, max=1.3, num_bits=8)
case("BITCAST", "BITCAST", [((4,), F)], [((4,), N)])
for op in ("ADD", "SUB", "MUL", "DIV", "MAXIMUM", "MINIMUM", "SQUARED_DIFFERENCE", "FLOOR_DIV", "FLOOR_MOD", "ATAN2"):
    case(op, op, [((2, 3, 4), F), ((2, 3, 4), F)], [((2, 3, 4), F)])
for op in ("ADD", "MUL", "SUB"):
    case(f"{op} broadcast", op, [((2, 3, 4), F), numbers((4,))], [((2, 3, 4), F)], activation="RELU")
    case(f"{op} int", op, [((2, 3), N), ((2, 3), N)], [((2, 3), N)])
for op in ("FLOOR_DIV", "FLOOR_MOD"):
    case(f"{op} int", op, [((12,), N), constant(*[3, -3] * 6)], [((12,), N)])
case("POW", "POW", [((2, 3), F), ((2, 3), F)], [((2, 3), F)], values=[np.abs(numbers((2, 3))), numbers((2, 3), seed=1)])
for op in ("EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL"):
    case(op, op, [((3, 4), N), ((3, 4), N)], [((3, 4), B)])
for op in ("LOGICAL_AND", "LOGICAL_OR"):
    case(op, op, [((3, 4), B), ((3, 4), B)], [((3, 4), B)])
case("BITWISE_XOR", "BITWISE_XOR", [((5,), N), ((5,), N)], [((5,), N)])
case("RIGHT_SHIFT", "RIGHT_SHIFT", [((8,), N), constant(*[1, 2] * 4)], [((8,), N)])
case("ADD_N", "ADD_N", [((2, 3), F)] * 3, [((2, 3), F)])
case("SELECT", "SELECT", [((3,), B), ((3, 2), F), ((3, 2), F)], [((3, 2), F)])
case("SELECT_V2", "SELECT_V2", [((3, 1), B), ((3, 2), F), ((2,), F)], [((3, 2), F)])

# -- reductions ------------------------------------------------------------------------------------------

for op in ("MEAN", "SUM", "REDUCE_PROD", "REDUCE_MAX", "REDUCE_MIN"):
    for keeps in (0, 1):
        case(f"{op} {keeps}", op, [((2, 4, 5, 3), F), constant(1, -2)], [((2, 1, 1, 3) if keeps else (2, 3), F)],
             keep_dims=keeps)  # fmt: skip
for op in ("REDUCE_ANY", "REDUCE_ALL"):
    case(op, op, [((3, 4), B), constant(1)], [((3,), B)])
for op in ("ARG_MAX", "ARG_MIN"):
    case(op, op, [((3, 4), F), constant(-1)], [((3,), N)], output_type=2)
case("TOPK_V2", "TOPK_V2", [((3, 6), F), np.array(4, N)], [((3, 4), F), ((3, 4), N)])
case("CUMSUM", "CUMSUM", [((3, 6), F), np.array(1, N)], [((3, 6), F)], exclusive=1, reverse=1)

# -- shapes ----------------------------------------------------------------------------------------------

case("RESHAPE", "RESHAPE", [((2, 6), F), constant(3, -1)], [((3, 4), F)], new_shape=[3, -1])
case("RESHAPE option", "RESHAPE", [((2, 6), F)], [((3, 4), F)], new_shape=[3, 4])
case("SQUEEZE", "SQUEEZE", [((1, 3, 1, 2), F)], [((3, 1, 2), F)], squeeze_dims=[0])
case("SQUEEZE all", "SQUEEZE", [((1, 3, 1, 2), F)], [((3, 2), F)])
case("EXPAND_DIMS", "EXPAND_DIMS", [((3, 2), F), np.array(-1, N)], [((3, 2, 1), F)])
case("TRANSPOSE", "TRANSPOSE", [((2, 3, 4), F), constant(2, 0, 1)], [((4, 2, 3), F)])
case("CONCATENATION", "CONCATENATION", [((2, 3), F), ((2, 4), F), numbers((2, 1))], [((2, 8), F)], axis=-1)
case("PACK", "PACK", [((2, 3), F), ((2, 3), F)], [((2, 2, 3), F)], count=2, axis=1)
case("UNPACK", "UNPACK", [((2, 3), F)], [((2,), F)] * 3, num=3, axis=-1)
case("SPLIT", "SPLIT", [np.array(1, N), ((2, 6), F)], [((2, 2), F)] * 3, num_splits=3)
case("SPLIT_V", "SPLIT_V", [((2, 6), F), constant(1, -1, 2), np.array(1, N)], [((2, 1), F), ((2, 3), F), ((2, 2), F)],
     num_splits=3)  # fmt: skip
case("TILE", "TILE", [((2, 3), F), constant(2, 3)], [((4, 9), F)])
case("PAD", "PAD", [((2, 3), F), np.array([[1, 2], [0, 1]], N)], [((5, 4), F)])
case("PADV2", "PADV2", [((2, 3), F), np.array([[1, 2], [0, 1]], N), np.array(1.5, F)], [((5, 4), F)])
for mode in (0, 1):
    case(f"MIRROR_PAD {mode}", "MIRROR_PAD", [((3, 4), F), np.array([[1, 2], [2, 1]], N)], [((6, 7), F)], mode=mode)
case("SLICE", "SLICE", [((4, 5), F), constant(1, 2), constant(2, -1)], [((2, 3), F)])
case("STRIDED_SLICE", "STRIDED_SLICE", [((5, 6), F), constant(1, 4), constant(9, 0), constant(2, -1)], [((2, 5), F)],
     end_mask=2)  # fmt: skip
case("STRIDED_SLICE shrink", "STRIDED_SLICE", [((5, 6), F), constant(-1, 1), constant(0, 3), constant(1, 1)], [((2,),
     F)],
     shrink_axis_mask=1)  # fmt: skip
case("STRIDED_SLICE new", "STRIDED_SLICE", [((5, 6), F), constant(0, 1, 2), constant(0, 3, 4), constant(1, 1, 1)],
     [((1, 2, 2), F)], new_axis_mask=1)  # fmt: skip
case("STRIDED_SLICE ellipsis", "STRIDED_SLICE", [((2, 3, 4, 5), F), constant(0, 1), constant(0, 3), constant(1, 1)],
     [((2, 3, 4, 2), F)], ellipsis_mask=1)  # fmt: skip
case("REVERSE_V2", "REVERSE_V2", [((3, 4), F), constant(1)], [((3, 4), F)])
case("REVERSE_SEQUENCE", "REVERSE_SEQUENCE", [((3, 4, 2), F), constant(4, 1, 2)], [((3, 4, 2), F)], seq_dim=1)
case("BROADCAST_TO", "BROADCAST_TO", [((3, 1), F), constant(2, 3, 4)], [((2, 3, 4), F)], version=2)
case("SHAPE", "SHAPE", [((3, 4), F)], [((2,), N)], out_type=2)
case("RANK", "RANK", [((3, 4), F)], [((), N)])
case("FILL", "FILL", [constant(2, 3), ((), F)], [((2, 3), F)])
case("ZEROS_LIKE", "ZEROS_LIKE", [((2, 3), F)], [((2, 3), F)])
case("RANGE", "RANGE", [np.array(2, N), np.array(11, N), np.array(3, N)], [((3,), N)])
case("MATRIX_DIAG", "MATRIX_DIAG", [((2, 3), F)], [((2, 3, 3), F)])
case("MATRIX_SET_DIAG", "MATRIX_SET_DIAG", [((2, 4, 3), F), ((2, 3), F)], [((2, 4, 3), F)])
case("BROADCAST_ARGS", "BROADCAST_ARGS", [constant(3, 1), constant(2, 1, 4)], [((3,), N)])

# -- images ----------------------------------------------------------------------------------------------

for name, flag in {"": "", " corners": "align_corners", " half": "half_pixel_centers"}.items():
    more = {flag: 1} if flag else {}
    for op in ("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR"):
        case(f"{op}{name}", op, [((1, 3, 4, 2), F), constant(7, 6)], [((1, 7, 6, 2), F)], **more)
        case(f"{op}{name} smaller", op, [((1, 7, 8, 2), F), constant(3, 5)], [((1, 3, 5, 2), F)], **more)
case("DEPTH_TO_SPACE", "DEPTH_TO_SPACE", [((1, 2, 3, 8), F)], [((1, 4, 6, 2), F)], block_size=2)
case("SPACE_TO_DEPTH", "SPACE_TO_DEPTH", [((1, 4, 6, 2), F)], [((1, 2, 3, 8), F)], block_size=2)
case("SPACE_TO_BATCH_ND", "SPACE_TO_BATCH_ND", [((2, 4, 5, 3), F), constant(2, 3), np.array([[0, 0], [1, 0]], N)],
     [((12, 2, 2, 3), F)])  # fmt: skip
case("BATCH_TO_SPACE_ND", "BATCH_TO_SPACE_ND", [((12, 2, 2, 3), F), constant(2, 3), np.array([[0, 1], [1, 0]], N)],
     [((2, 3, 5, 3), F)])  # fmt: skip

# -- products --------------------------------------------------------------------------------------------

case("FULLY_CONNECTED", "FULLY_CONNECTED", [((2, 5), F), numbers((3, 5)), numbers((3,))], [((2, 3), F)],
     activation="RELU")  # fmt: skip
case("FULLY_CONNECTED image", "FULLY_CONNECTED", [((2, 2, 3, 4), F), numbers((3, 24)), None], [((2, 3), F)])
case("FULLY_CONNECTED keeps", "FULLY_CONNECTED", [((2, 3, 5), F), numbers((4, 5)), numbers((4,))], [((2, 3, 4), F)],
     keep_num_dims=1)  # fmt: skip
case("BATCH_MATMUL", "BATCH_MATMUL", [((2, 3, 4), F), ((2, 4, 5), F)], [((2, 3, 5), F)])
case("BATCH_MATMUL adjoint", "BATCH_MATMUL", [((2, 4, 3), F), ((2, 3, 4), F)], [((2, 3, 5), F)], adj_x=1, adj_y=1)

# -- indices ---------------------------------------------------------------------------------------------

case("GATHER", "GATHER", [((4, 5), F), constant(3, 0, 2)], [((4, 3), F)], axis=1)
case("GATHER batches", "GATHER", [((2, 4, 5), F), np.array([[3, 0], [1, 2]], N)], [((2, 2, 5), F)], axis=1,
     batch_dims=1)  # fmt: skip
case("GATHER later axis", "GATHER", [((2, 4, 5), F), np.array([[3, 0, 1], [1, 2, 4]], N)], [((2, 4, 3), F)], axis=2,
     batch_dims=1)  # fmt: skip
case("GATHER_ND", "GATHER_ND", [((3, 4, 2), F), np.array([[0, 1], [2, 3]], N)], [((2, 2), F)])
case("EMBEDDING_LOOKUP", "EMBEDDING_LOOKUP", [constant(2, 0), ((4, 3), F)], [((2, 3), F)])
case("SCATTER_ND", "SCATTER_ND", [np.array([[1], [3], [1]], N), ((3, 2), F), constant(5, 2)], [((5, 2), F)])
case("SPARSE_TO_DENSE", "SPARSE_TO_DENSE", [np.array([[0, 1], [2, 0]], N), constant(3, 2), ((2,), F), np.array(9, F)],
     [((3, 2), F)])  # fmt: skip
case("DYNAMIC_UPDATE_SLICE", "DYNAMIC_UPDATE_SLICE", [((4, 5), F), ((2, 2), F), ((2,), N)], [((4, 5), F)],
     values=[numbers((4, 5)), numbers((2, 2)), constant(3, 1)])  # fmt: skip
case("ONE_HOT", "ONE_HOT", [((4,), N), np.array(5, N), np.array(2, F), np.array(-1, F)], [((4, 5), F)], axis=-1,
     values=[constant(1, 4, 0, 2)])  # fmt: skip
case("SEGMENT_SUM", "SEGMENT_SUM", [((5, 2), F), constant(0, 0, 1, 2, 2)], [((3, 2), F)])
for kind in ("SUM", "PROD", "MAX", "MIN"):
    case(f"UNSORTED_SEGMENT_{kind}", f"UNSORTED_SEGMENT_{kind}", [((5, 2), F), constant(2, 0, 2, -1, 1), np.array(3,
         N)],
         [((3, 2), F)])  # fmt: skip
case("BUCKETIZE", "BUCKETIZE", [((2, 5), F)], [((2, 5), N)], boundaries=[-1.0, 0.0, 1.5])
case("WHERE", "WHERE", [((3, 4), B)], [((-1, 2), Q)])
case("UNIQUE", "UNIQUE", [((8,), N)], [((-1,), N), ((8,), N)], index_type=2)
BOXES = np.array([[0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, 2, 1, 3], [0, 2.05, 1, 3.05], [3, 3, 4, 4]], F)
case("NON_MAX_SUPPRESSION_V4", "NON_MAX_SUPPRESSION_V4", [((5, 4), F), ((5,), F), np.array(4, N), np.array(0.5, F),
     np.array(0.1, F)], [((4,), N), ((), N)], values=[BOXES, np.array([0.9, 0.8, 0.3, 0.7, 0.05], F)])  # fmt: skip
case("NON_MAX_SUPPRESSION_V5", "NON_MAX_SUPPRESSION_V5", [((5, 4), F), ((5,), F), np.array(4, N), np.array(0.5, F),
     np.array(0.1, F), np.array(0, F)], [((4,), N), ((4,), F), ((), N)],
     values=[BOXES, np.array([0.9, 0.8, 0.3, 0.7, 0.05], F)])  # fmt: skip

# -- windows, spectra, StableHLO --------------------------------------------------------------------------

case("DILATE", "DILATE", [((3, 4), F), constant(2, 3), np.array(-1, F)], [((5, 10), F)])
for function in range(1, 5):
    case(f"REDUCE_WINDOW {function}", "REDUCE_WINDOW", [((6, 7), F), np.array(0.5, F), constant(2, 3, dtype=Q),
         constant(2, 1, dtype=Q), constant(2, 1, dtype=Q)], [((2, 5), F)],
         function=function)  # fmt: skip
case("STABLEHLO_ADD", "STABLEHLO_ADD", [((2, 3), F), ((2, 3), F)], [((2, 3), F)])
case("STABLEHLO_MAXIMUM", "STABLEHLO_MAXIMUM", [((2, 3), F), ((2, 3), F)], [((2, 3), F)])
case("STABLEHLO_PAD", "STABLEHLO_PAD", [((2, 3), F), np.array(1.5, F)], [((4, 4), F)], low=[1, 0], high=[1, 1],
     interior=[0, 0])  # fmt: skip


def _spectrum() -> File:
    """Return a network of the real, the imaginary parts and the sizes of an image's spectrum."""
    file = File()
    graph = file.graph()
    x, y = graph.input((2, 4, 6)), graph.tensor((2, 4, 5), "complex64")
    graph.add("RFFT2D", [x, graph.constant(constant(4, 8))], [y])
    for op in ("REAL", "IMAG", "COMPLEX_ABS"):
        graph.outputs.append(graph.tensor((2, 4, 5)))
        graph.add(op, [y], graph.outputs[-1:])
    return file


keep(Case("RFFT2D", "RFFT2D", _spectrum(), [[numbers((2, 4, 6))]]))

# -- integers with scales --------------------------------------------------------------------------------

BYTES = {"int8": (-128, 127), "uint8": (0, 255), "int16": (-32768, 32767)}


def steps(shape: Sequence[int], dtype: str = "int8", seed: int = 0) -> Array:
    """Return integers of the whole range of a type."""
    low, high = BYTES[dtype]
    return np.random.default_rng(seed + sum(shape)).integers(low, high, shape, dtype, endpoint=True)


def scaled(
    name: str, op: str, inputs: Sequence[Any], outputs: Sequence[Any], *, off: int = 1, **options: Any
) -> None:
    """Add a case whose inputs and outputs have scales; results may be off by so many steps."""
    given = [steps(each[0], each[1], k) if each[1] in BYTES else numbers(each[0], each[1], k)
             for k, each in enumerate(inputs) if isinstance(each, tuple) and not isinstance(each[0], np.ndarray)]
    keep(Case(name, op, one_op(op, inputs, outputs, **options), [given], off))


for kind, zero in (("int8", 3), ("uint8", 120)):
    one, other, out = quantized(0.05, zero), quantized(0.08, zero - 9), quantized(0.11, zero + 4)
    for op in ("ADD", "SUB", "MUL", "MAXIMUM"):
        same = [one] * 3 if op == "MAXIMUM" else [one, other, out]
        more = {"activation": "RELU"} if op == "ADD" else {}
        read = [((2, 3, 4), kind, each) for each in same[:2]]
        scaled(f"{op} {kind}", op, read, [((2, 3, 4), kind, same[2])], **more)
    fixed = quantized(1 / 256, 0 if kind == "uint8" else -128)
    scaled(f"LOGISTIC {kind}", "LOGISTIC", [((40,), kind, one)], [((40,), kind, fixed)])
    scaled(f"SOFTMAX {kind}", "SOFTMAX", [((3, 8), kind, one)], [((3, 8), kind, fixed)], beta=1.0)
    scaled(f"TANH {kind}", "TANH", [((40,), kind, one)], [((40,), kind, quantized(1 / 128, 128 if zero > 99 else 0))])
    weights = steps((4, 3, 3, 3), kind, 5)
    case_scale = quantized(0.02, 0 if kind == "int8" else 100)
    if kind == "int8":
        case_scale = quantized([0.02, 0.01, 0.03, 0.015], 0)
        weights = np.maximum(weights, -127)
    bias_scale = quantized(case_scale[2] * np.float32(0.05), 0)
    bias = np.random.default_rng(0).integers(-900, 900, 4, "int32")
    scaled(f"conv {kind}", "CONV_2D", [((1, 6, 6, 3), kind, one), (weights, case_scale), (bias, bias_scale)],
           [((1, 3, 3, 4), kind, quantized(0.4, zero))], stride_w=2, stride_h=2, activation="RELU6")  # fmt: skip
    scaled(f"AVERAGE_POOL_2D {kind}", "AVERAGE_POOL_2D", [((1, 5, 5, 2), kind, one)], [((1, 3, 3, 2), kind, one)],
           stride_w=2, stride_h=2, filter_w=3, filter_h=3)  # fmt: skip
    scaled(f"MAX_POOL_2D {kind}", "MAX_POOL_2D", [((1, 5, 5, 2), kind, one)], [((1, 3, 3, 2), kind, one)], off=0,
           stride_w=2, stride_h=2, filter_w=3, filter_h=3, activation="RELU")  # fmt: skip
    scaled(f"PAD {kind}", "PAD", [((2, 3), kind, one), np.array([[1, 2], [0, 1]], N)], [((5, 4), kind, one)], off=0)
    scaled(f"CONCATENATION {kind}", "CONCATENATION", [((2, 3), kind, one), ((2, 3), kind, one)], [((4, 3), kind, one)],
           off=0)  # fmt: skip
    scaled(f"RESHAPE {kind}", "RESHAPE", [((2, 6), kind, one), constant(3, 4)], [((3, 4), kind, one)], off=0)
    scaled(f"MEAN {kind}", "MEAN", [((1, 4, 4, 3), kind, one), constant(1, 2)], [((1, 3), kind, out)])
    scaled(f"RESIZE_BILINEAR {kind}", "RESIZE_BILINEAR", [((1, 3, 3, 2), kind, one), constant(6, 5)],
           [((1, 6, 5, 2), kind, one)])  # fmt: skip
    scaled(f"QUANTIZE {kind}", "QUANTIZE", [((4, 5), F)], [((4, 5), kind, one)])
    scaled(f"DEQUANTIZE {kind}", "DEQUANTIZE", [((4, 5), kind, one)], [((4, 5), F)])
scaled("QUANTIZE again", "QUANTIZE", [((40,), "int8", quantized(0.05, 3))], [((40,), "uint8", quantized(0.07, 130))])
BYTE = quantized(0.05, 3)
scaled("depthwise int8", "DEPTHWISE_CONV_2D", [((1, 5, 5, 3), "int8", BYTE),
       (np.maximum(steps((1, 3, 3, 3)), -127), quantized([0.02, 0.01, 0.03], 0, axis=3)),
       (constant(100, -50, 7), quantized([0.001, 0.0005, 0.0015]))], [((1, 5, 5, 3), "int8", quantized(0.3, -5))],
       stride_w=1, stride_h=1, multiplier=1)  # fmt: skip
ROWS = np.maximum(steps((4, 6)), -127)
scaled("FULLY_CONNECTED int8", "FULLY_CONNECTED", [((2, 6), "int8", BYTE), (ROWS, quantized(0.02)),
       (constant(100, -50, 7, 30), quantized(0.001))], [((2, 4), "int8", quantized(0.3, -5))])  # fmt: skip
scaled("FULLY_CONNECTED int16", "FULLY_CONNECTED", [((2, 6), "int16", quantized(0.001)), (ROWS, quantized(0.02)),
       (np.array([4000, -50, 7, 3000], np.int64), quantized(0.00002))],
       [((2, 4), "int16", quantized(0.01))], bias_type=4)  # fmt: skip
scaled("conv int16", "CONV_2D", [((1, 4, 4, 2), "int16", quantized(0.001)),
       (np.maximum(steps((3, 3, 3, 2)), -127), quantized([0.02, 0.01, 0.03])),
       (np.array([4000, -50, 7], np.int64), quantized([0.00002, 0.00001, 0.00003]))],
       [((1, 4, 4, 3), "int16", quantized(0.02))], stride_w=1, stride_h=1)  # fmt: skip
scaled("transposed conv int8", "TRANSPOSE_CONV", [constant(1, 6, 6, 2), (np.maximum(steps((2, 3, 3, 3)), -127),
       quantized([0.02, 0.01])), ((1, 3, 3, 3), "int8", BYTE), (constant(300, -500), quantized([0.001, 0.0005]))],
       [((1, 6, 6, 2), "int8", quantized(0.5, 4))], stride_w=2, stride_h=2, version=3)  # fmt: skip
scaled("LEAKY_RELU int8", "LEAKY_RELU", [((40,), "int8", BYTE)], [((40,), "int8", quantized(0.06, -3))], alpha=0.2)
scaled("HARD_SWISH int8", "HARD_SWISH", [((60,), "int8", BYTE)], [((60,), "int8", quantized(0.04, -20))])
scaled("PRELU int8", "PRELU", [((1, 3, 3, 2), "int8", BYTE), (np.array([[[40, -70]]], np.int8), quantized(0.01))],
       [((1, 3, 3, 2), "int8", quantized(0.06, 0))])  # fmt: skip
scaled("ARG_MAX int8", "ARG_MAX", [((4, 9), "int8", BYTE), constant(1)], [((4,), N)], off=0, output_type=2)
scaled("BATCH_MATMUL int8", "BATCH_MATMUL", [((2, 3, 4), "int8", BYTE), ((2, 4, 5), "int8", quantized(0.03))],
       [((2, 3, 5), "int8", quantized(0.1, 2))])  # fmt: skip
scaled("GREATER int8", "GREATER", [((30,), "int8", BYTE), ((30,), "int8", quantized(0.07, -2))], [((30,), B)], off=0)

# -- states and control flow -----------------------------------------------------------------------------


def in_runs(name: str, op: str, file: File, shape: Sequence[int], count: int = 2) -> None:
    """Add a case of one input that runs several times."""
    keep(Case(name, op, file, [[numbers(shape, seed=7 * k)] for k in range(count)]))


def recurrent(op: str, shape: Sequence[int], weights: Sequence[Any], state: Mapping[int, Sequence[int]],
              outputs: Sequence[Sequence[int]], **options: Any) -> File:
    """Return a network of an op that has states: `weights` are the inputs behind the first, None for missing ones."""
    file = File()
    graph = file.graph()
    read = [graph.input(shape)]
    for k, each in enumerate(weights, 1):
        if k in state:
            read.append(graph.tensor(state[k], name=f"state{k}", variable=True))
        else:
            read.append(-1 if each is None else graph.constant(numbers(each, seed=k) / 4))
    graph.outputs = [graph.tensor(each) for each in outputs]
    graph.add(op, read, graph.outputs, **options)
    return file


in_runs("SVDF", "SVDF", recurrent("SVDF", (2, 3), [(8, 3), (8, 4), (4,), None], {4: (2, 32)}, [(2, 4)], rank=2,
        activation="RELU"), (2, 3), 5)  # fmt: skip
in_runs("RNN", "RNN", recurrent("RNN", (2, 3), [(4, 3), (4, 4), (4,), None], {4: (2, 4)}, [(2, 4)], activation="TANH"),
        (2, 3))  # fmt: skip
in_runs("RNN sequence", "UNIDIRECTIONAL_SEQUENCE_RNN", recurrent(
        "UNIDIRECTIONAL_SEQUENCE_RNN", (2, 3, 3), [(4, 3), (4, 4), (4,), None], {4: (2, 4)}, [(2, 3, 4)],
        activation="TANH"), (2, 3, 3))  # fmt: skip
BOTH = [(4, 3), (4, 4), (4,), None, (4, 3), (4, 4), (4,), None, None, None, None]
in_runs("RNN both ways", "BIDIRECTIONAL_SEQUENCE_RNN", recurrent(
        "BIDIRECTIONAL_SEQUENCE_RNN", (2, 3, 3), BOTH, {4: (2, 4), 8: (2, 4)}, [(2, 3, 4)] * 2, activation="TANH"),
        (2, 3, 3))  # fmt: skip
PLAIN = [(4, 3)] * 4 + [(4, 4)] * 4 + [None] * 3 + [(4,)] * 4 + [None] * 4
FULL = [None, *[(4, 3)] * 3, None, *[(4, 2)] * 3, None, (4,), (4,), None, *[(4,)] * 3, (2, 4), (2,), None, None]
PROJECTED = [*[(4, 3)] * 4, *[(4, 2)] * 4, *[(4,)] * 7, (2, 4), (2,), None, None]
NORMED = [*PROJECTED, *[(4,)] * 4]
for name, form, width in (("", PLAIN, 4), (" coupled", FULL, 2), (" projected", PROJECTED, 2), (" normed", NORMED, 2)):
    missing = [None] * (23 - len(form))
    held = {18: (2, width), 19: (2, 4)}
    clips = {"cell_clip": 0.9, "proj_clip": 0.7} if width == 2 else {}
    for op in ("LSTM", "UNIDIRECTIONAL_SEQUENCE_LSTM"):
        if op == "LSTM":
            file = recurrent(op, (2, 3), [*form, *missing], held, [(2, width)], activation="TANH", **clips)
            in_runs(f"{op}{name}", op, file, (2, 3))
        else:
            file = recurrent(op, (2, 3, 3), [*form, *missing], held, [(2, 3, width)], activation="TANH", **clips)
            in_runs(f"{op}{name}", op, file, (2, 3, 3))
LONG = [*PLAIN[:17], *PLAIN[:17], None, None, None, None, *[None] * 9]
in_runs("LSTM both ways", "BIDIRECTIONAL_SEQUENCE_LSTM", recurrent(
        "BIDIRECTIONAL_SEQUENCE_LSTM", (2, 3, 3), LONG, {35: (2, 4), 36: (2, 4), 37: (2, 4), 38: (2, 4)},
        [(2, 3, 8)], activation="TANH", merge_outputs=1, time_major=0), (2, 3, 3))  # fmt: skip


def _branches() -> File:
    """Return a network that squares its input if a number is above another, and else doubles it."""
    file = File()
    graph, square, double = file.graph(), file.graph(), file.graph()
    for each, op in ((square, "MUL"), (double, "ADD")):
        x, y = each.input((2, 3)), each.tensor((2, 3))
        each.add(op, [x, x], [y])
        each.outputs = [y]
    x, mean, above, y = graph.input((2, 3)), graph.tensor(()), graph.tensor((), B), graph.tensor((2, 3))
    graph.add("MEAN", [x, graph.constant(constant(0, 1))], [mean])
    graph.add("GREATER", [mean, graph.constant(np.float32(0))], [above])
    graph.add("IF", [above, x], [y], then_subgraph=1, else_subgraph=2)
    graph.outputs = [y]
    return file


def _loop() -> File:
    """Return a network that doubles its input until a counter reaches a limit."""
    file = File()
    graph, goes_on, body = file.graph(), file.graph(), file.graph()
    k, _, less = goes_on.input((), N), goes_on.input((3,)), goes_on.tensor((), B)
    goes_on.add("LESS", [k, goes_on.constant(np.array(4, N))], [less])
    goes_on.outputs = [less]
    k, x, more, twice = body.input((), N), body.input((3,)), body.tensor((), N), body.tensor((3,))
    body.add("ADD", [k, body.constant(np.array(1, N))], [more])
    body.add("ADD", [x, x], [twice])
    body.outputs = [more, twice]
    x, ends = graph.input((3,)), [graph.tensor((), N), graph.tensor((3,))]
    graph.add("WHILE", [graph.constant(np.array(0, N)), x], ends, cond_subgraph=1, body_subgraph=2)
    graph.outputs = ends
    return file


keep(Case("IF", "IF", _branches(), [[np.full((2, 3), v, F)] for v in (1.5, -1.5)]))
keep(Case("WHILE", "WHILE", _loop(), [[numbers((3,))]]))

# -- custom ops ------------------------------------------------------------------------------------------

ANCHORS = np.array([[0.5, 0.5, 1, 1], [0.5, 0.6, 1, 1], [0.5, 2.5, 1, 1], [0.5, 2.55, 1, 1], [3.5, 3.5, 1, 1]], F)
ENCODED = (numbers((1, 5, 4)) / 4).astype(F)
SCORES = np.array([[[0, 0.9, 0.2], [0, 0.8, 0.4], [0, 0.3, 0.6], [0, 0.7, 0.1], [0, 0.05, 0.65]]], F)
# Behind the boxes that are chosen LiteRT leaves what was in memory: here all rows have one.
for name, regular, per, most in (("fast", 0, 1, 3), ("fast with two classes", 0, 2, 3), ("regular", 1, 1, 4)):
    scales: dict[str, Any] = {f"{axis}_scale": v for axis, v in (("y", 10.0), ("x", 10.0), ("h", 5.0), ("w", 5.0))}
    settings: dict[str, Any] = {
        "max_detections": most, "max_classes_per_detection": per, "num_classes": 2, "nms_score_threshold": 0.15,
        "nms_iou_threshold": 0.5, "use_regular_nms": regular, "detections_per_class": 4, **scales,
    }  # fmt: skip
    case(f"detections {name}", "TFLite_Detection_PostProcess", [((1, 5, 4), F), ((1, 5, 3), F), ANCHORS],
         [((1, most * per, 4), F), ((1, most * per), F), ((1, most * per), F), ((1,), F)], custom=flexbuffer(settings),
         values=[ENCODED, SCORES])  # fmt: skip
