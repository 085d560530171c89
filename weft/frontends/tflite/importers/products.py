"""Products of matrices."""

from __future__ import annotations

from string import ascii_lowercase

from weft.core.graph.dtypes import DType
from weft.errors import ModelError
from weft.frontends.tflite.node import TFLiteNode
from weft.frontends.tflite.registry import importer


@importer("FULLY_CONNECTED")
def fully_connected(node: TFLiteNode) -> str:
    """Multiply rows by weights [out, in]; all axes but the last are rows, unless `keep_num_dims`."""
    if node.option("weights_format"):
        raise ModelError("shuffled weights are not supported")
    if node.rank(1) != 2:
        raise ModelError(f"weights of {node.rank(1)} axes are not supported")
    x, (out, depth) = node.value(0), node.tensor(1).shape
    keeps = bool(node.option("keep_num_dims")) and node.rank() != 2
    if node.rank() != 2 or node.sizes()[-1] != depth:
        x = node.reshaped(x, (-1, depth))
    if node.constant(1) is not None:
        y = node.add("Gemm", x, node.permuted(1, (1, 0)), node.bias(2, 0, 1))
    else:
        y = node.add("Gemm", x, node.value(1), node.bias(2, 0, 1), transB=1)
    if keeps:
        sizes = node.sizes()[:-1]
        if sum(size is None for size in sizes) > 1:
            shape = node.add("Concat", node.add("Shape", node.value(0), end=len(sizes)), node.const([out]), axis=0)
            y = node.add("Reshape", y, shape)
        else:
            y = node.reshaped(y, (*(-1 if size is None else size for size in sizes), out))
    return node.activated(y)


@importer("BATCH_MATMUL")
def batch_matmul(node: TFLiteNode) -> str:
    """Multiply stacks of matrices, which may be transposed first."""
    x, y = (
        node.permuted(k, (*range(node.rank(k) - 2), node.rank(k) - 1, node.rank(k) - 2))
        if node.option(option) else node.value(k)
        for k, option in enumerate(("adj_x", "adj_y"))
    )
    dtype = node.output_dtype()
    if node.dtype() is DType.INT8:  # integers without a scale
        return node.cast(node.add("MatMulInteger", x, y), dtype, DType.INT32)
    return node.add("MatMul", x, y)


@importer("STABLEHLO_DOT_GENERAL")
def dot_general(node: TFLiteNode) -> str:
    """Sum products along some axes, for others that go together; what is left of both follows."""
    letters = iter(ascii_lowercase)
    batches, sums = ([node.listed(f"{side}_{kind}") for side in ("left", "right")] for kind in ("batch", "contracted"))
    names: list[dict[int, str]] = [{}, {}]
    for first, second in (batches, sums):
        for a, b in zip(first, second, strict=True):
            names[0][a] = names[1][b] = next(letters)
    texts = ["".join(own.get(axis) or own.setdefault(axis, next(letters)) for axis in range(node.rank(k)))
             for k, own in enumerate(names)]
    summed = {names[0][axis] for axis in sums[0]}
    made = [names[0][axis] for axis in batches[0]]
    made += [letter for text in texts for letter in text if letter not in summed and letter not in made]
    return node.add("Einsum", node.value(0), node.value(1), equation=f"{texts[0]},{texts[1]}->{''.join(made)}")
