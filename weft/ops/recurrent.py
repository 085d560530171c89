"""Recurrent layers: LSTM, GRU and the plain RNN, as ONNX defines them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np

from weft.core.graph.dtypes import DType
from weft.core.graph.layout import Array, Shape
from weft.core.graph.op import Constants, Op, OpClass, standard_op
from weft.core.graph.op_class import op_dataclass
from weft.core.graph.tensor import TensorSpec
from weft.ops.elementwise import FLOATS, check_type, misfit, take_inputs, widen

DIRECTIONS = {"forward": 1, "reverse": 1, "bidirectional": 2}
"""How many directions each word means."""


@dataclass(frozen=True, slots=True)
class Activation:
    """A function between the gates: for numpy, and as text for kernels with {v}, {alpha} and {beta}.

    `alpha` and `beta` are the defaults: None where the function has no such number, NaN where it has no default.
    """

    function: Callable[[Array, float, float], Array]
    expr: str
    alpha: float | None = None
    beta: float | None = None


def _sigmoid(v: Array, alpha: float, beta: float) -> Array:
    return np.asarray(1 / (1 + np.exp(-v)))


def _softplus(v: Array, alpha: float, beta: float) -> Array:
    return np.asarray(np.maximum(v, 0) + np.log1p(np.exp(-np.abs(v))))


NO_DEFAULT = float("nan")
ACTIVATIONS: dict[str, Activation] = {
    # ONNX's own op has these defaults; ONNX Runtime takes zeros, with which the gate is zero.
    "affine": Activation(lambda v, a, b: a * v + b, "({alpha} * {v} + {beta})", 1.0, 0.0),
    "elu": Activation(
        lambda v, a, b: np.where(v < 0, a * np.expm1(v), v), "({v} < 0.0 ? {alpha} * expm1({v}) : {v})", 1.0
    ),
    "hardsigmoid": Activation(
        lambda v, a, b: np.clip(a * v + b, 0, 1), "fmin(fmax({alpha} * {v} + {beta}, 0.0), 1.0)", 0.2, 0.5
    ),
    "leakyrelu": Activation(lambda v, a, b: np.where(v < 0, a * v, v), "({v} < 0.0 ? {alpha} * {v} : {v})", 0.01),
    "relu": Activation(lambda v, a, b: np.maximum(v, 0), "fmax({v}, 0.0)"),
    "scaledtanh": Activation(
        lambda v, a, b: a * np.tanh(b * v), "({alpha} * tanh({beta} * {v}))", NO_DEFAULT, NO_DEFAULT
    ),
    "sigmoid": Activation(_sigmoid, "(1.0 / (1.0 + exp(-({v}))))"),
    "softplus": Activation(_softplus, "(fmax({v}, 0.0) + log1p(exp(-fabs({v}))))"),
    "softsign": Activation(lambda v, a, b: v / (1 + np.abs(v)), "({v} / (1.0 + fabs({v})))"),
    "tanh": Activation(lambda v, a, b: np.tanh(v), "tanh({v})"),
    "thresholdedrelu": Activation(lambda v, a, b: np.where(v > a, v, 0), "({v} > {alpha} ? {v} : 0.0)", 1.0),
}
"""By name in lower case, because exporters differ in capitals."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """An activation with its numbers."""

    kind: Activation
    alpha: float
    beta: float

    def __call__(self, v: Array) -> Array:
        """Return the function of an array, in its type."""
        return self.kind.function(v, self.alpha, self.beta).astype(v.dtype, copy=False)

    def text(self, v: str, constant: Callable[[float], str]) -> str:
        """Return the function of a variable as text for kernels; `constant` returns the name of a number there."""
        numbers = {"alpha": self.alpha, "beta": self.beta}
        used = {name: constant(value) for name, value in numbers.items() if f"{{{name}}}" in self.kind.expr}
        return self.kind.expr.format(v=v, **used)


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a recurrent layer."""

    steps: int
    batch: int
    features: int
    directions: int
    hidden: int


