"""One node that does the work of several: a base op, then element-wise steps on its result.

Values are numbered: the base makes number 0, step k makes number k + 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar, TypeVar, cast

from weft.core.graph.layout import Array, Shape
from weft.core.graph.op import Constants, Op, register_op
from weft.core.graph.tensor import TensorSpec
from weft.errors import ModelError

T = TypeVar("T")

RUNNING = -1
"""The operand that stands for the running value: what the step before made, and for the first step the base."""


def earlier(step: int) -> int:
    """Return the operand that stands for the value that was running before step `step`."""
    return RUNNING - 1 - step


def value_number(operand: int, step: int) -> int | None:
    """Return before which step the value of an operand of step `step` was running, or None for an input."""
    if operand >= 0:
        return None
    return step if operand == RUNNING else RUNNING - 1 - operand


@dataclass(frozen=True)
class Step:
    """An element-wise op; an operand is the position of an input of the node, RUNNING, or an `earlier` value."""

    op: Op
    operands: tuple[int, ...]


def pick_operands(step: Step, number: int, inputs: Sequence[T], made: Sequence[T]) -> list[T]:
    """Return what step `number` reads: of the node's inputs, and of the values that the base and the steps made."""
    numbers = [value_number(i, number) for i in step.operands]
    return [inputs[i] if k is None else made[k] for i, k in zip(step.operands, numbers, strict=True)]


@register_op
@dataclass(frozen=True)
class Fused(Op):
    """Computes the base op on the first `arity` inputs, then the steps in order."""

    from_optimizing: ClassVar[bool] = True
    base: Op
    arity: int
    steps: tuple[Step, ...]
    second_outputs: tuple[int, ...] = ()
    """The numbers of the values before the last that are results, too, behind the result of the last step."""

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        """Return the specs of the results; a step keeps the shape, and the type unless it is a cast."""
        problem = self._problem(len(inputs))
        if problem:
            raise ModelError("a fused node is not well formed", why=problem)
        specs: list[TensorSpec | None] = [self.base.inferred(inputs[: self.arity], constants[: self.arity])[0]]
        for number, step in enumerate(self.steps):
            known = pick_operands(step, number, constants, [None] * len(specs))
            (after,) = step.op.inferred(pick_operands(step, number, inputs, specs), known)
            spec = specs[-1]
            assert spec is not None
            if after.shape != spec.shape:
                raise ModelError(f"the step {step.op.type} makes {after} of {spec}", why="a step changes no shape")
            specs.append(after)
        return tuple(spec for number in (-1, *self.second_outputs) if (spec := specs[number]) is not None)

    def _problem(self, inputs: int) -> str:
        """Return what is wrong with the parts of a node with `inputs` inputs, or ""."""
        if isinstance(self.base, Fused):
            return "its base is itself a fused node"
        if not 0 <= self.arity <= inputs:
            return f"its base takes {self.arity} of {inputs} inputs"
        seconds = set(self.second_outputs)
        if len(seconds) < len(self.second_outputs) or not seconds <= set(range(len(self.steps))):
            return f"its second outputs are the values {self.second_outputs} of {len(self.steps)} steps"
        unread = set(range(len(self.steps))) - seconds
        for number, step in enumerate(self.steps):
            if not step.op.is_elementwise:
                return f"its step {step.op.type} is not element-wise"
            read = {value_number(i, number) for i in step.operands}
            if any(i >= inputs for i in step.operands) or any(k is not None and k > number for k in read):
                return f"its step {step.op.type} reads the operands {step.operands} of {inputs} inputs"
            unread -= {k for k in read if k is not None}
        return f"nothing reads what comes before its step {self.steps[min(unread)].op.type}" if unread else ""

    def reference(self, *inputs: Array | None) -> Array | tuple[Array, ...]:
        """Return the results; each step rounds as if it were a separate node."""
        first = self.base.reference(*inputs[: self.arity])
        made = [first[0] if isinstance(first, tuple) else first]
        for number, step in enumerate(self.steps):
            made.append(cast(Array, step.op.reference(*pick_operands(step, number, inputs, made))))
        seconds = [made[number] for number in self.second_outputs]
        return (made[-1], *seconds) if seconds else made[-1]

    def flops(self, inputs: Sequence[Shape | None], outputs: Sequence[Shape]) -> int:
        """Return the base op's operations, plus one for each element and step."""
        return self.base.flops(inputs[: self.arity], outputs[:1]) + len(self.steps) * prod(outputs[0])

    def __str__(self) -> str:
        return " + ".join([str(self.base), *(step.op.type for step in self.steps)])
