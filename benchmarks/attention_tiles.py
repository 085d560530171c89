"""Times the tiles of the portable attention in fp32 on a GPU, and compares them with what a load would expect.

    python -m benchmarks.attention_tiles                             # judge the estimates by attention_tiles.json
    python -m benchmarks.attention_tiles --device opencl --jobs 15   # time all tiles, and write that file anew

`weft.ops.gpu.attention.tiled.microseconds` estimates; `tile_times.py` says how tiles are timed.
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
from weft.ops.attention import Attention, Extents
from weft.ops.gpu.attention.tiled import legal_tiles, microseconds


class AttentionTiles:
    """Problems are (batch, heads, queries, keys, elements of a head), of queries, keys and values alike."""

    name, dtype = "attention", DType.FLOAT32
    data = Path(__file__).with_suffix(".json")
    problems: Sequence[Sizes] = (
        (16, 6, 197, 197, 64), (1, 12, 1024, 1024, 64), (1, 8, 4096, 77, 40), (1024, 3, 49, 49, 32),
        (1, 8, 1024, 1024, 80), (16, 12, 128, 128, 32), (1, 12, 197, 197, 64), (1, 6, 197, 197, 64),
        (4, 4, 256, 256, 36), (1, 8, 100, 850, 32), (1, 12, 128, 128, 32), (64, 3, 49, 49, 32), (64, 2, 49, 49, 32),
        (16, 6, 49, 49, 32), (4, 12, 49, 49, 32), (1, 24, 49, 49, 32), (4, 4, 64, 64, 48), (4, 4, 16, 16, 60),
        (1, 12, 1, 1024, 64), (1, 16, 577, 577, 64), (1, 4, 50, 50, 16), (1, 8, 256, 256, 128),
    )
    """Of vision transformers, windows, language models with many keys or one query, decoders, pictures with texts."""

    def node(self, sizes: Sizes) -> tuple[Op, list[Tensor], list[Tensor]]:
        """Return an attention of four axes."""
        batch, heads, queries, keys, depth = sizes
        q, k, v, y = (
            Tensor(name, (batch, heads, rows, depth), self.dtype, Layout.NCHW)
            for name, rows in (("q", queries), ("k", keys), ("v", keys), ("y", queries))
        )
        return Attention(scale=depth**-0.5), [q, k, v], [y]

    def expected(self, caps: DeviceCaps, sizes: Sizes) -> Times:
        """Return the estimates."""
        batch, heads, queries, keys, depth = sizes
        extents = Extents((batch, heads), queries, keys, depth, depth)
        return self.estimates(caps, extents)

    def estimates(self, caps: DeviceCaps, each: Extents) -> Times:
        """Return the estimates of the kernel's tiles."""
        return {repr(tile): microseconds(caps, each, tile) for tile in legal_tiles(caps, each)}


if __name__ == "__main__":
    main(AttentionTiles(), __doc__.splitlines()[0] if __doc__ else "")
