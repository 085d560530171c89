"""LSTM, GRU and plain recurrent networks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.frontends.torch.builder import Builder, Sizes, Value, static
from weft.frontends.torch.rules import Unsupported, aten

_GATES = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2), "RNN": (0,)}
"""Where ONNX's gates are among those of torch."""


def _reordered(g: Builder, kind: str, value: Value) -> Value:
    """Return weights or a bias of torch with the gates in ONNX's order."""
    gates = _GATES[kind]
    if gates == (0,):
        return value
    size = static(value, "weights")[0] // len(gates)
    parts = [g.slice(value, 0, k * size, (k + 1) * size) for k in gates]
    return g.op("Concat", *parts, axis=0, shape=value.shape)


def _stacked(g: Builder, values: Sequence[Value]) -> Value:
    """Return values one over the other along a new first axis."""
    rows = [g.unsqueeze(v, [0]) for v in values]
    return rows[0] if len(rows) == 1 else g.op("Concat", *rows, axis=0, shape=(len(rows), *values[0].shape))


def _run(
    g: Builder, kind: str, x: Value, states: Sequence[Value], parameters: Sequence[Value], has_biases: bool,
    layers: int, dropout: float, train: bool, bidirectional: bool, batch_first: bool, **attributes: Any,
) -> list[Value]:
    """Add the layers; return all steps, and the last states of each kind."""
    if train and dropout:
        raise Unsupported("drops values at random, as in training: call model.eval() first")
    directions, each = 1 + bidirectional, 4 if has_biases else 2
    if len(parameters) != layers * directions * each:
        raise Unsupported("projects its state (proj_size)")
    x = g.transpose(x, [1, 0, 2]) if batch_first else x
    last: list[list[Value]] = [[] for _ in states]
    for layer in range(layers):
        begin = layer * directions * each
        sides = [parameters[begin + d * each : begin + (d + 1) * each] for d in range(directions)]
        w, r = (_stacked(g, [_reordered(g, kind, side[k]) for side in sides]) for k in (0, 1))
        b = None
        if has_biases:
            joined = [
                g.op("Concat", *(_reordered(g, kind, side[k]) for k in (2, 3)), axis=0, shape=(None,)) for side in sides
            ]
            b = _stacked(g, joined)
        first = [g.slice(s, 0, layer * directions, (layer + 1) * directions) for s in states]
        hidden = static(parameters[1], "weights")[1]
        steps: Sizes = (x.shape[0], directions, x.shape[1], hidden)
        of_states = [(directions, x.shape[1], hidden)] * len(states)
        y, *ends = g.ops(
            kind, x, w, r, b, None, *first, dtypes=[None] * (1 + len(states)), shapes=[steps, *of_states],
            hidden_size=hidden, direction="bidirectional" if bidirectional else "forward", outputs=1 + len(states),
            **attributes,
        )
        sizes = [g.size(x, 0), g.size(x, 1), directions * hidden]
        if directions == 1:
            x = g.squeeze(y, [1])
        else:
            x = g.reshape(g.transpose(y, [0, 2, 1, 3]), sizes, (x.shape[0], x.shape[1], directions * hidden))
        for kept, end in zip(last, ends, strict=True):
            kept.append(end)
    joined_states = [
        kept[0] if layers == 1
        else g.op("Concat", *kept, axis=0, shape=(layers * directions, *kept[0].shape[1:]))
        for kept in last
    ]
    return [g.transpose(x, [1, 0, 2]) if batch_first else x, *joined_states]


@aten("lstm.input")
def lstm(g: Builder, x: Value, states: Sequence[Value], parameters: Sequence[Value], *how: Any) -> list[Value]:
    return _run(g, "LSTM", x, states, parameters, *how)


@aten("gru.input")
def gru(g: Builder, x: Value, state: Value, parameters: Sequence[Value], *how: Any) -> list[Value]:
    return _run(g, "GRU", x, [state], parameters, *how, linear_before_reset=1)


@aten("rnn_tanh.input")
def rnn_tanh(g: Builder, x: Value, state: Value, parameters: Sequence[Value], *how: Any) -> list[Value]:
    return _run(g, "RNN", x, [state], parameters, *how, activations=("Tanh",) * (1 + how[4]))


@aten("rnn_relu.input")
def rnn_relu(g: Builder, x: Value, state: Value, parameters: Sequence[Value], *how: Any) -> list[Value]:
    return _run(g, "RNN", x, [state], parameters, *how, activations=("Relu",) * (1 + how[4]))
