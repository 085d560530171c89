"""Problems of convolutions without tensors, and ways to have one candidate taken for all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from weft.backends.gpu.lowering.launches.builder import NodeBuilder
from weft.core.graph.dtypes import DType
from weft.core.graph.layout import Layout
from weft.kernels.chooser import Algorithm, Candidate, Decision
from weft.kernels.device_caps import DeviceCaps
from weft.ops.conv import Conv
from weft.ops.gpu.conv.algorithms import CONVOLUTIONS
from weft.ops.gpu.conv.grouped import one_by_one as apart
from weft.ops.gpu.conv.grouped.one_by_one import ConvApart, GroupsApart
from weft.ops.gpu.conv.problem import ConvProblem


def take(patch: pytest.MonkeyPatch, algorithm: Algorithm[Any, Any, Any], tile: object) -> None:
    """Have that tile taken wherever the algorithm competes, too much work or too little; other choices are as ever."""
    names = {
        rivals.name for rivals in CONVOLUTIONS.rivals if any(type(a) is type(algorithm) for a in rivals.algorithms)
    }
    _take(patch, algorithm, tile, lambda decision: decision.name in names)


def take_where_it_fits(patch: pytest.MonkeyPatch, algorithm: Algorithm[Any, Any, Any], tile: object) -> None:
    """Have that tile taken wherever the algorithm is offered."""

    def offered(decision: Decision) -> bool:
        return any(type(each.algorithm) is type(algorithm) for each in decision.candidates.values())

    _take(patch, algorithm, tile, offered)


def compute_groups(patch: pytest.MonkeyPatch, algorithm: Algorithm[Any, Any, Any], tile: Any) -> None:
    """Have each group of all convolutions in groups computed by itself, with that tile."""
    take(patch, ConvApart(), GroupsApart(tile))
    decision = Decision("groups", None, {repr(tile): Candidate(tile, 1.0, algorithm)})
    patch.setattr(apart, "_decided", lambda problem: decision)


def _take(
    patch: pytest.MonkeyPatch, algorithm: Algorithm[Any, Any, Any], tile: object, where: Callable[[Decision], bool]
) -> None:
    plain = NodeBuilder.choose

    def choose(self: NodeBuilder, decision: Decision) -> Candidate:
        return Candidate(tile, 1.0, algorithm) if where(decision) else plain(self, decision)

    patch.setattr(NodeBuilder, "choose", choose)


def conv_problem(
    x: tuple[int, ...],
    w: tuple[int, ...],
    caps: DeviceCaps,
    *,
    dtype: DType = DType.FLOAT16,
    strides: tuple[int, ...] = (),
    **more: Any,
) -> ConvProblem:
    """Return a convolution padded by half of its kernel, of an image that lies as rows of channels."""
    pads = tuple(k // 2 for k in w[2:]) * 2
    window = Conv(kernel_shape=w[2:], pads=pads, strides=strides).window(x, w)
    pieces = {"rows": True, "read_pieces": x[1] % 8 == 0, "written_pieces": w[0] % 8 == 0}
    facts: dict[str, Any] = {**pieces, **more}
    return ConvProblem(x[0], w[1], w[0], window, 1, dtype, dtype, dtype, True, Layout.NHWC4, caps, **facts)
