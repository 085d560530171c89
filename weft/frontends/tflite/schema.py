"""What TensorFlow Lite's schema calls things: ops, element types, and the fields of the ops' options, as data."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from weft.core.graph.dtypes import DType
from weft.errors import ModelError
from weft.frontends.tflite.flatbuffer import Table

OPS: tuple[str, ...] = tuple(
    """
    ADD AVERAGE_POOL_2D CONCATENATION CONV_2D DEPTHWISE_CONV_2D DEPTH_TO_SPACE DEQUANTIZE EMBEDDING_LOOKUP FLOOR
    FULLY_CONNECTED HASHTABLE_LOOKUP L2_NORMALIZATION L2_POOL_2D LOCAL_RESPONSE_NORMALIZATION LOGISTIC
    LSH_PROJECTION LSTM MAX_POOL_2D MUL RELU RELU_N1_TO_1 RELU6 RESHAPE RESIZE_BILINEAR RNN SOFTMAX SPACE_TO_DEPTH
    SVDF TANH CONCAT_EMBEDDINGS SKIP_GRAM CALL CUSTOM EMBEDDING_LOOKUP_SPARSE PAD UNIDIRECTIONAL_SEQUENCE_RNN GATHER
    BATCH_TO_SPACE_ND SPACE_TO_BATCH_ND TRANSPOSE MEAN SUB DIV SQUEEZE UNIDIRECTIONAL_SEQUENCE_LSTM STRIDED_SLICE
    BIDIRECTIONAL_SEQUENCE_RNN EXP TOPK_V2 SPLIT LOG_SOFTMAX DELEGATE BIDIRECTIONAL_SEQUENCE_LSTM CAST PRELU MAXIMUM
    ARG_MAX MINIMUM LESS NEG PADV2 GREATER GREATER_EQUAL LESS_EQUAL SELECT SLICE SIN TRANSPOSE_CONV SPARSE_TO_DENSE
    TILE EXPAND_DIMS EQUAL NOT_EQUAL LOG SUM SQRT RSQRT SHAPE POW ARG_MIN FAKE_QUANT REDUCE_PROD REDUCE_MAX PACK
    LOGICAL_OR ONE_HOT LOGICAL_AND LOGICAL_NOT UNPACK REDUCE_MIN FLOOR_DIV REDUCE_ANY SQUARE ZEROS_LIKE FILL
    FLOOR_MOD RANGE RESIZE_NEAREST_NEIGHBOR LEAKY_RELU SQUARED_DIFFERENCE MIRROR_PAD ABS SPLIT_V UNIQUE CEIL
    REVERSE_V2 ADD_N GATHER_ND COS WHERE RANK ELU REVERSE_SEQUENCE MATRIX_DIAG QUANTIZE MATRIX_SET_DIAG ROUND
    HARD_SWISH IF WHILE NON_MAX_SUPPRESSION_V4 NON_MAX_SUPPRESSION_V5 SCATTER_ND SELECT_V2 DENSIFY SEGMENT_SUM
    BATCH_MATMUL PLACEHOLDER_FOR_GREATER_OP_CODES CUMSUM CALL_ONCE BROADCAST_TO RFFT2D CONV_3D IMAG REAL COMPLEX_ABS
    HASHTABLE HASHTABLE_FIND HASHTABLE_IMPORT HASHTABLE_SIZE REDUCE_ALL CONV_3D_TRANSPOSE VAR_HANDLE READ_VARIABLE
    ASSIGN_VARIABLE BROADCAST_ARGS RANDOM_STANDARD_NORMAL BUCKETIZE RANDOM_UNIFORM MULTINOMIAL GELU
    DYNAMIC_UPDATE_SLICE RELU_0_TO_1 UNSORTED_SEGMENT_PROD UNSORTED_SEGMENT_MAX UNSORTED_SEGMENT_SUM ATAN2
    UNSORTED_SEGMENT_MIN SIGN BITCAST BITWISE_XOR RIGHT_SHIFT STABLEHLO_LOGISTIC STABLEHLO_ADD STABLEHLO_DIVIDE
    STABLEHLO_MULTIPLY STABLEHLO_MAXIMUM STABLEHLO_RESHAPE STABLEHLO_CLAMP STABLEHLO_CONCATENATE
    STABLEHLO_BROADCAST_IN_DIM STABLEHLO_CONVOLUTION STABLEHLO_SLICE STABLEHLO_CUSTOM_CALL STABLEHLO_REDUCE
    STABLEHLO_ABS STABLEHLO_AND STABLEHLO_COSINE STABLEHLO_EXPONENTIAL STABLEHLO_FLOOR STABLEHLO_LOG
    STABLEHLO_MINIMUM STABLEHLO_NEGATE STABLEHLO_OR STABLEHLO_POWER STABLEHLO_REMAINDER STABLEHLO_RSQRT
    STABLEHLO_SELECT STABLEHLO_SUBTRACT STABLEHLO_TANH STABLEHLO_SCATTER STABLEHLO_COMPARE STABLEHLO_CONVERT
    STABLEHLO_DYNAMIC_SLICE STABLEHLO_DYNAMIC_UPDATE_SLICE STABLEHLO_PAD STABLEHLO_IOTA STABLEHLO_DOT_GENERAL
    STABLEHLO_REDUCE_WINDOW STABLEHLO_SORT STABLEHLO_WHILE STABLEHLO_GATHER STABLEHLO_TRANSPOSE DILATE
    STABLEHLO_RNG_BIT_GENERATOR REDUCE_WINDOW STABLEHLO_COMPOSITE STABLEHLO_SHIFT_LEFT STABLEHLO_CBRT STABLEHLO_CASE
    """.split()
)
"""The builtin ops, by their numbers."""
CUSTOM = "CUSTOM"

TYPES: tuple[DType | None, ...] = (
    DType.FLOAT32, DType.FLOAT16, DType.INT32, DType.UINT8, DType.INT64, None, DType.BOOL, DType.INT16,
    DType.COMPLEX64, DType.INT8, DType.FLOAT64, DType.COMPLEX128, DType.UINT64, None, None, DType.UINT32,
    DType.UINT16, DType.INT4, DType.BFLOAT16, DType.INT2, DType.UINT4, DType.FLOAT8E4M3FN, DType.FLOAT8E5M2,
)  # fmt: skip
"""Weft's element types by TensorFlow Lite's numbers; None for what holds no numbers."""
NOT_NUMBERS = {5: "texts", 13: "a resource", 14: "a variant"}
ACTIVATIONS = ("", "RELU", "RELU_N1_TO_1", "RELU6", "TANH", "SIGN_BIT")
SAME, VALID = 0, 1
"""How a window is padded: so that the output is as large as the input (less the stride), or not at all."""

_POOL = (5, "padding:b stride_w:i stride_h:i filter_w:i filter_h:i activation:b")
_REDUCE = (27, "keep_dims:?")
_RANDOM = (114, "seed:q seed2:q")

OPTIONS: Mapping[str, tuple[int, str]] = MappingProxyType({
    "CONV_2D": (1, "padding:b stride_w:i stride_h:i activation:b dilation_w:i=1 dilation_h:i=1"),
    "DEPTHWISE_CONV_2D": (2, "padding:b stride_w:i stride_h:i multiplier:i activation:b dilation_w:i=1 dilation_h:i=1"),
    "AVERAGE_POOL_2D": _POOL, "MAX_POOL_2D": _POOL, "L2_POOL_2D": _POOL,
    "SVDF": (6, "rank:i activation:b"),
    "RNN": (7, "activation:b"),
    "FULLY_CONNECTED": (8, "activation:b weights_format:b keep_num_dims:? - bias_type:b"),
    "SOFTMAX": (9, "beta:f"),
    "CONCATENATION": (10, "axis:i activation:b"),
    "ADD": (11, "activation:b"), "MUL": (21, "activation:b"), "SUB": (28, "activation:b"), "DIV": (29, "activation:b"),
    "L2_NORMALIZATION": (12, "activation:b"),
    "LOCAL_RESPONSE_NORMALIZATION": (13, "radius:i bias:f alpha:f beta:f"),
    "LSTM": (14, "activation:b cell_clip:f proj_clip:f kernel:b"),
    "RESIZE_BILINEAR": (15, "- - align_corners:? half_pixel_centers:?"),
    "CALL": (16, "subgraph:i"),
    "RESHAPE": (17, "new_shape:I"),
    "SPACE_TO_DEPTH": (19, "block_size:i"),
    "EMBEDDING_LOOKUP_SPARSE": (20, "combiner:b"),
    "GATHER": (23, "axis:i batch_dims:i"),
    "MEAN": _REDUCE, "SUM": _REDUCE, "REDUCE_PROD": _REDUCE, "REDUCE_MAX": _REDUCE, "REDUCE_MIN": _REDUCE,
    "REDUCE_ANY": _REDUCE, "REDUCE_ALL": _REDUCE,
    "SQUEEZE": (30, "squeeze_dims:I"),
    "UNIDIRECTIONAL_SEQUENCE_RNN": (31, "time_major:? activation:b"),
    "STRIDED_SLICE": (32, "begin_mask:i end_mask:i ellipsis_mask:i new_axis_mask:i shrink_axis_mask:i offset:?"),
    "SPLIT": (35, "num_splits:i"),
    "CAST": (37, "in_type:b out_type:b"),
    "ARG_MAX": (40, "output_type:b"), "ARG_MIN": (57, "output_type:b"),
    "TRANSPOSE_CONV": (49, "padding:b stride_w:i stride_h:i activation:b"),
    "SHAPE": (55, "out_type:b"),
    "FAKE_QUANT": (58, "min:f max:f num_bits:i narrow_range:?"),
    "PACK": (59, "count:i axis:i"),
    "ONE_HOT": (61, "axis:i"),
    "UNPACK": (64, "num:i axis:i"),
    "BIDIRECTIONAL_SEQUENCE_LSTM": (69, "activation:b cell_clip:f proj_clip:f merge_outputs:? time_major:?=1"),
    "BIDIRECTIONAL_SEQUENCE_RNN": (70, "time_major:? activation:b merge_outputs:?"),
    "UNIDIRECTIONAL_SEQUENCE_LSTM": (71, "activation:b cell_clip:f proj_clip:f time_major:? - diagonal:?"),
    "RESIZE_NEAREST_NEIGHBOR": (74, "align_corners:? half_pixel_centers:?"),
    "LEAKY_RELU": (75, "alpha:f"),
    "MIRROR_PAD": (77, "mode:b"),
    "SPLIT_V": (79, "num_splits:i"),
    "UNIQUE": (80, "index_type:b=2"),
    "REVERSE_SEQUENCE": (87, "seq_dim:i batch_dim:i"),
    "IF": (92, "then_subgraph:i else_subgraph:i"),
    "WHILE": (93, "cond_subgraph:i body_subgraph:i"),
    "DEPTH_TO_SPACE": (94, "block_size:i"),
    "BATCH_MATMUL": (101, "adj_x:? adj_y:?"),
    "CUMSUM": (102, "exclusive:? reverse:?"),
    "CALL_ONCE": (103, "init_subgraph:i"),
    "CONV_3D": (106, "padding:b stride_d:i stride_w:i stride_h:i activation:b dilation_d:i=1 dilation_w:i=1 "
                     "dilation_h:i=1"),
    "CONV_3D_TRANSPOSE": (106, "padding:b stride_d:i stride_w:i stride_h:i activation:b dilation_d:i=1 "
                               "dilation_w:i=1 dilation_h:i=1"),
    "VAR_HANDLE": (111, "container:s shared_name:s"),
    "RANDOM_STANDARD_NORMAL": _RANDOM, "RANDOM_UNIFORM": _RANDOM, "MULTINOMIAL": _RANDOM,
    "BUCKETIZE": (115, "boundaries:F"),
    "GELU": (116, "approximate:?"),
})  # fmt: skip
"""The number of each op's table of options, and its fields in their order: "name:code=default", "-" for one unread.

