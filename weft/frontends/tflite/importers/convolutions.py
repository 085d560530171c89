"""Convolutions and pools: Weft computes them with channels first."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from weft.errors import ModelError
from weft.frontends.tflite.importers.windows import same_pads, window
from weft.frontends.tflite.node import TFLiteNode
from weft.frontends.tflite.registry import importer, tflite_op
from weft.frontends.tflite.schema import SAME, VALID


def _spatial(node: TFLiteNode, k: int, rank: int) -> tuple[int | None, ...]:
    if node.rank(k) != rank:
        raise ModelError(f"input {k} has {node.rank(k)} axes instead of {rank}")
    return node.sizes(k)[1:-1]


def _kernel(node: TFLiteNode, k: int, rank: int) -> tuple[int, ...]:
    """Return the shape of weights, which is known."""
    sizes = node.tensor(k).shape
    if len(sizes) != rank or min(sizes) < 1:
        raise ModelError(f"weights of shape {sizes} fit no convolution")
    return sizes


@importer("CONV_2D")
def conv_2d(node: TFLiteNode) -> str:
    """Weights are [out, height, width, in / groups]."""
    spatial = _spatial(node, 0, 4)
    out, height, width, each = _kernel(node, 1, 4)
    channels = node.sizes()[3]
    group = 1 if channels is None else channels // each
    if channels is not None and (channels % each or not group or out % group):
        raise ModelError(f"{channels} channels do not fit weights of shape {node.tensor(1).shape}")
    attributes = window(
        node.option("padding"), spatial, (height, width), (node.option("stride_h"), node.option("stride_w")),
        (node.option("dilation_h"), node.option("dilation_w")),
    )
    y = node.add(
        "Conv", node.first(node.value(0)), node.permuted(1, (0, 3, 1, 2)), node.bias(2, 0, 1), group=group, **attributes
    )
    return node.last(node.activated(y))


@importer("DEPTHWISE_CONV_2D")
def depthwise_conv_2d(node: TFLiteNode) -> str:
    """Weights are [1, height, width, channels * multiplier]."""
    spatial = _spatial(node, 0, 4)
    one, height, width, out = _kernel(node, 1, 4)
    group = node.sizes()[3]
    if one != 1 or not group or out % group:
        raise ModelError(f"weights of shape {node.tensor(1).shape} do not fit {group} channels")
    attributes = window(
        node.option("padding"), spatial, (height, width), (node.option("stride_h"), node.option("stride_w")),
        (node.option("dilation_h"), node.option("dilation_w")),
    )
    y = node.add(
        "Conv", node.first(node.value(0)), node.permuted(1, (3, 0, 1, 2)), node.bias(2, 0, 1), group=group, **attributes
    )
    return node.last(node.activated(y))


@importer("CONV_3D")
def conv_3d(node: TFLiteNode) -> str:
    """Weights are [depth, height, width, in, out]."""
    spatial = _spatial(node, 0, 5)
    *kernel, _, _ = _kernel(node, 1, 5)
    strides, dilations = ([node.option(f"{what}_{axis}") for axis in "dhw"] for what in ("stride", "dilation"))
    attributes = window(node.option("padding"), spatial, kernel, strides, dilations)
    y = node.add(
        "Conv", node.first(node.value(0), 5), node.permuted(1, (4, 3, 0, 1, 2)), node.bias(2, 0, 1), **attributes
    )
    return node.last(node.activated(y), 5)


@importer("TRANSPOSE_CONV")
def transpose_conv(node: TFLiteNode) -> str:
    """Return what inputs output_shape, weights [out, height, width, in], x and bias make."""
    _spatial(node, 2, 4)
    _, *kernel, _ = _kernel(node, 1, 4)
    strides = [node.option("stride_h"), node.option("stride_w")]
    y = _transposed(node, 2, 1, kernel, strides, node.option("padding"), (3, 0, 1, 2), _wanted(node, 0, 2))
    return node.last(node.activated(y))


@importer("CONV_3D_TRANSPOSE")
def conv_3d_transpose(node: TFLiteNode) -> str:
    """Return what inputs output_shape, weights [depth, height, width, out, in], x and bias make."""
    _spatial(node, 2, 5)
    *kernel, _, _ = _kernel(node, 1, 5)
    strides = [node.option(f"stride_{axis}") for axis in "dhw"]
    y = _transposed(node, 2, 1, kernel, strides, node.option("padding"), (4, 3, 0, 1, 2), _wanted(node, 0, 3))
    return node.last(node.activated(y), 5)


@tflite_op("Convolution2DTransposeBias")
def convolution_2d_transpose_bias(node: TFLiteNode) -> str:
    """MediaPipe's; inputs x, weights [out, height, width, in], bias. The options are three integers of C."""
    if len(node.custom_options) != 12:
        raise ModelError(f"its options are {len(node.custom_options)} bytes instead of 12")
    padding, width, height = struct.unpack("<3i", node.custom_options)
    if padding not in (1, 2):
        raise ModelError(f"there is no padding {padding}")
    _spatial(node, 0, 4)
    _, *kernel, _ = _kernel(node, 1, 4)
    mode = SAME if padding == 1 else VALID
    return node.last(_transposed(node, 0, 1, kernel, [height, width], mode, (3, 0, 1, 2), None))


