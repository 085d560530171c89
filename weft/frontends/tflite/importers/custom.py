"""Custom ops that many files have: the detections of SSD networks."""

from __future__ import annotations

import numpy as np

from weft.core.graph.dtypes import DType
from weft.errors import ModelError
from weft.frontends.tflite.importers.indexing import padded
from weft.frontends.tflite.node import TFLiteNode
from weft.frontends.tflite.registry import tflite_op


def flex_number(node: TFLiteNode, name: str, default: float | None = None) -> float:
    """Return a number out of a custom op's options; ModelError if it is missing and has no default."""
    found = node.flexbuffer().get(name, default)
    if not isinstance(found, (bool, int, float)):
        raise ModelError(f"its option {name!r} is no number")
    return float(found)


@tflite_op("TFLite_Detection_PostProcess")
def detection_postprocess(node: TFLiteNode) -> list[str]:
    """Turn the outputs of an SSD network into boxes: decode them with their anchors, and drop those that overlap.

    Inputs boxes [1, n, 4 or more] (centre and size, as anchors have them), scores [1, n, classes], anchors [n, 4].
    Outputs boxes [1, rows, 4] as top, left, bottom, right, classes, scores, and how many boxes were chosen, each of
    which has a row for each of its best classes, or one. There are rows for the most boxes with all their classes. The
    first classes that are more than `num_classes` are background.
    """
    boxes, count, classes = node.tensor(0).shape, node.tensor(2).shape[0], int(flex_number(node, "num_classes"))
    most, each = int(flex_number(node, "max_detections")), int(flex_number(node, "max_classes_per_detection"))
    scored = node.tensor(1).shape[-1]
    if boxes[:2] != (1, count) or node.tensor(1).shape[:2] != (1, count) or not 0 < classes <= scored or most < 1:
        raise ModelError(f"boxes {boxes}, scores {node.tensor(1).shape} and {count} anchors do not fit")
    corners = _decoded(node)
    scores = node.add("Slice", node.value(1), node.const([scored - classes]), node.const([scored]), node.const([2]))
    thresholds = [node.const([flex_number(node, f"nms_{name}_threshold")], DType.FLOAT32) for name in ("iou", "score")]
    if each < 1:
        raise ModelError(f"{each} classes a box make no sense")
    each = min(each, classes)
    node.few(most * each, "boxes")
    if flex_number(node, "use_regular_nms", 0):
        per_class = min(int(flex_number(node, "detections_per_class", 100)), count)
        index, kind, score, number = _of_each_class(node, corners, scores, thresholds, per_class, most, each)
        live = _live(node, number, most * each, 4)
    else:
        index, kind, score, number = _of_best_classes(node, corners, scores, thresholds, each, most)
        live = _live(node, node.add("Mul", number, node.const(each)), most * each, 4)
    chosen = node.add("Mul", node.add("Gather", corners, index, axis=1), live)
    return [chosen, *(node.add("Unsqueeze", value, node.const([0])) for value in (kind, score)),
            node.reshaped(node.cast(number, DType.FLOAT32), (1,))]


def _live(node: TFLiteNode, number: str, most: int, width: int) -> str:
    """Return ones in the rows before a number, and zeros behind them."""
    live = node.cast(node.add("Less", node.const(np.arange(most)), number), DType.FLOAT32)
    return node.add("Expand", node.reshaped(live, (1, most, 1)), node.const([1, most, width]))


def _decoded(node: TFLiteNode) -> str:
    """Return the boxes as their corners."""
    scales = {axis: flex_number(node, f"{axis}_scale") for axis in "yxhw"}
    if not all(scales.values()):
        raise ModelError("a scale of boxes is zero")

    def part(value: str, begin: int) -> str:
        return node.add("Slice", value, node.const([begin]), node.const([begin + 2]), node.const([-1]))

    anchor_centre, anchor_size = (part(node.value(2), begin) for begin in (0, 2))
    steps = [node.const([scales[a], scales[b]], DType.FLOAT32) for a, b in ("yx", "hw")]
    moved = node.add("Mul", node.add("Div", part(node.value(0), 0), steps[0]), anchor_size)
    centre = node.add("Add", moved, anchor_centre)
    size = node.add("Mul", node.add("Exp", node.add("Div", part(node.value(0), 2), steps[1])), anchor_size)
    half = node.add("Mul", size, node.const(0.5, DType.FLOAT32))
    return node.add("Concat", node.add("Sub", centre, half), node.add("Add", centre, half), axis=2)


Found = tuple[str, str, str, str]
"""Which boxes were chosen, their classes and scores, in the order of scores, and how many they are."""


def _column(node: TFLiteNode, found: str, k: int) -> str:
    return node.reshaped(node.add("Slice", found, node.const([k]), node.const([k + 1]), node.const([1])), (-1,))


def _of_best_classes(
    node: TFLiteNode, corners: str, scores: str, thresholds: list[str], each: int, most: int
) -> Found:
    """Choose boxes by the score of their best class; each chosen box is there with its `each` best classes."""
    values, kinds = node.add_many("TopK", 2, scores, node.const([each]), axis=-1)
    best = node.add("Slice", values, node.const([0]), node.const([1]), node.const([2]))
    by_class = node.add("Transpose", best, perm=(0, 2, 1))
    chosen = _column(node, node.add("NonMaxSuppression", corners, by_class, node.const([most]), *thresholds), 2)
    flat = {
        name: node.reshaped(node.add("Gather", node.add("Squeeze", value, node.const([0])), chosen), (-1,))
        for name, value in (("kind", kinds), ("score", values))
    }
    repeated = node.reshaped(
        node.add("Add", node.add("Unsqueeze", chosen, node.const([1])), node.const([[0] * each])), (-1,)
    )
    rows, number = most * each, node.reshaped(node.add("Shape", chosen), ())
    index, _ = padded(node, repeated, rows)
    kind, _ = padded(node, flat["kind"], rows)
    score, _ = padded(node, flat["score"], rows, DType.FLOAT32)
    return index, node.cast(kind, DType.FLOAT32), score, number


def _of_each_class(
    node: TFLiteNode, corners: str, scores: str, thresholds: list[str], per_class: int, most: int, each: int
) -> Found:
    """Choose boxes of each class by itself, and keep those with the best scores; behind them are empty rows."""
    by_class = node.add("Transpose", scores, perm=(0, 2, 1))
    found = node.add("NonMaxSuppression", corners, by_class, node.const([per_class]), *thresholds)
    all_scores = node.add("GatherND", by_class, found)
    number = node.add("Min", node.reshaped(node.add("Shape", all_scores), ()), node.const(most))
    longer = node.add("Concat", all_scores, node.const(np.full(most, -1), DType.FLOAT32), axis=0)
    score, places = node.add_many("TopK", 2, longer, node.const([most]), axis=0)
    rows = node.add("Concat", found, node.const(np.zeros((most, 3))), axis=0)
    chosen = node.add("Gather", rows, places, axis=0)
    live = node.reshaped(_live(node, number, most, 1), (most,))
    empty = most * each - most
    index, kind, score = (
        node.add("Concat", value, node.const([0] * empty, dtype), axis=0) if empty else value
        for value, dtype in (
            (_column(node, chosen, 2), DType.INT64),
            (node.cast(_column(node, chosen, 1), DType.FLOAT32), DType.FLOAT32),
            (node.add("Mul", score, live), DType.FLOAT32),
        )
    )
    return index, kind, score, number
