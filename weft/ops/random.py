"""Random numbers: a function of a seed and of the place in the result, the same in every run and on every device.

The generator is Philox4x32-10 of J. K. Salmon, M. A. Moraes, R. O. Dror and D. E. Shaw, "Parallel Random Numbers: As
Easy as 1, 2, 3" (SC 2011): ten rounds turn a counter and a key into four words of 32 bits, so no number depends on
those before it. Normal numbers are made of pairs of them by the method of G. E. P. Box and M. E. Muller (1958).

For a node without a seed, the front end derives one from its name: its numbers differ from those of other nodes and are
the same in every run. Make numbers that must be new in each run an input of the network. In the body of a loop they
differ from step to step, as in onnxruntime: a node there reads the number of the step, and makes a seed of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, fields, replace
from typing import ClassVar

import numpy as np

from weft.core.graph.composite import Body, decomposition
from weft.core.graph.control_op import ControlOp
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph, Node
from weft.core.graph.layout import Array, Shape
from weft.core.graph.op import Constants, Op, OpClass, standard_op
from weft.core.graph.op_class import op_dataclass
from weft.core.graph.tensor import TensorSpec
from weft.errors import ModelError
from weft.ops.shape import given, sized, unfit

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10
WORD = np.uint64(0xFFFFFFFF)


def philox(key: tuple[int, int], count: int) -> Array:
    """Return `count` words of 32 bits, as uint32, for the key: four for each counter from 0 on."""
    blocks = -(-count // 4)
    counter = np.arange(blocks, dtype=np.uint64)
    a, b = counter & WORD, counter >> np.uint64(32)
    c = d = np.zeros(blocks, np.uint64)
    k0, k1 = (np.uint64(word) for word in key)
    for _ in range(ROUNDS):
        first, second = a * np.uint64(MULTIPLIERS[0]), c * np.uint64(MULTIPLIERS[1])
        a, b, c, d = (
            (second >> np.uint64(32)) ^ b ^ k0,
            second & WORD,
            (first >> np.uint64(32)) ^ d ^ k1,
            first & WORD,
        )
        k0, k1 = (np.uint64((int(k) + step) & 0xFFFFFFFF) for k, step in zip((k0, k1), KEY_STEPS, strict=True))
    return np.stack([a, b, c, d], axis=1).reshape(-1)[:count].astype(np.uint32)


def key_of(seed: float) -> tuple[int, int]:
    """Return the key for a seed: the bits of the float32 that ONNX's attribute is, and a constant."""
    return int(np.float32(seed).view(np.uint32)), 0


def uniform(seed: float, count: int) -> Array:
    """Return numbers from 0 to before 1, multiples of 2^-32, as float64."""
    return philox(key_of(seed), count) * 2.0**-32


def normal(seed: float, count: int) -> Array:
    """Return normal numbers of mean 0 and deviation 1, as float64."""
    words = uniform(seed, 2 * count).reshape(-1, 2)
    return np.asarray(np.sqrt(-2 * np.log1p(-words[:, 0])) * np.cos(2 * np.pi * words[:, 1]))


@op_dataclass
class _Random(Op):
    """Random numbers of a type; `seed` None counts as 0. The ONNX front end gives each node a seed from its name."""

    op_class: ClassVar[OpClass] = "arithmetic"
    is_random: ClassVar[bool] = True
    dtype: DType | None = None
    seed: float | None = None

    def draw(self, count: int) -> Array:
        """Return that many numbers as float64."""
        raise NotImplementedError(type(self).__name__)

    def spec(self, shape: Shape, dtype: DType) -> tuple[TensorSpec, ...]:
        """Return the spec of the output; ModelError if it is not of floats."""
        if not dtype.is_float:
            raise ModelError(f"random numbers of {dtype.value} are not supported", why="ONNX draws floats")
        return (sized(shape, dtype),)

    def drawn(self, shape: Shape, dtype: DType) -> Array:
        """Return numbers in a shape."""
        return self.rounded(self.draw(int(np.prod(shape, dtype=np.int64))).reshape(shape), dtype)

    def rounded(self, numbers: Array, dtype: DType) -> Array:
        """Return the numbers in a type."""
        return numbers.astype(dtype.numpy)


@op_dataclass
class _OfShape(_Random):
    """Random numbers in a shape that an attribute gives."""

    most_inputs: ClassVar[int | None] = 0
    shape: tuple[int, ...] = ()

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        return self.spec(self.shape, self.dtype or DType.FLOAT32)

    def reference(self, *inputs: Array | None) -> Array:
        return self.drawn(self.shape, self.dtype or DType.FLOAT32)


