"""Backends that are wrong in some convolutions, by their channels, strides and epilogues."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tests.helpers.faults.listing import RUNS, Inputs, Outputs, Wrapped, Wrapping, fault
from weft.core.contract.backend import Execution
from weft.core.contract.views import OptimizationViews, SubgraphView
from weft.core.graph.fused_op import Fused
from weft.core.graph.interpreter import evaluate
from weft.core.graph.layout import Array
from weft.core.graph.op import Op
from weft.core.passes.fuse import fuse_epilogues
from weft.ops.conv import Conv

SPOILS = frozenset({"networks", "table"}) | RUNS


class OfConv(Wrapped):
    """A convolution that changes what it reads or makes; `inner` may be fused."""

    @property
    def conv(self) -> Conv:
        base = self.op.base if isinstance(self.op, Fused) else self.op
        assert isinstance(base, Conv)
        return base

    def changed(self, arrays: list[Array | None]) -> list[Array | None]:
        """Return what the convolution reads in the place of its inputs."""
        return arrays

    def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
        arrays = self.changed([None if t is None else t.memory for t in inputs])
        for tensor, value in zip(outputs, evaluate(self.op, arrays), strict=True):
            tensor.memory[...] = value


class _Few(OfConv):
    def changed(self, arrays: list[Array | None]) -> list[Array | None]:
        weights = np.array(arrays[1])
        weights[:, 64:] = 0
        return [arrays[0], weights, *arrays[2:]]


@fault("convolutions", "numbers of output 0 differ", SPOILS)
class SumsOver64Channels(Wrapping):
    """Its kernel has a loop over at most 64 input channels."""

    execution, ops = _Few, ("Conv",)


class _OddBlocks(OfConv):
    def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
        super().onExecute(inputs, outputs)
        y = outputs[0].memory
        if y.shape[1] % 2 and y.shape[1] > 4:
            y[:, y.shape[1] // 4 * 4 + 1 :] = 0
            y[:, -1] = 0


@fault("convolutions", "numbers of output 0 differ", SPOILS)
class LosesOddChannels(Wrapping):
    """Of a block of four that is not full, it writes an even number of channels."""

    execution, ops = _OddBlocks, ("Conv",)


class _NoBias(OfConv):
    def changed(self, arrays: list[Array | None]) -> list[Array | None]:
        is_fused = isinstance(self.op, Fused) and self.op.arity > 2
        if not is_fused or not self.conv.strides or max(self.conv.strides) < 2:
            return arrays
        return [*arrays[:2], np.zeros_like(np.asarray(arrays[2])), *arrays[3:]]


class _Fusing(Wrapping):
    """It fuses convolutions with the element-wise ops behind them."""

    def OptimizeSubgraph(self, view: SubgraphView) -> OptimizationViews:
        views = OptimizationViews()
        fused = fuse_epilogues(view.graph, lambda graph, base, step, operands: base.op.type == "Conv")
        if len(fused.nodes) < len(view.nodes):
            views.substitute(view, replace(fused))
        return views.keep_rest(view)

    def onCreate(self, inputs: Inputs, outputs: Outputs, op: Op) -> Execution | None:
        base = op.base if isinstance(op, Fused) else op
        return self.execution(op, self) if isinstance(base, Conv) else super().onCreate(inputs, outputs, op)


@fault("convolutions", "numbers of output 0 differ", SPOILS | {"views"})
class LosesTheBiasOfStridedConvolutions(_Fusing):
    """Its kernel for strides above one, with an epilogue, has no bias."""

    execution = _NoBias
