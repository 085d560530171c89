"""One node that does the work of several: a base op, then element-wise steps on its result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar, cast

from weft.core.graph.layout import Array, Shape
from weft.core.graph.op import Constants, Op, register_op
from weft.core.graph.tensor import TensorSpec
from weft.errors import ModelError

RUNNING = -1
"""The operand that stands for the running value."""


@dataclass(frozen=True)
class Step:
    """An element-wise op on the running value; an operand is the position of an input of the node, or RUNNING."""

    op: Op
    operands: tuple[int, ...]


@register_op
@dataclass(frozen=True)
class Fused(Op):
    """Computes the base op on the first `arity` inputs, then the steps in order."""

    from_optimizing: ClassVar[bool] = True
    base: Op
    arity: int
    steps: tuple[Step, ...]

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        """Return the spec after the last step; a step keeps the shape, and the type unless it is a cast."""
        problem = self._problem(len(inputs))
        if problem:
            raise ModelError("a fused node is not well formed", why=problem)
        spec = self.base.inferred(inputs[: self.arity], constants[: self.arity])[0]
        for step in self.steps:
            given = [spec if i == RUNNING else inputs[i] for i in step.operands]
            known = [None if i == RUNNING else constants[i] for i in step.operands]
            (after,) = step.op.inferred(given, known)
            if after.shape != spec.shape:
                raise ModelError(f"the step {step.op.type} makes {after} of {spec}", why="a step changes no shape")
            spec = after
        return (spec,)

    def _problem(self, inputs: int) -> str:
        """Return what is wrong with the parts of a node with `inputs` inputs, or ""."""
        if isinstance(self.base, Fused):
            return "its base is itself a fused node"
        if not 0 <= self.arity <= inputs:
            return f"its base takes {self.arity} of {inputs} inputs"
        for step in self.steps:
            if not step.op.is_elementwise:
                return f"its step {step.op.type} is not element-wise"
            if RUNNING not in step.operands or not all(i == RUNNING or 0 <= i < inputs for i in step.operands):
                return f"its step {step.op.type} reads the operands {step.operands} of {inputs} inputs"
        return ""

    def reference(self, *inputs: Array | None) -> Array:
        """Return the result of the chain; each step rounds as if it were a separate node."""
        first = self.base.reference(*inputs[: self.arity])
        value = first[0] if isinstance(first, tuple) else first
        for step in self.steps:
            value = cast(Array, step.op.reference(*[value if i == RUNNING else inputs[i] for i in step.operands]))
        return value

    def flops(self, inputs: Sequence[Shape | None], outputs: Sequence[Shape]) -> int:
        """Return the base op's operations, plus one for each element and step."""
        return self.base.flops(inputs[: self.arity], outputs) + len(self.steps) * prod(outputs[0])

    def __str__(self) -> str:
        return " + ".join([str(self.base), *(step.op.type for step in self.steps)])