@op_dataclass
class _Like(_Random):
    """Random numbers in the shape of the input, and of its type unless `dtype` says another."""

    most_inputs: ClassVar[int | None] = 1
    reads_shape: ClassVar[bool] = True

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        x = given(inputs, 0)
        return self.spec(x.dims, self.dtype or x.dtype)

    def reference(self, *inputs: Array | None) -> Array:
        x = given(inputs, 0)
        return self.drawn(x.shape, self.dtype or DType.of(x.dtype))


@op_dataclass
class _Normal(_Random):
    mean: float = 0.0
    scale: float = 1.0

    def draw(self, count: int) -> Array:
        return np.asarray(self.mean + self.scale * normal(self.seed or 0.0, count))


@op_dataclass
class _Uniform(_Random):
    high: float = 1.0
    low: float = 0.0

    def draw(self, count: int) -> Array:
        return np.asarray(self.low + (self.high - self.low) * uniform(self.seed or 0.0, count))

    def rounded(self, numbers: Array, dtype: DType) -> Array:
        """Return the numbers in a type; of one that would be rounded to `high`, the largest before it."""
        made = super().rounded(numbers, dtype)
        last = np.asarray(self.high).astype(dtype.numpy)
        if last.astype(np.float64) >= self.high:
            last = np.nextafter(last, np.asarray(-np.inf).astype(dtype.numpy))
        return np.where(made.astype(np.float64) >= self.high, last, made) if self.high > self.low else made


@standard_op
class RandomNormal(_OfShape, _Normal):
    """Draw normal numbers in the shape that an attribute gives.

    Every run draws the same numbers, without a seed as well.
    """


@standard_op
class RandomNormalLike(_Like, _Normal):
    """Draw normal numbers in the shape of the input.

    Every run draws the same numbers, without a seed as well.
    """


@standard_op
class RandomUniform(_OfShape, _Uniform):
    """Draw numbers from `low` to before `high` in the shape that an attribute gives.

    Every run draws the same numbers, without a seed as well.
    """


@standard_op
class RandomUniformLike(_Like, _Uniform):
    """Draw numbers from `low` to before `high` in the shape of the input.

    Every run draws the same numbers, without a seed as well.
    """


@standard_op(most_inputs=1)
class Bernoulli(_Random):
    """Draw 1 with the probability that the input has at that place, else 0; of the input's type, or of `dtype`.

    The text of ONNX says so. The function that ONNX gives beside the text, which onnxruntime runs, compares the other
    way round and draws 1 where the text draws 0. Every run draws the same numbers, without a seed as well.
    """

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        x = given(inputs, 0)
        if not x.dtype.is_float:
            raise ModelError(f"probabilities of {x.dtype.value} are not supported", why="ONNX has floats")
        return (sized(x.dims, self.dtype or x.dtype),)

    def draws(self, shape: Shape) -> Array:
        """Return float32 numbers from 0 to before 1."""
        return RandomUniform(seed=self.seed).drawn(shape, DType.FLOAT32)

    def reference(self, *inputs: Array | None) -> Array:
        x = given(inputs, 0)
        return (self.draws(x.shape) < x.astype(np.float32)).astype((self.dtype or DType.of(x.dtype)).numpy)


@standard_op(is_random=True, most_inputs=1)
class Multinomial(Op):
    """Draw classes, with logarithms of their unscaled probabilities as the input (batch, classes).

    Every run draws the same numbers, without a seed as well.
    """

    dtype: DType = DType.INT32
    sample_size: int = 1
    seed: float | None = None

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        x = given(inputs, 0)
        if len(x.dims) != 2 or x.dims[1] < 1 or not x.dtype.is_float or self.sample_size < 1:
            raise unfit(f"{x} gives no classes of which {self.sample_size} can be drawn")
        if self.dtype not in (DType.INT32, DType.INT64):
            raise ModelError(f"classes of {self.dtype.value} are not supported", why="ONNX has int32 and int64")
        return (sized((x.dims[0], self.sample_size), self.dtype),)

    def draws(self, batch: int) -> Array:
        """Return (batch, samples, 1) numbers from 0 to before 1."""
        return uniform(self.seed or 0.0, batch * self.sample_size).reshape(batch, self.sample_size, 1)

    def reference(self, *inputs: Array | None) -> Array:
        """Return the output: how many classes lie, summed, below each number that was drawn."""
        x = given(inputs, 0).astype(np.float32)
        shares = np.exp(x - x.max(1, keepdims=True))
        sums = np.cumsum(shares / shares.sum(1, keepdims=True), axis=1, dtype=np.float32)[:, None, :-1]
        return np.asarray((self.draws(x.shape[0]).astype(np.float32) >= sums).sum(2), self.dtype.numpy)


