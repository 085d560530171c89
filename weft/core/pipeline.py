"""A pipeline: consecutive nodes on one backend object, resized and run in the contract's order (M11)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from weft.core.assign import describe
from weft.core.backend import Backend, Execution, StorageType
from weft.core.blame import at_node, at_nodes, blame
from weft.core.graph import Graph, Node
from weft.core.layout import Array, to_storage
from weft.core.optimized import Part
from weft.core.tensor import Tensor
from weft.errors import BackendError, ExecutionError, OutOfMemory

Progress = Callable[[int, int], None]
"""Called with the nodes that are prepared and all nodes of one device's part, after each."""


class NodeRefused(Exception):
    """`onCreate` returned None: the nodes must go to another backend."""

    def __init__(self, nodes: Sequence[Node], device: str) -> None:
        self.nodes, self.device = nodes, device
        super().__init__(f"{', '.join(n.name for n in nodes)} on {device}")


@dataclass
class Task:
    """A node with its execution and tensors."""

    node: Node
    execution: Execution
    inputs: list[Tensor | None]
    outputs: list[Tensor]


class Pipeline:
    """Owns a backend object, its executions and its tensors.

    A `thrifty` one (memory mode LIMIT) keeps no second copies of weights: host backends read them where
    they are, the host's copy of what a device has is dropped, and a resize frees before it allocates.
    """

    def __init__(
        self, part: Part, backend: Backend, *, thrifty: bool = False, progress: Progress | None = None
    ) -> None:
        self.device, self.backend, self.thrifty = part.device, backend, thrifty
        self._progress = progress
        self.graph: Graph = part.graph
        self.tasks: list[Task] = []
        self.tensors: dict[str, Tensor] = {}
        self.constants: dict[str, Tensor] = {}
        self.mapped: dict[str, Array] = {}
        """The lasting host arrays of inputs and outputs, by value name, where the backend has them."""
        self.running = False

    # -- resize ----------------------------------------------------------------------------------------

    def resize(
        self, part: Part, imports: Mapping[str, Tensor], fetched: Collection[str], *, first: bool
    ) -> None:
        """Prepare for the part's shapes. Executions of nodes that did not change are kept.

        `imports` are tensors of other pipelines, by the names of the inputs that use their memory; `fetched`
        are the values that the host reads, of this part's outputs and others.
        """
        if not first:
            self.wait()
            self.backend.onClearBuffer()
        if self.thrifty:
            self._drop_tasks()
        with blame(self.device, "the backend could not lower its part of the network"):
            self.graph = self.backend.lower(part.graph)
        self._create()
        self.mapped = {}
        with blame(self.device, "the backend could not be resized"):
            self.backend.onResizeBegin()
            self._map(part.graph.inputs, part.graph.outputs, imports, fetched)
            self.backend.onResizeEnd()
        if self.thrifty:
            self._forget_constants()

    def _create(self) -> None:
        kept = {t.node.name: t for t in self.tasks}
        self.tensors = {}
        self._place_constants()
        tasks, refused = [], []
        for node in self.graph.nodes:
            inputs = [self.tensor(i) if i else None for i in node.inputs]
            outputs = [self.tensor(o) for o in node.outputs if o]
            old = kept.get(node.name)
            if old is not None and old.node.op == node.op and self._same_constants(old, inputs):
                kept.pop(node.name)
                tasks.append(Task(node, old.execution, inputs, outputs))
                continue
            with blame(at_node(node, self.device)):
                execution = self.backend.onCreate(inputs, outputs, node.op)
            if execution is None:
                refused.append(node)
            else:
                tasks.append(Task(node, execution, inputs, outputs))
        for task in kept.values():
            task.execution.close()
        self.tasks = tasks
        if refused:
            raise NodeRefused(refused, self.device)

    @staticmethod
    def _same_constants(old: Task, inputs: Sequence[Tensor | None]) -> bool:
        before = [t.constant if t else None for t in old.inputs]
        now = [t.constant if t else None for t in inputs]
        return len(before) == len(now) and all(map(_same_value, before, now))

    def tensor(self, name: str) -> Tensor:
        """Return the tensor of any value of the part."""
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
            if name in old and _same_value(old[name].constant, value):
                self.constants[name] = old.pop(name)
                continue
            self.constants[name] = self._placed(name, value)
        self._release_constants(old.values())

    def _placed(self, name: str, value: Array) -> Tensor:
        tensor = describe(self.graph, name)
        tensor.backend = self.backend
        if self._borrows:
            tensor.memory = to_storage(value, tensor.layout)
        else:
            self._acquire(tensor, StorageType.STATIC)
            self.backend.onCopyBuffer(Tensor.from_numpy(value, tensor.layout, name), tensor)
        return tensor

    @property
    def _borrows(self) -> bool:
        """Whether constants are read from the model's own arrays."""
        return self.thrifty and self.backend.host_memory

    def _map(
        self, inputs: Sequence[str], outputs: Sequence[str], imports: Mapping[str, Tensor], fetched: Collection[str]
    ) -> None:
        """Acquire, resize and release in the order of the nodes, then allocate."""
        for name in inputs:
            if name in imports:
                self._import(name, imports[name])
                continue
            self._acquire(self.tensor(name), StorageType.DYNAMIC_SEPERATE)
            self._remember(name, self.backend.onMapInput(self.tensor(name)))
        last = {i: k for k, task in enumerate(self.tasks) for i in task.node.inputs}
        for k, task in enumerate(self.tasks):
            with blame(at_node(task.node, self.device)):
                for tensor in task.outputs:
                    self._acquire(tensor, StorageType.DYNAMIC)
                task.execution.onResize(task.inputs, task.outputs)
            if self._progress is not None:
                self._progress(k + 1, len(self.tasks))
            dying = [i for i in dict.fromkeys(task.node.inputs) if i and last[i] == k]
            dying += [o for o in task.node.outputs if o and o not in last]
            for name in dying:
                kept = name in outputs or name in imports or name in self.graph.constants
                if name in self.tensors and not kept:
                    storage = StorageType.DYNAMIC_SEPERATE if name in inputs else StorageType.DYNAMIC
                    self.backend.onReleaseBuffer(self.tensors[name], storage)
        for name in (o for o in outputs if o in fetched):
            self._remember(name, self.backend.onMapOutput(self.tensor(name)))
        if not self.backend.onAllocateBuffer():
            total = sum(t.nbytes for t in self.tensors.values() if t.constant is None)
            raise OutOfMemory(
                f"{self.device} could not allocate what the network needs",
                where=self.graph.name,
                why=f"its tensors take up to {total:,} bytes and onAllocateBuffer returned False",
                fix="use a smaller batch, precision low or memory limit, or another device",
            )

    def _import(self, name: str, source: Tensor) -> None:
        if not self.backend.onImportBuffer(self.tensor(name), source):
            raise BackendError(
                f"{self.device} did not import {name!r}",
                where=f"{type(self.backend).__name__}.onImportBuffer",
                why="it returned False, and canImport had returned True",
                fix="answer both alike, or leave canImport out: then the value is copied",
            )

    def _remember(self, name: str, array: Array | None) -> None:
        if array is not None:
            self.mapped[name] = array

    def _acquire(self, tensor: Tensor, storage: StorageType) -> None:
        if not self.backend.onAcquireBuffer(tensor, storage):
            raise OutOfMemory(
                f"{self.device} has no memory for {tensor.name!r}",
                why=f"{tensor.nbytes:,} bytes of {storage.name} memory were refused",
                fix="use a smaller batch, precision low or memory limit, or another device",
            )

    # -- run ---------------------------------------------------------------------------------------------

    def execute(self) -> None:
        """Start one run; an asynchronous backend may still be at work afterwards."""
        backend, task = self.backend, None
        try:
            backend.onExecuteBegin()
            for task in self.tasks:
                self._run(task)
            task = None
            backend.onExecuteEnd()
        except Exception:
            with blame(at_node(task.node, self.device) if task else self._everywhere()):
                raise
        self.running = True

    def _run(self, task: Task) -> None:
        """Run or enqueue one node; where it runs at once, the session's profile gets its time."""
        profiling = self.backend.info.profiling
        if profiling is None or not self.backend.host_memory:
            task.execution.onExecute(task.inputs, task.outputs)
            return
        begun = perf_counter()
        task.execution.onExecute(task.inputs, task.outputs)
        profiling.event(task.node.name, perf_counter() - begun)

    def wait(self) -> None:
        """Wait until a run that was started is done; the backend's errors are raised here at the latest."""
        if not self.running:
            return
        try:
            finished = self.backend.onWaitFinish()
        except Exception:
            self.running = False  # but an interrupt leaves the run to be waited for
            with blame(self._everywhere(), "the device failed during a run"):
                raise
        self.running = False
        if not finished:
            raise ExecutionError(
                "the device could not finish a run", where=self._everywhere(), why="onWaitFinish returned False"
            )

    def _everywhere(self) -> str:
        return at_nodes([t.node for t in self.tasks], self.device)

    def port(self, name: str) -> Tensor:
        """Return where the host writes an input or reads an output: its lasting host array, or its tensor."""
        tensor = self.tensor(name)
        if name not in self.mapped:
            return tensor
        return Tensor(name, tensor.shape, tensor.dtype, tensor.layout, self.mapped[name])

    # -- end ---------------------------------------------------------------------------------------------

    def _drop_tasks(self) -> None:
        tasks, self.tasks = self.tasks, []
        for task in tasks:
            task.execution.close()
        constants, self.constants = self.constants, {}
        self._release_constants(constants.values())

    def _release_constants(self, tensors: Iterable[Tensor]) -> None:
        if not self._borrows:
            for tensor in tensors:
                self.backend.onReleaseBuffer(tensor, StorageType.STATIC)

    def _forget_constants(self) -> None:
        self.graph = self.graph.copy()
        self.graph.constants = {}
        if not self._borrows:
            for tensor in {*self.tensors.values(), *self.constants.values()}:
                tensor.constant = None

    def close(self) -> None:
        """Wait, then free the executions, the constants and the backend object."""
        try:
            self.wait()
        finally:
            try:
                self._drop_tasks()
            finally:
                self.tensors, self.mapped = {}, {}
                self.backend.close()


def _same_value(before: Array | None, now: Array | None) -> bool:
    """Tell whether two constants are equal, so that what was made of the first serves still.

    Passes that compute constants (folded batch norms, fp16 weights) make new arrays at each resize; to
    compare them costs less than to pack and upload them again.
    """
    if before is None or now is None or before is now:
        return before is now
    return before.dtype == now.dtype and before.shape == now.shape and np.array_equal(before, now)