@op_dataclass
class Recurrent(Op):
    """What the three layers share: inputs X, W, R, B, sequence_lens and initial_h; outputs Y and Y_h.

    X is (steps, batch, features) and Y (steps, directions, batch, hidden), or with `layout` 1 (batch, steps,
    features) and (batch, steps, directions, hidden). For a sequence shorter than X, Y is zero after its end,
    and its last state is that of its own last step. `outputs` is the number of outputs of the node.
    """

    op_class: ClassVar[OpClass] = "reduction"
    flags: ClassVar[tuple[str, ...]] = ("layout",)
    gates: ClassVar[int] = 1
    usual: ClassVar[tuple[str, ...]] = ("tanh",)
    """The activations of one direction where none are given."""
    states: ClassVar[int] = 1
    """How many states a step hands on."""
    activation_alpha: tuple[float, ...] = ()
    activation_beta: tuple[float, ...] = ()
    activations: tuple[str, ...] = ()
    clip: float | None = None
    direction: str = "forward"
    hidden_size: int | None = None
    layout: int = 0
    outputs: int = 1

    def chosen(self) -> list[list[Chosen]]:
        """Return the activations of each direction; ModelError if there are too few, or one is not known."""
        count = DIRECTIONS[self.direction]
        names = self.activations or self.usual * count
        if len(names) < len(self.usual) * count:
            raise misfit(self, f"it needs {len(self.usual) * count} activations and has {len(names)}")
        names = names[: len(self.usual) * count]  # ONNX's default for RNN has two, whatever the direction
        # Each function takes the next number of a list if it has such a number, else none: as ONNX Runtime does.
        given = {"alpha": list(self.activation_alpha), "beta": list(self.activation_beta)}
        made = []
        for name in names:
            kind = ACTIVATIONS.get(str(name).lower())
            if kind is None:
                raise misfit(self, f"{str(name)[:60]!r} is no activation of ONNX")
            numbers = []
            for key, usual in (("alpha", kind.alpha), ("beta", kind.beta)):
                number = 0.0 if usual is None else given[key].pop(0) if given[key] else usual
                if not np.isfinite(number):
                    raise misfit(self, f"{name} has {number} as {key}; it needs a finite number")
                numbers.append(float(number))
            made.append(Chosen(kind, *numbers))
        each = len(self.usual)
        return [made[d * each : (d + 1) * each] for d in range(count)]

    def sizes(self, x: Shape, w: Shape, r: Shape) -> Sizes:
        """Return the sizes for the shapes of X, W and R; ModelError if they do not belong together."""
        if self.direction not in DIRECTIONS:
            raise misfit(self, f"direction {self.direction[:60]!r} is none of {', '.join(DIRECTIONS)}")
        if len(x) != 3 or len(w) != 3 or len(r) != 3:
            raise misfit(self, f"X, W and R must have rank 3, not {x}, {w} and {r}")
        steps, batch = (x[1], x[0]) if self.layout else (x[0], x[1])
        each = Sizes(steps, batch, x[2], DIRECTIONS[self.direction], r[2])
        rows = self.gates * each.hidden
        if w != (each.directions, rows, each.features) or r != (each.directions, rows, each.hidden):
            raise misfit(self, f"X, W and R of shapes {x}, {w} and {r} do not belong together")
        if self.hidden_size not in (None, each.hidden):
            raise misfit(self, f"hidden_size is {self.hidden_size} and R has {each.hidden}")
        return each

    def state_shape(self, each: Sizes) -> Shape:
        """Return the shape of the first and of the last state."""
        pair = (each.directions, each.batch)
        return (*(pair[::-1] if self.layout else pair), each.hidden)

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        more = 2 if self.states == 2 else 0
        x, w, r, b, lens, *rest = take_inputs(self, inputs, 3, 3 + more)
        assert x is not None and w is not None and r is not None
        check_type(self, x, FLOATS)
        each = self.sizes(x.dims, w.dims, r.dims)
        self.chosen()
        if self.clip is not None and not self.clip > 0:
            raise misfit(self, f"clip is {self.clip}; it must be positive")
        floats = {
            "W": (w, w.dims), "R": (r, r.dims),
            "B": (b, (each.directions, 2 * self.gates * each.hidden)),
            "initial_h": (rest[0], self.state_shape(each)),
        }
        if more:
            floats["initial_c"] = rest[1], self.state_shape(each)
            floats["P"] = rest[2], (each.directions, 3 * each.hidden)
        for name, (spec, wanted) in floats.items():
            if spec is not None and (spec.dims != wanted or spec.dtype is not x.dtype):
                raise misfit(self, f"{name} is {spec}; it must be {TensorSpec(wanted, x.dtype)}")
        if lens is not None and (lens.dims != (each.batch,) or lens.dtype is not DType.INT32):
            raise misfit(self, f"sequence_lens is {lens}; it must be {TensorSpec((each.batch,), DType.INT32)}")
        lead = (
            (each.batch, each.steps, each.directions)
            if self.layout
            else (each.steps, each.directions, each.batch)
        )
        y = TensorSpec((*lead, each.hidden), x.dtype)
        state = TensorSpec(self.state_shape(each), x.dtype)
        if not 0 < self.outputs <= 1 + self.states:
            raise misfit(self, f"it has {self.outputs} outputs; 1 to {1 + self.states} are possible")
        return (y, *(state,) * self.states)[: self.outputs]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        more = 2 if self.states == 2 else 0
        x, w, r, b, lens, *rest = (
            None if a is None else widen(a) for a in (*inputs, *(None,) * (6 + more))[: 6 + more]
        )
        assert x is not None and w is not None and r is not None
        given = np.asarray(inputs[0]).dtype
        each = self.sizes(x.shape, w.shape, r.shape)
        x = x.swapaxes(0, 1) if self.layout else x
        firsts = [None if a is None else a.swapaxes(0, 1) if self.layout else a for a in rest[: self.states]]
        lengths = np.full(each.batch, each.steps) if lens is None else np.clip(lens, 0, each.steps)
        y = np.zeros((each.steps, each.directions, each.batch, each.hidden), x.dtype)
        last = [np.zeros((each.directions, each.batch, each.hidden), x.dtype) for _ in range(self.states)]
        peepholes = rest[self.states] if more else None
        for d, activations in enumerate(self.chosen()):
            bias = (
                np.zeros((2, self.gates, each.hidden), x.dtype)
                if b is None
                else b[d].reshape(2, self.gates, -1)
            )
            weights = Weights(r[d].T, bias[1], None if peepholes is None else peepholes[d].reshape(3, -1))
            # What the inputs add to the gates of all steps, in one product.
            brought = (x @ w[d].T).reshape(each.steps, each.batch, self.gates, each.hidden) + bias[0]
            brought = np.ascontiguousarray(brought.swapaxes(1, 2))
            states = [np.zeros_like(last[0][d]) if a is None else a[d].copy() for a in firsts]
            reverse = self.direction == "reverse" or d == 1
            if lens is None:
                for step in range(each.steps)[:: -1 if reverse else 1]:
                    states = self.step(brought[step], states, weights, activations)
                    y[step, d] = states[0]
            else:
                states = self._of_lengths(brought, states, weights, activations, (lengths, reverse, y[:, d]))
            for total, state in zip(last, states, strict=True):
                total[d] = np.where(lengths[:, None] > 0, state, 0)
        if self.layout:
            y, last = y.transpose(2, 0, 1, 3), [a.swapaxes(0, 1) for a in last]
        made = [np.ascontiguousarray(a).astype(given, copy=False) for a in (y, *last)]
        return tuple(made[: self.outputs])

    def _of_lengths(
        self, brought: Array, states: list[Array], weights: Weights, activations: Sequence[Chosen],
        of: tuple[Array, bool, Array],
    ) -> list[Array]:
        """Return the last states of sequences of the given lengths; put all of them into an array of zeros."""
        lengths, reverse, y = of
        rows = np.arange(len(lengths))
        for step in range(len(brought)):
            runs = lengths > step
            place = np.where(runs, lengths - 1 - step, step) if reverse else np.full(len(rows), step)
            now = self.step(brought[place, :, rows].swapaxes(0, 1), states, weights, activations)
            states = [np.where(runs[:, None], new, old) for new, old in zip(now, states, strict=True)]
            y[place[runs], rows[runs]] = states[0][runs]
        return states

    def step(
        self, brought: Array, states: Sequence[Array], weights: Weights, activations: Sequence[Chosen]
    ) -> list[Array]:
        """Return the states after one step; `brought` is (gates, batch, hidden), what the input adds to each gate."""
        raise NotImplementedError

    def clipped(self, v: Array) -> Array:
        """Return the argument of a gate's activation, clipped if the layer has `clip`."""
        return v if self.clip is None else np.clip(v, -self.clip, self.clip).astype(v.dtype, copy=False)

    def flops(self, inputs: Sequence[Shape | None], outputs: Sequence[Shape]) -> int:
        """Return two for each weight, step and row of the batch."""
        x, w, r = (shape or () for shape in inputs[:3])
        return 2 * x[0] * x[1] * (prod(w) + prod(r))


