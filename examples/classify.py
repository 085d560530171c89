"""Say what a picture shows, with any classifier of pictures in ONNX.

SqueezeNet wants blue first, 0..255, minus a mean:

    python classify.py squeezenet.onnx kitten.png --labels imagenet_labels.txt --mean 104,117,123 --bgr

Networks from torchvision want red first, 0..1, standardized, and give scores rather than probabilities:

    python classify.py resnet50.onnx kitten.png --mean 123.675,116.28,103.53 --std 58.395,57.12,57.375 --softmax
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from PIL import Image

import weft
from weft.extend import Array


def numbers(text: str) -> Array:
    """Return numbers separated by commas as an array that is broadcast over (h, w, c)."""
    return np.array([float(part) for part in text.split(",")], np.float32)


def fit(picture: Image.Image, width: int, height: int) -> Image.Image:
    """Return the middle of a picture, resized to width x height without distortion."""
    scale = max(width / picture.width, height / picture.height)
    size = (max(round(picture.width * scale), width), max(round(picture.height * scale), height))
    left, top = (size[0] - width) // 2, (size[1] - height) // 2
    return picture.resize(size, Image.Resampling.BILINEAR).crop((left, top, left + width, top + height))


def prepare(picture: Image.Image, shape: tuple[int, ...], mean: Array, std: Array, bgr: bool) -> Array:
    """Return the network's input (1, 3, h, w) for a picture."""
    height, width = shape[2:]
    pixels = np.asarray(fit(picture.convert("RGB"), width, height), np.float32)
    if bgr:
        pixels = pixels[..., ::-1]
    return ((pixels - mean) / std).transpose(2, 0, 1)[None]


def read_labels(path: Path | None, count: int) -> list[str]:
    """Return the names of the classes, one a line: `name` or `7,name`; without a file, their numbers."""
    if path is None:
        return [f"class {k}" for k in range(count)]
    lines = path.read_text(encoding="utf-8").splitlines()
    return [line.partition(",")[2] if line.partition(",")[0].isdigit() else line for line in lines]


def main() -> None:
    """Read the command line, run the network, print the best classes and where it ran."""
    parser = argparse.ArgumentParser(description="Say what a picture shows.")
    parser.add_argument("model", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--labels", type=Path, help="names of the classes, one a line")
    parser.add_argument("--device", default="auto", help='"cpu", "opencl", "vulkan:1" ...')
    parser.add_argument("--precision", default="high", choices=["high", "normal", "low"])
    parser.add_argument("--mean", type=numbers, default=numbers("0"), help="subtracted from 0..255")
    parser.add_argument("--std", type=numbers, default=numbers("1"), help="divided by after that")
    parser.add_argument("--bgr", action="store_true", help="blue first")
    parser.add_argument("--softmax", action="store_true", help="the network gives scores")
    parser.add_argument("--top", type=int, default=5)
    given = parser.parse_args()

    with weft.load(given.model, given.device, precision=given.precision) as session:
        ((name, declared),) = session.inputs.items()
        usual = (1, 3, 224, 224)  # for dimensions that the file leaves open
        shape = tuple(d if isinstance(d, int) else u for d, u in zip(declared, usual, strict=True))
        with Image.open(given.picture) as picture:
            x = prepare(picture, shape, given.mean, given.std, given.bgr)
        scores = session.run({name: x})[0].reshape(-1).astype(np.float64)
        where = session.report.nodes_by_device
    if given.softmax:
        scores = np.exp(scores - scores.max())
        scores /= scores.sum()
    labels = read_labels(given.labels, scores.size)
    for k in np.argsort(-scores)[: given.top]:
        print(f"{scores[k]:.4f}  {labels[k]}")
    print("nodes:", ", ".join(f"{device} {count}" for device, count in where.items()))


if __name__ == "__main__":
    main()
