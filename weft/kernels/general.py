"""The few, general kernels that a first run needs while better ones are being tested and compiled.

They are the portable kernels that most nodes have in common. Each of those left out only saves time: another of these
does its work. So a network needs few programs, and none for special hardware, whose tests would come first.
"""

from __future__ import annotations

from dataclasses import replace

from weft.kernels.device_caps import DeviceCaps
from weft.kernels.special import special_kernels

LEFT_OUT = frozenset({
    "conv_apart", "conv_depthwise_staged", "conv_depthwise_tile", "conv_pair", "conv_planar",
    "conv_prologue", "conv_subpixels", "conv_wide", "conv_winograd", "elementwise_wide", "gated_product",
    "matmul_rows", "matmul_slices", "matmul_thin", "move_wide", "norm_spans", "rows_in_teams", "sum_parts",
})  # fmt: skip
"""The families of portable kernels that a device does without."""


def general(caps: DeviceCaps) -> DeviceCaps:
    """Return the capabilities without kernels for special hardware, and without the families that only save time."""
    for _ in range(2):  # a kind may appear only when a later one is switched off
        for kind in special_kernels():
            caps = kind.disable(caps) if kind.present(caps) else caps
    return replace(caps, without=caps.without | LEFT_OUT)
