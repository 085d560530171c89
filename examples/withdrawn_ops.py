"""Three ops that ONNX withdrew, added from outside of Weft: ImageScaler, Crop and Affine.

Style-transfer networks of 2017 and 2018 use them. Importing this module is all that it takes: such files
then load, and the three run on the CPU, on OpenCL and on Vulkan. docs/add-an-op.md explains each part.

    python withdrawn_ops.py candy.onnx picture.jpg candy.png [device]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

import weft
from weft import Op, Tensor, TensorSpec, register_op
from weft.extend import (
    Array,
    Constants,
    GpuOp,
    KernelBuilder,
    ModelError,
    OpClass,
    Shape,
    Strides,
    WantedLayout,
    gpu_op,
    launch_expression,
    launch_move,
    row_major,
)
from weft.ops.elementwise import Elementwise

Specs = Sequence[TensorSpec | None]
Inputs = Sequence[Tensor | None]
Outputs = Sequence[Tensor]


@register_op
@dataclass(frozen=True)
class Affine(Elementwise):
    """alpha * x + beta: element-wise, so a numpy function and an expression are all."""

    expr: ClassVar[str] = "{alpha} * {0} + {beta}"
    alpha: float = 1.0
    beta: float = 0.0

    def compute(self, x: Array, **_: object) -> Array:
        """Return the result for a numpy array."""
        return np.asarray(self.alpha * x + self.beta, x.dtype)


def picture(op: Op, inputs: Specs) -> TensorSpec:
    """Return the only input of an op; ModelError if it is no batch of pictures."""
    x = inputs[0] if len(inputs) == 1 else None
    if x is None or len(x.shape) != 4 or not x.dtype.is_float:
        raise ModelError(f"{op} does not fit its inputs", why="it takes one float tensor (n, c, h, w)")
    return x


@register_op
@dataclass(frozen=True)
class ImageScaler(Op):
    """scale * x, plus a bias for each channel."""

    op_class: ClassVar[OpClass] = "arithmetic"
    scale: float = 1.0
    bias: tuple[float, ...] = ()

    def infer(self, inputs: Specs, constants: Constants) -> tuple[TensorSpec, ...]:
        """Return the input's spec."""
        x = picture(self, inputs)
        if len(self.bias) != x.dims[1]:
            raise ModelError(f"{self} does not fit {x}", why="it needs one bias for each channel")
        return (x,)

    def reference(self, *inputs: Array | None) -> Array:
        """Return the scaled picture."""
        x = inputs[0]
        assert x is not None
        wide = x.astype(np.float32) * np.float32(self.scale) + self.bias_column()
        return np.asarray(wide, x.dtype)

    def bias_column(self) -> Array:
        """Return the bias as (1, c, 1, 1)."""
        return np.array(self.bias, np.float32).reshape(1, -1, 1, 1)


@gpu_op(ImageScaler)
class ImageScalerOnGpu(GpuOp):
    """The element-wise kernel with the bias as a constant that is broadcast."""

    wanted_layout = WantedLayout.EITHER

    def launches(self, op: ImageScaler, k: KernelBuilder, inputs: Inputs, outputs: Outputs) -> None:
        """Launch one expression over the output."""
        y = outputs[0]
        bias = k.constant("bias", op.bias_column, y.layout)
        launch_expression(k, "({0} * {2} + {1})", [inputs[0], bias], y, numbers=[op.scale])


@register_op
@dataclass(frozen=True)
class Crop(Op):
    """A part of each picture: without `border` (left, top, right, bottom), or `scale` (height, width) of it."""

    border: tuple[int, ...] = (0, 0, 0, 0)
    scale: tuple[int, ...] = ()

    def infer(self, inputs: Specs, constants: Constants) -> tuple[TensorSpec, ...]:
        """Return the spec of what is left."""
        x = picture(self, inputs)
        rows, columns = self.window(x.dims)
        return (TensorSpec((*x.dims[:2], rows.stop - rows.start, columns.stop - columns.start), x.dtype),)

    def window(self, dims: Shape) -> tuple[slice, slice]:
        """Return the rows and columns that are kept; ModelError if they are not in the picture."""
        if len(self.border) != 4 or len(self.scale) not in (0, 2):
            raise ModelError(f"{self} is malformed", why="border takes four numbers, and scale two or none")
        left, top, right, bottom = self.border
        height, width = self.scale or (dims[2] - top - bottom, dims[3] - left - right)
        fits = min(left, top, height, width) >= 0 and top + height <= dims[2] and left + width <= dims[3]
        if not fits:
            raise ModelError(f"{self} does not fit {dims}", why="the part reaches beyond the picture")
        return slice(top, top + height), slice(left, left + width)

    def reference(self, *inputs: Array | None) -> Array:
        """Return the part."""
        x = inputs[0]
        assert x is not None
        return np.ascontiguousarray(x[(..., *self.window(x.shape))])


@gpu_op(Crop)
class CropOnGpu(GpuOp):
    """A strided copy."""

    fuses_into_store = False
    moves_bits = True

    def launches(self, op: Crop, k: KernelBuilder, inputs: Inputs, outputs: Outputs) -> None:
        """Launch the copy from where the part begins."""
        x, y = inputs[0], outputs[0]
        assert x is not None
        rows, columns = op.window(x.shape)
        steps = row_major(x.shape)
        begin = rows.start * steps[2] + columns.start * steps[3]
        launch_move(k, x, y, y.shape, Strides(steps, begin), Strides(row_major(y.shape)))


def main(model: str, source: str, target: str, device: str = "auto") -> None:
    """Paint a picture in the style of a network."""
    from PIL import Image

    with weft.load(model, device, shapes={"inputImage": (1, 3, 720, 720)}) as session:
        photo = Image.open(source).convert("RGB").resize((720, 720))
        (painted,) = session.run(np.asarray(photo, np.float32).transpose(2, 0, 1)[None])
        print(session.report)
    Image.fromarray(painted[0].clip(0, 255).astype(np.uint8).transpose(1, 2, 0)).save(target)


if __name__ == "__main__":
    main(*sys.argv[1:])
