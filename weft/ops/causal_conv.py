"""A convolution of each channel along time that sees what came before, with a state for what comes next."""

from __future__ import annotations

from collections.abc import Sequence

from weft.core.graph.composite import Body, Composite
from weft.core.graph.op import standard_op
from weft.ops.elementwise import FLOATS, misfit


@standard_op(op_class="reduction", most_inputs=4)
class CausalConvWithState(Composite):
    """Each channel convolved with its own taps; inputs input, weight, bias, past_state; outputs output, present_state.

    The input is (batch, channels, length), the weight (channels, 1, taps), states have the last taps - 1 places. The
    activation is "none", or "silu" alias "swish".
    """

    activation: str = "none"

    def body(self, make: Body, inputs: Sequence[str]) -> Sequence[str]:
        """Put the past before the input and convolve: with weights of run time, as a sum of products."""
        x, weight, bias, past = (*inputs, "", "")[:4]
        shape, taps = make.dims(x), make.dims(weight)[-1]
        if self.activation not in ("none", "silu", "swish"):
            raise misfit(self, f"activation {self.activation[:60]!r} is none of none, silu, swish")
        if len(shape) != 3 or make.dtype(x) not in FLOATS or make.dims(weight) != (shape[1], 1, taps) or not taps:
            raise misfit(self, f"an input of {shape} and a weight of {make.dims(weight)} do not belong together")
        batch, channels, length = shape
        if past and make.dims(past) != (batch, channels, taps - 1):
            raise misfit(self, f"the past is {make.dims(past)}; it must be {(batch, channels, taps - 1)}")
        before = past or make.zeros(make.dtype(x), batch, channels, taps - 1)
        padded = make.add("Concat", before, x, axis=2) if taps > 1 else x
        if make.known(weight) is not None:
            y = make.add("Conv", padded, weight, group=channels, kernel_shape=(taps,))
        else:
            each = make.reshape(weight, 1, channels, taps)
            products = [
                make.add("Mul", make.part(padded, 2, t, t + length), make.part(each, 2, t, t + 1)) for t in range(taps)
            ]
            y = make.add("Sum", *products)
        y = make.add("Add", y, make.reshape(bias, 1, channels, 1)) if bias else y
        y = make.add("Swish", y) if self.activation != "none" else y
        state = make.part(padded, 2, length, length + taps - 1) if taps > 1 else before
        return [y, state]


__all__ = ["CausalConvWithState"]
