"""What an importer works with: an operator of a file, and the graph in which it writes what Weft computes for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.core.graph.dtypes import DType
from weft.core.graph.layout import Array
from weft.errors import ModelError
from weft.frontends.tflite.flexbuffer import Flex, read_flexbuffer
from weft.frontends.tflite.model import Operator, Quantization, TensorInfo
from weft.frontends.tflite.schema import ACTIVATIONS, TYPES, Option

if TYPE_CHECKING:
    from weft.frontends.tflite.building import GraphBuilder

Made = str | Sequence[str]
"""The values that an importer makes: one for each output of the operator."""
Importer = Callable[["TFLiteNode"], Made]
Sizes = tuple[int | None, ...]

LIMITS = {"RELU": (0.0, None), "RELU_N1_TO_1": (-1.0, 1.0), "RELU6": (0.0, 6.0), "RELU_0_TO_1": (0.0, 1.0)}
"""The activations that keep values between two numbers."""
MOST_INTEGERS = 4096
MOST_WRITTEN = 1 << 22
"""The most elements of a constant that an importer makes of sizes in a file."""


class TFLiteNode:
    """An operator of a TensorFlow Lite file on its way into a graph of Weft's ops.

    Inputs and outputs are counted from 0. A value is known by its name in the graph. `is_real` says how integers with
    a scale are seen: as the numbers that they stand for, or as they are.
    """

    def __init__(self, builder: GraphBuilder, operator: Operator, *, is_real: bool) -> None:
        self.builder, self.operator, self.is_real = builder, operator, is_real
        self.name = f"{operator.op}_{operator.index}"

    # -- the operator ----------------------------------------------------------------------------------

    @property
    def op(self) -> str:
        """Return the builtin op, or the name of the custom op."""
        return self.operator.op

    @property
    def options(self) -> Mapping[str, Option]:
        """Return the options of a builtin op."""
        return self.operator.options

    def option(self, name: str) -> int:
        """Return an option that is an integer or a yes/no number."""
        value = self.options[name]
        assert isinstance(value, int)
        return value

    def number(self, name: str) -> float:
        """Return an option that is a number."""
        value = self.options[name]
        assert isinstance(value, (int, float))
        return float(value)

    def listed(self, name: str) -> tuple[Any, ...]:
        """Return an option that is a list of numbers."""
        value = self.options[name]
        assert isinstance(value, tuple)
        return value

    @property
    def custom_options(self) -> bytes:
        """Return the bytes that a custom op has as its options."""
        return self.builder.custom_options(self.operator)

    def flexbuffer(self) -> dict[str, Flex]:
        """Return the options of a custom op that are a map in a FlexBuffer; ModelError if they are not."""
        found = read_flexbuffer(self.custom_options)
        if not isinstance(found, dict):
            raise ModelError("the options of a custom op are not a map", why=f"they are a {type(found).__name__}")
        return found

    # -- its inputs and outputs ------------------------------------------------------------------------

    def __len__(self) -> int:
        """Return the number of inputs, missing ones among them."""
        return len(self.operator.inputs)

    @property
    def outputs(self) -> int:
        """Return the number of outputs."""
        return len(self.operator.outputs)

    def has(self, k: int) -> bool:
        """Tell whether there is an input."""
        return k < len(self) and self.operator.inputs[k] >= 0

    def tensor(self, k: int) -> TensorInfo:
        """Return an input as the file declares it; ModelError if it is missing."""
        if not self.has(k):
            raise ModelError(f"input {k} is missing")
        return self.builder.subgraph.tensor(self.operator.inputs[k])

    def output(self, k: int = 0) -> TensorInfo:
        """Return an output as the file declares it; ModelError if it is missing."""
        if not (k < self.outputs and self.operator.outputs[k] >= 0):
            raise ModelError(f"output {k} is missing")
        return self.builder.subgraph.tensor(self.operator.outputs[k])

    def sizes(self, k: int = 0) -> Sizes:
        """Return the shape of an input; None for a size that is open."""
        return self.tensor(k).sizes

    def rank(self, k: int = 0) -> int:
        """Return the number of axes of an input."""
        return len(self.tensor(k).shape)

    def axis(self, value: int, rank: int | None = None) -> int:
        """Return an axis counted from the first, of input 0 if no rank is given; ModelError if there is none."""
        rank = self.rank() if rank is None else rank
        if not -rank <= value < rank:
            raise ModelError(f"there is no axis {value}", why=f"the tensor has {rank}")
        return value % rank

    def dtype(self, k: int = 0) -> DType:
        """Return the element type of an input as importers see it: float32 for integers seen as real numbers."""
        return self._seen(self.tensor(k))

    def output_dtype(self, k: int = 0) -> DType:
        """Return the element type of an output as importers see it."""
        return self._seen(self.output(k))

    def _seen(self, tensor: TensorInfo) -> DType:
        return DType.FLOAT32 if self.is_real and self.builder.is_scaled(tensor) else tensor.dtype

    def value(self, k: int) -> str:
        """Return an input's value; ModelError if it is missing."""
        tensor = self.tensor(k)
        return self.builder.real(tensor) if self.is_real else self.builder.raw(tensor)

    def values(self) -> list[str]:
        """Return all inputs; ModelError if one is missing."""
        return [self.value(k) for k in range(len(self))]

    def constant(self, k: int) -> Array | None:
        """Return an input that is a constant, as the file has it; None for another."""
        return self.builder.constant(self.tensor(k)) if self.has(k) else None

    def integers(self, k: int, what: str) -> tuple[int, ...]:
        """Return a constant of integers; ModelError, saying what they are, if a run tells them."""
        found = self.constant(k)
        if found is None:
            raise ModelError(f"{what} must be a constant", why=f"input {k} is computed in a run")
        if found.dtype.kind not in "iub" or found.size > MOST_INTEGERS:
            raise ModelError(f"{what} must be a few integers", why=f"input {k} is {found.dtype} of {found.shape}")
        return tuple(int(n) for n in found.reshape(-1))

    def state(self, k: int) -> str:
        """Return the value of an input that lives from run to run."""
        tensor = self.tensor(k)
        return self.builder.real(self.builder.variable(tensor))

    def assign(self, k: int, value: str) -> None:
        """Set what an input that lives from run to run is from here on."""
        self.builder.change(self.tensor(k), value)

    # -- the graph -------------------------------------------------------------------------------------

    def add(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """Add a node of one of Weft's ops ("" is a missing input), and return its output."""
        return self.add_many(op_type, 1, *inputs, **attributes)[0]

    def add_many(self, op_type: str, count: int, *inputs: str, **attributes: Any) -> list[str]:
        """Add a node with so many outputs, and return them."""
        return self.builder.add(self.name, op_type, inputs, count, attributes)

    def const(self, value: Any, dtype: DType = DType.INT64) -> str:
        """Return a new constant."""
        return self.builder.add_constant(f"{self.name}/constant", np.asarray(value, dtype.numpy))

    def few(self, count: int, what: str) -> int:
        """Return a number of elements that an importer is to write out; ModelError if they are too many, or below 0."""
        if not 0 <= count <= MOST_WRITTEN:
            raise ModelError(f"{what} of {count:,} elements are not supported", why=f"at most {MOST_WRITTEN:,} are")
        return count

    def scalar(self, value: float) -> str:
        """Return a constant of no axes in the element type of output 0."""
        return self.const(value, self.output_dtype())

    def cast(self, value: str, to: DType, given: DType | None = None) -> str:
        """Return a value in an element type; `given` is the one that it has, by default not that."""
        return value if given is to else self.add("Cast", value, to=to)

    def first(self, value: str, rank: int = 4) -> str:
        """Return a value with its last axis, the channels, moved behind the first one."""
        return self.builder.first(self.name, value, rank)

    def last(self, value: str, rank: int = 4) -> str:
        """Return a value with its second axis, the channels, moved to the end."""
        return self.builder.last(self.name, value, rank)

    def permuted(self, k: int, order: Sequence[int]) -> str:
        """Return an input with its axes in another order: weights that are constants are moved at once."""
        return self.builder.permuted(self, self.tensor(k), tuple(order))

    def reshaped(self, value: str, shape: Sequence[int]) -> str:
        """Return a value under another shape, in which -1 stands for what is left."""
        return self.add("Reshape", value, self.const(shape), allowzero=int(-1 not in shape))

    def activated(self, value: str, name: str | None = None) -> str:
        """Return a value behind an activation: the one of that name, or the one fused into the operator."""
        if name is None:
            code = self.option("activation")
            if not 0 <= code < len(ACTIVATIONS):
                raise ModelError(f"there is no activation {code}")
            name = ACTIVATIONS[code]
        if not name:
            return value
        if not self.is_real and name in LIMITS and self.builder.is_scaled(self.output()):
            return self._clipped(value, *LIMITS[name])
        if name == "TANH":
            return self.add("Tanh", value)
        if name == "RELU":
            return self.add("Relu", value)
        if name not in LIMITS:
            raise ModelError(f"the activation {name} is not supported")
        least, most = LIMITS[name]
        return self.add("Clip", value, self.scalar(least), "" if most is None else self.scalar(most))

    def _clipped(self, value: str, least: float, most: float | None) -> str:
        """Return integers kept between what two numbers are in their scale."""
        tensor, (low, high) = self.output(), self.output().dtype.limits
        scales, dtype = tensor.quantization, self.output().dtype
        if scales is None or not scales.is_per_tensor:
            raise ModelError("an activation of integers without a scale is not supported")
        scale, zero = float(scales.scale[0]), int(scales.zero_point[0])
        low = max(low, round(least / scale) + zero)
        high = high if most is None else min(high, round(most / scale) + zero)
        return value if (low, high) == dtype.limits else self.add(
            "Clip", value, self.const(low, dtype), self.const(high, dtype)
        )

    def bias(self, k: int, x: int, weights: int) -> str:
        """Return the bias of a product, "" if there is none; integers are in the scale of the product."""
        if not self.has(k):
            return ""
        tensor, quantised = self.tensor(k), self.tensor(weights).quantization
        if not (self.is_real and tensor.dtype.is_integer) or tensor.quantization is not None or quantised is None:
            return self.value(k)
        given = self.tensor(x).quantization
        scale = quantised.scale if given is None else quantised.scale * given.scale
        return self.builder.real_as(
            tensor, Quantization(scale, np.zeros(scale.size, np.int64), axis=0)
        )

    def element_type(self, code: int) -> DType:
        """Return Weft's element type for a number in options; ModelError if there is none."""
        found = TYPES[code] if 0 <= code < len(TYPES) else None
        if found is None:
            raise ModelError(f"the element type {code} is not supported")
        return found
