"""Backends and creators made for tests: recording, asynchronous, failing, absent."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from typing import Any

import numpy as np

from weft.backends.cpu.backend import CpuBackend
from weft.core.contract.backend import (
    Backend,
    BackendCreator,
    BackendInfo,
    DeviceInfo,
    Execution,
    ForwardType,
    StorageType,
)
from weft.core.contract.views import OptimizationViews, SubgraphView
from weft.core.graph import interpreter
from weft.core.graph.graph import Graph, Node
from weft.core.graph.op import Op
from weft.core.graph.tensor import Tensor, TensorSpec
from weft.core.placement.optimized_network import PreCompiled
from weft.core.registry.backend_registry import registry
from weft.core.registry.device_choice import DeviceName

Inputs = Sequence[Tensor | None]
Outputs = Sequence[Tensor]
Call = tuple[str, ...]


class Creator(BackendCreator):
    """Makes backends of a class; its devices and its absence are given."""

    def __init__(
        self,
        made: type[Backend] = CpuBackend,
        *,
        id: str = "",
        forward_type: ForwardType | None = None,
        auto_rank: int | None = None,
        devices: Sequence[bool] = (True,),
        absent: str | None = None,
        broken: Mapping[int, str] | None = None,
    ) -> None:
        """`devices` says of each whether it is software; `broken` why some of them are unusable."""
        self._broken = broken or {}
        self.made, self.id, self.forward_type, self.auto_rank = made, id, forward_type, auto_rank
        self._software, self._absent = devices, absent
        self.backends: list[Backend] = []
        self.closed = False

    def onCreate(self, info: BackendInfo) -> Backend:
        self.backends.append(self.made(info))
        return self.backends[-1]

    def absent(self) -> str | None:
        return self._absent

    def devices(self) -> list[DeviceInfo]:
        if self._absent:
            return []
        return [DeviceInfo(self.id, k, f"{self.id}-{k}", software=s) for k, s in enumerate(self._software)]

    def unusable(self, index: int) -> str | None:
        return self._broken.get(index)

    def close(self) -> None:
        self.closed = True


@contextmanager
def registered(
    creator: BackendCreator | type[Backend], key: DeviceName = "acme"
) -> Iterator[BackendCreator | type[Backend]]:
    """Register a creator, or a class of backends, for the time of a test."""
    registry.insert(key, creator)
    try:
        yield creator
    finally:
        registry.remove(key)


class RecordedExecution(Execution):
    """Tells its backend about every call, and lets another execution do the work."""

    def __init__(self, inner: Execution, backend: RecordingBackend, name: str) -> None:
        self.inner, self.backend, self.name = inner, backend, name

    def onResize(self, inputs: Inputs, outputs: Outputs) -> None:
        self.backend.note("onResize", self.name)
        self.inner.onResize(inputs, outputs)

    def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
        self.backend.note("onExecute", self.name)
        self.inner.onExecute(inputs, outputs)

    def close(self) -> None:
        self.backend.note("Execution.close", self.name)


class RecordingBackend(CpuBackend):
    """The CPU backend, with every callback noted in `calls`."""

    log: list[Call] = []

    def __init__(self, info: BackendInfo) -> None:
        super().__init__(info)
        self.note("construct")

    @classmethod
    def note(cls, *call: str) -> None:
        cls.log.append(call)

    def onCreate(self, inputs: Inputs, outputs: Outputs, op: Op) -> Execution | None:
        self.note("onCreate", outputs[0].name)
        inner = super().onCreate(inputs, outputs, op)
        return RecordedExecution(inner, self, outputs[0].name) if inner else None

    def onAcquireBuffer(self, tensor: Tensor, storage_type: StorageType) -> bool:
        self.note("onAcquireBuffer", tensor.name, storage_type.name)
        return super().onAcquireBuffer(tensor, storage_type)

    def onReleaseBuffer(self, tensor: Tensor, storage_type: StorageType) -> bool:
        self.note("onReleaseBuffer", tensor.name, storage_type.name)
        return super().onReleaseBuffer(tensor, storage_type)

    def onClearBuffer(self) -> bool:
        self.note("onClearBuffer")
        return super().onClearBuffer()

    def onCopyBuffer(self, src: Tensor, dst: Tensor) -> None:
        self.note("onCopyBuffer", dst.name)
        super().onCopyBuffer(src, dst)

    def onExecuteBegin(self) -> None:
        self.note("onExecuteBegin")

    def onExecuteEnd(self) -> None:
        self.note("onExecuteEnd")

    def onResizeBegin(self) -> None:
        self.note("onResizeBegin")
        super().onResizeBegin()

    def onResizeEnd(self) -> None:
        self.note("onResizeEnd")
        super().onResizeEnd()

    def onAllocateBuffer(self) -> bool:
        self.note("onAllocateBuffer")
        return super().onAllocateBuffer()

    def onWaitFinish(self) -> bool:
        self.note("onWaitFinish")
        return super().onWaitFinish()

    def close(self) -> None:
        self.note("close")
        super().close()


class _Queued(Execution):
    def __init__(self, inner: Execution, backend: AsynchronousBackend, name: str) -> None:
        self.inner, self.backend, self.name = inner, backend, name

    def onResize(self, inputs: Inputs, outputs: Outputs) -> None:
        self.inner.onResize(inputs, outputs)

    def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
        self.backend.queue.append((self, inputs, outputs))


class AsynchronousBackend(CpuBackend):
    """Does its work in `onWaitFinish` only; the op in `fails` then raises what is given there."""

    host_memory = False
    fails: dict[str, Exception] = {}

    def __init__(self, info: BackendInfo) -> None:
        super().__init__(info)
        self.queue: list[Any] = []
        self.finished = 0

    def onCreate(self, inputs: Inputs, outputs: Outputs, op: Op) -> Execution | None:
        inner = super().onCreate(inputs, outputs, op)
        return _Queued(inner, self, op.type) if inner else None

    def onExecuteBegin(self) -> None:
        self.queue.clear()

    def onWaitFinish(self) -> bool:
        work, self.queue = self.queue, []
        for execution, inputs, outputs in work:
            if execution.name in self.fails:
                raise self.fails[execution.name]
            execution.inner.onExecute(inputs, outputs)
        self.finished += bool(work)
        return True

    def onCopyBuffer(self, src: Tensor, dst: Tensor) -> None:
        self.onWaitFinish()
        ours = [t for t in (src, dst) if t.backend is self]
        for tensor in ours:
            tensor.backend = None
        try:
            super().onCopyBuffer(src, dst)
        finally:
            for tensor in ours:
                tensor.backend = self


# -- backends that optimise (A5, A6) ---------------------------------------------------------------------------


class Interpreted(Execution):
    """Runs the graph that a `PreCompiled` node holds, node by node, by the ops' references."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def onResize(self, inputs: Inputs, outputs: Outputs) -> None:
        """Prepare nothing."""

    def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
        fed = {name: t.memory for name, t in zip(self.graph.inputs, inputs, strict=True) if t is not None}
        known = interpreter.values(self.graph, fed)
        for tensor, name in zip(outputs, self.graph.outputs, strict=True):
            np.copyto(tensor.memory, known[name].reshape(tensor.shape), casting="no")


