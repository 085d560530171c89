"""More backends that are wrong in one thing; `faults` says how they are listed."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, NoReturn

import numpy as np

from tests.helpers.faults.listing import LOADS, Inputs, Outputs, Wrapped, Wrapping, fault
from weft.backends.cpu.backend import CpuBackend
from weft.conformance.drive import Drive
from weft.core.contract.backend import Backend, BackendInfo, Execution, StorageType
from weft.core.contract.views import OptimizationViews, SubgraphView
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph
from weft.core.graph.layout import Array, Layout, convert
from weft.core.graph.op import Op
from weft.core.graph.tensor import Tensor
from weft.core.placement.optimized_network import PreCompiled, precompiled

# -- outputs that nobody reads -------------------------------------------------------------------------------


class _CountsItsTensors(Wrapped):
    def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
        x = inputs[0]
        assert x is not None
        if any(len(i.shape) != 2 for i in (x, *outputs)) or inputs[1:]:
            super().onExecute(inputs, outputs)
            return
        for tensor, part in zip(outputs, np.array_split(x.memory, len(outputs)), strict=True):
            tensor.memory.flat = np.resize(part, tensor.memory.size)


@fault("outputs", "of output 0 differ")
class SplitsByItsTensors(Wrapping):
    """It divides by the number of tensors that it got, not by what the op says."""

    execution, ops = _CountsItsTensors, ("Split",)


class _Compiled(Execution):
    def __init__(self, op: PreCompiled) -> None:
        self.payload: Any = op.payload

    def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
        graph: Graph = self.payload
        fed = {name: t.memory for name, t in zip(graph.inputs, inputs, strict=True) if t is not None}
        with Drive(CpuBackend(BackendInfo("cpu")), graph) as drive:
            for tensor, value in zip(outputs, drive.run(fed), strict=True):
                tensor.memory.flat = np.resize(value, tensor.memory.size)


@fault("outputs", "of output 0 differ")
class CompilesWithTheFirstOutputs(CpuBackend):
    """What it compiles has as many outputs as are read, and they are the first."""

    def OptimizeSubgraph(self, view: SubgraphView) -> OptimizationViews:
        views = OptimizationViews()
        graph = view.graph.copy()
        several = [n for n in graph.nodes if len(n.outputs) > 1]
        if len(graph.nodes) == 1 and several:
            (node,) = several
            graph.nodes = [replace(node, outputs=(*graph.outputs, *(f"{node.name}.{o}" for o in node.outputs)))]
            made = {name: graph.specs[o] for name, o in zip(graph.nodes[0].outputs, node.outputs, strict=False)}
            count = len(node.outputs)
            graph.nodes = [replace(graph.nodes[0], outputs=graph.nodes[0].outputs[:count])]
            graph.specs = {**graph.specs, **made}
            views.substitute(view, precompiled(view, self.info.id, graph))
        return views.keep_rest(view)

    def onCreate(self, inputs: Inputs, outputs: Outputs, op: Op) -> Execution | None:
        return _Compiled(op) if isinstance(op, PreCompiled) else super().onCreate(inputs, outputs, op)


# -- what is not theirs to change ----------------------------------------------------------------------------


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


@fault("support", "why_not changed axis of the op", frozenset({"table"}))
class EditsTheOpWhenAsked(CpuBackend):
    def why_not(self, inputs: Inputs, outputs: Outputs, op: Op) -> str | None:
        if op.type == "Softmax":
            object.__setattr__(op, "axis", len(outputs[0].shape) - 1)
        return None


# -- answers -------------------------------------------------------------------------------------------------


@fault("support", "the reason is False", frozenset({"table"}))
class AnswersNo(CpuBackend):
    def why_not(self, inputs: Inputs, outputs: Outputs, op: Op) -> Any:
        return False if op.type == "Softmax" else None


@fault("storage", "onAcquireBuffer of DYNAMIC memory returned None", LOADS | {"copies", "element types"})
class AcquiresWithoutAnswer(CpuBackend):
    def onAcquireBuffer(self, tensor: Tensor, storage_type: StorageType) -> Any:
        super().onAcquireBuffer(tensor, storage_type)


@fault("creator", "notes() returned None", LOADS)
class HasNoNotes(CpuBackend):
    def notes(self) -> Any:
        return None


@fault("creator", "statistics() returned None", LOADS)
class HasNoStatistics(CpuBackend):
    def statistics(self) -> Any:
        return None


@fault("creator", "ValueError: the counters are broken", LOADS)
class FailsAtStatistics(CpuBackend):
    def statistics(self) -> Mapping[str, int]:
        raise ValueError("the counters are broken")


@fault("creator", "ValueError: no notes today", LOADS)
class FailsAtNotes(CpuBackend):
    def notes(self) -> Sequence[str]:
        raise ValueError("no notes today")


@fault("order", "lowered its part to a graph that cannot run in its place", LOADS)
class LowersOutOfOrder(CpuBackend):
    def lower(self, graph: Graph) -> Graph:
        graph.nodes.reverse()
        return graph


@fault("order", "was float32", LOADS)
class LowersToAnotherLayout(CpuBackend):
    def lower(self, graph: Graph) -> Graph:
        graph.layouts = dict.fromkeys(graph.inputs, Layout.NHWC)
        return graph


@fault("short-lived", "OptimizeSubgraph returned None", LOADS)
class OptimizesToNothing(CpuBackend):
    def OptimizeSubgraph(self, view: SubgraphView) -> Any:
        return None


# -- exceptions ----------------------------------------------------------------------------------------------


@fault("support", "why_not raised RuntimeError", LOADS)
class FailsWhenAsked(CpuBackend):
    def why_not(self, inputs: Inputs, outputs: Outputs, op: Op) -> str | None:
        if op.type == "Softmax":
            raise RuntimeError("asked in vain")
        return None


@fault("support", "why_not raised GeneratorExit", LOADS)
class EndsGenerators(CpuBackend):
    def why_not(self, inputs: Inputs, outputs: Outputs, op: Op) -> str | None:
        if op.type == "Softmax":
            raise GeneratorExit
        return None


class _Exits(Wrapped):
    def onExecute(self, inputs: Inputs, outputs: Outputs) -> NoReturn:
        sys.exit(3)


@fault("short-lived", "SystemExit: 3", LOADS)
class ExitsInRuns(Wrapping):
    execution, ops = _Exits, ("Softmax",)


@fault("copies", "it came out of onCopyBuffer", LOADS | {"element types", "storage"})
class ExitsInCopies(CpuBackend):
    def onCopyBuffer(self, src: Tensor, dst: Tensor) -> NoReturn:
        raise SystemExit("no more copies")


# -- numbers -------------------------------------------------------------------------------------------------


class _NoNaN(Wrapped):
    def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
        super().onExecute(inputs, outputs)
        np.nan_to_num(outputs[0].memory, copy=False, posinf=np.inf, neginf=-np.inf)


@fault("table", "instead of nan")
class LosesNaN(Wrapping):
    execution, ops = _NoNaN, ("Relu",)


class _ByThread(Wrapped):
    def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
        super().onExecute(inputs, outputs)
        if threading.current_thread() is not threading.main_thread() and outputs[0].dtype is DType.FLOAT32:
            outputs[0].memory *= np.float32(1 + 2e-7)


@fault("threads", "other bits")
class DependsOnTheThread(Wrapping):
    execution, ops = _ByThread, ("MatMul", "Softmax", "Conv")


class _OfOneThread(Wrapped):
    def __init__(self, op: Op, backend: Any) -> None:
        super().__init__(op, backend)
        self.mine = threading.local()
        self.mine.scale = np.float32(1)

    def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
        super().onExecute(inputs, outputs)
        outputs[0].memory *= self.mine.scale


@fault("threads", "no attribute 'scale'")
class BelongsToAThread(Wrapping):
    execution, ops = _OfOneThread, ("Softmax",)


class _ReadsLate(Wrapped):
    def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
        constants = [t.constant if t is not None and t.backend is not None else None for t in inputs]
        if self.backend.is_constant(inputs):
            assert all(c is not None for c in constants[1:]), "the host's constant is gone"
        super().onExecute(inputs, outputs)


@fault("limit", "the host's constant is gone")
class ReadsConstantsInRuns(Wrapping):
    """It reads a constant from the host in a run; its memory is no host's, as far as Weft knows."""

    execution, ops, host_memory = _ReadsLate, ("MatMul", "Conv"), False

    def is_constant(self, inputs: Inputs) -> bool:
        slots = [self._slots.get(t) for t in inputs[1:] if t is not None]
        return bool(slots) and all(s is not None and s.storage is StorageType.STATIC for s in slots)

    def canImport(self, source: Backend) -> bool:
        return False

    def onCopyBuffer(self, src: Tensor, dst: Tensor) -> None:
        stored = convert(src.memory, src.shape, src.layout, dst.layout, dst.dtype.numpy)
        np.copyto(dst.memory, stored.reshape(dst.storage_shape))


# -- leaks ---------------------------------------------------------------------------------------------------


@fault("leaks", "each session that was closed left")
class KeepsABufferForEachTensor(CpuBackend):
    kept: ClassVar[list[Array]] = []

    def onAcquireBuffer(self, tensor: Tensor, storage_type: StorageType) -> bool:
        self.kept.append(np.ones(tensor.nbytes, np.uint8))
        return super().onAcquireBuffer(tensor, storage_type)


class _KeepsInputs(Wrapped):
    kept: ClassVar[list[Array]] = []

    def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
        self.kept.extend(t.memory.copy() for t in inputs if t is not None)
        super().onExecute(inputs, outputs)


@fault("leaks", "each run left")
class KeepsInputsOfRuns(Wrapping):
    execution, ops = _KeepsInputs, ("Softmax",)
