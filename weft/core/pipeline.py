"""A pipeline: consecutive nodes on one backend object, resized and run in the contract's order (M11)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from weft.core.assign import Part, describe
from weft.core.backend import Backend, Execution, StorageType
from weft.core.graph import Graph, Node
from weft.core.layout import Array
from weft.core.tensor import Tensor
from weft.errors import BackendError, ExecutionError, OutOfMemory, WeftError


class NodeRefused(Exception):
    """`onCreate` returned None: the node must go to another backend."""

    def __init__(self, node: Node, device: str) -> None:
        self.node, self.device = node, device
        super().__init__(f"{node.name} on {device}")


@dataclass
class Task:
    """A node with its execution and tensors."""

    node: Node
    execution: Execution
    inputs: list[Tensor | None]
    outputs: list[Tensor]


class Pipeline:
    """Owns a backend object, its executions and its tensors."""

    def __init__(self, part: Part, backend: Backend) -> None:
        self.device, self.backend = part.device, backend
        self.graph: Graph = part.graph
        self.tasks: list[Task] = []
        self.tensors: dict[str, Tensor] = {}
        self.constants: dict[str, Tensor] = {}
        self.mapped: dict[str, Array] = {}
        """The lasting host arrays of inputs and outputs, by value name, where the backend has them."""

    # -- resize ----------------------------------------------------------------------------------------

    def resize(self, part: Part, *, first: bool) -> None:
        """Prepare for the part's shapes. Executions of nodes that did not change are kept."""
        if not first:
            self.backend.onWaitFinish()
            self.backend.onClearBuffer()
        self.graph = self.backend.optimize(part.graph)
        self._create()
        self.backend.onResizeBegin()
        self.mapped = {}
        self._map(part.graph.inputs, part.graph.outputs)

    def _create(self) -> None:
        kept = {t.node.name: t for t in self.tasks}
        self.tensors = {}
        self._place_constants()
        tasks = []
        for node in self.graph.nodes:
            inputs = [self._tensor(i) if i else None for i in node.inputs]
            outputs = [self._tensor(o) for o in node.outputs if o]
            old = kept.get(node.name)
            if old is not None and old.node.op == node.op and self._same_constants(old, inputs):
                kept.pop(node.name)
                tasks.append(Task(node, old.execution, inputs, outputs))
                continue
            with blame(node, self.device):
                execution = self.backend.onCreate(inputs, outputs, node.op)
            if execution is None:
                raise NodeRefused(node, self.device)
            tasks.append(Task(node, execution, inputs, outputs))
        for task in kept.values():
            task.execution.close()
        self.tasks = tasks

    @staticmethod
    def _same_constants(old: Task, inputs: Sequence[Tensor | None]) -> bool:
        before = [t.constant if t else None for t in old.inputs]
        now = [t.constant if t else None for t in inputs]
        return len(before) == len(now) and all(a is b for a, b in zip(before, now, strict=True))

    def _tensor(self, name: str) -> Tensor:
        if name in self.constants:
            return self.constants[name]
        if name not in self.tensors:
            self.tensors[name] = describe(self.graph, name)
            self.tensors[name].backend = self.backend if name not in self.graph.constants else None
        return self.tensors[name]

    def _place_constants(self) -> None:
        """Put constants into the backend's STATIC memory, unless its executions take them themselves."""
        if not self.backend.copies_constants:
            return
        old, self.constants = self.constants, {}
        read = dict.fromkeys(i for n in self.graph.nodes for i in n.inputs if i in self.graph.constants)
        for name in read:
            value = self.graph.constants[name]
            if name in old and old[name].constant is value:
                self.constants[name] = old.pop(name)
                continue
            tensor = describe(self.graph, name)
            tensor.backend = self.backend
            self._acquire(tensor, StorageType.STATIC)
            self.backend.onCopyBuffer(Tensor.from_numpy(value, tensor.layout, name), tensor)
            self.constants[name] = tensor
        for tensor in old.values():
            self.backend.onReleaseBuffer(tensor, StorageType.STATIC)

    def _map(self, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        """Run the resize part of the contract: acquire, resize, release, then allocate and seal."""
        for name in inputs:
            tensor = self._tensor(name)
            self._acquire(tensor, StorageType.DYNAMIC_SEPERATE)
            self._remember(name, self.backend.onMapInput(tensor))
        last: dict[str, int] = {}
        for k, task in enumerate(self.tasks):
            for i in task.node.inputs:
                last[i] = k
        for k, task in enumerate(self.tasks):
            for tensor in task.outputs:
                self._acquire(tensor, StorageType.DYNAMIC)
            with blame(task.node, self.device):
                task.execution.onResize(task.inputs, task.outputs)
            dying = [i for i in dict.fromkeys(task.node.inputs) if i and last[i] == k]
            dying += [o for o in task.node.outputs if o and o not in last]
            for name in dying:
                if name in self.tensors and name not in outputs and name not in self.graph.constants:
                    storage = StorageType.DYNAMIC_SEPERATE if name in inputs else StorageType.DYNAMIC
                    self.backend.onReleaseBuffer(self.tensors[name], storage)
        for name in outputs:
            self._remember(name, self.backend.onMapOutput(self._tensor(name)))
        if not self.backend.onAllocateBuffer():
            raise OutOfMemory(f"{self.device} could not allocate what the network needs", where=self.graph.name)
        self.backend.onResizeEnd()

    def _remember(self, name: str, array: Array | None) -> None:
        if array is not None:
            self.mapped[name] = array

    def _acquire(self, tensor: Tensor, storage: StorageType) -> None:
        if not self.backend.onAcquireBuffer(tensor, storage):
            raise OutOfMemory(
                f"{self.device} has no memory for {tensor.name!r}",
                why=f"{tensor.nbytes} bytes of {storage.name} memory were refused",
                fix="use a smaller batch, or another device",
            )

    # -- run ---------------------------------------------------------------------------------------------

    def execute(self) -> None:
        """Start one run; an asynchronous backend may still be at work afterwards."""
        backend = self.backend
        backend.onExecuteBegin()
        for task in self.tasks:
            try:
                task.execution.onExecute(task.inputs, task.outputs)
            except Exception as e:
                with blame(task.node, self.device):
                    raise e
        backend.onExecuteEnd()

    def wait(self) -> None:
        """Wait until the backend is done; its errors are raised here at the latest."""
        if not self.backend.onWaitFinish():
            nodes = ", ".join(t.node.name for t in self.tasks[:3])
            raise ExecutionError(f"{self.device} could not finish the run", where=f"nodes {nodes} ...")

    def output(self, name: str) -> Tensor:
        """Return the tensor of an output or any other value of the part."""
        return self._tensor(name)

    def close(self) -> None:
        """Free the executions, the constants and the backend object."""
        for task in self.tasks:
            task.execution.close()
        for tensor in self.constants.values():
            self.backend.onReleaseBuffer(tensor, StorageType.STATIC)
        self.constants = {}
        self.tasks = []
        self.backend.close()


@contextmanager
def blame(node: Node, device: str) -> Iterator[None]:
    """Name the node in whatever is raised inside: a WeftError keeps its class, others become ExecutionError."""
    where = f"node {node.name!r} ({node.op.type}) on {device}"
    try:
        yield
    except WeftError as e:
        if e.where:
            raise
        if isinstance(e, BackendError):
            raise ExecutionError(e.what, where=where, why=e.why, fix=e.fix) from e
        e.where = where
        e.args = (f"{e.what}\n  where: {where}" + (f"\n  why: {e.why}" if e.why else ""),)
        raise
    except (MemoryError, ArithmeticError, ValueError, TypeError, LookupError, AttributeError, RuntimeError) as e:
        kind = OutOfMemory if isinstance(e, MemoryError) else ExecutionError
        raise kind("a node failed", where=where, why=f"{type(e).__name__}: {e}") from e