Codes are those of `struct`; I, Q and F are vectors of int32, int64 and float32, and s is a text. Ops that are not here
have no options.
"""

OPTIONS_2: Mapping[str, tuple[int, str]] = MappingProxyType({
    "STABLEHLO_CONCATENATE": (1, "dimension:q"),
    "STABLEHLO_BROADCAST_IN_DIM": (2, "dimensions:Q"),
    "STABLEHLO_SLICE": (3, "starts:Q limits:Q strides:Q"),
    "STABLEHLO_COMPARE": (8, "direction:i"),
    "STABLEHLO_DYNAMIC_SLICE": (9, "sizes:Q"),
    "STABLEHLO_PAD": (10, "low:Q high:Q interior:Q"),
    "STABLEHLO_IOTA": (11, "dimension:q"),
    "STABLEHLO_DOT_GENERAL": (12, "left_batch:Q right_batch:Q left_contracted:Q right_contracted:Q"),
    "STABLEHLO_TRANSPOSE": (17, "permutation:Q"),
    "REDUCE_WINDOW": (20, "function:i"),
    "STABLEHLO_COMPOSITE": (21, "name:s subgraph:i"),
})  # fmt: skip
"""The same for ops whose options lie in the second field."""

Option = int | float | str | tuple[int, ...] | tuple[float, ...]


def read_options(op: str, kind: int, table: Table | None, kind_2: int, table_2: Table | None) -> dict[str, Option]:
    """Return the options of an op by name, with the defaults of what a file leaves out; ModelError for other options.

    `kind` and `kind_2` are the numbers of the tables that the file says it has.
    """
    second = op in OPTIONS_2
    number, fields = (OPTIONS_2 if second else OPTIONS).get(op, (0, ""))
    found, held = (kind_2, table_2) if second else (kind, table)
    if number and found not in (0, number):
        raise ModelError("its options are those of another op", why=f"they are of kind {found}, not {number}")
    return {
        name: _read(held if found else None, place, code)
        for place, name, code in _fields(fields)
    }


def _fields(text: str) -> list[tuple[int, str, str]]:
    parts = [part.partition(":") for part in text.split()]
    return [(place, name, code) for place, (name, _, code) in enumerate(parts) if name != "-"]


def _read(table: Table | None, place: int, code: str) -> Option:
    kind, _, default = code.partition("=")
    if kind == "s":
        return table.text(place) if table else ""
    if kind in "IQF":
        found = table.array(place, {"I": "<i4", "Q": "<i8", "F": "<f4"}[kind]) if table else None
        return () if found is None else tuple(found.tolist())
    value = table.number(place, kind, int(default or 0)) if table else int(default or 0)
    return float(value) if kind == "f" else int(value)
