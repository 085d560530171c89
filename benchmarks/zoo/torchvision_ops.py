"""Stand-ins for torchvision's compiled ops, for machines where its extension does not load.

PyPI's torchvision is linked to CUDA; beside a PyTorch for CPUs its extension does not load, and `import torchvision`
fails. Its networks are plain Python but for these ops. Only the shapes and the ONNX form of a stand-in reach the
exported file; `nms` and `roi_align` are computed here so that tracing sees values.
"""

from __future__ import annotations

from typing import Any

import torch

SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, "
    "int sampling_ratio, bool aligned) -> Tensor",
)


def define_where_missing() -> bool:
    """Register the ops unless torchvision's extension does; tell whether they were needed."""
    try:
        import torchvision
    except RuntimeError:  # its module of ops asks for one that is not registered
        pass
    else:
        return False
    library = torch.library.Library("torchvision", "DEF")
    for schema in SCHEMAS:
        library.define(schema)
    library.impl("nms", _nms, "CPU")
    library.impl("roi_align", _roi_align, "CPU")
    library.impl("roi_align", _roi_align_shape, "Meta")
    global _kept
    _kept = library
    import torchvision

    # Torchvision asks for its extension before it calls an op of it, and compiles Python where there is none.
    torchvision.ops.boxes._assert_has_ops = _no_check
    torchvision.ops.roi_align.__globals__.update(_assert_has_ops=_no_check, _has_ops=_yes)
    from torchvision.ops._register_onnx_ops import _register_custom_op

    _register_custom_op()
    return True


_kept: Any = None
"""The library, which takes its ops along when it goes."""


def _no_check() -> None:  # TorchScript compiles it, so it is no lambda
    pass


def _yes() -> bool:
    return True


def _nms(boxes: Any, scores: Any, iou_threshold: float) -> Any:
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    left, kept = scores.argsort(descending=True, stable=True), []
    while left.numel():
        first, left = left[0], left[1:]
        kept.append(first)
        low, high = torch.maximum(boxes[first, :2], boxes[left, :2]), torch.minimum(boxes[first, 2:], boxes[left, 2:])
        common = (high - low).clamp(min=0).prod(1)
        left = left[common <= iou_threshold * (areas[first] + areas[left] - common)]
    return torch.stack(kept) if kept else torch.empty(0, dtype=torch.long)


def _roi_align(
    input: Any, rois: Any, scale: float, height: int, width: int, sampling_ratio: int, aligned: bool
) -> Any:
    from torchvision.ops.roi_align import _roi_align as in_python

    # The function itself: what wraps it compiles it, which cannot be traced.
    return in_python.__wrapped__(input, rois, scale, height, width, sampling_ratio, aligned)


def _roi_align_shape(
    input: Any, rois: Any, scale: float, height: int, width: int, sampling_ratio: int, aligned: bool
) -> Any:
    return input.new_empty((rois.shape[0], input.shape[1], height, width))
