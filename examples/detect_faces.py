"""Find faces in a picture with UltraFace (RFB-320 or slim-320) and draw them.

    python detect_faces.py ultraface_rfb_320.onnx people.jpg faces.png

The network looks at 4420 places and sizes of a box, its anchors. For each it gives a score for "background"
and for "face", and the corners of a box relative to the picture. Most of the boxes are about the same few
faces: of those that overlap much, the one with the best score is kept.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

import weft
from weft.extend import Array

MEAN, SCALE = 127.0, 128.0


def prepare(picture: Image.Image, shape: tuple[int, ...]) -> Array:
    """Return the network's input (1, 3, h, w): red first, about -1..1."""
    height, width = shape[2:]
    pixels = np.asarray(picture.resize((width, height), Image.Resampling.BILINEAR), np.float32)
    return ((pixels - MEAN) / SCALE).transpose(2, 0, 1)[None]


def decode(scores: Array, boxes: Array, size: tuple[int, int], threshold: float) -> tuple[Array, Array]:
    """Return the scores (n,) and boxes (n, 4) in pixels of the anchors that are faces, the best first.

    `scores` is (1, anchors, 2), background and face; `boxes` is (1, anchors, 4), left, top, right, bottom in
    0..1; `size` is the picture's width and height.
    """
    faces = scores[0, :, 1]
    order = np.argsort(-faces)
    order = order[faces[order] > threshold]
    width, height = size
    corners = boxes[0, order].clip(0, 1) * np.array([width, height, width, height], np.float32)
    return faces[order], corners


def overlap(box: Array, others: Array) -> Array:
    """Return the area that a box shares with each of the others, relative to the area of both."""
    low, high = np.maximum(box[:2], others[:, :2]), np.minimum(box[2:], others[:, 2:])
    shared = np.prod(np.clip(high - low, 0, None), axis=1)
    areas = np.prod(others[:, 2:] - others[:, :2], axis=1)
    both = np.prod(box[2:] - box[:2]) + areas - shared
    return np.asarray(shared / np.maximum(both, 1e-9))


def suppress(boxes: Array, most: float) -> list[int]:
    """Return which boxes to keep (the best come first): those that overlap no kept one by more than `most`."""
    kept: list[int] = []
    for k, box in enumerate(boxes):
        if not kept or overlap(box, boxes[kept]).max() <= most:
            kept.append(k)
    return kept


def draw(picture: Image.Image, scores: Array, boxes: Array) -> None:
    """Draw the boxes with their scores into the picture."""
    pen = ImageDraw.Draw(picture)
    line = max(2, min(picture.size) // 200)
    for score, (left, top, right, bottom) in zip(scores, boxes.tolist(), strict=True):
        pen.rectangle((left, top, right, bottom), outline=(64, 224, 96), width=line)
        pen.text((left + line + 1, top + line), f"{score:.2f}", fill=(64, 224, 96))


def main() -> None:
    """Read the command line, find the faces, print and draw them."""
    parser = argparse.ArgumentParser(description="Find faces in a picture and draw them.")
    parser.add_argument("model", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("drawn", type=Path, help="the file that the picture with boxes is written to")
    parser.add_argument("--device", default="auto", help='"cpu", "opencl", "vulkan:1" ...')
    parser.add_argument("--precision", default="high", choices=["high", "normal", "low"])
    parser.add_argument("--threshold", type=float, default=0.7, help="the least score of a face")
    parser.add_argument("--overlap", type=float, default=0.3, help="more than this is one face")
    given = parser.parse_args()

    with Image.open(given.picture) as opened:
        picture = opened.convert("RGB")
    with weft.load(given.model, given.device, precision=given.precision) as session:
        ((name, declared),) = session.inputs.items()
        shape = tuple(d if isinstance(d, int) else 1 for d in declared)
        found = dict(zip(session.outputs, session.run({name: prepare(picture, shape)}), strict=True))
        where = session.report.nodes_by_device
    scores, boxes = decode(found["scores"], found["boxes"], picture.size, given.threshold)
    kept = suppress(boxes, given.overlap)
    draw(picture, scores[kept], boxes[kept])
    picture.save(given.drawn)
    for score, box in zip(scores[kept], boxes[kept].round().astype(int), strict=True):
        print(f"{score:.4f}  {box[0]},{box[1]} to {box[2]},{box[3]}")
    print(f"{len(kept)} faces of {len(boxes)} boxes; wrote {given.drawn}")
    print("nodes:", ", ".join(f"{device} {count}" for device, count in where.items()))


if __name__ == "__main__":
    main()
