"""Images: other sizes, and blocks of pixels as channels or as images of their own."""

from __future__ import annotations

from collections.abc import Sequence

from weft.core.graph.dtypes import DType
from weft.errors import ModelError
from weft.frontends.tflite.node import TFLiteNode
from weft.frontends.tflite.registry import importer


@importer("RESIZE_BILINEAR")
def resize_bilinear(node: TFLiteNode) -> str:
    """Interpolate linearly between pixels."""
    where = "half_pixel" if node.option("half_pixel_centers") else "asymmetric"
    if node.option("align_corners"):
        where = "align_corners"
    return _resized(node, mode="linear", coordinate_transformation_mode=where)


@importer("RESIZE_NEAREST_NEIGHBOR")
def resize_nearest_neighbor(node: TFLiteNode) -> str:
    """Take the nearest pixel; halves go up."""
    if node.option("align_corners"):
        return _resized(node, coordinate_transformation_mode="align_corners", nearest_mode="round_prefer_ceil")
    if node.option("half_pixel_centers"):
        return _resized(node, coordinate_transformation_mode="half_pixel", nearest_mode="round_prefer_ceil")
    return _resized(node, coordinate_transformation_mode="asymmetric", nearest_mode="floor")


def _resized(node: TFLiteNode, **attributes: str) -> str:
    if node.rank() != 4:
        raise ModelError(f"an image has 4 axes, and this has {node.rank()}")
    x = node.first(node.value(0))
    if node.constant(1) is not None:
        sizes = node.integers(1, "the size")
        if len(sizes) != 2 or min(sizes) < 1:
            raise ModelError(f"an image of size {sizes} makes no sense")
        wanted = node.const(sizes)
    else:
        wanted = node.cast(node.value(1), DType.INT64, node.dtype(1))
    return node.last(node.add("Resize", x, "", "", wanted, axes=(2, 3), **attributes))


@importer("DEPTH_TO_SPACE", moves=True)
def depth_to_space(node: TFLiteNode) -> str:
    """Lay channels out as blocks of pixels."""
    return node.last(node.add("DepthToSpace", node.first(node.value(0)), blocksize=node.option("block_size")))


@importer("SPACE_TO_DEPTH", moves=True)
def space_to_depth(node: TFLiteNode) -> str:
    """Lay blocks of pixels out as channels."""
    return node.last(node.add("SpaceToDepth", node.first(node.value(0)), blocksize=node.option("block_size")))


def _known_sizes(node: TFLiteNode) -> tuple[int, ...]:
    sizes = node.sizes()
    if None in sizes[1:]:
        raise ModelError("an input of open sizes is not supported", why=f"it is {sizes}")
    return tuple(-1 if size is None else size for size in sizes)


def _pairs(node: TFLiteNode, k: int, count: int, what: str) -> list[tuple[int, int]]:
    values = node.integers(k, what)
    if len(values) != 2 * count or min(values, default=0) < 0:
        raise ModelError(f"{what} {values} do not fit {count} axes")
    return list(zip(values[::2], values[1::2], strict=True))


@importer("SPACE_TO_BATCH_ND")
def space_to_batch(node: TFLiteNode) -> str:
    """Lay blocks of pixels out as images of their own; inputs x, blocks, paddings."""
    blocks, sizes = node.integers(1, "the blocks"), list(_known_sizes(node))
    count, batch = len(blocks), sizes[0]
    pads = _pairs(node, 2, count, "the paddings")
    behind = len(sizes) - 1 - count
    x = node.value(0)
    if any(any(pair) for pair in pads):
        widths = [0, *(before for before, _ in pads), *[0] * behind, 0, *(after for _, after in pads), *[0] * behind]
        x = node.add("Pad", x, node.const(widths), node.scalar(0))
    padded = [size + sum(pair) for size, pair in zip(sizes[1:], pads, strict=False)]
    if min(blocks) < 1 or any(n % b for n, b in zip(padded, blocks, strict=True)):
        raise ModelError(f"blocks of {blocks} do not fit sizes of {padded}")
    tiles = [n // b for n, b in zip(padded, blocks, strict=True)]
    divided = [batch, *(d for pair in zip(tiles, blocks, strict=True) for d in pair), *sizes[1 + count :]]
    order = [*range(2, 2 * count + 1, 2), 0, *range(1, 2 * count + 1, 2), *range(2 * count + 1, len(divided))]
    x = node.add("Transpose", node.reshaped(x, divided), perm=tuple(order))
    return node.reshaped(x, (-1, *tiles, *sizes[1 + count :]))


@importer("BATCH_TO_SPACE_ND")
def batch_to_space(node: TFLiteNode) -> str:
    """Lay images out as blocks of pixels; inputs x, blocks, what to cut off."""
    blocks, sizes = node.integers(1, "the blocks"), list(_known_sizes(node))
    count = len(blocks)
    crops = _pairs(node, 2, count, "the crops")
    if min(blocks) < 1:
        raise ModelError(f"blocks of {blocks} make no sense")
    x = node.reshaped(node.value(0), (*blocks, -1, *sizes[1:]))
    order = [count, *_woven(count), *range(2 * count + 1, count + len(sizes))]
    x = node.add("Transpose", x, perm=tuple(order))
    whole = [n * b for n, b in zip(sizes[1:], blocks, strict=False)]
    x = node.reshaped(x, (-1, *whole, *sizes[1 + count :]))
    if not any(any(pair) for pair in crops):
        return x
    ends = [n - after for n, (_, after) in zip(whole, crops, strict=True)]
    starts = [before for before, _ in crops]
    return node.add("Slice", x, node.const(starts), node.const(ends), node.const(range(1, count + 1)))


def _woven(count: int) -> Sequence[int]:
    """Return the axes of the pixels, each before that of its block."""
    return [axis for k in range(count) for axis in (count + 1 + k, k)]
