"""Fourier transforms. A complex tensor has an axis more here, behind the others: its real and imaginary parts."""

from __future__ import annotations

from weft.errors import ModelError
from weft.frontends.tflite.node import TFLiteNode
from weft.frontends.tflite.registry import importer


@importer("RFFT2D", of_complex=True)
def rfft2d(node: TFLiteNode) -> str:
    """Transform real images along their last two axes, of which the last has the bins up to the middle one."""
    lengths, rank = node.integers(1, "the lengths"), node.rank()
    if len(lengths) != 2 or min(lengths) < 1 or rank < 2:
        raise ModelError(f"transforms of lengths {lengths} along two of {rank} axes make no sense")
    x = node.add("Unsqueeze", node.value(0), node.const([-1]))
    for axis, length, onesided in ((rank - 1, lengths[1], 1), (rank - 2, lengths[0], 0)):
        x = node.add("DFT", x, node.const(length), node.const(axis), onesided=onesided)
    return x


@importer("REAL", "IMAG", of_complex=True)
def part(node: TFLiteNode) -> str:
    """Return the real or the imaginary parts."""
    if not node.tensor(0).dtype.is_complex:
        raise ModelError("the parts of numbers that are not complex are not supported")
    return node.add("Gather", node.value(0), node.const(int(node.op == "IMAG")), axis=node.rank())


@importer("COMPLEX_ABS", of_complex=True)
def complex_abs(node: TFLiteNode) -> str:
    """Return how far numbers are from zero."""
    return node.add("ReduceL2", node.value(0), node.const([node.rank()]), keepdims=0)
