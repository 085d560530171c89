"""Variables: values that live from run to run, and recurrent ops that keep such values."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.errors import ModelError
from weft.frontends.tflite.node import TFLiteNode
from weft.frontends.tflite.registry import importer

MOST_STEPS = 1024
"""The longest sequence that is written out step by step."""


@importer("VAR_HANDLE")
def var_handle(node: TFLiteNode) -> list[str]:
    """Name a variable; several operators may name one."""
    container, name = node.options["container"], node.options["shared_name"]
    key = f"{container}/{name}" if container else str(name) or f"variable{node.operator.index}"
    node.builder.handles[node.operator.outputs[0]] = key
    return [""]


def _handle(node: TFLiteNode) -> str:
    if not (node.has(0) and node.operator.inputs[0] in node.builder.handles):
        raise ModelError("it reads no variable", why="no VAR_HANDLE of the same subgraph makes its input 0")
    return node.builder.handles[node.operator.inputs[0]]


@importer("READ_VARIABLE", moves=True)
def read_variable(node: TFLiteNode) -> str:
    """Return what a variable is now."""
    return node.builder.read_variable(_handle(node), node.output())


@importer("ASSIGN_VARIABLE", moves=True)
def assign_variable(node: TFLiteNode) -> list[str]:
    """Change a variable."""
    node.builder.assign_variable(_handle(node), node.builder.raw(node.tensor(1)))
    return []


# -- recurrent ops ---------------------------------------------------------------------------------------


@importer("SVDF")
def svdf(node: TFLiteNode) -> str:
    """Filter features in time; inputs x, weights of features, weights of times, bias, state.

    The state is the last features of each filter. A unit is the sum of `rank` filters.
    """
    filters, memory = node.tensor(2).shape
    rank, batch = node.option("rank"), node.sizes()[0]
    if rank < 1 or filters % rank or batch is None:
        raise ModelError(f"{filters} filters of rank {rank} in a batch of {batch}")
    state = node.reshaped(node.state(4), (batch, filters, memory))
    feature = node.add("Gemm", node.value(0), node.permuted(1, (1, 0)))
    older = node.add("Slice", state, node.const([1]), node.const([memory]), node.const([2]))
    state = node.add("Concat", older, node.reshaped(feature, (batch, filters, 1)), axis=2)
    node.assign(4, node.reshaped(state, node.tensor(4).shape))
    sums = node.add("ReduceSum", node.add("Mul", state, node.value(2)), node.const([2]), keepdims=0)
    units = node.reshaped(sums, (batch, filters // rank, rank))
    y = node.add("ReduceSum", units, node.const([2]), keepdims=0)
    return node.activated(node.add("Add", y, node.value(3)) if node.has(3) else y)


@importer("RNN")
def rnn(node: TFLiteNode) -> str:
    """One step; inputs x, weights, recurrent weights, bias, state."""
    h = _rnn_step(node, 1)(node.value(0), (node.state(4),))[0]
    node.assign(4, h)
    return h


@importer("UNIDIRECTIONAL_SEQUENCE_RNN")
def sequence_rnn(node: TFLiteNode) -> str:
    """Return all steps of a sequence; inputs as of RNN."""
    made, (h,) = _unrolled(node, 0, bool(node.option("time_major")), _rnn_step(node, 1), (node.state(4),))
    node.assign(4, h)
    return made


@importer("BIDIRECTIONAL_SEQUENCE_RNN")
def bidirectional_rnn(node: TFLiteNode) -> list[str]:
    """Two sequences, one of which goes backwards; inputs x, and weights, recurrent weights, bias and state of each."""
    _without(node, range(9, 12), "auxiliary inputs")
    major = bool(node.option("time_major"))
    forward, (h,) = _unrolled(node, 0, major, _rnn_step(node, 1), (node.state(4),))
    back, (g,) = _unrolled(node, 0, major, _rnn_step(node, 5), (node.state(8),), backwards=True)
    node.assign(4, h)
    node.assign(8, g)
    return _merged(node, forward, back)


def _merged(node: TFLiteNode, forward: str, back: str) -> list[str]:
    return [node.add("Concat", forward, back, axis=2)] if node.option("merge_outputs") else [forward, back]


def _without(node: TFLiteNode, inputs: Sequence[int], what: str) -> None:
    if any(node.has(k) for k in inputs):
        raise ModelError(f"{what} are not supported")


State = tuple[str, ...]
Step = Callable[[str, State], State]
"""Makes the next state of what comes in and the state; the first value of a state is the output."""


def _rnn_step(node: TFLiteNode, k: int) -> Step:
    weights, recurrent, bias = node.permuted(k, (1, 0)), node.permuted(k + 1, (1, 0)), node.value(k + 2)

    def step(x: str, state: State) -> State:
        sums = node.add("Gemm", x, weights, bias)
        return (node.activated(node.add("Add", sums, node.add("MatMul", state[0], recurrent))),)

    return step


def _unrolled(
    node: TFLiteNode, k: int, is_time_major: bool, step: Step, state: State, *, backwards: bool = False
) -> tuple[str, State]:
    """Return the outputs of all steps along the axis of time, and the last state."""
    axis = 0 if is_time_major else 1
    length = node.sizes(k)[axis]
    if length is None or not 1 <= length <= MOST_STEPS:
        raise ModelError(f"a sequence of {length} steps is not supported", why=f"at most {MOST_STEPS} are")
    parts = [node.value(k)] if length == 1 else node.add_many(
        "Split", length, node.value(k), node.const([1] * length), axis=axis, outputs=length
    )
    made = []
    for part in reversed(parts) if backwards else parts:
        state = step(node.add("Squeeze", part, node.const([axis])), state)
        made.append(node.add("Unsqueeze", state[0], node.const([axis])))
    made = made[::-1] if backwards else made
    return (made[0] if length == 1 else node.add("Concat", *made, axis=axis)), state


def _lstm_step(node: TFLiteNode, at: int, norms: int | None = None) -> Step:
    """Return a step of an LSTM whose weights begin at an input; `norms` is where those of layer norms begin.

    From there: weights of the input, forget, cell and output gates, the same for the state, three peepholes, four
    biases, the projection and its bias. Without weights of the input gate, that is one minus the forget gate.
    """
    gates = range(4) if node.has(at) else range(1, 4)
    weights = {g: node.permuted(at + g, (1, 0)) for g in gates}
    recurrent = {g: node.permuted(at + 4 + g, (1, 0)) for g in gates}
    peepholes = {g: node.value(at + 8 + n) for n, g in enumerate((0, 1, 3)) if node.has(at + 8 + n)}
    biases = {g: node.value(at + 11 + g) for g in gates if node.has(at + 11 + g)}
    scales = {g: node.value(norms + g) for g in gates if norms is not None and node.has(norms + g)}
    projection = node.permuted(at + 15, (1, 0)) if node.has(at + 15) else ""
    projection_bias = node.value(at + 16) if node.has(at + 16) else ""
    cell_clip, projection_clip = node.number("cell_clip"), node.number("proj_clip")

    def gate(g: int, x: str, h: str, c: str) -> str:
        bias = "" if g in scales else biases.get(g, "")
        sums = node.add("Add", node.add("Gemm", x, weights[g], bias), node.add("MatMul", h, recurrent[g]))
        if g in peepholes and g != 2:
            sums = node.add("Add", sums, node.add("Mul", c, peepholes[g]))
        if g in scales:
            width = node.tensor(at + g).shape[0]
            ones = node.const([1.0] * width, node.output_dtype())
            norm = node.add("LayerNormalization", sums, ones, axis=-1, epsilon=1e-8)
            sums = node.add("Mul", norm, scales[g])
            sums = node.add("Add", sums, biases[g]) if g in biases else sums
        return node.activated(sums) if g == 2 else node.add("Sigmoid", sums)

    def step(x: str, state: State) -> State:
        h, c = state
        forget, update = gate(1, x, h, c), gate(2, x, h, c)
        taken = gate(0, x, h, c) if 0 in weights else node.add("Sub", node.scalar(1), forget)
        c = node.add("Add", node.add("Mul", forget, c), node.add("Mul", taken, update))
        c = _kept(node, c, cell_clip)
        y = node.add("Mul", gate(3, x, h, c), node.activated(c))
        if projection:
            y = _kept(node, node.add("Gemm", y, projection, projection_bias), projection_clip)
        return y, c

    return step


def _kept(node: TFLiteNode, value: str, most: float) -> str:
    """Return a value kept between two numbers, if the most is not zero."""
    return node.add("Clip", value, node.scalar(-most), node.scalar(most)) if most > 0 else value


@importer("LSTM")
def lstm(node: TFLiteNode) -> list[str]:
    """One step; inputs as `_lstm_step` says behind x, then the states."""
    if node.option("kernel"):
        return _basic_lstm(node)
    y, c = _lstm_step(node, 1, 20)(node.value(0), (node.state(18), node.state(19)))
    node.assign(18, y)
    node.assign(19, c)
    return [y]


def _basic_lstm(node: TFLiteNode) -> list[str]:
    """One step; inputs x, last output, weights of all gates for both, bias, last cell; outputs y, c and two scratches.

    The gates are input, update, forget and output.
    """
    both = node.add("Concat", node.value(0), node.value(1), axis=1)
    sums = node.add("Gemm", both, node.permuted(2, (1, 0)), node.value(3))
    taken, update, forget, shown = node.add_many("Split", 4, sums, axis=1, num_outputs=4, outputs=4)
    taken, forget, shown = (node.add("Sigmoid", each) for each in (taken, forget, shown))
    kept = node.add("Mul", forget, node.value(4))
    c = node.add("Add", kept, node.add("Mul", taken, node.activated(update)))
    return [node.add("Mul", shown, node.activated(c)), c, both, sums]


@importer("UNIDIRECTIONAL_SEQUENCE_LSTM")
def sequence_lstm(node: TFLiteNode) -> str:
    """Return all steps of a sequence; inputs as of LSTM."""
    if node.option("diagonal"):
        raise ModelError("recurrent weights that are diagonals are not supported")
    states = node.state(18), node.state(19)
    made, (h, c) = _plain_lstm(node, 1, states) if _is_plain(node) else _unrolled(
        node, 0, bool(node.option("time_major")), _lstm_step(node, 1, 20), states
    )
    node.assign(18, h)
    node.assign(19, c)
    return made


def _is_plain(node: TFLiteNode) -> bool:
    """Tell whether Weft's LSTM computes the operator: all gates with biases, and nothing else."""
    needed = all(node.has(k) for k in (*range(1, 9), *range(12, 16)))
    others = any(node.has(k) for k in (9, 10, 11, 16, 17, 20, 21, 22, 23))
    return needed and not others and not node.number("cell_clip") and node.option("activation") == 4


