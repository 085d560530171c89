"""Small TensorFlow Lite networks, one for each op and form of it, with what goes in."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.helpers.tflite_files import File, one_op

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
    keep(Case(name, op, file, [given], needs_delegate="custom" in options))


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
case("BATCH_MATMUL adjoint", "BATCH_MATMUL", [((2, 4, 3), F), ((2, 5, 4), F)], [((2, 3, 5), F)], adj_x=1, adj_y=1)

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
