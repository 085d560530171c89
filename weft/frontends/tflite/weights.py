"""The values of constant tensors: in the file, behind its tables, in files beside it, packed in few bits or sparse."""

from __future__ import annotations

from math import prod

import numpy as np

from weft.core.graph.layout import Array
from weft.core.graph.limits import Limits
from weft.errors import ModelError
from weft.frontends.files_beside import FilesBeside
from weft.frontends.raw_data import file_bytes, from_bytes, is_absurd
from weft.frontends.tflite.flatbuffer import Table
from weft.frontends.tflite.model import Model, TensorInfo
from weft.frontends.wording import quote

BEHIND = 1
"""An offset beyond this one is that of bytes behind the tables."""
DENSE, SPARSE = 0, 1


class Costs:
    """What a model has cost so far; graphs that are called are written out, and weights moved and unpacked."""

    def __init__(self, limits: Limits, label: str) -> None:
        self._limits, self._label = limits, label
        self._nodes = self._nbytes = 0
        self.exceeded: ModelError | None = None
        """Why the model costs more than the limits allow."""

    def count_node(self) -> None:
        """Count a node; ModelError if there are more than the limit."""
        self._nodes += 1
        if self._nodes > self._limits.nodes:
            self.exceeded = self._limits.exceeded("nodes", self._nodes, "the model", self._label)
            raise self.exceeded

    def count_bytes(self, nbytes: int, where: str) -> None:
        """Count bytes of constants; ModelError if there are more than the limit."""
        self._nbytes += nbytes
        if self._nbytes > self._limits.constant_bytes:
            what = f"the model up to {where}"
            self.exceeded = self._limits.exceeded("constant_bytes", self._nbytes, what, self._label)
            raise self.exceeded