Replace = Callable[[Sequence[Node]], Sequence[tuple[str, Sequence[Node]]]]
"""Which nodes of a view are replaced, and how."""


class Mock(CpuBackend):
    """A CPU backend that takes some ops, fails some nodes when it optimises, and replaces some; see `mock`."""

    takes: frozenset[str] | None = None
    imports = False
    fails: Mapping[str, str] = {}
    replace: Replace = staticmethod(lambda nodes: ())
    views: list[list[str]] = []

    def canImport(self, source: Backend) -> bool:
        return self.imports and source.host_memory

    def why_not(self, inputs: Inputs, outputs: Outputs, op: Op) -> str | None:
        if isinstance(op, PreCompiled):
            return None if op.backend == self.info.id else f"{op.backend} compiled it for itself"
        known = self.takes is None or op.type in self.takes
        return None if known else f"{self.info.id} does not do {op.type}"

    def onCreate(self, inputs: Inputs, outputs: Outputs, op: Op) -> Execution | None:
        if isinstance(op, PreCompiled):
            assert isinstance(op.payload, Graph)
            return Interpreted(op.payload)
        return super().onCreate(inputs, outputs, op)

    def OptimizeSubgraph(self, view: SubgraphView) -> OptimizationViews:
        self.views.append([n.name for n in view.nodes])
        views = OptimizationViews()
        for node in view.nodes:
            if node.name in self.fails:
                views.fail(view.part([node]), self.fails[node.name])
        for kind, nodes in self.replace(view.nodes):
            if not any(n.name in self.fails for n in nodes):
                part = view.part(nodes)
                views.substitute(part, REPLACEMENTS[kind](part, self.info.id))
        return views.keep_rest(view)


