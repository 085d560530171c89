"""Ops whose output sizes are only known in a run, and the bounded form that a device computes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from weft.core.graph.dtypes import DType
from weft.core.graph.layout import Array
from weft.core.graph.op import Constants, Op
from weft.core.graph.tensor import TensorSpec
from weft.errors import ValueNeeded


@dataclass(frozen=True)
class RunSized(Op):
    """An op whose outputs' sizes follow from the values of its inputs.

    It has no shapes before a run. A device computes its `bounded` form: each output has room for the most elements
    that there can be, with the result in the corner at index 0 and zeros behind it. One more output holds the sizes of
    all of them, in int64. A session reads the sizes and goes on with the corners.
    """

    bounded: bool = False

    @abstractmethod
    def room(self, inputs: Sequence[TensorSpec | None]) -> tuple[TensorSpec, ...]:
        """Return the largest spec that each output can have; ModelError if the inputs do not fit."""

    @abstractmethod
    def counted_axes(self) -> tuple[int | None, ...]:
        """Return for each output the axis whose size a run counts; None if it has no such axis."""

    def with_bounds(self, constants: Constants) -> RunSized:
        """Return the bounded form; constants may show that it needs less room."""
        return replace(self, bounded=True)

    @abstractmethod
    def results(self, *inputs: Array | None) -> tuple[Array, ...]:
        """Return the outputs in their true sizes."""

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        """Return the specs: of the bounded form, or of values that are all known; else ValueNeeded."""
        most = self.room(inputs)
        if self.bounded:
            return (*most, TensorSpec((sum(len(spec.dims) for spec in most),), DType.INT64))
        if all(constants[k] is not None for k, spec in enumerate(inputs) if spec is not None):
            return tuple(TensorSpec(each.shape, DType.of(each.dtype)) for each in self.results(*constants))
        raise ValueNeeded("the size of the result depends on values computed at run time")

    def reference(self, *inputs: Array | None) -> Array | tuple[Array, ...]:
        """Return the outputs, or the outputs of the bounded form."""
        found = self.results(*inputs)
        if not self.bounded:
            return found
        given = [None if x is None else TensorSpec(x.shape, DType.of(x.dtype)) for x in inputs]
        roomy = tuple(np.zeros(spec.dims, spec.dtype.numpy) for spec in self.room(given))
        for room, each in zip(roomy, found, strict=True):
            room[tuple(slice(size) for size in each.shape)] = each
        return (*roomy, np.array([size for each in found for size in each.shape], np.int64))
