"""What ONNX Runtime's own ops (`com.microsoft`) with windows over images share: attributes, and where channels lie."""

from __future__ import annotations

from typing import Any

from weft.core.graph.composite import Body, Composite
from weft.core.graph.layout import to_image, to_rows
from weft.core.graph.op_class import op_dataclass


def channels_second(make: Body, x: str) -> str:
    """Return images whose channels lie last with channels behind the batch."""
    return make.add("Transpose", x, perm=to_image(len(make.dims(x))))


def channels_last(make: Body, x: str) -> str:
    """Return images with their channels last."""
    return make.add("Transpose", x, perm=to_rows(len(make.dims(x))))


def window_of(op: Any) -> dict[str, Any]:
    """Return the attributes of an op that say where its window lies."""
    return {name: getattr(op, name) for name in ("auto_pad", "dilations", "kernel_shape", "pads", "strides")}


@op_dataclass
class OwnConv(Composite):
    """A convolution with ONNX's attributes, as a part of an op of ONNX Runtime's."""

    auto_pad: str = "NOTSET"
    dilations: tuple[int, ...] = ()
    group: int = 1
    kernel_shape: tuple[int, ...] = ()
    pads: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()

    def convolved(self, make: Body, kind: str, *inputs: str) -> str:
        """Return the result of ONNX's convolution of that kind, Conv or QLinearConv."""
        return make.add(kind, *inputs, **window_of(self), group=self.group)
