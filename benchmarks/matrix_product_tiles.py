"""Times the tiles of products of two computed matrices on matrix units, and compares them with what a load expects.

    python -m benchmarks.matrix_product_tiles                             # judge the estimates by the file of times
    python -m benchmarks.matrix_product_tiles --device opencl --jobs 15   # time all tiles, and write that file anew

`weft.ops.gpu.matmul.matrix.microseconds` estimates; `tile_times.py` says how tiles are timed. The tiles of the portable
kernel are timed beside them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.tile_times import Sizes, Times, main
from weft.core.graph.dtypes import DType
from weft.core.graph.layout import PACK, Layout
from weft.core.graph.op import Op
from weft.core.graph.tensor import Tensor
from weft.kernels.device_caps import DeviceCaps
from weft.ops.gpu.matmul import matrix, tiled
from weft.ops.gpu.matmul.problem import ProductProblem
from weft.ops.matmul import Gemm, MatMul


class MatrixProductTiles:
    """Problems are (matrices, rows, columns, products of each sum, whether the second lies transposed)."""

    name = "product in fp16"
    data = Path(__file__).with_suffix(".json")
    problems: Sequence[Sizes] = (
        (12, 128, 128, 64, 0), (12, 128, 64, 128, 0), (12, 128, 512, 64, 0), (8, 128, 128, 256, 0),
        (12, 197, 197, 64, 0), (12, 197, 64, 197, 0), (64, 49, 49, 32, 0), (64, 49, 32, 49, 0), (4, 197, 197, 48, 0),
        (16, 1024, 64, 1024, 0), (12, 4096, 64, 64, 0), (64, 64, 64, 64, 0), (3, 32, 32, 3136, 0), (3, 3136, 32, 32, 0),
        (8, 32, 196, 196, 0), (6, 784, 32, 32, 0), (1, 256, 512, 49, 0), (16, 32, 32, 3136, 0), (1, 64, 64, 65536, 0),
        (1, 128, 4096, 49, 0), (32, 8, 128, 1024, 0), (192, 197, 197, 64, 0), (256, 128, 128, 64, 0),
        (48, 4096, 64, 256, 0), (1, 512, 512, 512, 0), (1, 1024, 1024, 1024, 0), (1, 2048, 2048, 2048, 0),
        (1, 300, 300, 300, 0), (1, 128, 128, 64, 1), (1, 196, 196, 768, 1), (1, 1024, 1024, 64, 1),
        (1, 2048, 2048, 64, 1), (1, 512, 512, 512, 1), (1, 2048, 2048, 2048, 1), (1, 333, 333, 333, 1),
    )
    """Of scores with terms of their own, attention between channels, linear attention, mixers, and squares."""

    def node(self, sizes: Sizes) -> tuple[Op, list[Tensor], list[Tensor]]:
        """Return a product of row-major matrices, or of one whose second is transposed."""
        count, m, n, depth, turned = sizes
        lead = (count,) if count > 1 else ()
        second = (n, depth) if turned else (depth, n)
        a, b, y = (
            Tensor(name, (*lead, *shape), DType.FLOAT16, Layout.NCHW)
            for name, shape in (("a", (m, depth)), ("b", second), ("y", (m, n)))
        )
        return Gemm(transB=1) if turned else MatMul(), [a, b], [y]

    def expected(self, caps: DeviceCaps, sizes: Sizes) -> Times:
        """Return the estimates of this kernel's tiles, and of the portable kernel's."""
        problem, (count, m, n, depth, _) = _problem(caps, sizes), sizes
        portable = {
            repr(tile): tiled.microseconds(caps, count * -(-m // tile.side) * -(-n // tile.side), depth, tile)
            for tile in tiled.legal_tiles(caps, depth)
        }
        return portable | {repr(tile): matrix.microseconds(problem, tile) for tile in matrix.legal_tiles(problem)}


def _problem(caps: DeviceCaps, sizes: Sizes) -> ProductProblem:
    count, m, n, depth, turned = sizes
    return ProductProblem(
        m=m, n=n, k=depth, a_steps=(depth, 1), b_steps=(1, depth) if turned else (n, 1), first=(0, 0),
        batch=(count,) if count > 1 else (), a_batch=(m * depth,) if count > 1 else (),
        b_batch=(depth * n,) if count > 1 else (), weights=False, bias=True, adds=False, holds_scale=True,
        joins_channels=True, double=False, halves=True, plain=(True, True), fours=n % PACK == 0, caps=caps,
    )


if __name__ == "__main__":
    main(MatrixProductTiles(), __doc__.splitlines()[0] if __doc__ else "")
