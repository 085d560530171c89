"""Times the tiles of attention on matrix units on a GPU, and compares them with what a load would expect.

    python -m benchmarks.matrix_attention_tiles                # judge the estimates by matrix_attention_tiles.json
    python -m benchmarks.matrix_attention_tiles --device opencl --jobs 15       # time all tiles, and write it anew

`weft.ops.gpu.attention.matrix.microseconds` estimates; `tile_times.py` says how tiles are timed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.attention_tiles import AttentionTiles
from benchmarks.tile_times import Sizes, Times, main
from weft.core.graph.dtypes import DType
from weft.kernels.device_caps import DeviceCaps
from weft.ops.attention import Extents
from weft.ops.gpu.attention.matrix import legal_tiles, microseconds


class MatrixAttentionTiles(AttentionTiles):
    """The problems of the portable attention in fp16, and longer ones."""

    name, dtype = "attention on matrix units", DType.FLOAT16
    data = Path(__file__).with_suffix(".json")
    problems: Sequence[Sizes] = (
        *(sizes for sizes in AttentionTiles.problems if sizes[-1] % 8 == 0),
        (1, 6, 1500, 1500, 64), (1, 12, 257, 257, 64), (1, 12, 384, 384, 64), (1, 8, 512, 512, 64),
        (16, 12, 197, 197, 64), (1, 1, 3136, 49, 64), (1, 12, 49, 49, 64), (8, 12, 512, 512, 64),
    )

    def estimates(self, caps: DeviceCaps, each: Extents) -> Times:
        """Return the estimates of the kernel's tiles."""
        return {repr(tile): microseconds(caps, each, tile) for tile in legal_tiles(caps, each)}


if __name__ == "__main__":
    main(MatrixAttentionTiles(), __doc__.splitlines()[0] if __doc__ else "")
