"""Makes the contract's callbacks, and checks what they answer: errors name the device, the callback and the node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import numpy as np

from weft.core.contract import check_answers
from weft.core.contract.backend import Backend, Execution, StorageType
from weft.core.contract.error_context import at_node, blame, callback_of
from weft.core.graph.graph import Node
from weft.core.graph.tensor import Tensor
from weft.errors import LESS_MEMORY, BackendError, OutOfMemory

REFUSE_LATE = "return None to refuse the node"


def done(answer: object, owner: object, name: str) -> None:
    """Raise unless a callback answers that it succeeded; the caller adds the node or the device to the error.

    Callers that make many calls ask before whether the answer is None, which most are.
    """
    check_answers.done(answer, callback_of(owner, name), f"{name} failed")


def executed(answer: object, execution: Execution) -> None:
    """Raise unless an execution answers that it ran; an execution that returns its result did not write it."""
    if isinstance(answer, (np.ndarray, tuple, list)):
        raise check_answers.broken(
            answer, callback_of(execution, "onExecute"), "None", "write the result into outputs[0].memory"
        )
    done(answer, execution, "onExecute")


class Callbacks:
    """Makes the callbacks of one backend object, for `part` of a network if it runs one.

    A node's name is put together only for an error: that would take longer than most callbacks.
    """

    def __init__(self, backend: Backend, device: str) -> None:
        self.backend, self.device, self.part = backend, device, ""

    def blamed(self, name: str, node: Node | None = None) -> AbstractContextManager[None]:
        """Return a context that names the backend and the callback in errors."""
        return blame(self._place(node), f"the backend failed in {name}", callback=callback_of(self.backend, name))

    def at(self, name: str, node: Node | None = None) -> str:
        """Return the place of a callback, as errors name it."""
        return f"{self._place(node)}: {callback_of(self.backend, name)}"

    def _place(self, node: Node | None) -> str:
        return at_node(node, self.device) if node else self.device

    @property
    def _of_part(self) -> str:
        return f" of network part {self.part!r}" if self.part else ""

    def _call(self, name: str, *arguments: object, node: Node | None = None) -> object:
        try:
            answer: object = getattr(self.backend, name)(*arguments)
        except Exception:
            with self.blamed(name, node):
                raise
        return answer

    def do(self, name: str, *arguments: object) -> None:
        """Call a callback that answers success or failure; ExecutionError if it failed."""
        answer = self._call(name, *arguments)
        if answer is not None:
            check_answers.done(answer, self.at(name), f"the backend failed in {name}{self._of_part}")

    def granted(self, answer: object, name: str, otherwise: str, node: Node | None = None) -> bool:
        """Return whether a callback did what it was asked; BackendError for an answer that is neither yes nor no."""
        if answer is True or answer is False:
            return answer
        return check_answers.granted(answer, self.at(name, node), otherwise)

    def create(self, node: Node, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]) -> Execution | None:
        """Return the execution of a node; None if the backend does not take it after all."""
        answer = self._call("onCreate", inputs, outputs, node.op, node=node)
        if answer is None or isinstance(answer, Execution):
            return answer
        raise check_answers.broken(answer, self.at("onCreate", node), "an Execution, or None", REFUSE_LATE)

    def acquire(self, tensor: Tensor, storage: StorageType, node: Node | None = None) -> None:
        """Have the backend give a tensor memory; OutOfMemory if it has none."""
        try:  # not by way of `_call`: a resize acquires and releases thousands of tensors
            answer = self.backend.onAcquireBuffer(tensor, storage)
        except Exception:
            with self.blamed("onAcquireBuffer", node):
                raise
        if answer is not True and not self.granted(answer, "onAcquireBuffer", "where memory is lacking", node):
            raise OutOfMemory(
                f"{self.device} has no memory for {tensor.name!r}",
                where=self._place(node),
                why=f"{tensor.nbytes:,} bytes of {storage.name} memory were refused",
                fix=f"{LESS_MEMORY}, or another device",
            )

    def release(self, tensor: Tensor, storage: StorageType) -> None:
        """Have the backend take back the memory of a tensor."""
        try:
            answer = self.backend.onReleaseBuffer(tensor, storage)
        except Exception:
            with self.blamed("onReleaseBuffer"):
                raise
        if answer is not True and not self.granted(answer, "onReleaseBuffer", "where it does not know the tensor"):
            raise BackendError(
                f"{self.device} did not take back the memory of {tensor.name!r}",
                where=self.at("onReleaseBuffer"),
                why=f"it returned False for {storage.name} memory that it had given",
                fix=check_answers.SAY_WHY,
            )

    def import_buffer(self, tensor: Tensor, source: Tensor) -> None:
        """Have a tensor use the memory of another one."""
        answer = self._call("onImportBuffer", tensor, source)
        if not self.granted(answer, "onImportBuffer", "where it cannot import"):
            raise BackendError(
                f"{self.device} did not import {tensor.name!r}",
                where=self.at("onImportBuffer"),
                why="it returned False, and canImport had returned True",
                fix="answer both alike, or leave canImport out: then the value is copied",
            )

    def allocate(self, needed: Callable[[], int]) -> None:
        """Have the backend allocate what was acquired since the resize began, up to so many bytes."""
        if not self.granted(self._call("onAllocateBuffer"), "onAllocateBuffer", "where memory is lacking"):
            raise OutOfMemory(
                f"{self.device} could not allocate what the network needs",
                where=self.part,
                why=f"its tensors take up to {needed():,} bytes and onAllocateBuffer returned False",
                fix=f"{LESS_MEMORY}, or another device",
            )

    def clear(self) -> None:
        """Have the backend free all memory that is neither STATIC nor STATE."""
        if not self.granted(self._call("onClearBuffer"), "onClearBuffer", "where it cannot free its memory"):
            raise BackendError(
                f"{self.device} did not free the memory{self._of_part}",
                where=self.at("onClearBuffer"),
                why="it returned False",
                fix=check_answers.SAY_WHY,
            )

    # -- executions ------------------------------------------------------------------------------------

    def resize(
        self, node: Node, execution: Execution, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]
    ) -> None:
        """Prepare an execution for its shapes."""
        try:
            answer: object = execution.onResize(inputs, outputs)  # type: ignore[func-returns-value]
            if answer is not None:
                done(answer, execution, "onResize")
        except Exception:
            with blame(at_node(node, self.device), callback=callback_of(execution, "onResize")):
                raise

    def close_execution(self, node: Node, execution: Execution) -> None:
        """Close an execution."""
        with blame(at_node(node, self.device), callback=callback_of(execution, "close")):
            answer: object = execution.close()  # type: ignore[func-returns-value]
            if answer is not None:
                done(answer, execution, "close")
