"""Draw pictures of simple shapes, with the class of every pixel: what the shapes network was trained on.

A seed stands for one scene, so that training, tests and examples can speak of "scene 7" without
any picture being stored.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weft.models import SHAPES_CLASSES

SIZE = 128
"""Width and height of a scene in pixels, as the network expects them."""

STRIDE = 2
"""Pixels of the picture per pixel of the network's output, along each side."""

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Shape:
    """Describe one shape: its class, its centre and outer radius in pixels, its turn in radians."""

    kind: int
    x: float
    y: float
    radius: float
    turn: float
    hole: float

    def distance(self, size: int) -> Floats:
        """Return each pixel's distance outside the shape's edge; inside it is negative."""
        across = np.arange(size, dtype=np.float32)
        dx, dy = across[None, :] - np.float32(self.x), across[:, None] - np.float32(self.y)
        name = SHAPES_CLASSES[self.kind]
        if name in ("circle", "ring"):
            away = np.hypot(dx, dy)
            outer = away - np.float32(self.radius)
            inner = np.float32(self.hole * self.radius) - away
            return np.asarray(np.maximum(outer, inner) if name == "ring" else outer, np.float32)
        # Inside a regular polygon, no side's normal reaches further than the inscribed circle.
        sides = {"square": 4, "triangle": 3}[name]
        angles = self.turn + np.arange(sides) * (2 * np.pi / sides)
        reach = [dx * np.float32(np.cos(a)) + dy * np.float32(np.sin(a)) for a in angles]
        return np.asarray(np.max(reach, axis=0) - self.radius * np.cos(np.pi / sides), np.float32)


def _smooth(rng: np.random.Generator, cells: int, size: int) -> Floats:
    """Return noise around zero that changes over `size / cells` pixels."""
    grid = rng.standard_normal((cells + 1, cells + 1)).astype(np.float32)
    at = np.arange(size, dtype=np.float32) * np.float32(cells / size)
    low = at.astype(np.int64)
    part = at - low
    rows = grid[low] * (1 - part)[:, None] + grid[low + 1] * part[:, None]
    return np.asarray(rows[:, low] * (1 - part) + rows[:, low + 1] * part, np.float32)


def _stripes(rng: np.random.Generator, size: int) -> Floats:
    """Return a plane wave between minus one and one, in a random direction."""
    angle, length, phase = rng.uniform(0, np.pi), rng.uniform(4, 24), rng.uniform(0, 2 * np.pi)
    across = np.arange(size, dtype=np.float32)
    along = across[None, :] * np.cos(angle) + across[:, None] * np.sin(angle)
    return np.asarray(np.sin(along * (2 * np.pi / length) + phase), np.float32)


def _background(rng: np.random.Generator, size: int) -> Floats:
    base = rng.uniform(0.1, 0.9, 3).astype(np.float32)[:, None, None]
    tints = rng.uniform(-0.09, 0.09, (3, 3)).astype(np.float32)[:, :, None, None]
    layers = (_smooth(rng, 3, size), _smooth(rng, 12, size), _stripes(rng, size))
    picture = base + sum(tint * layer for tint, layer in zip(tints, layers, strict=True))
    return np.asarray(picture, np.float32)


def _scratch(rng: np.random.Generator, size: int) -> Floats:
    """Return the coverage of a thin straight line: clutter that belongs to the background."""
    angle, offset, width = rng.uniform(0, np.pi), rng.uniform(-0.5, 0.5) * size, rng.uniform(0.6, 1.5)
    across = np.arange(size, dtype=np.float32) - np.float32(size / 2)
    away = np.abs(across[None, :] * np.cos(angle) + across[:, None] * np.sin(angle) - offset)
    return np.asarray(np.clip(width + 0.5 - away, 0, 1), np.float32)


def _colour(rng: np.random.Generator, under: Floats) -> Floats:
    """Pick a colour that differs visibly from the one below it."""
    while True:
        colour = rng.uniform(0, 1, 3).astype(np.float32)
        if np.abs(colour - under).max() > 0.3:
            return colour


def _paint(rng: np.random.Generator, picture: Floats, cover: Floats) -> None:
    """Fill the covered pixels with a random colour, slightly striped, shaded from side to side."""
    size = cover.shape[0]
    under = (picture * cover).sum(axis=(1, 2)) / max(float(cover.sum()), 1.0)
    colour = _colour(rng, under)[:, None, None]
    shade = rng.uniform(0, 0.06) * _stripes(rng, size) + rng.uniform(0, 0.04) * _smooth(rng, 2, size)
    picture += cover * (colour + shade.astype(np.float32) - picture)


def _layout(rng: np.random.Generator, size: int) -> list[Shape]:
    """Place up to nine shapes that may touch but do not hide each other."""
    shapes: list[Shape] = []
    for _ in range(int(rng.integers(3, 10))):
        radius = rng.uniform(0.09, 0.22) * size
        x, y = rng.uniform(0.6 * radius, size - 0.6 * radius, 2)
        kind = int(rng.integers(1, len(SHAPES_CLASSES)))
        shape = Shape(kind, x, y, radius, rng.uniform(0, 2 * np.pi), rng.uniform(0.45, 0.7))
        if all(np.hypot(x - s.x, y - s.y) > 0.85 * (radius + s.radius) for s in shapes):
            shapes.append(shape)
    return shapes


def scene(seed: int, size: int = SIZE) -> tuple[Floats, NDArray[np.uint8]]:
    """Draw scene number `seed`: float32 picture (3, size, size) in 0..1, uint8 classes (size, size)."""
    rng = np.random.default_rng(seed)
    picture = _background(rng, size)
    labels = np.zeros((size, size), np.uint8)
    for _ in range(int(rng.integers(0, 4))):
        _paint(rng, picture, _scratch(rng, size))
    for shape in _layout(rng, size):
        distance = shape.distance(size)
        _paint(rng, picture, np.clip(0.5 - distance, 0, 1))
        labels[distance < 0] = shape.kind
    picture += rng.uniform(0.01, 0.06) * rng.standard_normal(picture.shape).astype(np.float32)
    return np.clip(picture, 0, 1).astype(np.float32), labels


def batch(first: int, count: int, size: int = SIZE) -> tuple[Floats, NDArray[np.uint8]]:
    """Draw `count` scenes from number `first` on, as one array of pictures and one of classes."""
    pictures, labels = zip(*(scene(first + index, size) for index in range(count)), strict=True)
    return np.stack(pictures), np.stack(labels)


def targets(labels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the classes at the pixels that the network classifies."""
    return labels[..., ::STRIDE, ::STRIDE]
