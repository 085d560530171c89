"""The ops of torchvision: boxes, regions and deformable convolutions."""

from __future__ import annotations

from weft.core.graph.dtypes import DType
from weft.frontends.torch.builder import Builder, Value, static
from weft.frontends.torch.rules import Unsupported, aten

EVERY = 2**62
"""More boxes than there can be."""


@aten("nms", "torchvision")
def nms(g: Builder, boxes: Value, scores: Value, overlap: float) -> Value:
    given, rated = g.unsqueeze(boxes, [0]), g.unsqueeze(scores, [0, 1])
    rows = g.op("NonMaxSuppression", given, rated, g.scalar(EVERY, DType.INT64), g.scalar(overlap, DType.FLOAT32),
                dtype=DType.INT64, shape=(None, 3))
    return g.squeeze(g.slice(rows, 1, 2, 3), [1])


@aten("roi_align", "torchvision")
def roi_align(
    g: Builder, x: Value, rois: Value, scale: float, height: int, width: int, samples: int, aligned: bool
) -> Value:
    images = g.cast(g.squeeze(g.slice(rois, 1, 0, 1), [1]), DType.INT64)
    return g.op(
        "RoiAlign", x, g.slice(rois, 1, 1, 5), images, output_height=height, output_width=width,
        sampling_ratio=max(samples, 0), spatial_scale=float(scale),
        coordinate_transformation_mode="half_pixel" if aligned else "output_half_pixel",
    )


@aten("deform_conv2d", "torchvision")
def deform_conv2d(
    g: Builder, x: Value, weight: Value, offset: Value, mask: Value, bias: Value, stride_h: int, stride_w: int,
    pad_h: int, pad_w: int, dilation_h: int, dilation_w: int, groups: int, offset_groups: int, use_mask: bool,
) -> Value:
    kernel = static(weight, "weights")[2:]
    if not all(isinstance(p, int) for p in (pad_h, pad_w)):
        raise Unsupported("has pads that depend on an open size")
    return g.op(
        "DeformConv", x, weight, offset, bias, mask if use_mask else None, kernel_shape=kernel,
        strides=(stride_h, stride_w), pads=(pad_h, pad_w, pad_h, pad_w), dilations=(dilation_h, dilation_w),
        group=groups, offset_group=offset_groups,
    )