@dataclass(frozen=True, slots=True)
class Weights:
    """The recurrent weights of one direction: R of (hidden, gates * hidden), bias, peepholes."""

    r: Array
    bias: Array
    peepholes: Array | None

    def times(self, state: Array, first: int = 0, last: int | None = None) -> Array:
        """Return what a state adds to some gates, by default to all: (gates, batch, hidden)."""
        hidden = self.bias.shape[1]
        bias = self.bias[first:last]
        product = state @ self.r[:, first * hidden : (first + len(bias)) * hidden]
        return np.asarray(product.reshape(len(state), len(bias), hidden).swapaxes(0, 1) + bias[:, None])


@standard_op
class RNN(Recurrent):
    """H = f(X W^T + H R^T + biases), step by step."""

    def step(
        self, brought: Array, states: Sequence[Array], weights: Weights, activations: Sequence[Chosen]
    ) -> list[Array]:
        return [activations[0](self.clipped(brought[0] + weights.times(states[0])[0]))]


@standard_op(flags=("layout", "linear_before_reset"))
class GRU(Recurrent):
    """Gated recurrent units; gates in the order update, reset, hidden.

    With `linear_before_reset` the reset gate scales the product of the state, else the state before its product.
    """

    gates: ClassVar[int] = 3
    usual: ClassVar[tuple[str, ...]] = ("sigmoid", "tanh")
    linear_before_reset: int = 0

    def step(
        self, brought: Array, states: Sequence[Array], weights: Weights, activations: Sequence[Chosen]
    ) -> list[Array]:
        f, g = activations
        (h,) = states
        known = weights.times(h, 0, 3 if self.linear_before_reset else 2)
        update, reset = f(self.clipped(brought[:2] + known[:2]))
        of_state = reset * known[2] if self.linear_before_reset else weights.times(reset * h, 2)[0]
        return [(1 - update) * g(self.clipped(brought[2] + of_state)) + update * h]


