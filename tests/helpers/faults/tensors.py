"""Backends that change the tensors or the op that they are given, which are not theirs to change."""

from __future__ import annotations

import numpy as np

from tests.helpers.faults.listing import LOADS, Inputs, Outputs, Wrapped, Wrapping, fault
from weft.backends.cpu.backend import CpuBackend
from weft.core.contract.backend import Execution
from weft.core.graph.dtypes import DType
from weft.core.graph.op import Op


class _Rebinds(Wrapped):
    def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
        super().onExecute(inputs, outputs)
        outputs[0].memory = outputs[0].memory.copy()


@fault("tensors", "onExecute of Relu changed the memory of output 0", LOADS)
class ReplacesMemory(Wrapping):
    execution, ops = _Rebinds, ("Relu",)


class _WidensMemory(Wrapped):
    def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
        super().onExecute(inputs, outputs)
        outputs[0].memory = outputs[0].memory.astype(np.float64)


@fault("tensors", "the memory of output 0", LOADS)
class GivesAnotherType(Wrapping):
    execution, ops = _WidensMemory, ("Softmax",)


@fault("tensors", "onCreate of Softmax changed the type of output 0", LOADS)
class WidensOutputs(CpuBackend):
    def onCreate(self, inputs: Inputs, outputs: Outputs, op: Op) -> Execution | None:
        if op.type == "Softmax" and outputs[0].dtype is DType.FLOAT32:
            outputs[0].dtype = DType.FLOAT64
        return super().onCreate(inputs, outputs, op)


@fault("tensors", "onCreate of Softmax changed axis of the op", LOADS)
class EditsTheOp(CpuBackend):
    def onCreate(self, inputs: Inputs, outputs: Outputs, op: Op) -> Execution | None:
        if op.type == "Softmax":
            object.__setattr__(op, "axis", len(outputs[0].shape) - 1)
        return super().onCreate(inputs, outputs, op)


class _Flattens(Wrapped):
    def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
        super().onExecute(inputs, outputs)
        outputs[0].shape = (outputs[0].memory.size,)


@fault("tensors", "onExecute of Relu changed the shape of output 0", LOADS)
class ChangesShapes(Wrapping):
    execution, ops = _Flattens, ("Relu",)
