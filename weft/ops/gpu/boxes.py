"""NonMaxSuppression and RoiAlign on GPUs."""

from __future__ import annotations

from math import prod

import numpy as np

from weft.core.graph.dtypes import DType
from weft.kernels.device_caps import DeviceCaps
from weft.kernels.gpu_op import GpuOp, Inputs, Outputs, gpu_op
from weft.kernels.launch import KernelBuilder, nested_rounds, power_of_two, tree_items
from weft.kernels.self_test_cases import one_node
from weft.kernels.special import register_family
from weft.ops.boxes import NonMaxSuppression, RoiAlign
from weft.ops.gpu.integers import INTEGERS
from weft.ops.gpu.select import room_sizes
from weft.ops.shape import given

MOST_BITS = 32
"""Bits of a word."""
LARGEST = 512
"""Most items that suppress together."""


def words(caps: DeviceCaps, boxes: int) -> tuple[int, int]:
    """Return how many words hold a bit for each box, and how many bits of each: so few that every item has a word.

    The words are a power of two, so that few kernels differ in it.
    """
    bits = min(-(-boxes // tree_items(caps, LARGEST)), MOST_BITS)
    return power_of_two(-(-boxes // bits)), bits


@gpu_op(NonMaxSuppression)
class NonMaxSuppressionOnGpu(GpuOp):
    """Orders the boxes of each image and class by counting, and suppresses with a bit for each box."""

    fuses_into_store = False
    integers = INTEGERS

    def why_not(self, op: NonMaxSuppression, inputs: Inputs, outputs: Outputs, caps: DeviceCaps) -> str | None:
        """Refuse more boxes than work-group memory has bits."""
        boxes = given(inputs, 0)
        if not op.bounded:
            return "the sizes of its outputs are not bounded"
        if 4 * words(caps, max(boxes.shape[1], 1))[0] > caps.local_memory:
            return f"it has {boxes.shape[1]} boxes; work-group memory of {caps.local_memory} bytes holds fewer bits"
        return None

    def rounds(self, op: NonMaxSuppression, inputs: Inputs, caps: DeviceCaps) -> int:
        """Return the boxes, and for each that is kept an item's share of the others; or the lines, which rows count."""
        boxes, scores = given(inputs, 0), given(inputs, 1)
        count = boxes.shape[1]
        number, bits = words(caps, max(count, 1))
        kept = count if op.most is None else min(op.most, count)
        shares = nested_rounds(-(-number // tree_items(caps, LARGEST)), bits)
        return max(count + kept * shares, prod(scores.shape[:2]))

    def launches(self, op: NonMaxSuppression, k: KernelBuilder, inputs: Inputs, outputs: Outputs) -> None:
        """Launch the order, the suppression, and what writes the rows."""
        boxes, scores, *rest = (*inputs, None, None, None)[:5]
        limit, overlap, least = (None if t is None or not prod(t.shape) else t for t in rest)
        rows = outputs[0]
        assert boxes is not None and scores is not None
        if not rows.shape[0]:
            room_sizes(k, outputs, rows.shape)
            return
        count, classes = boxes.shape[1], scores.shape[1]
        lines = scores.shape[0] * classes
        most = rows.shape[0] // lines
        order = k.scratch((lines, count), DType.INT32)
        number, kept = k.scratch((lines,), DType.INT32), k.scratch((lines,), DType.INT32)
        chosen = k.scratch((lines, most), DType.INT32)
        k.launch(
            "nms_order", reads={"scores": scores, **({"threshold": least} if least is not None else {})},
            writes={"order": order, "number": number}, ints={"TOTAL": lines * count, "BOXES": count},
            items=lines * count, epilogue=False,
        )
        given = {"limit": limit if op.most is None else None, "overlap": overlap}
        number_of_words, bits = words(k.caps, count)
        k.launch(
            "nms_select",
            reads={
                "boxes": boxes, "order": order, "number": number,
                **{name: t for name, t in given.items() if t is not None},
            },
            writes={"y": chosen, "kept": kept},
            ints={"LINES": lines, "CLASSES": classes, "BOXES": count, "MOST": most,
                  "WORDS": number_of_words, "BITS": bits},
            variant={"center": bool(op.center_point_box), "words": number_of_words},
            grid=(min(lines, k.caps.max_grid[0]), 1, 1), local=(k.tree_items(LARGEST), 1, 1), epilogue=False,
        )
        k.launch(
            "nms_rows", reads={"chosen": chosen, "kept": kept},
            writes=dict(zip(("y", "sizes"), outputs, strict=False)),
            ints={"ROOM": rows.shape[0], "LINES": lines, "CLASSES": classes, "MOST": most}, items=rows.shape[0],
            epilogue=False,
        )


@gpu_op(RoiAlign)
class RoiAlignOnGpu(GpuOp):
    """One item an element."""

    integers = INTEGERS
    computes_double = True

    def why_not(self, op: RoiAlign, inputs: Inputs, outputs: Outputs, caps: DeviceCaps) -> str | None:
        """Accept every choice of floats."""
        x = given(inputs, 0)
        return None if x.dtype.is_float else f"{x.name!r} is {x.dtype.value}"

    def rounds(self, op: RoiAlign, inputs: Inputs, caps: DeviceCaps) -> int:
        """Return the points of a bin, or how many they are at most if the roi decides."""
        x = given(inputs, 0)
        return nested_rounds(*(op.sampling_ratio or op.most_points(size) for size in x.shape[2:]))

    def launches(self, op: RoiAlign, k: KernelBuilder, inputs: Inputs, outputs: Outputs) -> None:
        x, rois, images, y = given(inputs, 0), given(inputs, 1), given(inputs, 2), outputs[0]
        half = op.coordinate_transformation_mode == "half_pixel"
        k.launch(
            "roi_align", reads={"x": x, "rois": rois, "images": images}, writes={"y": y},
            ints={
                "TOTAL": prod(y.shape), "COLUMNS": y.shape[3], "ROWS": y.shape[2], "CHANNELS": y.shape[1],
                "HEIGHT": x.shape[2], "WIDTH": x.shape[3], "IMAGES": x.shape[0], "RATIO": op.sampling_ratio,
            },
            floats={"SCALE": op.spatial_scale, "HALF": 0.5 if half else 0.0},
            variant={"half": half, "largest": op.mode == "max"}, items=prod(y.shape),
        )


_BOXES = np.array([[[0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, 2, 1, 3], [0.4, 2, 1.4, 3], [5, 5, 6, 6]]], np.float32)
_SCORES = np.array([[[0.9, 0.75, 0.6, 0.95, 0.5], [0.1, 0.2, 0.3, 0.2, 0.1]]], np.float32)
register_family(
    "boxes", "suppression of boxes, and what lies within them",
    cases=lambda: (
        one_node(
            NonMaxSuppression(bounded=True, most=3), _BOXES, _SCORES, np.array([3]), np.array([0.3], np.float32)
        ),
        one_node(
            RoiAlign(output_height=2, output_width=3, sampling_ratio=2),
            (1, 3, 7, 9), 4 * _BOXES[0], np.zeros(5, np.int64),
        ),
    ),
    templates=("nms_order", "nms_select", "nms_rows", "roi_align"),
)