@standard_op(flags=("layout", "input_forget"))
class LSTM(Recurrent):
    """Long short-term memory; gates in the order input, output, forget, cell; more inputs initial_c and P.

    With `input_forget` the forget gate is one minus the input gate. A third output Y_c is the last cell state.
    """

    gates: ClassVar[int] = 4
    usual: ClassVar[tuple[str, ...]] = ("sigmoid", "tanh", "tanh")
    states: ClassVar[int] = 2
    input_forget: int = 0

    def step(
        self, brought: Array, states: Sequence[Array], weights: Weights, activations: Sequence[Chosen]
    ) -> list[Array]:
        f, g, h_of = activations
        h, c = states
        gates = brought + weights.times(h)
        peep = weights.peepholes
        if peep is None and not self.input_forget:
            i, o, kept = f(self.clipped(gates[:3]))
            cell = kept * c + i * g(self.clipped(gates[3]))
            return [o * h_of(cell), cell]
        i, o, forget, own = gates
        i = f(self.clipped(i if peep is None else i + peep[0] * c))
        kept = (
            1 - i if self.input_forget else f(self.clipped(forget if peep is None else forget + peep[2] * c))
        )
        cell = kept * c + i * g(self.clipped(own))
        o = f(self.clipped(o if peep is None else o + peep[1] * cell))
        # ONNX Runtime clips the gates alone. ONNX's text, "the input of activations", can mean this one, too.
        return [o * h_of(cell), cell]


__all__ = [
    "ACTIVATIONS", "DIRECTIONS", "GRU", "LSTM", "RNN", "Activation", "Chosen", "Recurrent", "Sizes", "Weights",
]