class Weights:
    """The constants of a model. What needs no decoding stays mapped."""

    def __init__(self, model: Model, files: FilesBeside, costs: Costs) -> None:
        self._model, self._files, self._costs = model, files, costs
        self._known: dict[tuple[int, int], Array | None] = {}

    def value(self, tensor: TensorInfo, subgraph: int) -> Array | None:
        """Return the value of a tensor that the file has; None for one that has none there."""
        key = subgraph, tensor.index
        if key not in self._known:
            self._known[key] = self._read(tensor)
        return self._known[key]

    def _read(self, tensor: TensorInfo) -> Array | None:
        data = self._bytes(tensor)
        if data is None or not data.size:
            return None
        dtype, shape = tensor.dtype, tensor.shape
        if is_absurd(shape):
            raise ModelError("its shape makes no sense", where=tensor.where, why=f"it is {shape}")
        sparsity = tensor.table.table(6)
        if sparsity is not None:
            array = self._dense(tensor, data, sparsity)
        else:
            need = file_bytes(shape, dtype)
            if data.size != need:
                raise ModelError(
                    "its data does not fit its shape", where=tensor.where,
                    why=f"{dtype.value} of shape {shape} needs {need} bytes, the file has {data.size}",
                )
            array = from_bytes(data, dtype, prod(shape)).reshape(shape)
        self._costs.count_bytes(array.nbytes, tensor.where)
        array.setflags(write=False)
        return array

    def _bytes(self, tensor: TensorInfo) -> Array | None:
        """Return the bytes of a tensor as they lie in a file; None if there are none."""
        if tensor.external:
            return self._beside(tensor)
        if not tensor.buffer:
            return None
        if tensor.buffer >= len(self._model.buffers):
            why = f"it names buffer {tensor.buffer}, and there are {len(self._model.buffers)}"
            raise ModelError("its buffer is not there", where=tensor.where, why=why)
        table = self._model.buffers[tensor.buffer]
        offset, size = table.integer(1, "Q"), table.integer(2, "Q")
        if offset > BEHIND:
            return self._model.data.bytes_at(offset, size)
        return table.data(0)

    def _beside(self, tensor: TensorInfo) -> Array:
        model, table = self._model, self._model.externals.get(tensor.external)
        group = -1 if table is None else table.integer(1, "I")
        if table is None or group >= len(model.groups):
            raise ModelError("its external buffer is not there", where=tensor.where, why=f"it names {tensor.external}")
        if packing := table.text(4):
            raise ModelError(f"its data is packed as {quote(packing)}, which is not supported", where=tensor.where)
        where = f"{tensor.where}, external file {quote(model.groups[group])}"
        return self._files.part(model.groups[group], table.integer(2, "Q"), table.integer(3, "Q"), where)

    def _dense(self, tensor: TensorInfo, data: Array, sparsity: Table) -> Array:
        """Return a sparse tensor with its zeros: levels of axes say which places the file has values for.

        An axis is dense, or lists for each place above it which indices it has. Blocks are axes of their own, behind
        the others: `block_map` says which axis each divides.
        """
        shape, dtype = tensor.shape, tensor.dtype
        self._costs.count_bytes(prod(shape) * dtype.itemsize, tensor.where)
        order, blocks, levels = sparsity.integers(0), sparsity.integers(1), sparsity.tables(2)
        rank = len(shape)
        wrong = ModelError("its sparse form makes no sense", where=tensor.where, why=f"its shape is {shape}")
        axes_fit = sorted(order) == list(range(rank + len(blocks))) and all(0 <= b < rank for b in blocks)
        if dtype.bits < 8 or len(levels) != len(order) or not axes_fit:
            raise wrong
        block_sizes = {b: levels[order.index(rank + k)].integer(1, "i") for k, b in enumerate(blocks)}
        if len(block_sizes) < len(blocks) or min(block_sizes.values(), default=1) < 1:
            raise wrong
        places = np.zeros(1, np.int64)  # of the values so far, counted through the dense tensor
        strides = [prod(shape[axis + 1 :]) for axis in range(rank)]
        for axis, level in zip(order, levels, strict=True):
            inner = axis >= rank
            whole = blocks[axis - rank] if inner else axis
            step = strides[whole] * (1 if inner else block_sizes.get(whole, 1))
            room = block_sizes[whole] if inner else -(-shape[whole] // block_sizes.get(whole, 1))
            parents, indices = _level(level, places.size, room, max(prod(shape), 1), wrong)
            places = places[parents] + indices * step
        held = from_bytes(data, dtype, data.size // dtype.itemsize) if not data.size % dtype.itemsize else None
        if held is None or held.size != places.size or places.max(initial=0) >= max(prod(shape), 1):
            raise wrong
        dense = np.zeros(prod(shape), held.dtype)
        dense[places] = held
        return dense.reshape(shape)


def _level(level: Table, above: int, room: int, most: int, wrong: ModelError) -> tuple[Array, Array]:
    """Return, for each place of a level, which of those above it lies in, and its index there; `wrong` if unfit."""
    if level.integer(0, "b") == DENSE:
        size = level.integer(1, "i")
        if size != room or above * size > most:
            raise wrong
        return np.repeat(np.arange(above), size), np.tile(np.arange(size, dtype=np.int64), above)
    segments, indices = _numbers(level, 2), _numbers(level, 4)
    if segments is None or indices is None or segments.size != above + 1 or indices.size > most:
        raise wrong
    counts = np.diff(segments)
    if segments[0] != 0 or (counts < 0).any() or segments[-1] != indices.size:
        raise wrong
    if indices.size and not (indices.min() >= 0 and indices.max() < room):
        raise wrong
    return np.repeat(np.arange(above), counts), indices


def _numbers(level: Table, field: int) -> Array | None:
    """Return the numbers of a level, of which the field says how wide they are."""
    dtype = {1: "<i4", 2: "<u2", 3: "u1"}.get(level.integer(field, "B"))
    table = level.table(field + 1)
    found = table.array(0, dtype) if table is not None and dtype is not None else None
    return None if found is None else found.astype(np.int64)