def _wanted(node: TFLiteNode, k: int, axes: int) -> tuple[int, ...] | None:
    """Return the spatial sizes that an output is to have; None where only a run tells them."""
    if node.constant(k) is None:  # a run tells it, as the batch is open: the other sizes may be declared
        declared = node.output().sizes[1:-1]
        known = tuple(size for size in declared if size is not None)
        return known if len(known) == len(declared) == axes else None
    sizes = node.integers(k, "the output's shape")
    if len(sizes) not in (axes, axes + 2) or min(sizes) < 1:
        raise ModelError(f"an output of shape {sizes} makes no sense")
    return sizes[1:-1] if len(sizes) == axes + 2 else sizes


def _transposed(
    node: TFLiteNode, x: int, weights: int, kernel: Sequence[int], strides: Sequence[int], padding: int,
    order: Sequence[int], wanted: tuple[int, ...] | None,
) -> str:
    """Return a transposed convolution with channels first; its output may be given, as several sizes are possible."""
    window(padding, [None] * len(kernel), kernel, strides)  # which checks them
    given = node.sizes(x)[1:-1]
    attributes: dict[str, object] = {"kernel_shape": tuple(kernel), "strides": tuple(strides)}
    if wanted is not None and None not in given:
        known = [n for n in given if n is not None]
        pads, more = [], []
        for size, out, taps, stride in zip(known, wanted, kernel, strides, strict=True):
            full = (size - 1) * stride + taps
            before, behind = same_pads(out, taps, stride) if padding == SAME else (0, max(full - out, 0))
            pads.append((before, behind))
            more.append(out - (full - before - behind))
        if min(more) < 0 or any(extra >= stride for extra, stride in zip(more, strides, strict=True)):
            raise ModelError(f"an output of {wanted} does not follow from an input of {given}")
        attributes["pads"] = (*(before for before, _ in pads), *(behind for _, behind in pads))
        if any(more):
            attributes["output_padding"] = tuple(more)
    elif padding == SAME:
        attributes["auto_pad"] = "SAME_UPPER"
    rank = len(kernel) + 2
    return node.add(
        "ConvTranspose", node.first(node.value(x), rank), node.permuted(weights, order),
        node.bias(2 if x == 0 else 3, x, weights), **attributes,
    )


@importer("AVERAGE_POOL_2D")
def average_pool_2d(node: TFLiteNode) -> str:
    """Return means, in which padding does not count."""
    return node.last(node.activated(node.add("AveragePool", node.first(node.value(0)), **_pool(node))))


@importer("MAX_POOL_2D", moves=True)
def max_pool_2d(node: TFLiteNode) -> str:
    """Return the largest values, of which padding is none."""
    y = node.add("MaxPool", node.first(node.value(0)), **_pool(node))
    return node.last(node.activated(y))


@importer("L2_POOL_2D")
def l2_pool_2d(node: TFLiteNode) -> str:
    """Return the root of the mean of squares."""
    x = node.first(node.value(0))
    mean = node.add("AveragePool", node.add("Mul", x, x), **_pool(node))
    return node.last(node.activated(node.add("Sqrt", mean)))


def _pool(node: TFLiteNode) -> dict[str, object]:
    filters = node.option("filter_h"), node.option("filter_w")
    strides = node.option("stride_h"), node.option("stride_w")
    return window(node.option("padding"), _spatial(node, 0, 4), filters, strides)
