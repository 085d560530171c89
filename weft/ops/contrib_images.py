"""ONNX Runtime's own ops (`com.microsoft`) in files of its optimiser for networks that make images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from weft.core.graph.composite import Body, Composite
from weft.core.graph.op import OpClass, standard_op
from weft.core.graph.op_class import op_dataclass
from weft.ops.contrib_windows import OwnConv, channels_last, channels_second
from weft.ops.elementwise import misfit


@op_dataclass
class _GroupNorm(Composite):
    """Normalization of groups of channels, and SiLU of that with `activation` 1."""

    op_class: ClassVar[OpClass] = "reduction"
    groups: int
    activation: int = 0
    channels_last: int = 1
    epsilon: float = 1e-5

    def normed(self, make: Body, x: str, gamma: str, beta: str) -> str:
        """Return the norm; gamma and beta may be of another type."""
        if self.activation not in (0, 1):
            raise misfit(self, f"activation is {self.activation}; there are 0, for none, and 1, for SiLU")
        parameters = (make.cast(each, make.dtype(x)) for each in (gamma, beta))
        x = channels_second(make, x) if self.channels_last else x
        y = make.add("GroupNormalization", x, *parameters, num_groups=self.groups, epsilon=self.epsilon)
        y = make.add("Swish", y) if self.activation else y
        return channels_last(make, y) if self.channels_last else y


@standard_op(type="com.microsoft::GroupNorm", most_inputs=3)
class GroupNorm(_GroupNorm):
    """Normalization of groups of channels; inputs X, gamma, beta."""

    def body(self, make: Body, inputs: Sequence[str]) -> Sequence[str]:
        return [self.normed(make, *inputs)]


@standard_op(type="com.microsoft::SkipGroupNorm", most_inputs=5)
class SkipGroupNorm(_GroupNorm):
    """GroupNorm of a sum; inputs X, gamma, beta, skip, bias; outputs the norm and the sum.

    The skip connection is like X, or has one number a channel and image.
    """

    def body(self, make: Body, inputs: Sequence[str]) -> Sequence[str]:
        x, gamma, beta, skip, *bias = inputs
        shape = make.dims(x)
        channel = len(shape) - 1 if self.channels_last else 1
        if len(make.dims(skip)) == 2:
            skip = make.reshape(skip, shape[0], *(shape[a] if a == channel else 1 for a in range(1, len(shape))))
        total = make.add("Add", x, skip)
        if bias and bias[0]:
            each = (shape[a] if a == channel else 1 for a in range(len(shape)))
            total = make.add("Add", total, make.reshape(bias[0], *each))
        return [self.normed(make, total, gamma, beta), total]


@standard_op(type="com.microsoft::NhwcConv", op_class="reduction", most_inputs=3)
class NhwcConv(OwnConv):
    """A convolution of images and with weights whose channels lie last; inputs X, W, B."""

    def body(self, make: Body, inputs: Sequence[str]) -> Sequence[str]:
        x, w, *bias = inputs
        y = self.convolved(make, "Conv", channels_second(make, x), channels_second(make, w), *bias)
        return [channels_last(make, y)]


__all__ = ["GroupNorm", "NhwcConv", "SkipGroupNorm"]
