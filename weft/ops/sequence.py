"""Sequences of tensors, and optionals: lists that a session holds between the stages of a network."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import ClassVar

import numpy as np

from weft.core.graph.control_op import ControlOp, RunGraph, Value, given_value, interpret
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph
from weft.core.graph.layout import Array
from weft.core.graph.op import Constants, standard_op
from weft.core.graph.op_class import op_dataclass
from weft.core.graph.tensor import TensorSpec
from weft.ops.concat import Concat
from weft.ops.control import body_of, unlike
from weft.ops.random import numbered
from weft.ops.shape import one_axis, optional, unfit

MOST_FORESEEN = 1 << 10
"""A load foresees the pieces of a tensor if they are no more than these: each takes memory and time of its own."""


def tensor(value: Value) -> Array:
    """Return a value that is a tensor; ModelError if it is none."""
    if not isinstance(value, np.ndarray):
        raise unfit("a tensor is needed, and this is a sequence or an empty optional")
    return value


def sequence(value: Value) -> list[Array]:
    """Return a value that is a sequence; ModelError if it is none."""
    if not isinstance(value, list):
        raise unfit("a sequence is needed, and this is a tensor or an empty optional")
    return value


def place(value: Value, length: int) -> int:
    """Return a position in a sequence, counted from the front; ModelError if there is none."""
    index = int(tensor(value).reshape(-1)[0])
    if not -length <= index < length:
        raise unfit(f"position {index} is not in a sequence of {length}")
    return index % length


@op_dataclass
class ListOp(ControlOp):
    """An op whose results have shapes that follow from the shapes of its inputs, and from a few of their values."""

    decides: ClassVar[tuple[int, ...]] = ()
    """The positions of the inputs whose values decide shapes."""
    least_inputs: ClassVar[int] = 1

    def misfit(self, inputs: int, outputs: int) -> str:
        """Return why no node of so many inputs and outputs can have this op."""
        if inputs < self.least_inputs:
            return f"it has {inputs} of {self.least_inputs} input(s)"
        return super().misfit(inputs, outputs) or (f"it makes 1 output and names {outputs}" if outputs > 1 else "")

    def foreseen(
        self, inputs: Sequence[Value], constants: Constants, ends: Sequence[Sequence[Value] | None]
    ) -> Sequence[Value]:
        """Return what the op makes of the inputs; nothing if a value that decides shapes is not known."""
        if any(k < len(inputs) and inputs[k] is not None and constants[k] is None for k in self.decides):
            return ()
        return self.execute(inputs, interpret)


@standard_op
class SequenceConstruct(ListOp):
    """The sequence of the inputs."""

    def execute(self, inputs: Sequence[Value], run: RunGraph) -> Sequence[Value]:
        return [[tensor(value) for value in inputs]]


@standard_op(least_inputs=0)
class SequenceEmpty(ListOp):
    """A sequence without tensors."""

    dtype: DType = DType.FLOAT32

    def execute(self, inputs: Sequence[Value], run: RunGraph) -> Sequence[Value]:
        return [[]]


@standard_op(least_inputs=2)
class SequenceInsert(ListOp):
    """A sequence with one more tensor, before the given position or at the end; inputs sequence, tensor, position."""

    decides: ClassVar[tuple[int, ...]] = (2,)

    def execute(self, inputs: Sequence[Value], run: RunGraph) -> Sequence[Value]:
        held = list(sequence(inputs[0]))
        at = given_value(inputs, 2)
        index = len(held) if at is None else int(tensor(at).reshape(-1)[0])
        if not -len(held) <= index <= len(held):
            raise unfit(f"position {index} is not in a sequence of {len(held)}")
        held.insert(index, tensor(inputs[1]))
        return [held]


@standard_op
class SequenceErase(ListOp):
    """A sequence without the tensor at the given position, or the last one; inputs sequence, position."""

    decides: ClassVar[tuple[int, ...]] = (1,)

    def execute(self, inputs: Sequence[Value], run: RunGraph) -> Sequence[Value]:
        held = list(sequence(inputs[0]))
        at = given_value(inputs, 1)
        del held[place(np.asarray(-1) if at is None else at, len(held))]
        return [held]


@standard_op(least_inputs=2)
class SequenceAt(ListOp):
    """The tensor at a position of a sequence; inputs sequence, position."""

    decides: ClassVar[tuple[int, ...]] = (1,)

    def execute(self, inputs: Sequence[Value], run: RunGraph) -> Sequence[Value]:
        held = sequence(inputs[0])
        return [held[place(inputs[1], len(held))]]


@standard_op
class SequenceLength(ListOp):
    """The number of tensors in a sequence."""

    def execute(self, inputs: Sequence[Value], run: RunGraph) -> Sequence[Value]:
        return [np.asarray(len(sequence(inputs[0])), np.int64)]


@standard_op(flags=("keepdims",))
class SplitToSequence(ListOp):
    """The pieces of a tensor along `axis`: of the given lengths, or of one element each; inputs tensor, lengths."""

    decides: ClassVar[tuple[int, ...]] = (1,)
    axis: int = 0
    keepdims: int = 1

    def execute(self, inputs: Sequence[Value], run: RunGraph) -> Sequence[Value]:
        x = tensor(inputs[0])
        given = given_value(inputs, 1)
        axis = one_axis(self.axis, x.ndim)
        size = x.shape[axis]
        if given is None:
            pieces = [x[(slice(None),) * axis + (slice(k, k + 1),)] for k in range(size)]
            return [pieces if self.keepdims else [piece.squeeze(axis) for piece in pieces]]
        lengths = tensor(given)
        if lengths.ndim:
            if lengths.sum() != size or lengths.min(initial=0) < 0:
                raise unfit(f"pieces of {lengths.tolist()} are not {size} elements")
            return [list(np.split(x, np.cumsum(lengths)[:-1], axis)) if lengths.size else []]
        if lengths < 1:
            raise unfit(f"pieces of {lengths} elements have no end")
        return [list(np.split(x, range(int(lengths), size, int(lengths)), axis)) if size else []]

    def foreseen(
        self, inputs: Sequence[Value], constants: Constants, ends: Sequence[Sequence[Value] | None]
    ) -> Sequence[Value]:
        """Return the pieces, unless they are very many."""
        x, lengths = tensor(inputs[0]), optional(constants, 1)
        count = x.shape[one_axis(self.axis, x.ndim)]
        if lengths is not None:
            count = lengths.size if lengths.ndim else count // max(int(lengths), 1)
        return super().foreseen(inputs, constants, ends) if count <= MOST_FORESEEN else ()


@standard_op
class ConcatFromSequence(ListOp):
    """The tensors of a sequence along `axis`, which is a new one with `new_axis`."""

    axis: int = 0
    new_axis: int = 0

    def execute(self, inputs: Sequence[Value], run: RunGraph) -> Sequence[Value]:
        held = sequence(inputs[0])
        if not held:
            raise unfit("an empty sequence makes no tensor")
        axis = one_axis(self.axis, held[0].ndim + (1 if self.new_axis else 0))
        return [np.stack(held, axis) if self.new_axis else np.concatenate(held, axis)]

    def foreseen(
        self, inputs: Sequence[Value], constants: Constants, ends: Sequence[Sequence[Value] | None]
    ) -> Sequence[Value]:
        """Return a tensor of the shape, without memory of its own."""
        held = sequence(inputs[0])
        if not held:
            raise unfit("an empty sequence makes no tensor")
        specs = [TensorSpec(each.shape, DType.of(each.dtype)) for each in held]
        axis = one_axis(self.axis, held[0].ndim + (1 if self.new_axis else 0))
        if self.new_axis:
            specs = [TensorSpec((*s.shape[:axis], 1, *s.shape[axis:]), s.dtype) for s in specs]
        (made,) = Concat(axis=axis).infer(specs, [None] * len(specs))
        return [np.broadcast_to(np.zeros((), made.dtype.numpy), made.dims)]


@standard_op
class SequenceMap(ControlOp):
    """A graph that runs for each tensor of a sequence, with further tensors, or those of further sequences."""

    body: Graph | None = None

    def misfit(self, inputs: int, outputs: int) -> str:
        """Return why no node of so many inputs and outputs can have this op."""
        return super().misfit(inputs - 1, outputs) or unlike(self.body, inputs, 0, outputs)

    @cached_property
    def each(self) -> Graph:
        """The body for each place; if it draws random numbers, it reads the number of the place first."""
        return numbered(body_of(self.body))

    def execute(self, inputs: Sequence[Value], run: RunGraph) -> Sequence[Value]:
        body = self.each
        given, captured = inputs[: len(inputs) - self.captures], inputs[len(inputs) - self.captures :]
        out: list[list[Array]] = [[] for _ in body.outputs]
        for k in range(len(sequence(given[0]))):
            number = [] if body is self.body else [np.asarray(k)]
            made = run(body, [*number, *(v[k] if isinstance(v, list) else v for v in given), *captured])
            for held, value in zip(out, made, strict=True):
                held.append(tensor(value))
        return out


@standard_op(least_inputs=0)
class Optional(ListOp):
    """An optional that holds the input, or nothing."""

    def execute(self, inputs: Sequence[Value], run: RunGraph) -> Sequence[Value]:
        held = given_value(inputs, 0)
        return [held]


@standard_op(least_inputs=0)
class OptionalHasElement(ListOp):
    """Whether an optional holds something."""

    def execute(self, inputs: Sequence[Value], run: RunGraph) -> Sequence[Value]:
        return [np.asarray(given_value(inputs, 0) is not None)]


@standard_op
class OptionalGetElement(ListOp):
    """What an optional holds; ModelError if that is nothing."""

    def execute(self, inputs: Sequence[Value], run: RunGraph) -> Sequence[Value]:
        if inputs[0] is None:
            raise unfit("the optional holds nothing")
        return [inputs[0]]
