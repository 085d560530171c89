"""Backends with the faults of drivers: loops, axes, windows, broadcasts and numbers that only some shapes show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tests.helpers.faults.listing import COMPUTES, Inputs, Outputs, Wrapped, Wrapping, fault
from weft.core.graph.interpreter import evaluate
from weft.core.graph.layout import Array
from weft.core.graph.op import Op
from weft.ops.conv import Conv

Arrays = Sequence[Array | None]


class _Computes(Wrapped):
    """Computes the reference of an op that `changed` returns, with the inputs that `reads` returns."""

    def changed(self, op: Any, arrays: Arrays) -> Op:
        """Return the op that it computes instead; its results have the same shapes."""
        result: Op = op
        return result

    def reads(self, arrays: list[Array | None]) -> list[Array | None]:
        """Return what it reads in the place of its inputs."""
        return arrays

    def finished(self, arrays: Arrays, results: list[Array]) -> list[Array]:
        """Return what it writes in the place of the results."""
        return results

    def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
        given = [None if t is None else t.memory for t in inputs]
        arrays = self.reads(list(given))
        made = [np.array(a) for a in evaluate(self.changed(self.op, arrays), arrays)]
        for tensor, value in zip(outputs, self.finished(given, made), strict=False):
            tensor.memory[...] = value.reshape(tensor.memory.shape)


# -- axes and broadcasts -------------------------------------------------------------------------------------


class _LastAxis(_Computes):
    def changed(self, op: Any, arrays: Arrays) -> Op:
        given: Op = op
        return replace(op, axis=-1) if op.axis < -1 else given


@fault("networks", "differ", COMPUTES)
class TakesNegativeAxesForTheLast(Wrapping):
    """It computes along the last axis wherever the axis is negative."""

    execution, ops = _LastAxis, ("Softmax", "LogSoftmax", "CumSum")


class _Cycles(_Computes):
    def reads(self, arrays: list[Array | None]) -> list[Array | None]:
        a, b = (np.asarray(x) for x in arrays)
        if a.size <= b.size or not b.size:
            return arrays
        return [a, np.resize(b, a.shape)] if np.broadcast_shapes(a.shape, b.shape) == a.shape else arrays


@fault("convolutions", "differ", COMPUTES)
class BroadcastsTheLastAxesOnly(Wrapping):
    """It repeats the smaller input from its beginning, as if only leading axes were missing."""

    execution, ops = _Cycles, ("Mul",)


class _IgnoresNumbers(_Computes):
    def reads(self, arrays: list[Array | None]) -> list[Array | None]:
        return [np.zeros_like(a) if a is not None and a.ndim == 0 else a for a in arrays]


@fault("convolutions", "differ", COMPUTES)
class ReadsNoScalars(Wrapping):
    """It binds no memory for an input of rank 0."""

    execution, ops = _IgnoresNumbers, ("Sub", "Add")


class _FromZero(_Computes):
    def reads(self, arrays: list[Array | None]) -> list[Array | None]:
        x, indices = arrays
        assert indices is not None
        return [x, np.maximum(indices, 0)]


@fault("table", "differ", COMPUTES)
class TakesNegativeIndicesForZero(Wrapping):
    """It clamps indices instead of counting from the end."""

    execution, ops = _FromZero, ("Gather",)


# -- loops and grids -----------------------------------------------------------------------------------------


class _WholeVectors(_Computes):
    def finished(self, arrays: Arrays, results: list[Array]) -> list[Array]:
        flat = results[0].reshape(-1)
        if flat.size > 4:
            flat[flat.size // 4 * 4 :] = 0
        return results


@fault("networks", "differ", COMPUTES)
class LeavesTheTailOfVectors(Wrapping):
    """Its loop takes four elements at a time, and none of those that are left."""

    execution, ops = _WholeVectors, ("Tanh", "Sigmoid", "Neg", "Exp")


class _FewRows(_Computes):
    def finished(self, arrays: Arrays, results: list[Array]) -> list[Array]:
        (y,) = results
        y.reshape(-1, y.shape[-1])[65535:] = 0
        return results


@fault("large", "differ", COMPUTES)
class Launches65535Rows(Wrapping):
    """It starts a group for each row, and at most 65,535."""

    execution, ops = _FewRows, ("Softmax", "LogSoftmax", "LayerNormalization")


class _PairsOnly(_Computes):
    def reads(self, arrays: list[Array | None]) -> list[Array | None]:
        x = np.array(arrays[0])
        if self.op.type == "ReduceSum" and len(arrays) > 1 and arrays[1] is not None and arrays[1].size == 1:
            axis = int(arrays[1].reshape(-1)[0])
            if x.shape[axis] > 64 and x.shape[axis] % 2:
                np.moveaxis(x, axis, 0)[-1] = 0
        return [x, *arrays[1:]]


@fault("table", "differ", COMPUTES | {"large"})
class HalvesOddSums(Wrapping):
    """It adds a row of more than 64 numbers in pairs, and loses the last one of an odd number."""

    execution, ops = _PairsOnly, ("ReduceSum",)


class _FirstImage(_Computes):
    def finished(self, arrays: Arrays, results: list[Array]) -> list[Array]:
        results[0][...] = results[0][:1]
        return results


@fault("networks", "differ", COMPUTES)
class ReadsTheFirstImage(Wrapping):
    """It forgets the offset of the image."""

    execution, ops = _FirstImage, ("GlobalMaxPool", "GlobalAveragePool", "DepthToSpace")


# -- windows -------------------------------------------------------------------------------------------------


class _Dense(_Computes):
    def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
        super().onExecute(inputs, outputs)
        dilations = getattr(self.op, "dilations", ())
        if dilations and max(dilations) > 1:
            outputs[0].memory[..., -1] = outputs[0].memory[..., 0]


@fault("table", "differ", COMPUTES)
class IgnoresDilations(Wrapping):
    """Where taps are apart, it takes pixels that lie side by side."""

    execution, ops = _Dense, ("MaxPool",)


class _PadsAtTheEnd(_Computes):
    def changed(self, op: Any, arrays: Arrays) -> Op:
        half = len(op.pads or ()) // 2
        given: Op = op
        return replace(op, pads=(*op.pads[half:], *op.pads[:half])) if half else given


@fault("convolutions", "differ", COMPUTES)
class SwapsThePads(Wrapping):
    """It pads the end as the beginning."""

    execution, ops = _PadsAtTheEnd, ("Conv",)


class _UpperOnly(_Computes):
    def changed(self, op: Any, arrays: Arrays) -> Op:
        given: Op = op
        return replace(op, auto_pad="SAME_UPPER") if op.auto_pad == "SAME_LOWER" else given


@fault("convolutions", "differ", COMPUTES)
class KnowsOneSamePadding(Wrapping):
    """It takes SAME_LOWER for SAME_UPPER."""

    execution, ops = _UpperOnly, ("Conv", "MaxPool", "AveragePool")


class _WholeWindow(_Computes):
    def changed(self, op: Any, arrays: Arrays) -> Op:
        given: Op = op
        return replace(op, count_include_pad=1) if any(op.pads or ()) else given


@fault("networks", "differ", COMPUTES)
class DividesByTheWholeWindow(Wrapping):
    """The mean of a window counts its padding."""

    execution, ops = _WholeWindow, ("AveragePool",)


class _Multiplier(_Computes):
    def finished(self, arrays: Arrays, results: list[Array]) -> list[Array]:
        op = self.op
        assert isinstance(op, Conv)
        y, channels = results[0], np.asarray(arrays[0]).shape[1]
        if op.group != channels or y.shape[1] == channels or channels == 1:
            return results
        many = y.shape[1] // channels
        return [y.reshape(y.shape[0], channels, many, *y.shape[2:]).swapaxes(1, 2)]


@fault("convolutions", "differ", COMPUTES)
class OrdersMultipliersFirst(Wrapping):
    """Of a depthwise convolution with several results a channel, it stores the first of each channel first."""

    execution, ops = _Multiplier, ("Conv",)


class _OddStride(_Computes):
    def reads(self, arrays: list[Array | None]) -> list[Array | None]:
        op, x = self.op, np.asarray(arrays[0])
        assert isinstance(op, Conv)
        kernel = np.asarray(arrays[1]).shape[2:]
        if set(kernel) != {1} or max(op.strides or (1,)) < 2 or x.ndim < 4:
            return arrays
        return [np.roll(x, -1, 3), *arrays[1:]]


@fault("convolutions", "differ", COMPUTES)
class ShiftsStridedPointwise(Wrapping):
    """Its kernel for one tap starts at the second pixel where it has a stride."""

    execution, ops = _OddStride, ("Conv",)


# -- numbers -------------------------------------------------------------------------------------------------


class _Narrow(_Computes):
    def reads(self, arrays: list[Array | None]) -> list[Array | None]:
        return [a if a is None or a.dtype != np.int64 else a.astype(np.int32).astype(np.int64) for a in arrays]


@fault("table", "differ", COMPUTES)
class ComputesInt64In32Bits(Wrapping):
    """It keeps the lower half of 64-bit integers."""

    execution, ops = _Narrow, ("Add", "Mul", "Sub", "Transpose", "Abs", "Neg")


class _HalfSums(_Computes):
    def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
        super().onExecute(inputs, outputs)
        if outputs[0].dtype.value == "float32":
            outputs[0].memory[...] = outputs[0].memory.astype(np.float16)


@fault("convolutions", "differ", COMPUTES)
class SumsInHalves(Wrapping):
    """It adds up in float16."""

    execution, ops = _HalfSums, ("Conv", "ConvTranspose")


class _NoNaN(_Computes):
    def reads(self, arrays: list[Array | None]) -> list[Array | None]:
        return [np.where(np.isnan(a), -np.inf, a).astype(a.dtype) if a is not None and a.dtype.kind == "f" else a
                for a in arrays]


@fault("table", "instead of nan", COMPUTES)
class LosesNaNInMaxima(Wrapping):
    """Its maximum is the number, where the other is none."""

    execution, ops = _NoNaN, ("MaxPool", "GlobalMaxPool", "ReduceMax", "Max")


class _NoShift(_Computes):
    def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
        super().onExecute(inputs, outputs)
        x = inputs[0]
        assert x is not None
        if x.memory.dtype.kind == "f" and x.memory.size and float(np.nanmax(x.memory)) > 88:
            outputs[0].memory[...] = np.nan


@fault("table", "differ", COMPUTES)
class OverflowsInSoftmax(Wrapping):
    """It does not subtract the largest number first."""

    execution, ops = _NoShift, ("Softmax", "LogSoftmax", "Softplus")


class _WithLanes(_Computes):
    def finished(self, arrays: Arrays, results: list[Array]) -> list[Array]:
        x = np.asarray(arrays[0])
        axes = [] if len(arrays) < 2 or arrays[1] is None else [int(a) % x.ndim for a in arrays[1].reshape(-1)]
        if x.ndim < 3 or 1 not in axes or x.shape[1] % 4 == 0:
            return results
        return [(results[0] * (x.shape[1] / (-(-x.shape[1] // 4) * 4))).astype(results[0].dtype)]


@fault("networks", "differ", COMPUTES)
class CountsPaddingLanes(Wrapping):
    """A mean over channels counts the lanes that fill the last block of four."""

    execution, ops = _WithLanes, ("ReduceMean",)


class _SwapsTwo(_Computes):
    def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
        super().onExecute(inputs, outputs)
        if len(outputs) == 2 and outputs[0].shape == outputs[1].shape and outputs[0].dtype is outputs[1].dtype:
            kept = outputs[0].memory.copy()
            outputs[0].memory[...] = outputs[1].memory
            outputs[1].memory[...] = kept


@fault("networks", "differ", COMPUTES)
class SwapsTwoOutputs(Wrapping):
    """It writes two results of one shape into each other's places."""

    execution, ops = _SwapsTwo, ("Split",)