@standard_op(type="weft::InStep", op_class="arithmetic", is_random=True)
class InStep(Op):
    """Draw what a random op in the body of a loop does, other numbers in each step; inputs the step, and the op's."""

    op: Op = field(default_factory=RandomUniform)

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        if given(inputs, 0).size != 1:
            raise unfit(f"{inputs[0]} is not the number of one step")
        return self.op.infer(inputs[1:], constants[1:])

    def reference(self, *inputs: Array | None) -> Array | tuple[Array, ...]:
        return _with_step(self.op, int(given(inputs, 0).item())).reference(*inputs[1:])


def _with_step(op: Op, step: int) -> Op:
    """Return a random op with a seed that its own and the step make."""
    if isinstance(op, InStep):
        return replace(op, op=_with_step(op.op, step))
    assert isinstance(op, (_Random, Multinomial))
    (word,) = philox((key_of(op.seed or 0.0)[0], (step + 1) & 0xFFFFFFFF), 1)
    finite = np.uint32(word & 0xBFFFFFFF).view(np.float32)  # without the highest exponents, which may mean NaN
    return replace(op, seed=float(finite))


def draws(graph: Graph) -> bool:
    """Tell whether a graph, or one that an op of it holds, has random numbers."""
    return any(
        isinstance(n.op, (_Random, Multinomial, InStep)) or any(map(draws, _held(n.op).values())) for n in graph.nodes
    )


def in_step(graph: Graph, step: str) -> Graph:
    """Return the body of a loop with numbers that differ by `step`, a value of it; those of inner loops do by both."""
    out, nodes = graph.copy(), []
    for node in graph.nodes:
        op = node.op
        if isinstance(op, (_Random, Multinomial, InStep)):
            node = replace(node, op=InStep(op), inputs=(step, *node.inputs))
        elif isinstance(op, ControlOp) and any(map(draws, _held(op).values())):
            graphs = {name: _capturing(body, step) for name, body in _held(op).items()}
            more = replace(op, captures=op.captures + 1, **graphs)
            node = replace(node, op=more, inputs=(*node.inputs, step))
        nodes.append(node)
    out.nodes = nodes
    return out


def numbered(body: Graph) -> Graph:
    """Return the body of a loop as it is, or if it draws random numbers, with the number of the step as first input."""
    if not draws(body):
        return body
    step = body.fresh_name("step")
    made = in_step(body, step)
    made.inputs = [step, *made.inputs]
    return made


def known_step(node: Node, name: str, step: int) -> Node:
    """Return a node of a body for a step whose number is known: a random op that reads it becomes a plain one."""
    if not isinstance(node.op, InStep) or node.inputs[0] != name:
        return node
    return replace(node, op=_with_step(node.op.op, step), inputs=node.inputs[1:])


def _capturing(body: Graph, step: str) -> Graph:
    name = body.fresh_name(step)
    made = in_step(body, name)
    made.inputs = [*made.inputs, name]
    return made


def _held(op: Op) -> dict[str, Graph]:
    """Return the graphs that an op holds, by field."""
    return {f.name: v for f in fields(op) if isinstance(v := getattr(op, f.name), Graph)}


@decomposition("Bernoulli")
def _bernoulli(op: Bernoulli, make: Body, node: Node) -> Sequence[str]:
    (x,) = node.inputs
    shares = x if make.dtype(x) is DType.FLOAT32 else make.add("Cast", x, to=DType.FLOAT32)
    ones = make.add("Less", make.constant(op.draws(make.dims(x))), shares)
    return [make.add("Cast", ones, to=op.dtype or make.dtype(x))]


@decomposition("Multinomial")
def _multinomial(op: Multinomial, make: Body, node: Node) -> Sequence[str]:
    (x,) = node.inputs
    batch, classes = make.dims(x)
    if classes < 2:
        return []
    if make.dtype(x) is not DType.FLOAT32:
        x = make.add("Cast", x, to=DType.FLOAT32)
    sums = make.add("CumSum", make.add("Softmax", x, axis=1), make.constant(np.array(1)))
    sums = make.add("Slice", sums, *(make.ints(n) for n in (0, classes - 1, 1)))
    sums = make.reshape(sums, batch, 1, classes - 1)
    below = make.add("GreaterOrEqual", make.constant(op.draws(batch).astype(np.float32)), sums)
    ones = make.add("Cast", below, to=DType.FLOAT32)
    counts = make.add("ReduceSum", ones, make.ints(2), keepdims=0)
    return [make.add("Cast", counts, to=op.dtype)]
