"""A pipeline: the consecutive nodes of one backend object, resized and run in the contract's order (M11).

`Pipeline` runs any `Backend`, node by node. The pipelines of Weft's own devices (`Engine.pipeline_type`) are subclasses
that know shorter ways for what goes in and comes out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from time import perf_counter

import numpy as np

from weft.core.buffers.buffer import Buffer
from weft.core.contract import check_answers
from weft.core.contract.backend import Backend, Execution, Recorded, StorageType
from weft.core.contract.callbacks import Callbacks, done, executed
from weft.core.contract.engine import Engine
from weft.core.contract.error_context import at_node, at_nodes, blame, callback_of, do_all, is_error
from weft.core.contract.profile import Work
from weft.core.graph.described import describe
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph, Node
from weft.core.graph.layout import Array, Layout, Shape, to_storage
from weft.core.graph.tensor import Tensor, same_value
from weft.core.host.shared_arrays import is_lasting
from weft.core.host.tensor_copy import copy_tensor
from weft.core.placement.optimized_network import Part
from weft.core.placement.replan import NodeRefused
from weft.core.session.arguments import Given
from weft.core.session.overflow import OverflowWatch
from weft.errors import BackendError, ExecutionError

Progress = Callable[[int, int], None]
"""Called after each node with the number of prepared nodes and of all nodes of the part."""
NO_TARGETS: Mapping[str, Given] = {}


@dataclass
class Task:
    """A node with its execution and tensors."""

    node: Node
    execution: Execution
    inputs: list[Tensor | None]
    outputs: list[Tensor]
    memory: tuple[object, ...] = ()
    """On the host, the arrays of the outputs, into which the execution writes."""


@dataclass(frozen=True, slots=True)
class _Names:
    """What follows from the names of a part's nodes and values, whatever their shapes; and of which part it is."""

    nodes: Sequence[Node]
    inputs: Sequence[str]
    outputs: Sequence[str]
    imports: Collection[str]
    every_constant: Collection[str]
    constants: Sequence[str]
    """The constants that nodes read."""
    dying: Sequence[Sequence[tuple[str, StorageType]]]
    """For each node the values that no later one reads, and how they are stored."""
    users: Mapping[str, Sequence[int]]
    """For each value the positions of the nodes that read or write it."""

    def hold(self, graph: Graph, inputs: Sequence[str], outputs: Sequence[str], imports: Collection[str]) -> bool:
        """Tell whether a part has these names, and the nodes have ops of the same types.

        Types matter to a memory plan: some ops have their result lie where an input does.
        """
        if (self.inputs, self.outputs) != (inputs, outputs) or self.imports != {*imports}:
            return False
        if len(self.nodes) != len(graph.nodes) or self.every_constant != graph.constants.keys():
            return False
        for a, b in zip(self.nodes, graph.nodes, strict=True):
            if a is b:
                continue
            if (a.name, a.op.type, a.inputs, a.outputs) != (b.name, b.op.type, b.inputs, b.outputs):
                return False
        return True


TensorForm = tuple[Shape, DType, Layout]


def _serves(
    old: Task, node: Node, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], changed: Mapping[str, TensorForm]
) -> bool:
    """Tell whether an existing execution serves a node as it is now; `changed` are the old forms of old tensors."""
    if old.node is not node and old.node.op != node.op:  # a resize keeps most nodes, and comparing ops takes time
        return False
    if (len(old.inputs), len(old.outputs)) != (len(inputs), len(outputs)):
        return False
    for before, now in zip(old.inputs, inputs, strict=True) if not old.execution.any_constant else ():
        held, wanted = before.constant if before else None, now.constant if now else None
        if held is not wanted and not same_value(held, wanted):
            return False
    if old.execution.any_shape:
        return True
    pairs = zip((*old.inputs, *old.outputs), (*inputs, *outputs), strict=True)
    return all((a and changed.get(a.name, _form(a))) == (b and _form(b)) for a, b in pairs)


def _form(tensor: Tensor) -> TensorForm:
    return tensor.shape, tensor.dtype, tensor.layout


def show_stored(watch: OverflowWatch, outputs: Iterable[Tensor]) -> None:
    """Let a watch see what was stored, as far as it is on the host."""
    for tensor in outputs:
        if isinstance(tensor.memory, np.ndarray):
            watch.see(tensor.name, tensor.memory)


