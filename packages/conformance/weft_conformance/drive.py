"""Drives a backend object by its callbacks only, in the contract's order (M11), without a session."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import TracebackType
from typing import TypeVar

import numpy as np

from weft.core.contract import check_answers
from weft.core.contract.backend import Backend, Execution, ExplainsRefusal, StorageType
from weft.core.contract.engine import Engine
from weft.core.graph.described import describe, described
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph, Node
from weft.core.graph.layout import Array, Layout, Shape, to_storage
from weft.core.graph.tensor import Tensor
from weft.core.placement.lower_network import lower_part
from weft.core.placement.optimized_network import Part
from weft.core.placement.replan import until_taken
from weft.errors import BackendError

Called = TypeVar("Called")


class NotCreated(Exception):
    """`onCreate` returned None for a node."""

    def __init__(self, node: Node) -> None:
        self.node = node
        super().__init__(f"onCreate returned None for {node.name!r} ({node.op.type})")


def ask(backend: Backend, graph: Graph) -> object:
    """Return the first answer of the backend's `why_not` that refuses a node of a graph; None if it takes all."""
    for node in graph.nodes:
        inputs, outputs = described(graph, node)
        reason: object = backend.why_not(inputs, outputs, node.op)
        if reason is not None:
            return reason
    return None


def decides_late(backend: Backend, op_type: str) -> bool:
    """Tell whether only `onCreate` refuses nodes of this type: neither class nor creator has a `why_not` for it."""
    creator = backend.find_creator(op_type)
    if creator is None:
        return type(backend).why_not is Backend.why_not
    return not isinstance(creator, ExplainsRefusal)


def acquired(backend: Backend, shape: Shape, storage: StorageType, dtype: DType = DType.FLOAT32,
          layout: Layout = Layout.NCHW, name: str = "t") -> Tensor:
    """Return a tensor for which the backend was asked for memory; BackendError if it answered no."""
    tensor = Tensor(name, shape, dtype, layout, backend=backend)
    acquire(backend, tensor, storage)
    return tensor


def acquire(backend: Backend, tensor: Tensor, storage: StorageType) -> None:
    """Ask for memory for a tensor; BackendError if the answer is no."""
    answer: object = backend.onAcquireBuffer(tensor, storage)
    if not check_answers.granted(answer, "onAcquireBuffer", "if there is no memory"):
        what = f"onAcquireBuffer refused {tensor.nbytes} bytes of {storage.name} memory for {tensor.name!r}"
        raise BackendError(what)


def write(backend: Backend, tensor: Tensor, array: Array) -> None:
    """Copy an array into a tensor of the backend."""
    backend.onCopyBuffer(Tensor.from_numpy(array, Layout.NCHW, "host"), tensor)


def read(backend: Backend, tensor: Tensor) -> Array:
    """Return what a tensor of the backend holds, as a logical array of its type."""
    host = Tensor.empty(tensor.shape, tensor.dtype, Layout.NCHW, "host")
    backend.onCopyBuffer(tensor, host)
    return host.numpy()


