"""Times the tiles of convolutions in groups in fp32 on a GPU, and compares them with what a load would expect.

    python -m benchmarks.grouped_tiles                             # judge the estimates by grouped_tiles.json
    python -m benchmarks.grouped_tiles --device opencl --jobs 15   # time all tiles, and write that file anew

`weft.ops.gpu.conv.grouped.blocks.microseconds` estimates; `tile_times.py` says how tiles are timed. Where a convolution
of each group by itself competes (`conv_apart`), its tiles are timed, too, and told apart by their names.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.tile_times import Sizes, Times, main
from weft.core.graph.dtypes import DType
from weft.core.graph.layout import Layout
from weft.core.graph.op import Op
from weft.core.graph.tensor import Tensor
from weft.kernels.device_caps import DeviceCaps
from weft.ops.conv import Conv
from weft.ops.gpu.conv.grouped.blocks import legal_tiles, microseconds
from weft.ops.gpu.conv.problem import ConvProblem


class GroupedTiles:
    """Problems are (images, channels in, channels out, pixels of a side, taps of a side, groups)."""

    name = "convolution in groups"
    data = Path(__file__).with_suffix(".json")
    problems: Sequence[Sizes] = (
        (1, 512, 1024, 14, 3, 2), (1, 256, 512, 28, 3, 2), (1, 128, 256, 56, 3, 2), (1, 64, 128, 56, 3, 2),
        (1, 384, 384, 13, 3, 2), (1, 1056, 1056, 7, 3, 4), (1, 2048, 2048, 7, 3, 16), (1, 896, 896, 14, 3, 7),
        (1, 512, 512, 28, 3, 4), (16, 64, 128, 56, 3, 2), (1, 256, 256, 14, 3, 8), (1, 512, 512, 14, 1, 4),
        (1, 128, 128, 56, 3, 32), (1, 256, 256, 28, 3, 32), (1, 512, 512, 14, 3, 32), (1, 1024, 1024, 7, 3, 32),
        (1, 160, 160, 28, 3, 10), (1, 384, 384, 14, 3, 12), (16, 128, 128, 56, 3, 32), (16, 512, 512, 14, 3, 32),
        (1, 96, 96, 28, 5, 6),
    )
    """Of ResNeSt, AlexNet, RegNet and ResNeXt."""

    def node(self, sizes: Sizes) -> tuple[Op, list[Tensor], list[Tensor]]:
        """Return a convolution padded by half of its kernel, in blocks of four channels."""
        images, channels_in, channels_out, side, taps, groups = sizes
        rng = np.random.default_rng(0)
        filters = rng.standard_normal((channels_out, channels_in // groups, taps, taps)).astype(np.float32)
        shift = rng.standard_normal(channels_out).astype(np.float32)
        x, y = (
            Tensor(name, (images, channels, side, side), DType.FLOAT32, Layout.NC4HW4)
            for name, channels in (("x", channels_in), ("y", channels_out))
        )
        w, b = (
            Tensor(name, value.shape, DType.FLOAT32, Layout.NCHW, constant=value)
            for name, value in (("w", filters), ("b", shift))
        )
        return _op(sizes), [x, w, b], [y]

    def expected(self, caps: DeviceCaps, sizes: Sizes) -> Times:
        """Return the estimates."""
        images, channels_in, channels_out, side, taps, groups = sizes
        each = channels_in // groups
        window = _op(sizes).window((images, channels_in, side, side), (channels_out, each, taps, taps))
        kinds = (DType.FLOAT32,) * 3
        problem = ConvProblem(images, each, channels_out, window, groups, *kinds, True, Layout.NC4HW4, caps)
        return {repr(tile): microseconds(problem, tile) for tile in legal_tiles(problem)}


def _op(sizes: Sizes) -> Conv:
    *_, taps, groups = sizes
    return Conv(kernel_shape=(taps, taps), pads=(taps // 2,) * 4, group=groups)


if __name__ == "__main__":
    main(GroupedTiles(), __doc__.splitlines()[0] if __doc__ else "")
