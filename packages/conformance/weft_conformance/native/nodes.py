"""Nodes to call a library with: the structures that it is shown, which are overwritten after the call."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from ctypes import c_char_p, c_double, c_int64
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from weft.core.graph.described import described
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph, infer_shapes
from weft.core.graph.layout import Array
from weft.core.graph.op import Op
from weft.core.graph.tensor import Tensor
from weft.plugins.native_abi import CAttribute, CTensor, NodeView
from weft_conformance.cases.table import Case, tolerance
from weft_conformance.checks.large import LARGE
from weft_conformance.checks.table import graph_of
from weft_conformance.networks import FORMS, STEPS, Net, difference

DECOY = np.full(16 << 20, 0xFF, np.uint8)
"""Memory that the pointers of a finished call are redirected to. It holds NaN as floats; writes to it do no harm."""
UNKNOWN_TYPE = 99
"""An element type of a later version of the header."""


@dataclass(frozen=True)
class NodeWork:
    """One node with its inputs as arrays, and what it must compute."""

    name: str
    op: Op
    inputs: tuple[Tensor | None, ...]
    outputs: tuple[Tensor, ...]
    arrays: tuple[Array | None, ...]

    @cached_property
    def wanted(self) -> list[Array]:
        """Return the outputs by the op's reference."""
        with np.errstate(all="ignore"):
            made = self.op.reference(*self.arrays)
        return [np.asarray(a) for a in (made if isinstance(made, tuple) else (made,))]

    def difference(self, actual: Sequence[Array]) -> str:
        """Return how outputs differ from what they must be, "" if they do not."""
        wanted = self.wanted[: len(actual)]
        return difference(actual, wanted, [tolerance(DType.of(a.dtype), self.op.op_class) for a in wanted])

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Return the inputs that are there, and the outputs."""
        return (*(t for t in self.inputs if t is not None), *self.outputs)


def of_graph(name: str, graph: Graph, arrays: Sequence[Array | None]) -> NodeWork:
    """Return the work of a graph of one node."""
    (node,) = graph.nodes
    inputs, outputs = described(graph, node)
    given = [None if t is None else a.astype(t.dtype.numpy) if a is not None else t.constant
             for t, a in zip(inputs, arrays, strict=True)]
    return NodeWork(name, node.op, tuple(inputs), tuple(outputs), tuple(given))


def of_row(row: Case) -> NodeWork:
    """Return the work of a row of the op table."""
    return of_graph(row.id, graph_of(row), row.arrays())


def large_works() -> Iterable[NodeWork]:
    """Return nodes on some 300,000 elements of float32, one for each op that networks are made of, and each shape."""
    for form in FORMS:
        for name, step in STEPS.items():
            if name == "Conv" and len(form) < 3:
                continue
            net = Net(LARGE[len(form)])
            graph = infer_shapes(net.finish(step(net, "x")))
            x = np.random.default_rng(3).uniform(-1, 1, net.form).astype(np.float32)
            (node,) = graph.nodes
            yield of_graph(f"{name} of {net.form}", graph, [x if i == "x" else None for i in node.inputs])


class View(NodeView):
    """A node as C sees it. All its parts can be overwritten once the call is over.

    If it is `roomy`, other structures follow each, as if a later version of Weft had longer structures.
    """

    def __init__(self, work: NodeWork, *, constants: bool, roomy: bool = False) -> None:
        self._texts: list[Any] = []
        self._numbers: list[Any] = []
        self._values: list[Array] = []
        self._seen: list[CTensor] = []
        self._listed: list[CAttribute] = []
        self._constants, self._is_roomy = constants, roomy
        super().__init__(work.inputs, work.outputs, work.op)
        self.node.name, self.node.op_type = self._text(self.node.name), self._text(self.node.op_type)

    def content(self) -> bytes:
        """Return the bytes of everything that C was shown."""
        parts = [bytes(each) for each in (self.node, *self._seen, *self._listed, *self._texts, *self._numbers)]
        return b"".join([*parts, *(value.tobytes() for value in self._values)])

    def overwrite(self, data: int = DECOY.ctypes.data) -> None:
        """Overwrite everything, as if other data had taken this memory."""
        for text in self._texts:
            text.raw = b"?" * (len(text) - 1) + b"\0"
        for numbers in self._numbers:
            for k, number in enumerate(numbers):
                numbers[k] = float("nan") if isinstance(number, float) else int(number != 1)
        for value in self._values:
            value[...] = np.nan if value.dtype.kind == "f" else value != 1
        for seen in self._seen:
            seen.dtype, seen.rank, seen.nbytes, seen.data, seen.offset = UNKNOWN_TYPE, 0, 0, data, 0
        for attribute in self._listed:
            attribute.count = 0

    def retype(self, dtype: int) -> None:
        """Give all inputs that are there an element type."""
        for seen in self.inputs:
            if seen.dtype:
                seen.dtype = dtype

    def _array(self, kind: Any, values: Sequence[Any]) -> Any:
        array = super()._array(kind, values)
        if kind in (c_int64, c_double):
            self._numbers.append(array)
        return array

    def _text(self, text: bytes) -> c_char_p:
        self._texts.append(ctypes.create_string_buffer(text))
        return ctypes.cast(self._texts[-1], c_char_p)

    def _tensor(self, tensor: Tensor | None) -> CTensor:
        if tensor is not None:
            constant = np.array(tensor.constant) if self._constants and tensor.constant is not None else None
            if constant is not None:
                self._values.append(constant)
            tensor = Tensor(tensor.name, tensor.shape, tensor.dtype, tensor.layout, constant=constant)
        made: CTensor = self._roomy(super()._tensor(tensor))
        made.name = self._text(made.name)
        self._seen.append(made)
        return made

    def _attribute(self, name: str, value: Any) -> CAttribute:
        made: CAttribute = self._roomy(super()._attribute(name, value))
        made.name = self._text(made.name)
        for k in range(made.count if made.strings else 0):
            made.strings[k] = self._text(made.strings[k])
        self._listed.append(made)
        return made

    def _roomy(self, made: Any) -> Any:
        """Return the structure, followed by others of different content if the view is roomy."""
        if not self._is_roomy:
            return made
        room = (type(made) * 4)()
        self._kept += [made, room]
        for k in range(4):
            ctypes.memmove(ctypes.byref(room, k * ctypes.sizeof(made)), ctypes.byref(made), ctypes.sizeof(made))
            if k and isinstance(made, CTensor):
                room[k].dtype, room[k].data, room[k].offset = UNKNOWN_TYPE, DECOY.ctypes.data, 0
        return room[0]