def mock(
    *takes: str,
    imports: bool = False,
    fails: Mapping[str, str] | None = None,
    replace: Replace | None = None,
) -> type[Mock]:
    """Return a class of backends that take these op types (none named: all).

    `fails` has a reason for each node that is to fail. `replace` returns, for the nodes of a view, runs of
    consecutive ones and how each is replaced, a key of `REPLACEMENTS`; a run in which one fails is not. `views`
    gets the names of the nodes of every view that is to be optimised.
    """
    facts: dict[str, Any] = {"takes": frozenset(takes) or None, "imports": imports, "fails": fails or {}, "views": []}
    if replace is not None:
        facts["replace"] = staticmethod(replace)
    return type("Mocked", (Mock,), facts)


class WrongFused(Mock):
    """Runs Exp right, and wrong by 48% where it is one node with the Tanh behind it: only if nothing else reads Exp."""

    def OptimizeSubgraph(self, view: SubgraphView) -> OptimizationViews:
        views = OptimizationViews()
        for first, second in pairwise(view.nodes):
            if (first.op.type, second.op.type) == ("Exp", "Tanh"):
                part = view.part([first, second])
                if len(part.outputs) == 1:
                    views.substitute(part, compiled(part, self.info.id))
        return views.keep_rest(view)

    def onCreate(self, inputs: Inputs, outputs: Outputs, op: Op) -> Execution | None:
        made = super().onCreate(inputs, outputs, op)
        return Halved(made.graph) if isinstance(made, Interpreted) else made


class Halved(Interpreted):
    """Runs the graph, and is wrong by 48%."""

    def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
        super().onExecute(inputs, outputs)
        for tensor in outputs:
            tensor.memory[...] *= 0.52


class WrongWhole(Mock):
    """Is wrong by 48% in Sin, unless a part has more outputs than one."""

    wrong = False

    def OptimizeSubgraph(self, view: SubgraphView) -> OptimizationViews:
        self.wrong = len(view.outputs) == 1
        return OptimizationViews().keep_rest(view)

    def onCreate(self, inputs: Inputs, outputs: Outputs, op: Op) -> Execution | None:
        if op.type != "Sin" or not self.wrong:
            return super().onCreate(inputs, outputs, op)
        graph = Graph("sin", ["x"], ["y"], [Node("sin", op, ("x",), ("y",))])
        graph.specs = {"x": TensorSpec(outputs[0].shape, outputs[0].dtype)}
        return Halved(graph)


def compiled(part: SubgraphView, id_: str) -> Graph:
    """Return one PreCompiled node in the place of a part."""
    graph = part.graph.copy()
    results = tuple(graph.specs[o] for o in part.outputs)
    op = PreCompiled(id_, part.graph, results)
    graph.nodes = [Node(f"{id_} runs {part.nodes[0].name}", op, part.inputs, part.outputs)]
    graph.constants = {}
    return graph


def renamed(part: SubgraphView, id_: str) -> Graph:
    """Return the same nodes with other names, for them, for what they keep inside, and for their constants."""
    slots = {*part.inputs, *part.outputs}
    new = {v: v if v in slots or not v else f"{id_}'s {v}" for v in ("", *part.graph.specs)}
    graph = part.graph.copy()
    graph.nodes = [
        Node(f"{id_}'s {n.name}", n.op, tuple(new[i] for i in n.inputs), tuple(new[o] for o in n.outputs))
        for n in part.nodes
    ]
    graph.specs = {new[v]: s for v, s in part.graph.specs.items()}
    graph.constants = {new[v]: c for v, c in part.graph.constants.items()}
    return graph


REPLACEMENTS: Mapping[str, Callable[[SubgraphView, str], Graph]] = {"compiled": compiled, "renamed": renamed}


@contextmanager
def mocks(**made: type[Backend]) -> Iterator[list[str]]:
    """Register a creator for each class, by id, for the time of a test; yields the ids."""
    with ExitStack() as stack:
        for id_, cls in made.items():
            stack.enter_context(registered(Creator(cls), id_))
        yield list(made)


class Maker(BackendCreator):
    """Makes backends of a class, and keeps none of them."""

    def __init__(self, made: type[Backend]) -> None:
        self.made = made

    def onCreate(self, info: BackendInfo) -> Backend:
        return self.made(info)
