"""The pipeline of the CPU: runs read and write callers' arrays in place, and resizes keep a memory plan with room."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np

from weft.core.buffers.buffer import Buffer
from weft.core.contract.backend import Recorded
from weft.core.graph.layout import Array, address_of
from weft.core.graph.tensor import Tensor
from weft.core.placement.optimized_network import Part
from weft.core.session.arguments import Given
from weft.core.session.pipeline import Pipeline, TensorForm

if TYPE_CHECKING:
    from weft.backends.cpu.backend import CpuBackend

_LENT_INPUTS: WeakValueDictionary[int, Array] = WeakValueDictionary()
_LENT_OUTPUTS: WeakValueDictionary[int, Array] = WeakValueDictionary()
"""The arrays that callers hold, by address: a session's pipelines for other shapes know them, too."""


class CpuPipeline(Pipeline):
    """Knows that executions of the CPU's own ask their tensors for the memory in each run.

    So a tensor may lie elsewhere in the next run: in a caller's array, or where the last plan has room for another
    size.
    """

    backend: CpuBackend
    _has_plan = False
    """Whether there is a memory plan that may be kept."""
    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._planned: dict[Tensor, Array] = {}
        """The planned memory of the inputs and outputs that lie in callers' arrays and buffers."""
        self._stored: list[Tensor] = []
        """The outputs that the last run left there."""

    # -- resize ----------------------------------------------------------------------------------------

    def resize(self, part: Part, imports: Mapping[str, Tensor], fetched: Collection[str], *, first: bool) -> None:
        """Prepare for the part's shapes; a plan with room for them is kept, unless inputs are imported."""
        super().resize(part, imports, fetched, first=first)
        self._stored.clear()
        self._has_plan = self._can_keep_plan(part, imports)

    def _can_keep_plan(self, part: Part, imports: Collection[str]) -> bool:
        return self.backend.reads_late and not (self.thrifty or imports or part.lowered is not None)

    def _may_keep_plan(self, part: Part, imports: Collection[str]) -> bool:
        has_plan, self._has_plan = self._has_plan, False  # if this resize fails, tensors do not lie where the plan says
        if not has_plan or self._names is None or not self._can_keep_plan(part, imports):
            return False
        return self._names.hold(part.graph, part.graph.inputs, part.graph.outputs, imports)

    def _keep_plan(self, changed: Mapping[str, TensorForm], touched: Collection[int]) -> bool:
        self._forget_memory()
        for tensor in [*self._planned]:
            tensor.memory = self._planned.pop(tensor)  # not by way of a variable, which would keep the old buffer
        if not self.backend.refit([self.tensors[name] for name in changed]):
            return False
        for k, task in enumerate(self.tasks):
            if k in touched:
                self._callbacks.resize(task.node, task.execution, task.inputs, task.outputs)
            if self._progress is not None:
                self._progress(k + 1, len(self.tasks))
        self._note_memory()
        self._called = [task for task in self.tasks if Recorded.is_called(task.execution)]
        return True

    def _drop_plan(self) -> None:
        self._planned.clear()
        super()._drop_plan()

    def _drop_tensors(self) -> None:
        self._planned.clear()
        super()._drop_tensors()

    # -- run -------------------------------------------------------------------------------------------

    def lend(self, tensor: Tensor, *, is_input: bool) -> Array | None:
        """Return an array that nodes read or write in place; None if there are executions that may know addresses."""
        if not self.backend.reads_late or not tensor.nbytes:
            return None
        array: Array = np.zeros(tensor.shape, tensor.dtype.numpy)
        (_LENT_INPUTS if is_input else _LENT_OUTPUTS)[address_of(array)] = array
        return array

    def fill(self, name: str, value: Given) -> int:
        """Have nodes read a lent array or a buffer in place; copy others, and those for an input that is reshaped."""
        may_lie = bool(_LENT_INPUTS or self._planned) or value.__class__ is Buffer
        if may_lie and self._lies_in(self.tensor(name), _in_place(value, _LENT_INPUTS)):
            return 0
        return super().fill(name, value)

    def _store(self, targets: Mapping[str, Given], read: Sequence[Buffer]) -> list[str]:
        """Have nodes write to lent arrays and buffers, but for an output that is reshaped; others lie where planned."""
        if not (targets or self._stored):
            return []
        before, self._stored = self._stored, []
        for tensor in before:
            if tensor in self._planned:
                tensor.memory = self._planned.pop(tensor)
        stored = []
        for name, target in targets.items():
            array = None if any(target is buffer for buffer in read) else _in_place(target, _LENT_OUTPUTS)
            if self._lies_in(self.tensor(name), array):
                stored.append(name)
                self._stored.append(self.tensor(name))
        if stored or before:
            self._note_memory()
        return stored

    def _lies_in(self, tensor: Tensor, array: Array | None) -> bool:
        """Let a tensor lie in an array that nobody changes during the run; if there is none, where it was planned.

        A tensor that shares its memory stays: the node between the two does not run, and other pipelines may read them.
        """
        if tensor in self._planned:
            tensor.memory = self._planned.pop(tensor)
        if array is None or not array.flags.c_contiguous or not self.backend.reads_late:
            return False
        if self.backend.shares(tensor) or array.dtype != tensor.dtype.numpy or array.shape != tensor.shape:
            return False
        self._planned[tensor], tensor.memory = tensor.memory, array
        return True


def _in_place(value: Given, lent: WeakValueDictionary[int, Array]) -> Array | None:
    """Return the array of an input or output that may be used in place: a lent one, or that of a buffer of the host."""
    if isinstance(value, Buffer):
        return value.host
    return value if address_of(value) in lent else None