def _plain_lstm(node: TFLiteNode, at: int, states: State) -> tuple[str, State]:
    """Return the outputs and the last state of Weft's LSTM, whose gates are input, output, forget and cell."""
    order, major = (0, 3, 1, 2), bool(node.option("time_major"))

    def stacked(first: int) -> str:
        joined = node.add("Concat", *(node.value(first + g) for g in order), axis=0)
        return node.add("Unsqueeze", joined, node.const([0]))

    x = node.value(0) if major else node.add("Transpose", node.value(0), perm=(1, 0, 2))
    size = node.tensor(at + 4).shape[0]
    zeros = node.const([[0.0] * (4 * size)], node.output_dtype())
    bias = node.add("Concat", stacked(at + 11), zeros, axis=1)
    begins = [node.add("Unsqueeze", state, node.const([0])) for state in states]
    y, h, c = node.add_many(
        "LSTM", 3, x, stacked(at), stacked(at + 4), bias, "", *begins, hidden_size=size, outputs=3
    )
    y = node.add("Squeeze", y, node.const([1]))
    ends = tuple(node.add("Squeeze", each, node.const([0])) for each in (h, c))
    return (y if major else node.add("Transpose", y, perm=(1, 0, 2))), ends


@importer("BIDIRECTIONAL_SEQUENCE_LSTM")
def bidirectional_lstm(node: TFLiteNode) -> list[str]:
    """Two sequences, one of which goes backwards; both have inputs as of LSTM, then four states."""
    _without(node, range(39, 48), "auxiliary inputs")
    major = bool(node.option("time_major"))
    forward, ends = _unrolled(node, 0, major, _lstm_step(node, 1), (node.state(35), node.state(36)))
    back, others = _unrolled(
        node, 0, major, _lstm_step(node, 18), (node.state(37), node.state(38)), backwards=True
    )
    for k, value in zip(range(35, 39), (*ends, *others), strict=True):
        node.assign(k, value)
    return _merged(node, forward, back)
