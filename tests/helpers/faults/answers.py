"""Backends that are wrong in what they answer: which ops they take, how a graph is optimised, notes, statistics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tests.helpers.faults.listing import LOADS, Inputs, Outputs, Wrapped, fault
from weft.backends.cpu.backend import CpuBackend, ReferenceExecution
from weft.core.contract.backend import Backend, BackendInfo, Execution
from weft.core.contract.lowered import Lowered
from weft.core.contract.views import OptimizationViews, SubgraphView
from weft.core.graph.graph import Graph
from weft.core.graph.layout import Layout
from weft.core.graph.op import Op
from weft.core.placement.optimized_network import PreCompiled
from weft_conformance.drive import Drive

# -- support -------------------------------------------------------------------------------------------------


@fault("table", "the reason is ''", frozenset({"support"}))
class GivesNoReason(CpuBackend):
    def why_not(self, inputs: Inputs, outputs: Outputs, op: Op) -> str | None:
        return "" if op.type == "Softmax" else None


@fault("table", "the reason is 'no'", frozenset({"support"}))
class GivesOneWord(CpuBackend):
    def why_not(self, inputs: Inputs, outputs: Outputs, op: Op) -> str | None:
        return "no" if op.type == "Softmax" else None


@fault("support", "onCreate returned None", frozenset({"table"}))
class RefusesLateWithoutReason(CpuBackend):
    def onCreate(self, inputs: Inputs, outputs: Outputs, op: Op) -> Execution | None:
        return None if op.type == "Softmax" else super().onCreate(inputs, outputs, op)


class DecidesLate(CpuBackend):
    """Has no `why_not`, and takes a Relu or Softmax of at most three images: that is right."""

    most = 3
    why_not = Backend.why_not

    def onCreate(self, inputs: Inputs, outputs: Outputs, op: Op) -> Execution | None:
        limited = op.type in ("Relu", "Softmax") and outputs[0].shape[:1] > (self.most,)
        return None if limited else self.made(op)

    def made(self, op: Op) -> Execution:
        return _OfFew(op, self) if op.type == "Relu" else ReferenceExecution(op)


class _OfFew(Wrapped):
    def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
        last = np.atleast_1d(outputs[0].memory)[DecidesLate.most :]
        kept = last.copy()
        super().onExecute(inputs, outputs)
        last[...] = kept


class _OfFewForAny(_OfFew):
    any_shape = True


@fault("resize", "with 5 images after 2")
class ClaimsAnyShape(DecidesLate):
    """Says that what it makes for three images serves any number."""

    def made(self, op: Op) -> Execution:
        return _OfFewForAny(op, self) if op.type == "Relu" else ReferenceExecution(op)


@fault("support", "and then", frozenset({"table"}))
class ChangesItsMind(CpuBackend):
    def __init__(self, info: BackendInfo) -> None:
        super().__init__(info)
        self._asked = 0

    def why_not(self, inputs: Inputs, outputs: Outputs, op: Op) -> str | None:
        self._asked += op.type == "Erf"
        return "it is a bad day for this op" if op.type == "Erf" and self._asked % 2 else None


@fault("support", "why_not changed the layout of output 0", frozenset({"table"}))
class MarksTensors(CpuBackend):
    def why_not(self, inputs: Inputs, outputs: Outputs, op: Op) -> str | None:
        if op.type == "Erf":
            outputs[0].layout = Layout.NHWC
        return None


@fault("support", "why_not changed axis of the op", frozenset({"table"}))
class EditsTheOpWhenAsked(CpuBackend):
    def why_not(self, inputs: Inputs, outputs: Outputs, op: Op) -> str | None:
        if op.type == "Softmax":
            object.__setattr__(op, "axis", len(outputs[0].shape) - 1)
        return None


@fault("support", "the reason is False", frozenset({"table"}))
class AnswersNo(CpuBackend):
    def why_not(self, inputs: Inputs, outputs: Outputs, op: Op) -> Any:
        return False if op.type == "Softmax" else None


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


# -- optimising ----------------------------------------------------------------------------------------------


@fault("views", "is in none of the lists", LOADS)
class LosesANode(CpuBackend):
    def OptimizeSubgraph(self, view: SubgraphView) -> OptimizationViews:
        views = OptimizationViews()
        if len(view.nodes) > 1:
            views.keep(view.part(view.nodes[1:]))
        return views


@fault("views", "lost output slot", LOADS)
class LosesASlot(CpuBackend):
    def OptimizeSubgraph(self, view: SubgraphView) -> OptimizationViews:
        views = OptimizationViews()
        replacement = view.graph.copy()
        replacement.outputs = []
        views.substitute(view, replacement)
        return views


@fault("views", "changed the graph", LOADS)
class EditsTheView(CpuBackend):
    def OptimizeSubgraph(self, view: SubgraphView) -> OptimizationViews:
        view.graph.nodes[:] = [replace(n, name=f"{n.name}.mine") for n in view.graph.nodes]
        return OptimizationViews().keep_rest(view)


@fault("views", "failed without a reason", LOADS)
class FailsWithoutReason(CpuBackend):
    def OptimizeSubgraph(self, view: SubgraphView) -> OptimizationViews:
        views = OptimizationViews()
        softmax = [n for n in view.nodes if n.op.type == "Softmax"]
        if softmax:
            views.fail(view.part(softmax), "")
        return views.keep_rest(view)


@fault("short-lived", "differ", LOADS)
class ChangesNumbers(CpuBackend):
    def OptimizeSubgraph(self, view: SubgraphView) -> OptimizationViews:
        views = OptimizationViews()
        changed = view.graph.copy()
        for name, value in list(changed.constants.items()):
            if value.dtype == np.float32:
                changed.constants[f"{name}.scaled"] = value * np.float32(1.5)
                changed.specs[f"{name}.scaled"] = changed.specs[name]
        scaled = {n: f"{n}.scaled" for n in view.graph.constants if f"{n}.scaled" in changed.constants}
        changed.nodes = [replace(n, inputs=tuple(scaled.get(i, i) for i in n.inputs)) for n in changed.nodes]
        if scaled:
            views.substitute(view, changed)
        return views.keep_rest(view)


class _Compiled(Execution):
    def __init__(self, op: PreCompiled) -> None:
        self.payload: Any = op.payload

    def onResize(self, inputs: Inputs, outputs: Outputs) -> None:
        return None

    def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
        graph: Graph = self.payload["graph"]
        given = [t for t in inputs if t is not None]
        fed = {name: t.memory for name, t in zip(graph.inputs, given, strict=True)}
        with Drive(CpuBackend(BackendInfo("cpu")), graph) as drive:
            for tensor, value in zip(outputs, drive.run(fed), strict=True):
                tensor.memory[...] = value


@fault("short-lived", "KeyError", LOADS)
class CompilesIntoItself(CpuBackend):
    """What it compiles belongs to the backend object, and goes with it."""

    def __init__(self, info: BackendInfo) -> None:
        super().__init__(info)
        self._compiled: list[dict[str, Graph]] = []

    def OptimizeSubgraph(self, view: SubgraphView) -> OptimizationViews:
        views = OptimizationViews()
        graph = view.graph.copy()
        payload = {"graph": graph}
        self._compiled.append(payload)
        results = tuple(graph.specs[o] for o in graph.outputs)
        node = replace(
            graph.nodes[0],
            op=PreCompiled(self.info.id, payload, results),
            inputs=tuple(graph.inputs),
            outputs=tuple(graph.outputs),
        )
        made = Graph(graph.name, list(graph.inputs), list(graph.outputs), [node])
        made.specs = {v: graph.specs[v] for v in (*graph.inputs, *graph.outputs)}
        views.substitute(view, made)
        return views

    def onCreate(self, inputs: Inputs, outputs: Outputs, op: Op) -> Execution | None:
        return _Compiled(op) if isinstance(op, PreCompiled) else super().onCreate(inputs, outputs, op)

    def close(self) -> None:
        for payload in self._compiled:
            payload.clear()
        super().close()


@fault("short-lived", "OptimizeSubgraph returned None", LOADS)
class OptimizesToNothing(CpuBackend):
    def OptimizeSubgraph(self, view: SubgraphView) -> Any:
        return None


@fault("order", "lowered its part to a graph that cannot run in its place", LOADS)
class LowersOutOfOrder(CpuBackend):
    def lower(self, graph: Graph) -> Lowered:
        graph.nodes.reverse()
        return Lowered(graph)


@fault("order", "was float32", LOADS)
class LowersToAnotherLayout(CpuBackend):
    def lower(self, graph: Graph) -> Lowered:
        graph.layouts = dict.fromkeys(graph.inputs, Layout.NHWC)
        return Lowered(graph)


# -- notes and statistics ------------------------------------------------------------------------------------


@fault("creator", "notes() has")
class NotesNothing(CpuBackend):
    def notes(self) -> Sequence[str]:
        return [""]


@fault("creator", "notes() returned None", LOADS)
class HasNoNotes(CpuBackend):
    def notes(self) -> Any:
        return None


@fault("creator", "ValueError: no notes today", LOADS)
class FailsAtNotes(CpuBackend):
    def notes(self) -> Sequence[str]:
        raise ValueError("no notes today")


@fault("creator", "statistics() returned None", LOADS)
class HasNoStatistics(CpuBackend):
    def statistics(self) -> Any:
        return None


@fault("creator", "ValueError: the counters are broken", LOADS)
class FailsAtStatistics(CpuBackend):
    def statistics(self) -> Mapping[str, int]:
        raise ValueError("the counters are broken")
