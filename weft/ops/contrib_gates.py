"""ONNX Runtime's own ops (`com.microsoft`) around the layers of language models: gates, and norms in groups."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from weft.core.graph.composite import Body, Composite, padded
from weft.core.graph.dtypes import DType
from weft.core.graph.op import standard_op
from weft.ops.elementwise import misfit


def _wide(make: Body, *values: str) -> list[str]:
    """Return values in float32, in which these ops compute."""
    return [make.cast(each, DType.FLOAT32) for each in values]


@standard_op(type="com.microsoft::ScaledSiLU", op_class="transcendental", most_inputs=2, least_inputs=1)
class ScaledSiLU(Composite):
    """SiLU of a scaled input; inputs X and, in place of `alpha`, a scalar."""

    alpha: float = 1.0

    def body(self, make: Body, inputs: Sequence[str]) -> Sequence[str]:
        x, scale = padded(inputs, 2)
        if scale and make.dims(scale):
            raise misfit(self, f"the scale of {make.dims(scale)} is no scalar")
        factor = make.cast(scale, make.dtype(x)) if scale else make.number(self.alpha, x)
        z = make.add("Mul", x, factor)
        return [make.add("Mul", z, make.add("Sigmoid", z))]


@standard_op(type="com.microsoft::GatedAdd", op_class="reduction", most_inputs=3, least_inputs=3)
class GatedAdd(Composite):
    """X plus Y times a gate for each row; inputs X, Y, gate. ONNX Runtime projects gates on CUDA alone."""

    def body(self, make: Body, inputs: Sequence[str]) -> Sequence[str]:
        x, y, gate = inputs
        if not make.dims(x):
            raise misfit(self, "X is a scalar; it needs at least one axis")
        if make.dims(y) != make.dims(x) or make.dims(gate) != (*make.dims(x)[:-1], 1):
            raise misfit(self, f"Y of {make.dims(y)} and a gate of {make.dims(gate)} do not fit X of {make.dims(x)}")
        return [make.add("Add", x, make.add("Mul", y, gate))]


@standard_op(type="com.microsoft::GatedRMSNorm", op_class="reduction", most_inputs=3, least_inputs=3)
class GatedRMSNorm(Composite):
    """RMSNormalization of each C elements, times an activation of a gate; inputs X, scale of C elements, gate."""

    activation: str = "silu"
    epsilon: float = 1e-5

    def body(self, make: Body, inputs: Sequence[str]) -> Sequence[str]:
        x, scale, gate = inputs
        if self.activation not in ("silu", "swish", "sigmoid"):
            raise misfit(self, f"activation is {self.activation[:60]!r}; there are silu, swish and sigmoid")
        shape, size = make.dims(x), prod(make.dims(scale))
        if not shape:
            raise misfit(self, "X is a scalar; it needs at least one axis")
        if not size or shape[-1] % size or make.dims(gate) != shape:
            both = f"a scale of {make.dims(scale)} and a gate of {make.dims(gate)}"
            raise misfit(self, f"{both} do not fit X of {shape}")
        wide, factor, z = _wide(make, x, scale, gate)
        grouped = make.reshape(wide, *shape[:-1], shape[-1] // size, size)
        normed = make.add("RMSNormalization", grouped, make.reshape(factor, size), epsilon=self.epsilon)
        normed = make.reshape(normed, *shape)
        opened = make.add("Sigmoid", z)
        opened = opened if self.activation == "sigmoid" else make.add("Mul", z, opened)
        return [make.cast(make.add("Mul", normed, opened), make.dtype(x))]


@standard_op(type="com.microsoft::BranchwiseRMSNorm", op_class="reduction", most_inputs=2, least_inputs=1)
class BranchwiseRMSNorm(Composite):
    """RMSNormalization of each branch; inputs X (..., branches, H) or (..., branches * H), and a scale."""

    num_branches: int = 0
    epsilon: float = 1e-5

    def body(self, make: Body, inputs: Sequence[str]) -> Sequence[str]:
        x, scale = padded(inputs, 2)
        shape, parts = make.dims(x), self.num_branches
        if len(shape) < 2 - bool(parts) or parts < 0 or (parts and shape[-1] % parts):
            raise misfit(self, f"X of {shape} has no {parts or 'axis of'} branches")
        grouped = (*shape[:-1], parts, shape[-1] // parts) if parts else shape
        (wide,) = _wide(make, x)
        ones = make.number(1.0, wide)
        y = make.add("RMSNormalization", make.reshape(wide, *grouped), ones, epsilon=self.epsilon)
        if scale:
            (factor,) = _wide(make, scale)
            size = make.dims(scale)
            if size not in (grouped[-2:], grouped[-1:], (grouped[-2] * grouped[-1],)):
                raise misfit(self, f"a scale of {size} does not fit branches of {grouped[-2:]}")
            y = make.add("Mul", y, factor if size == grouped[-1:] else make.reshape(factor, *grouped[-2:]))
        return [make.cast(make.reshape(y, *shape), make.dtype(x))]


@standard_op(type="com.microsoft::LinearAttentionGate", op_class="transcendental", most_inputs=4, least_inputs=3)
class LinearAttentionGate(Composite):
    """The gates of LinearAttention; inputs a, dt_bias, decay_scale, b; outputs the decay and the rate of updates."""

    def body(self, make: Body, inputs: Sequence[str]) -> Sequence[str]:
        a, bias, scale, b = padded(inputs, 4)
        if self.outputs > 1 and not b:
            raise misfit(self, "its second output is the sigmoid of b, which is missing")
        shape = make.dims(a)
        for name, each in (("dt_bias", bias), ("decay_scale", scale)):
            if not shape or prod(make.dims(each)) != shape[-1]:
                raise misfit(self, f"{name} of {make.dims(each)} needs an element for each of the last axis of {shape}")
        if b and make.dims(b) != shape:
            raise misfit(self, f"b of {make.dims(b)} and a of {shape} are not alike")
        wide, *flat = _wide(make, a, bias, scale)
        shift, factor = (make.reshape(each, shape[-1]) for each in flat)
        decay = make.add("Mul", factor, make.add("Softplus", make.add("Add", wide, shift)))
        made = [make.cast(decay, make.dtype(a))]
        if b:
            made.append(make.cast(make.add("Sigmoid", *_wide(make, b)), make.dtype(b)))
        return made


__all__ = ["BranchwiseRMSNorm", "GatedAdd", "GatedRMSNorm", "LinearAttentionGate", "ScaledSiLU"]