class Pipeline:
    """Owns a backend object, its executions and its tensors: all that a session asks of a part that is loaded.

    Of the backend it needs the contract's callbacks only.

    A `thrifty` one (memory mode LIMIT) keeps one copy of the weights: host backends read the model's own arrays, other
    backends' weights are dropped on the host, and a resize frees before it allocates.
    """

    def __init__(
        self, part: Part, backend: Backend, *, thrifty: bool = False, progress: Progress | None = None
    ) -> None:
        self.device, self.backend, self.thrifty = part.device, backend, thrifty
        self._callbacks = Callbacks(backend, part.device)
        self._progress = progress
        self.graph: Graph = part.graph
        self.tasks: list[Task] = []
        self._called: list[Task] = []
        """The tasks whose `onExecute` a run calls."""
        self.tensors: dict[str, Tensor] = {}
        self.constants: dict[str, Tensor] = {}
        self.mapped: dict[str, Array] = {}
        """Lasting host arrays of inputs and outputs, by value name: from and to them runs copy themselves."""
        self.running = False
        self._names: _Names | None = None

    # -- resize ----------------------------------------------------------------------------------------

    def resize(self, part: Part, imports: Mapping[str, Tensor], fetched: Collection[str], *, first: bool) -> None:
        """Prepare for the part's shapes; NodeRefused if the backend does not take a node with them.

        It keeps executions that serve any shape, and the executions of nodes that did not change.

        `imports` are tensors of other pipelines, or STATE tensors, by the names of the inputs that use their memory;
        with an input in STATE memory goes the output that lies there (`Graph.aliases`). `fetched` are the values that
        the host reads, of this part and of others.
        """
        keeps = self._may_keep_plan(part, imports)
        if not first:
            self.wait()
            if not keeps:
                self._drop_plan()
        if self.thrifty:
            self._drop_tasks()
        self.graph = part.graph if part.lowered is None else part.lowered.graph
        self._callbacks.part = self.graph.name
        if part.lowered is not None:
            self._callbacks.do("onLowered", part.lowered)
        names = self._named(part.graph.inputs, part.graph.outputs, imports)
        changed, touched = self._create(names)
        if keeps:
            if self._keep_plan(changed, touched):
                return
            self._drop_plan()
        self.mapped = {}
        self._callbacks.do("onResizeBegin")
        shared = {**imports, **{o: imports[i] for o, i in self.graph.aliases.items() if i in imports}}
        self._map(part.graph.inputs, part.graph.outputs, shared, fetched, names)
        self._callbacks.do("onResizeEnd")
        self._hold_memory(shared)
        self._called = [task for task in self.tasks if Recorded.is_called(task.execution)]
        if self.thrifty:
            self._forget_constants()

    def _may_keep_plan(self, part: Part, imports: Collection[str]) -> bool:
        """Tell whether the resize that begins may keep the memory plan of the last one."""
        return False

    def _keep_plan(self, changed: Mapping[str, TensorForm], touched: Collection[int]) -> bool:
        """Keep the plan, and resize the nodes that are `touched`; False if it has no room for the `changed` tensors."""
        return False

    @property
    def nbytes(self) -> int:
        """Return about how many bytes of its own it holds: values, staging, and constants that were copied for it."""
        told = self.backend.statistics()
        values = told.get("arena_bytes")
        if values is None:
            values = sum(t.nbytes for t in self.tensors.values() if t.constant is None)
        copied = 0 if self._borrows else sum(t.nbytes for t in self.constants.values())
        return values + told.get("staging_bytes", 0) + copied

    @property
    def wants_other_sizes(self) -> bool:
        """Tell whether `show` is of use before the second shape."""
        return False

    def show(self, other: Part) -> None:
        """Learn from the part for a shape in which every open dimension has another size; it does not run."""

    def _drop_plan(self) -> None:
        """Have the backend free all memory that is not STATIC, and hold no array of it, before there is a new plan."""
        self._forget_memory()
        self._callbacks.clear()
        for tensor in self.tensors.values():
            tensor.memory = None

    def _forget_memory(self) -> None:
        """Hold no array of outputs: the last one who does frees its buffer."""
        for task in self.tasks:
            task.memory = ()

    def _create(self, names: _Names) -> tuple[Mapping[str, TensorForm], Collection[int]]:
        """Have the backend make an execution for each node that no existing one serves.

        Return the forms that tensors had before if they changed, and the positions of the nodes that are new or have
        such a tensor.
        """
        before = {t.node.name: t for t in self.tasks}
        replaced = self._place_constants(names)
        changed = self._reshape(replaced)
        users = names.users
        renewed = {k for name in replaced for k in users.get(name, ())}
        touched = renewed.union(*(users.get(name, ()) for name in changed))
        made = dict[str, Task]()
        for k, node in enumerate(self.graph.nodes if before else ()):
            old = before.get(node.name)
            if old is None:
                continue
            if old.node is not node or k in renewed:
                touched.add(k)
                inputs, outputs = self._operands(node)
                if _serves(old, node, inputs, outputs, changed):
                    made[node.name] = Task(node, before.pop(node.name).execution, inputs, outputs)
            elif old.execution.any_shape or k not in touched:
                made[node.name] = before.pop(node.name)
        # Close old executions before new ones are made: memory may not hold the weights of both.
        self.tasks = list(made.values())
        self._close_tasks(before.values())
        refused = []
        for k, node in enumerate(self.graph.nodes):
            if node.name in made:
                continue
            touched.add(k)
            inputs, outputs = self._operands(node)
            execution = self._callbacks.create(node, inputs, outputs)
            if execution is None:
                refused.append(node)
            else:
                made[node.name] = Task(node, execution, inputs, outputs)
                self.tasks.append(made[node.name])
        if refused:
            raise NodeRefused(refused, self.device)
        self.tasks = [made[node.name] for node in self.graph.nodes]
        return changed, touched

    def _reshape(self, replaced: set[str]) -> dict[str, TensorForm]:
        """Give the tensors of the last shape the forms of this one, and return the old forms that changed.

        A tensor is replaced, and its name added, if it is of another constant.
        """
        graph, kept, changed = self.graph, dict[str, Tensor](), dict[str, TensorForm]()
        specs, constants, layouts = graph.specs, graph.constants, graph.layouts
        for name, tensor in self.tensors.items():
            spec, value, held = specs.get(name), constants.get(name), tensor.constant
            if spec is None or (held is not value and not same_value(held, value)):
                replaced.add(name)
                continue
            dtype, layout = spec.dtype, layouts.get(name, Layout.NCHW)
            if tensor.shape != spec.shape or tensor.dtype is not dtype or tensor.layout is not layout:
                changed[name] = _form(tensor)
                tensor.shape, tensor.dtype, tensor.layout = spec.dims, dtype, layout
            tensor.constant = value
            kept[name] = tensor
        self.tensors = kept
        return changed

    def _operands(self, node: Node) -> tuple[list[Tensor | None], list[Tensor]]:
        held, constants = self.tensors, self.constants
        inputs = [(held.get(i) or constants.get(i) or self.tensor(i)) if i else None for i in node.inputs]
        return inputs, [held.get(o) or self.tensor(o) for o in node.outputs if o]

    def tensor(self, name: str) -> Tensor:
        """Return the tensor of any value of the part."""
        held = self.tensors.get(name) or self.constants.get(name)
        if held is None:
            held = self.tensors[name] = describe(self.graph, name)
            held.backend = self.backend if name not in self.graph.constants else None
        return held

    def _place_constants(self, names: _Names) -> set[str]:
        """Copy constants to the backend's STATIC memory, unless it reads the model's arrays or copies them itself.

        Return the names of constants that are new, have another value, or are there no more.
        """
        if not (self.backend.copies_constants or self._borrows):
            return set()
        old, self.constants = self.constants, {}
        values, replaced = self.graph.constants, set[str]()
        for name in names.constants:
            value = values[name]
            held = old.get(name)
            if held is not None and (held.constant is value or same_value(held.constant, value)):
                self.constants[name] = old.pop(name)
                continue
            self.constants[name] = self._placed(name, value)
            replaced.add(name)
        self._release_constants(old.values())
        return replaced | old.keys()

    def _placed(self, name: str, value: Array) -> Tensor:
        tensor = describe(self.graph, name)
        tensor.backend = self.backend
        if self._borrows:
            # The caller may change an array of his own; in memory mode LIMIT there is no room for a copy.
            borrowed = self.thrifty or is_lasting(value)
            tensor.memory = to_storage(value if borrowed else value.copy(), tensor.layout)
        else:
            self._callbacks.acquire(tensor, StorageType.STATIC)
            self._callbacks.do("onCopyBuffer", Tensor.from_numpy(value, tensor.layout, name), tensor)
        return tensor

    @property
    def _borrows(self) -> bool:
        """Whether constants are read from the model's own arrays."""
        return self.backend.host_memory and (self.thrifty or not self.backend.copies_constants)

    def _map(
        self, inputs: Sequence[str], outputs: Sequence[str], imports: Mapping[str, Tensor],
        fetched: Collection[str], names: _Names,
    ) -> None:
        """Acquire, resize and release in the order of the nodes, then allocate."""
        callbacks = self._callbacks
        for name in inputs:
            if name in imports:
                callbacks.import_buffer(self.tensor(name), imports[name])
                continue
            callbacks.acquire(self.tensor(name), StorageType.DYNAMIC_SEPERATE)
            self._stage(self.tensor(name), is_input=True)
        dying = names.dying
        for k, task in enumerate(self.tasks):
            for tensor in task.outputs:
                if tensor.name in imports:
                    callbacks.import_buffer(tensor, imports[tensor.name])
                else:
                    callbacks.acquire(tensor, StorageType.DYNAMIC, task.node)
            callbacks.resize(task.node, task.execution, task.inputs, task.outputs)
            if self._progress is not None:
                self._progress(k + 1, len(self.tasks))
            for name, storage in dying[k]:
                if name in self.tensors:
                    callbacks.release(self.tensors[name], storage)
        for name in (o for o in outputs if o in fetched):
            self._stage(self.tensor(name), is_input=False)
        callbacks.allocate(lambda: sum(t.nbytes for t in self.tensors.values() if t.constant is None))

    def _named(self, inputs: Sequence[str], outputs: Sequence[str], imports: Collection[str]) -> _Names:
        """Return what follows from the names of the part, which most resizes leave as they were."""
        graph = self.graph
        if self._names is None or not self._names.hold(graph, inputs, outputs, imports):
            given, lasting = set(inputs), {*outputs, *imports, *graph.constants}
            last = {i: k for k, node in enumerate(graph.nodes) for i in node.inputs}
            dying, users = [], dict[str, list[int]]()
            for k, node in enumerate(graph.nodes):
                names = [i for i in dict.fromkeys(node.inputs) if last[i] == k and i not in lasting]
                names += [o for o in node.outputs if o not in last and o not in lasting]
                storages = (StorageType.DYNAMIC_SEPERATE if i in given else StorageType.DYNAMIC for i in names)
                dying.append(list(zip(names, storages, strict=True)))
                for name in dict.fromkeys((*node.inputs, *node.outputs)):
                    users.setdefault(name, []).append(k)
            read = dict.fromkeys(i for node in graph.nodes for i in node.inputs if i in graph.constants)
            self._names = _Names(
                [*graph.nodes], [*inputs], [*outputs], {*imports}, {*graph.constants}, [*read], dying, users
            )
        return self._names

    def _stage(self, tensor: Tensor, *, is_input: bool) -> None:
        """Put a lasting host array of an input or output into `mapped`, where runs copy themselves."""

    def _hold_memory(self, imports: Collection[str]) -> None:
        """Note where the outputs of nodes are on the host, which runs must not change; BackendError if nowhere."""
        if not self.backend.host_memory:
            return
        for tensor in self.tensors.values():
            if tensor.backend is not None and not isinstance(tensor.memory, np.ndarray):
                raise BackendError(
                    f"{self.device} gave {tensor.name!r} no memory",
                    where=self._callbacks.at("onImportBuffer" if tensor.name in imports else "onAcquireBuffer"),
                    why=f"Tensor.memory is {check_answers.shown(tensor.memory)} after onAllocateBuffer and onResizeEnd",
                    fix="host_memory promises numpy arrays: set Tensor.memory by then, or leave it to HostBackend",
                )
        self._note_memory()

    def _note_memory(self) -> None:
        for task in self.tasks:
            task.memory = tuple(t.memory for t in task.outputs)

    # -- run ---------------------------------------------------------------------------------------------

    def execute(
        self,
        targets: Mapping[str, Given] = NO_TARGETS,
        watch: OverflowWatch | None = None,
        read: Sequence[Buffer] = (),
    ) -> list[str]:
        """Start one run; an asynchronous backend may still be at work afterwards.

        Return the outputs that the run itself leaves in the arrays and buffers of `targets`, by the end of `wait`;
        buffers that are also `read` it writes after that. A `watch` sees what a host's backend stores; for others see
        `repeat`.
        """
        answer: object
        backend, task, callback = self.backend, None, "onExecuteBegin"
        try:
            answer = backend.onExecuteBegin()
            if answer is not None:
                done(answer, backend, callback)
            stored = self._store(targets, read)
            if backend.host_memory:
                for task in self._called:
                    self._run(task)
                    if watch is not None:
                        show_stored(watch, task.outputs)
            else:  # which only enqueue: so many calls of ours as well would take longer than a small network
                for task in self._called:
                    answer = task.execution.onExecute(task.inputs, task.outputs)
                    if answer is not None:
                        executed(answer, task.execution)
            task, callback = None, "onExecuteEnd"
            self.running = True  # before the call: an interrupt during it must not leave the run without a wait
            answer = backend.onExecuteEnd()
            if answer is not None:
                done(answer, backend, callback)
        except BaseException as e:
            # Nodes that were queued so far must be waited for; after a begin or an end that failed there are none.
            self.running = task is not None or not is_error(e)
            named = callback_of(task.execution, "onExecute") if task else callback_of(backend, callback)
            with blame(at_node(task.node, self.device) if task else self._everywhere(), callback=named):
                raise
        return stored

    def _store(self, targets: Mapping[str, Given], read: Sequence[Buffer]) -> list[str]:
        """Have the run that has begun leave outputs in `targets`, and return which; the session copies the others."""
        return []

    def give(self, name: str, source: Tensor) -> None:
        """Put an input where `repeat` takes it from."""

    def repeat(self, watch: OverflowWatch, *, suspect: bool) -> None:
        """Repeat the run that has ended, where that shows more than the run, so that a watch sees what it stores.

        `give` must have given the inputs again. Unless something overflowed (`suspect`), it should take no longer than
        a few runs.
        """

    def _run(self, task: Task) -> None:
        """Run one node on the host, report its time to the profile, and check that its outputs kept their memory."""
        profiling = self.backend.info.profiling
        begun = perf_counter() if profiling is not None else 0.0
        answer = task.execution.onExecute(task.inputs, task.outputs)
        if answer is not None:
            executed(answer, task.execution)
        if profiling is not None:
            seconds, node = perf_counter() - begun, task.node
            profiling.event(node.name, seconds, Work.of(node.name, node.op, task.inputs, task.outputs))
        for tensor, memory in zip(task.outputs, task.memory, strict=False):
            if tensor.memory is not memory:
                self._restore(tensor, memory, task)

    @staticmethod
    def _restore(tensor: Tensor, memory: object, task: Task) -> None:
        """Restore the memory that others read the output from, and raise: the result was not written there."""
        got, tensor.memory = tensor.memory, memory
        raise BackendError(
            f"the execution replaced the memory of {tensor.name!r}",
            where=callback_of(task.execution, "onExecute"),
            why=f"Tensor.memory became {check_answers.shown(got)}; it is part of a plan, and others read the old one",
            fix="write into it: np.maximum(x, 0, out=outputs[0].memory), or outputs[0].memory[...] = result",
        )

    def fill(self, name: str, value: Given) -> int:
        """Hand over an input, of the same shape and type, of the next run, and return how many bytes are copied.

        Arrays that are not lent are copied by the end of the call.
        """
        try:
            if isinstance(value, Buffer):
                value.give(self.tensor(name))
            else:
                copy_tensor(Tensor.from_numpy(value, name=name), self.tensor(name))
            return value.nbytes
        except Exception:
            with self._copying(name):
                raise

    def take(self, name: str, source: Tensor) -> None:
        """Copy an input from a tensor of another pipeline; on the host it may lie as the device wants it."""
        copy_tensor(source, self.tensor(name))

    def fetch(self, name: str, target: Given) -> int:
        """Copy an output of the run that has ended to an array or buffer, which may be of another float type.

        Return how many bytes leave the device for that.
        """
        tensor = self.tensor(name)
        try:
            if isinstance(target, Buffer):
                target.take(tensor)
            elif target.flags.c_contiguous:
                copy_tensor(tensor, Tensor(name, tensor.shape, DType.of(target.dtype), memory=target))
            else:
                np.copyto(target, tensor.numpy())
        except Exception:
            with self._copying(name):
                raise
        return target.nbytes

    def lend(self, tensor: Tensor, *, is_input: bool) -> Array | None:
        """Return a new host array for an input or output that needs no copy on the host; None if there is no such.

        The user fills it and passes it to runs, or has runs store there. Its memory stays valid as long as the array or
        a view of it lives, also after `close`. The type may be another than that of the plan: the session plans anew
        when it gets such an array.
        """
        return None

    def reach(self, memory: Array) -> object:
        """Put whole pages of the session's memory in the device's reach, so that runs may leave outputs there.

        Return an object that keeps them in reach as long as it lives, also after `close`; None if the device reaches no
        such memory. Called between runs.
        """
        return None

    def wait(self) -> None:
        """Wait for a run that was started; the backend's errors are raised here at the latest."""
        if not self.running:
            return
        try:
            answer = self.backend.onWaitFinish()
        except Exception as e:
            self.running = not is_error(e)  # after an interrupt the run must still be waited for
            callback = callback_of(self.backend, "onWaitFinish")
            with blame(self._everywhere(), "the device failed during a run", callback=callback):
                raise
        self.running = False
        if answer is not True and not self._callbacks.granted(answer, "onWaitFinish", "if the run failed"):
            raise ExecutionError(
                "the device could not finish a run",
                where=self._everywhere(),
                why="onWaitFinish returned False",
                fix=check_answers.SAY_WHY,
            )

    def _everywhere(self) -> str:
        return at_nodes([t.node for t in self.tasks], self.device)

    def port(self, name: str) -> Tensor:
        """Return the tensor that the host writes (an input) or reads (an output) before and after a run."""
        return self.tensor(name)

    def _copying(self, name: str) -> AbstractContextManager[None]:
        """Return a context that turns errors into failures to copy this value between the host and the device."""
        what = f"{name!r} could not be copied between the host and the device"
        return blame(self.device, what, callback=callback_of(self.backend, "onCopyBuffer"))

    # -- end ---------------------------------------------------------------------------------------------

    def _drop_tasks(self) -> None:
        tasks, self.tasks, self._called = self.tasks, [], []
        constants, self.constants = self.constants, {}
        do_all([partial(self._close_tasks, tasks), partial(self._release_constants, constants.values())])

    def _close_tasks(self, tasks: Iterable[Task]) -> None:
        do_all(partial(self._callbacks.close_execution, task.node, task.execution) for task in tasks)

    def _release_constants(self, tensors: Iterable[Tensor]) -> None:
        if not self._borrows:
            do_all(partial(self._callbacks.release, tensor, StorageType.STATIC) for tensor in tensors)

    def _forget_constants(self) -> None:
        self.graph = self.graph.copy()
        self.graph.constants = {}
        if not self._borrows:
            for tensor in {*self.tensors.values(), *self.constants.values()}:
                tensor.constant = None

    def close(self) -> None:
        """Wait, then free the executions, the constants, the rest of the memory, and the backend object."""
        end = partial(self._callbacks.do, "close")
        do_all([self.wait, self._drop_tasks, self._callbacks.clear, end, self._drop_tensors])

    def _drop_tensors(self) -> None:
        self.tensors, self.mapped = {}, {}


def open_pipeline(
    part: Part, backend: Backend, *, thrifty: bool = False, progress: Progress | None = None
) -> Pipeline:
    """Return a pipeline of the kind that the backend runs in; it is to be resized before it runs."""
    kind = backend.pipeline_type if isinstance(backend, Engine) else Pipeline
    return kind(part, backend, thrifty=thrifty, progress=progress)