class Drive:
    """A network on one backend object: created and resized on entry; on exit it is freed, and the object closed.

    `imports` are tensors of other objects whose memory inputs use, and outputs that lie in them, by name.
    """

    def __init__(self, backend: Backend, graph: Graph, imports: Mapping[str, Tensor] | None = None) -> None:
        self.backend, self.outputs, self.imports = backend, list(graph.outputs), dict(imports or {})
        self.graph = graph
        self.constants: dict[str, Tensor] = {}
        self.tensors: dict[str, Tensor] = {}
        self.tasks: list[tuple[Node, Execution]] = []

    def __enter__(self) -> Drive:
        try:
            part = Part(self.backend.info.device, self.graph)
            lowered = until_taken(lambda before: lower_part(part, self.backend)).lowered
            if lowered is not None:
                assert isinstance(self.backend, Engine)
                self.backend.onLowered(lowered)
                self.graph = lowered.graph
            self._create()
            self._resize()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def tensor(self, name: str) -> Tensor:
        """Return the tensor of a value."""
        if name in self.constants:
            return self.constants[name]
        if name not in self.tensors:
            made = self.tensors[name] = describe(self.graph, name)
            made.backend = self.backend if made.constant is None else None
        return self.tensors[name]

    def _create(self) -> None:
        backend, graph = self.backend, self.graph
        for name in dict.fromkeys(i for n in graph.nodes for i in n.inputs if i in graph.constants):
            tensor = describe(graph, name)
            tensor.backend = backend
            if backend.copies_constants:
                acquire(backend, tensor, StorageType.STATIC)
                write(backend, tensor, graph.constants[name])
            elif backend.host_memory:
                tensor.memory = to_storage(graph.constants[name], tensor.layout)
            else:
                continue
            self.constants[name] = tensor
        for node in graph.nodes:
            execution = self._call("onCreate", node, partial(backend.onCreate, *self._operands(node), node.op))
            if execution is None:
                raise NotCreated(node)
            self.tasks.append((node, execution))

    def _call(self, name: str, node: Node, do: Callable[[], Called]) -> Called:
        """Call a callback about a node and return its answer; subclasses check what it changed."""
        return do()

    def _operands(self, node: Node) -> tuple[list[Tensor | None], list[Tensor]]:
        inputs = [self.tensor(i) if i else None for i in node.inputs]
        return inputs, [self.tensor(o) for o in node.outputs if o]

    def _resize(self) -> None:
        backend, graph = self.backend, self.graph
        backend.onResizeBegin()
        for name in graph.inputs:
            if name not in self.imports:
                acquire(backend, self.tensor(name), StorageType.DYNAMIC_SEPERATE)
            else:
                self._import(name)
        last = {i: k for k, (node, _) in enumerate(self.tasks) for i in node.inputs}
        for k, (node, execution) in enumerate(self.tasks):
            inputs, outputs = self._operands(node)
            for tensor in outputs:
                if tensor.name in self.imports:
                    self._import(tensor.name)
                else:
                    acquire(backend, tensor, StorageType.DYNAMIC)
            self._call("onResize", node, partial(execution.onResize, inputs, outputs))
            dying = [i for i in dict.fromkeys(node.inputs) if i and last[i] == k and i not in graph.constants]
            for name in [*dying, *(o for o in node.outputs if o and o not in last)]:
                if name not in self.outputs and name not in self.imports:
                    kind = StorageType.DYNAMIC_SEPERATE if name in graph.inputs else StorageType.DYNAMIC
                    backend.onReleaseBuffer(self.tensors[name], kind)
        if not backend.onAllocateBuffer():
            raise BackendError("onAllocateBuffer returned False for a small network")
        backend.onResizeEnd()

    def _import(self, name: str) -> None:
        if not self.backend.onImportBuffer(self.tensor(name), self.imports[name]):
            raise BackendError(f"onImportBuffer returned False for {name!r}, and canImport had returned True")

    def run(self, feeds: Mapping[str, Array]) -> list[Array]:
        """Return the outputs, in order; inputs that are imported are not fed."""
        backend = self.backend
        for name in self.graph.inputs:
            if name not in self.imports:
                write(backend, self.tensor(name), feeds[name])
        backend.onExecuteBegin()
        for node, execution in self.tasks:
            self._call("onExecute", node, partial(execution.onExecute, *self._operands(node)))
        backend.onExecuteEnd()
        if not backend.onWaitFinish():
            raise BackendError("onWaitFinish returned False")
        return [np.array(read(backend, self.tensor(o))) for o in self.outputs]

    def close(self) -> None:
        """Close the executions, release the constants, clear the memory, close the backend object."""
        tasks, self.tasks = self.tasks, []
        for _, execution in tasks:
            execution.close()
        constants, self.constants = self.constants, {}
        for tensor in constants.values() if self.backend.copies_constants else ():
            self.backend.onReleaseBuffer(tensor, StorageType.STATIC)
        self.tensors = {}
        self.backend.onClearBuffer()
        self.backend.close()
