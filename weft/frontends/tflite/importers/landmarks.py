"""MediaPipe's custom ops that look closer at a part of a face: where it is, its pixels, and its points put back."""

from __future__ import annotations

from math import cos, sin

import numpy as np

from weft.core.graph.dtypes import DType
from weft.errors import ModelError
from weft.frontends.tflite.importers.custom import flex_number
from weft.frontends.tflite.node import TFLiteNode
from weft.frontends.tflite.registry import tflite_op

F32 = DType.FLOAT32


def _second_version(node: TFLiteNode) -> None:
    if node.operator.version != 2:
        raise ModelError(f"version {node.operator.version} of it is not supported", why="version 2 is")


def _part(node: TFLiteNode, value: str, begin: int, axis: int = -1, count: int = 1) -> str:
    return node.add("Slice", value, node.const([begin]), node.const([begin + count]), node.const([axis]))


def _sum(node: TFLiteNode, *products: tuple[str, str]) -> str:
    """Return the sum of products."""
    total, *others = (node.add("Mul", x, y) for x, y in products)
    for other in others:
        total = node.add("Add", total, other)
    return total


@tflite_op("Landmarks2TransformMatrix")
def landmarks_to_transform_matrix(node: TFLiteNode) -> str:
    """Return the matrix that takes pixels of a crop to the image: the box around some points, turned by two of them.

    The line from the left point to the right one is to lie at the target angle; the box is larger by the scales.
    """
    _second_version(node)
    options, points = node.flexbuffer(), node.tensor(0).shape
    subset = options.get("subset_idxs")
    if len(points) != 3 or points[0] != 1 or points[2] != 3 or not isinstance(subset, list) or not subset:
        raise ModelError(f"points of shape {points}, or their subset, make no sense")
    ends = [int(flex_number(node, f"{side}_rotation_idx")) for side in ("left", "right")]
    chosen = [int(k) for k in subset if isinstance(k, int)]
    if len(chosen) < len(subset) or not all(0 <= k < points[1] for k in (*chosen, *ends)):
        raise ModelError("it names points that are not there")
    size = [flex_number(node, f"output_{name}") for name in ("width", "height")]
    target = flex_number(node, "target_rotation_radians", 0)
    if min(size) <= 0:
        raise ModelError(f"a crop of {size} pixels makes no sense")
    flat = _part(node, node.reshaped(node.value(0), points[1:]), 0, count=2)
    turned = _turn(node, flat, ends, target)
    c, s = turned
    at = node.add("Gather", flat, node.const(chosen), axis=0)
    x, y = _part(node, at, 0), _part(node, at, 1)
    negative = node.add("Neg", s)
    along = [_sum(node, (c, x), (negative, y)), _sum(node, (s, x), (c, y))]
    low, high = ([node.add(op, each, keepdims=1) for each in along] for op in ("ReduceMin", "ReduceMax"))
    half = node.const([[0.5]], F32)
    middle = [node.add("Mul", node.add("Add", a, b), half) for a, b in zip(low, high, strict=True)]
    centre = [_sum(node, (c, middle[0]), (s, middle[1])), _sum(node, (negative, middle[0]), (c, middle[1]))]
    scales = [
        node.add("Mul", node.add("Sub", b, a), node.const([[flex_number(node, f"scale_{axis}") / n]], F32))
        for a, b, n, axis in zip(low, high, size, "xy", strict=True)
    ]
    rows = []
    for place, (first, second) in zip(centre, ((c, s), (negative, c)), strict=True):
        a, b = node.add("Mul", first, scales[0]), node.add("Mul", second, scales[1])
        moved = _sum(node, (a, node.const([[size[0] / 2]], F32)), (b, node.const([[size[1] / 2]], F32)))
        rows.append(node.add("Concat", a, b, node.const([[0]], F32), node.add("Sub", place, moved), axis=1))
    last = node.const([[0, 0, 1, 0], [0, 0, 0, 1]], F32)
    return node.reshaped(node.add("Concat", *rows, last, axis=0), (1, 4, 4))


def _turn(node: TFLiteNode, points: str, ends: list[int], target: float) -> tuple[str, str]:
    """Return the cosine and the sine of the angle by which the line between two points is to be turned."""
    left, right = (_part(node, points, k, 0) for k in ends)
    line = node.add("Sub", right, left)
    length = node.add("ReduceL2", line, node.const([1]), keepdims=1)
    direction = node.add("Div", line, length)
    is_point = node.add("Equal", length, node.const([[0]], F32))
    direction = node.add("Where", is_point, node.const([[1, 0]], F32), direction)
    x, y = _part(node, direction, 0), _part(node, direction, 1)
    c, s = (node.const([[value]], F32) for value in (cos(target), sin(target)))
    return _sum(node, (c, x), (s, y)), node.add("Sub", node.add("Mul", s, x), node.add("Mul", c, y))


@tflite_op("TransformTensorBilinear")
def transform_tensor_bilinear(node: TFLiteNode) -> str:
    """Return the pixels of a crop, each between those where a matrix says; outside of the image they are zero."""
    _second_version(node)
    height, width = (int(flex_number(node, f"output_{name}")) for name in ("height", "width"))
    image = node.tensor(0).shape
    if len(image) != 4 or image[0] != 1 or min(image[1:3]) < 2 or not (0 < height < 4096 and 0 < width < 4096):
        raise ModelError(f"an image of {image} and a crop of {height} x {width} make no sense")
    y, x = np.mgrid[:height, :width].reshape(2, -1)
    # The matrix is for the edges of pixels, and a pixel is sampled in its middle.
    middles = np.stack([x + 0.5, y + 0.5, np.zeros(x.size), np.ones(x.size)], 1)
    matrix = node.add("Transpose", _part(node, node.reshaped(node.value(1), (4, 4)), 0, 0, 2), perm=(1, 0))
    places = node.add("Sub", node.add("MatMul", node.const(middles, F32), matrix), node.const(0.5, F32))
    most = node.const([[image[2] - 1, image[1] - 1]], F32)
    inside = node.add("And", node.add("GreaterOrEqual", places, node.const(0, F32)),
                      node.add("LessOrEqual", places, most))
    shown = node.add("ReduceMin", node.cast(inside, F32), node.const([1]), keepdims=1)
    grid = node.add("Sub", node.add("Div", node.add("Mul", places, node.const(2, F32)), most), node.const(1, F32))
    crop = node.add(
        "GridSample", node.first(node.value(0)), node.reshaped(grid, (1, height, width, 2)), align_corners=1
    )
    return node.last(node.add("Mul", crop, node.reshaped(shown, (1, 1, height, width))))


@tflite_op("TransformLandmarks")
def transform_landmarks(node: TFLiteNode) -> str:
    """Move points by a matrix; a third coordinate stays."""
    _second_version(node)
    shape = node.tensor(0).shape
    if len(shape) != 3 or shape[0] != 1 or shape[2] not in (2, 3):
        raise ModelError(f"points of shape {shape} make no sense")
    matrix = _part(node, node.reshaped(node.value(1), (4, 4)), 0, 0, 2)
    turn = node.add("Transpose", _part(node, matrix, 0, 1, 2), perm=(1, 0))
    moved = node.add("MatMul", _part(node, node.value(0), 0, 2, 2), turn)
    moved = node.add("Add", moved, node.reshaped(_part(node, matrix, 3, 1), (1, 1, 2)))
    return moved if shape[2] == 2 else node.add("Concat", moved, _part(node, node.value(0), 2, 2), axis=2)
