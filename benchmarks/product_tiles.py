"""Times the tiles of the general product of matrices in fp32 on a GPU, and compares them with what a load would expect.

    python -m benchmarks.product_tiles                             # judge the estimates by product_tiles.json
    python -m benchmarks.product_tiles --device opencl --jobs 15   # time all tiles, and write that file anew

`weft.ops.gpu.matmul.tiled.microseconds` estimates; `tile_times.py` says how tiles are timed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.tile_times import Sizes, Times, main
from weft.core.graph.dtypes import DType
from weft.core.graph.layout import Layout
from weft.core.graph.op import Op
from weft.core.graph.tensor import Tensor
from weft.kernels.device_caps import DeviceCaps
from weft.ops.gpu.matmul.tiled import legal_tiles, microseconds
from weft.ops.matmul import MatMul


class ProductTiles:
    """Problems are (matrices, rows, columns, products of each sum); a run computes both factors."""

    name = "product"
    data = Path(__file__).with_suffix(".json")
    problems: Sequence[Sizes] = (
        (3, 32, 32, 3136), (6, 32, 32, 784), (12, 32, 32, 196), (4, 32, 32, 196), (8, 48, 48, 196), (3, 3136, 32, 32),
        (6, 784, 32, 32), (1, 256, 512, 49), (1, 49, 512, 256), (1, 196, 768, 196), (1, 384, 768, 196),
        (1, 196, 768, 384), (2, 256, 256, 32), (8, 196, 196, 32), (8, 32, 196, 196), (1, 512, 512, 512),
        (1, 1024, 1024, 1024), (16, 128, 128, 128), (12, 197, 197, 64), (12, 197, 64, 197), (64, 49, 49, 32),
        (64, 49, 32, 49), (1, 64, 64, 4096), (8, 16, 17, 1024), (8, 1024, 17, 16), (1, 100, 81, 256),
        (1, 2048, 2048, 64), (16, 32, 32, 3136), (1, 1, 1000, 768), (1, 300, 300, 300), (32, 8, 128, 1024),
        (1, 128, 4096, 49), (1, 64, 64, 65536), (2, 48, 48, 9216), (1, 256, 256, 2048),
    )
    """Of attention between channels, linear attention, mixers of tokens, scores, and squares."""

    def node(self, sizes: Sizes) -> tuple[Op, list[Tensor], list[Tensor]]:
        """Return a product of row-major matrices."""
        count, m, n, depth = sizes
        lead = (count,) if count > 1 else ()
        a, b, y = (
            Tensor(name, (*lead, *shape), DType.FLOAT32, Layout.NCHW)
            for name, shape in (("a", (m, depth)), ("b", (depth, n)), ("y", (m, n)))
        )
        return MatMul(), [a, b], [y]

    def expected(self, caps: DeviceCaps, sizes: Sizes) -> Times:
        """Return the estimates."""
        count, m, n, depth = sizes
        return {
            repr(tile): microseconds(caps, count * -(-m // tile.side) * -(-n // tile.side), depth, tile)
            for tile in legal_tiles(caps, depth)
        }


if __name__ == "__main__":
    main(ProductTiles(), __doc__.splitlines()[0] if __doc__ else "")
