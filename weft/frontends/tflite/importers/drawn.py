"""Random numbers. Every run draws the same ones, which are not those that LiteRT draws."""

from __future__ import annotations

from zlib import crc32

from weft.frontends.tflite.node import TFLiteNode
from weft.frontends.tflite.registry import importer

DRAWN = {"RANDOM_UNIFORM": "RandomUniform", "RANDOM_STANDARD_NORMAL": "RandomNormal"}


def _seed(node: TFLiteNode) -> float:
    """Return a seed of 24 bits: the file's, or else one of the operator's own."""
    given = node.option("seed") ^ node.option("seed2")
    return float((given or crc32(node.name.encode())) % 2**24)


@importer(*DRAWN)
def drawn(node: TFLiteNode) -> str:
    """Draw numbers in a constant shape: from 0 to before 1, or of the standard normal distribution."""
    shape = node.integers(0, "the shape")
    return node.add(DRAWN[node.op], shape=shape, dtype=node.output_dtype(), seed=_seed(node))


@importer("MULTINOMIAL")
def multinomial(node: TFLiteNode) -> str:
    """Draw classes by the logarithms of their unscaled probabilities; inputs these, and how many to draw."""
    (count,) = node.integers(1, "how many to draw")
    return node.add("Multinomial", node.value(0), sample_size=count, dtype=node.output_dtype(), seed=_seed(node))
