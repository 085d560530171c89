"""Backends that wrongly keep results for the next run, or packed weights for the next session."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from tests.helpers.faults.listing import RUNS, Inputs, Outputs, Wrapped, Wrapping, fault
from weft.core.graph.layout import Array
from weft.core.graph.op import Op


class _SameAsBefore(Wrapped):
    def __init__(self, op: Op, backend: Any) -> None:
        super().__init__(op, backend)
        self.kept: tuple[Any, Array] | None = None

    def onResize(self, inputs: Inputs, outputs: Outputs) -> None:
        super().onResize(inputs, outputs)
        self.kept = None

    def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
        first = self.first(inputs)
        if self.kept is not None and self.kept[0] == first:
            outputs[0].memory[...] = self.kept[1]
            return
        super().onExecute(inputs, outputs)
        self.kept = (first, outputs[0].memory.copy())

    @staticmethod
    def first(inputs: Inputs) -> Any:
        x = inputs[0]
        assert x is not None
        return x.memory.reshape(-1)[:1].tolist()


@fault("changes", "a late element of the input", RUNS)
class KeepsAResult(Wrapping):
    """It does not compute again while the first element of its input is the same."""

    execution, ops = _SameAsBefore, ("Relu", "Softmax", "Conv", "MatMul")


class _SameEnds(_SameAsBefore):
    @staticmethod
    def first(inputs: Inputs) -> Any:
        x = inputs[0]
        assert x is not None
        return x.memory.reshape(-1)[[0, -1]].tolist() if x.memory.size else []


@fault("table", "in run 2, with other inputs", RUNS)
class KnowsInputsByTheirEnds(Wrapping):
    """It does not compute again while the first and the last element of its input are the same."""

    execution, ops = _SameEnds, ("Gather",)


class _Forever(_SameAsBefore):
    @staticmethod
    def first(inputs: Inputs) -> Any:
        return None


@fault("table", "in run 2, with other inputs", RUNS)
class KeepsOneResultForEver(Wrapping):
    """One of its ops computes in the first run alone."""

    execution, ops = _Forever, ("Erf",)


class _AddsUp(Wrapped):
    """Sums into scratch memory that is zero before the first run."""

    scratch: Array | None = None

    def onResize(self, inputs: Inputs, outputs: Outputs) -> None:
        super().onResize(inputs, outputs)
        self.scratch = np.zeros(outputs[0].shape, outputs[0].dtype.numpy)

    def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
        super().onExecute(inputs, outputs)
        assert self.scratch is not None
        self.scratch += outputs[0].memory
        outputs[0].memory[...] = self.scratch


@fault("networks", "with other inputs", frozenset({"table"}))
class LeavesScratchAsItIs(Wrapping):
    """It does not clear the scratch memory of a sum before the next run."""

    execution, ops = _AddsUp, ("ReduceMean", "AveragePool")


class _SameButForTheEnd(_SameAsBefore):
    @staticmethod
    def first(inputs: Inputs) -> Any:
        x = inputs[0]
        assert x is not None
        return x.memory.reshape(-1)[:-1].tobytes()


@fault("changes", "a late element of the input", frozenset({"large"}))
class KeepsWhatDiffersAtTheEnd(Wrapping):
    """It compares all elements but the last."""

    execution, ops = _SameButForTheEnd, ("Relu",)


class _PackedWeights(Wrapped):
    packed: ClassVar[dict[Any, Array]] = {}

    def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
        weights = inputs[1]
        assert weights is not None
        if weights.memory.size:
            key = (self.op.type, weights.shape, weights.dtype, weights.memory.reshape(-1)[0].item())
            weights.memory[...] = self.packed.setdefault(key, weights.memory.copy())
        super().onExecute(inputs, outputs)


@fault("changes", "of two networks whose constants differ in one element")
class SharesPackedWeights(Wrapping):
    """Sessions share weights that are packed once for each first element."""

    execution, ops = _PackedWeights, ("MatMul",)
