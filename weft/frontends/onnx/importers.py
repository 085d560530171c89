"""The differences between opsets: each importer lifts a node of an older opset to the newest form.

Weft's ops know only the newest form. Where an attribute has become an input since, the importer adds a
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
class Form:
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


Importer = Callable[[Form], None]
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


def lift(form: Form) -> None:
    """Bring a node to the newest form, step by step; ModelError where that is not possible."""
    for before, function in _IMPORTERS.get(form.type, ()):
        if form.opset < before:
            function(form)


@importer("Squeeze", "Unsqueeze", "ReduceSum", before=13)
@importer(
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceMax",
    "ReduceMean",
    "ReduceMin",
    "ReduceProd",
    "ReduceSumSquare",
    before=18,
)
def _axes(form: Form) -> None:
    form.input_from("axes", 1)


@importer("Slice", before=10)
def _slice(form: Form) -> None:
    form.input_from("starts", 1)
    form.input_from("ends", 2)
    form.input_from("axes", 3)


@importer("Split", before=13)
def _split_sizes(form: Form) -> None:
    form.input_from("split", 1)


@importer("Split")
def _split_count(form: Form) -> None:
    wanted = form.take("num_outputs")
    if wanted is not None and wanted != len(form.outputs):
        raise ModelError(f"num_outputs is {wanted}, but the node has {len(form.outputs)} outputs")


@importer("TopK", before=10)
def _topk(form: Form) -> None:
    form.set_input(1, "k", np.asarray([form.take("k")], np.int64))


@importer("Pad", before=11)
def _pad(form: Form) -> None:
    form.input_from("pads", 1)
    form.input_from("value", 2, form.data_type())


@importer("Clip", before=11)
def _clip(form: Form) -> None:
    form.input_from("min", 1, form.data_type())
    form.input_from("max", 2, form.data_type())


@importer("Dropout", before=12)
def _dropout(form: Form) -> None:
    # The ratio matters only in training, which a node cannot ask for before opset 12.
    form.take("ratio")
    if len(form.outputs) > 1:
        raise ModelError("what the mask of Dropout holds in inference is only defined from opset 12 on")


@importer("Softmax", "LogSoftmax", "Hardmax", before=13)
def _flattening(form: Form) -> None:
    form.attributes["flatten"] = True


@importer("BatchNormalization")
def _batch_normalization(form: Form) -> None:
    if form.opset < 14 and len(form.outputs) > 1:
        raise ModelError("training mode before opset 14 is not supported", why="several outputs ask for it")
    if form.take("training_mode"):
        form.type = "TrainingBatchNormalization"


@importer("Upsample", before=9)
def _upsample_scales(form: Form) -> None:
    form.input_from("scales", 1, DType.FLOAT32)


@importer("Upsample", before=10)
def _upsample(form: Form) -> None:
    form.type = RENAMED["Upsample"]
    if form.attributes.get("mode") in ("bilinear", "trilinear"):
        form.attributes["mode"] = "linear"
    _asymmetric(form)


@importer("Resize", before=11)
def _asymmetric(form: Form) -> None:
    form.inputs.insert(1, "")
    form.attributes["coordinate_transformation_mode"] = "asymmetric"
    # The old specification leaves the nearest pixel open; ONNX Runtime takes the lower one when it enlarges and
    # the upper one when it shrinks.
    scales = form.scope.value(form.inputs[2])
    shrinks = scales is not None and bool((scales < 1).any())
    if (
        shrinks
        and bool((np.asarray(scales) > 1).any())
        and form.attributes.get("mode", "nearest") == "nearest"
    ):
        raise ModelError(
            "before opset 11, to enlarge along one axis and shrink along another is not supported"
        )
    form.attributes["nearest_mode"] = "ceil" if shrinks else "floor"


@importer("Resize")
def _empty_inputs(form: Form) -> None:
    # An input of no elements stands for one that is not given: opset 11 has no other way to say it.
    for index in range(1, len(form.inputs)):
        value = form.scope.value(form.inputs[index])
        if value is not None and not value.size:
            form.inputs[index] = ""


@importer("Cast")
def _cast(form: Form) -> None:
    target = form.attributes.get("to")
    if isinstance(target, str):
        codes = dict(TensorProto.DataType.items())
        if target.upper() not in codes:
            raise ModelError(f"there is no element type {target!r}")
        form.attributes["to"] = int(codes[target.upper()])


@importer("CastLike")
def _cast_like(form: Form) -> None:
    # A cast of a constant is a constant, whatever the values are like which it is cast.
    target = form.scope.dtype(form.inputs[1])
    if target is not None:
        form.type, form.inputs = "Cast", form.inputs[:1]
        form.attributes["to"] = target


@importer("ConstantOfShape")
def _constant_of_shape(form: Form) -> None:
    value = form.take("value")
    filling = np.zeros(1, np.float32) if value is None else np.asarray(value)
    if filling.size != 1:
        raise ModelError(f"attribute 'value' has {filling.size} elements; it must have one")
    form.attributes["value"] = filling.reshape(-1)[0].item()
    form.attributes["dtype"] = DType.of(filling.dtype)


@importer("Scatter", before=11)
def _scatter(form: Form) -> None:
    form.type = RENAMED["Scatter"]


@importer("GridSample", before=20)
def _grid_sample(form: Form) -> None:
    mode = form.attributes.get("mode", "bilinear")
    form.attributes["mode"] = {"bilinear": "linear", "bicubic": "cubic"}.get(str(mode), mode)


@importer("RoiAlign", before=16)
def _roi_align(form: Form) -> None:
    form.attributes["coordinate_transformation_mode"] = "output_half_pixel"


@importer("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial")
def _seed(form: Form) -> None:
    # 24 bits: the attribute is a float.
    form.attributes.setdefault("seed", float(crc32(form.name.encode()) % 2**24))


@importer("DFT", before=20)
def _dft(form: Form) -> None:
    axis = form.take("axis")
    form.set_input(2, "axis", np.asarray(1 if axis is None else axis, np.int64))


@importer("Scan", before=9)
def _scan(form: Form) -> None:
    form.attributes["batched"] = True
    if form.inputs[0]:
        form.attributes["lengths"] = True
    else:
        del form.inputs[0]
    directions = form.take("directions")
    if directions is not None:
        form.attributes["scan_input_directions"] = directions
