"""The differences between opsets: each importer lifts a node of an older opset to the newest node.

Weft's ops know only the newest node. Where an attribute has become an input since, the importer adds a
constant; where a default or a meaning has changed, it writes the old one out. What the newest form cannot
express is refused with a reason.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol
from zlib import crc32

import numpy as np
from onnx import TensorProto

from weft.core.graph.dtypes import DType
from weft.core.graph.layout import Array
from weft.errors import ModelError


class Scope(Protocol):
    """What an importer may ask about the graph around its node."""

    def add_constant(self, base: str, value: Array) -> str:
        """Return the name of a new constant with that value; it starts with `base`."""

    def value(self, name: str) -> Array | None:
        """Return the value of a constant, None for everything else."""

    def dtype(self, name: str) -> DType | None:
        """Return the element type of a value, None if it is not known."""


@dataclass
class ImportedNode:
    """A node on its way from the form in the file to the newest one."""

    name: str
    type: str
    opset: int
    inputs: list[str]
    outputs: list[str]
    attributes: dict[str, object]
    scope: Scope

    def take(self, name: str) -> object:
        """Return an attribute and forget it; None if the node does not have it."""
        return self.attributes.pop(name, None)

    def set_input(self, index: int, label: str, value: Array) -> None:
        """Make an input a new constant, named after the node and what it is."""
        self.inputs += [""] * (index + 1 - len(self.inputs))
        self.inputs[index] = self.scope.add_constant(f"{self.name}.{label}", value)

    def input_from(self, attribute: str, index: int, dtype: DType = DType.INT64) -> None:
        """Turn an attribute, if the node has it, into the constant input of that index."""
        value = self.take(attribute)
        if value is None:
            return
        try:
            with np.errstate(over="ignore"):  # a bound beyond the type's range becomes infinite, as it should
                self.set_input(index, attribute, np.asarray(value, dtype.numpy))
        except (ValueError, OverflowError) as e:
            raise ModelError(f"attribute {attribute!r} = {value} is no {dtype.value}") from e

    def data_type(self) -> DType:
        """Return the element type of the first input; float32 if that cannot be told."""
        return self.scope.dtype(self.inputs[0]) or DType.FLOAT32


Importer = Callable[[ImportedNode], None]
ALWAYS = 10**6
RENAMED = {"Upsample": "Resize", "Scatter": "ScatterElements"}
"""Ops that ONNX withdrew, and what their importers make of them."""

_IMPORTERS: dict[str, list[tuple[int, Importer]]] = {}


def importer(*op_types: str, before: int = ALWAYS) -> Callable[[Importer], Importer]:
    """Register a function that lifts nodes of those types from any opset older than `before`."""

    def register(function: Importer) -> Importer:
        for op_type in op_types:
            _IMPORTERS.setdefault(op_type, []).append((before, function))
            _IMPORTERS[op_type].sort(key=lambda rule: rule[0])
        return function

    return register


def lift(node: ImportedNode) -> None:
    """Bring a node to the newest node, step by step; ModelError where that is not possible."""
    for before, function in _IMPORTERS.get(node.type, ()):
        if node.opset < before:
            function(node)


@importer("Squeeze", "Unsqueeze", "ReduceSum", before=13)
@importer(
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin",
    "ReduceProd", "ReduceSumSquare", before=18,
)
def _axes(node: ImportedNode) -> None:
    node.input_from("axes", 1)


@importer("Slice", before=10)
def _slice(node: ImportedNode) -> None:
    node.input_from("starts", 1)
    node.input_from("ends", 2)
    node.input_from("axes", 3)


@importer("Split", before=13)
def _split_sizes(node: ImportedNode) -> None:
    node.input_from("split", 1)


@importer("Split")
def _split_count(node: ImportedNode) -> None:
    wanted = node.take("num_outputs")
    if wanted is not None and wanted != len(node.outputs):
        raise ModelError(f"num_outputs is {wanted}, but the node has {len(node.outputs)} outputs")


@importer("TopK", before=10)
def _topk(node: ImportedNode) -> None:
    node.set_input(1, "k", np.asarray([node.take("k")], np.int64))


@importer("Pad", before=11)
def _pad(node: ImportedNode) -> None:
    node.input_from("pads", 1)
    node.input_from("value", 2, node.data_type())


@importer("Clip", before=11)
def _clip(node: ImportedNode) -> None:
    dtype = node.data_type()
    if dtype in (DType.FLOAT32, DType.FLOAT64):  # smaller floats do not hold the defaults
        largest = float(np.finfo(np.float32).max)
        node.attributes = {"min": -largest, "max": largest, **node.attributes}
    node.input_from("min", 1, dtype)
    node.input_from("max", 2, dtype)


@importer("Dropout", before=12)
def _dropout(node: ImportedNode) -> None:
    # The ratio matters only in training, which a node cannot ask for before opset 12.
    node.take("ratio")
    if len(node.outputs) > 1:
        raise ModelError("what the mask of Dropout holds in inference is only defined from opset 12 on")


@importer("Softmax", "LogSoftmax", "Hardmax", before=13)
def _flattening(node: ImportedNode) -> None:
    node.attributes["flatten"] = True


@importer("BatchNormalization")
def _batch_normalization(node: ImportedNode) -> None:
    if node.opset < 14 and len(node.outputs) > 1:
        raise ModelError("training mode before opset 14 is not supported", why="several outputs ask for it")
    if node.take("training_mode"):
        node.type = "TrainingBatchNormalization"


@importer("GroupNormalization", before=21)
def _group_normalization(node: ImportedNode) -> None:
    node.type = "GroupScaledNormalization"


@importer("Upsample", before=9)
def _upsample_scales(node: ImportedNode) -> None:
    node.input_from("scales", 1, DType.FLOAT32)


@importer("Upsample", before=10)
def _upsample(node: ImportedNode) -> None:
    node.type = RENAMED["Upsample"]
    if node.attributes.get("mode") in ("bilinear", "trilinear"):
        node.attributes["mode"] = "linear"
    _asymmetric(node)


@importer("Resize", before=11)
def _asymmetric(node: ImportedNode) -> None:
    node.inputs.insert(1, "")
    node.attributes["coordinate_transformation_mode"] = "asymmetric"
    # The old specification leaves the nearest pixel open. ONNX Runtime's choice follows from the scale of each axis.
    node.attributes["nearest_mode"] = "ceil_if_shrunk"


@importer("Resize")
def _empty_inputs(node: ImportedNode) -> None:
    # An input of no elements stands for one that is not given: opset 11 has no other way to say it.
    for index in range(1, len(node.inputs)):
        value = node.scope.value(node.inputs[index])
        if value is not None and not value.size:
            node.inputs[index] = ""


@importer("Cast")
def _cast(node: ImportedNode) -> None:
    target = node.attributes.get("to")
    if isinstance(target, str):
        codes = dict(TensorProto.DataType.items())
        if target.upper() not in codes:
            raise ModelError(f"there is no element type {target!r}")
        node.attributes["to"] = int(codes[target.upper()])


@importer("CastLike")
def _cast_like(node: ImportedNode) -> None:
    # A cast of a constant is a constant, whatever the values are like which it is cast.
    target = node.scope.dtype(node.inputs[1])
    if target is not None:
        node.type, node.inputs = "Cast", node.inputs[:1]
        node.attributes["to"] = target


@importer("ConstantOfShape")
def _constant_of_shape(node: ImportedNode) -> None:
    value = node.take("value")
    filling = np.zeros(1, np.float32) if value is None else np.asarray(value)
    if filling.size != 1:
        raise ModelError(f"attribute 'value' has {filling.size} elements; it must have one")
    node.attributes["value"] = filling.reshape(-1)[0].item()
    node.attributes["dtype"] = DType.of(filling.dtype)


@importer("Scatter", before=11)
def _scatter(node: ImportedNode) -> None:
    node.type = RENAMED["Scatter"]


@importer("GridSample", before=20)
def _grid_sample(node: ImportedNode) -> None:
    mode = node.attributes.get("mode", "bilinear")
    node.attributes["mode"] = {"bilinear": "linear", "bicubic": "cubic"}.get(str(mode), mode)


@importer("RoiAlign", before=16)
def _roi_align(node: ImportedNode) -> None:
    node.attributes["coordinate_transformation_mode"] = "output_half_pixel"


@importer("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli")
def _seed(node: ImportedNode) -> None:
    # 24 bits: the attribute is a float.
    node.attributes.setdefault("seed", float(crc32(node.name.encode()) % 2**24))


@importer("DFT", before=20)
def _dft(node: ImportedNode) -> None:
    axis = node.take("axis")
    node.set_input(2, "axis", np.asarray(1 if axis is None else axis, np.int64))


@importer("Scan", before=9)
def _scan(node: ImportedNode) -> None:
    node.attributes["batched"] = True
    if node.inputs[0]:
        node.attributes["lengths"] = True
    else:
        del node.inputs[0]
    directions = node.take("directions")
    if directions is not None:
        node.attributes["scan_input_directions"] = directions
