"""The test of chains: launches that share one, whose work-groups wait for each other (`weft.kernels.chain`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from weft.core.contract.session_config import Precision
from weft.core.graph.fused_op import RUNNING, Fused, Step
from weft.core.graph.layout import Array
from weft.core.graph.op import Op
from weft.kernels.chain import CHAIN, WARPGROUP_CHAIN
from weft.kernels.self_test_cases import SelfTestCase, noise, several_nodes
from weft.kernels.special import register_special
from weft.ops.binary import Add, Mul
from weft.ops.conv import Conv
from weft.ops.gpu.conv.cases import RELU
from weft.ops.gpu.conv.matrix import wgmma
from weft.ops.pool import GlobalAveragePool, MaxPool
from weft.ops.unary import Sigmoid

BLOCKS = 2
"""Blocks of a case: each chain of it takes a compiler about a second, and two have every kind of wait."""


def _cases() -> Sequence[SelfTestCase]:
    """Return blocks in which each launch needs the one before it, some stand side by side, and memory is used again.

    The groups of their launches differ in number and size: there are more than compute units, and a single one.
    """
    point = Conv(kernel_shape=(1, 1))
    nodes: list[tuple[Op, tuple[str, ...], str | tuple[str, ...]]] = []
    constants, x = dict[str, Array](), "x"
    for b in range(BLOCKS):
        w, d, g, p = (f"{name}{b}" for name in "wdgp")
        side = (3, 5)[b % 2]
        window = Conv(kernel_shape=(side, side), pads=(side // 2,) * 4, group=72)
        constants |= {w: noise(72, 40, 1, 1) / 6, d: noise(72, 1, side, side) / side, g: noise(72, 72, 1, 1) / 8}
        constants |= {p: noise(40, 72, 1, 1) / 8}
        nodes += [
            (Fused(point, 2, (RELU,)), (x, w), f"wide{b}"),
            (window, (f"wide{b}", d), f"deep{b}"),
            (MaxPool(kernel_shape=(3, 3), strides=(1, 1), pads=(1, 1, 1, 1)), (f"wide{b}",), f"most{b}"),
            (GlobalAveragePool(), (f"deep{b}",), f"mean{b}"),
            (Fused(point, 2, (Step(Sigmoid(), (RUNNING,)),)), (f"mean{b}", g), f"gate{b}"),
            (Fused(Mul(), 2, (Step(Add(), (RUNNING, 2)),)), (f"deep{b}", f"gate{b}", f"most{b}"), f"scaled{b}"),
            (Fused(point, 2, (Step(Add(), (RUNNING, 2)),)), (f"scaled{b}", p, x), f"y{b}"),
        ]
        x = f"y{b}"
    size = (1, 40, 56, 52)
    return [several_nodes(f"{len(nodes)} nodes on {size}", nodes, {"x": noise(*size)}, constants)]


def _warpgroup_cases() -> Sequence[SelfTestCase]:
    """Return convolutions by warpgroups, with others between them: 1 x 1 and 3 x 3, few steps and many.

    The weights of 3 x 3 are large enough to be prefetched.
    """
    nodes: list[tuple[Op, tuple[str, ...], str | tuple[str, ...]]] = []
    constants, x = dict[str, Array](), "x"
    for b in range(BLOCKS):
        w, d, p = (f"{name}{b}" for name in "wdp")
        constants |= {w: noise(192, 80, 1, 1) / 9, d: noise(192, 1, 3, 3) / 3, p: noise(80, 192, 3, 3) / 40}
        nodes += [
            (Fused(Conv(kernel_shape=(1, 1)), 2, (RELU,)), (x, w), f"wide{b}"),
            (Conv(kernel_shape=(3, 3), pads=(1, 1, 1, 1), group=192), (f"wide{b}", d), f"deep{b}"),
            (Fused(Conv(kernel_shape=(3, 3), pads=(1, 1, 1, 1)), 2, (Step(Add(), (RUNNING, 2)),)),
             (f"deep{b}", p, x), f"y{b}"),
        ]
        x = f"y{b}"
    case = several_nodes(f"{len(nodes)} nodes in fp16", nodes, {"x": noise(1, 80, 28, 28)}, constants)
    halves = ({name: a.astype(np.float16) for name, a in each.items()} for each in (case.inputs, case.constants))
    inputs, weights = halves
    return [replace(case, inputs=inputs, constants=weights, precision=Precision.LOW)]


SPECIAL = register_special(
    CHAIN,
    "launches that share one",
    claimed=lambda caps: caps.resident_groups > 0,
    withdraw=lambda caps: replace(caps, resident_groups=0),
    cases=_cases,
    template=CHAIN,
    seconds=1.7,
)
register_special(
    WARPGROUP_CHAIN,
    "launches by warpgroups that share one with others",
    claimed=lambda caps: caps.resident_groups > 0 and wgmma.SPECIAL.present(caps),
    cases=_warpgroup_cases,
    template=WARPGROUP_CHAIN,
    seconds=1.0,
)
