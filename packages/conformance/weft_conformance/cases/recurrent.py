"""Rows of the recurrent layers."""

from __future__ import annotations

from typing import Any

from weft_conformance.cases.table import Case, Input, case, const, f16, f32, f64
from weft_conformance.cases.table import given as fixed

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def layer(
    op: str,
    *,
    steps: int = 4,
    batch: int = 2,
    features: int = 3,
    hidden: int = 5,
    inputs: str = "",
    lens: tuple[int, ...] = (),
    made: Any = f32,
    constant: bool = True,
    name: str = "",
    **attributes: Any,
) -> Case:
    """Return a row; `inputs` has a letter for each optional input: b, h, c and p."""
    directions, gates = 2 if attributes.get("direction") == "bidirectional" else 1, GATES[op]
    x = (batch, steps, features) if attributes.get("layout") else (steps, batch, features)
    state = (batch, directions, hidden) if attributes.get("layout") else (directions, batch, hidden)
    weights = const if constant else lambda value: value
    row: list[Input | None] = [
        made(*x),
        weights(made(directions, gates * hidden, features)),
        weights(made(directions, gates * hidden, hidden)),
        weights(made(directions, 2 * gates * hidden)) if "b" in inputs else None,
        fixed(lens, "int32") if lens else None,
        made(*state) if "h" in inputs else None,
    ]
    if op == "LSTM":
        row += [
            made(*state) if "c" in inputs else None,
            weights(made(directions, 3 * hidden)) if "p" in inputs else None,
        ]
    while row[-1] is None:
        row.pop()
    shown = {"hidden_size": hidden, "outputs": 3 if op == "LSTM" else 2, **attributes}
    return case(op, *row, name=name, **shown)


CASES: list[Case] = [
    layer(op, inputs=inputs, **attributes)
    for op, inputs, attributes in (
        ("LSTM", "", {}),
        ("LSTM", "bhcp", {"direction": "bidirectional", "lens": (2, 4)}),
        ("LSTM", "b", {"direction": "reverse", "lens": (4, 1), "batch": 2}),
        ("LSTM", "bhc", {"clip": 0.3, "input_forget": 1, "hidden": 6}),
        ("LSTM", "bhc", {"constant": False, "features": 4, "hidden": 8}),
        ("LSTM", "bhcp", {"layout": 1, "steps": 3}),
        ("LSTM", "b", {"made": f16, "steps": 3, "features": 8}),
        ("LSTM", "b", {"made": f64, "steps": 3}),
        ("LSTM", "", {"hidden": 70, "steps": 3, "batch": 1}),
        (
            "LSTM", "b",
            {
                "direction": "bidirectional",
                "activations": ("HardSigmoid", "Affine", "LeakyRelu", "Sigmoid", "ScaledTanh", "Elu"),
                "activation_alpha": (0.3, 0.7, 0.2, 0.9, 0.8), "activation_beta": (0.4, 0.1, 0.6),
            },
        ),
        ("GRU", "", {}),
        ("GRU", "bh", {"direction": "bidirectional", "lens": (1, 4), "linear_before_reset": 1}),
        ("GRU", "bh", {"direction": "reverse", "clip": 0.2}),
        ("GRU", "b", {"activations": ("Softsign", "ThresholdedRelu"), "activation_alpha": (0.1,)}),
        ("GRU", "bh", {"layout": 1, "steps": 3}),
        ("GRU", "", {"hidden": 70, "steps": 3, "batch": 1}),
        ("GRU", "bh", {"constant": False, "linear_before_reset": 1, "made": f16}),
        ("RNN", "", {}),
        ("RNN", "bh", {"direction": "bidirectional", "lens": (3, 0), "activations": ("Relu", "Softplus")}),
        ("RNN", "b", {"direction": "reverse", "clip": 0.5}),
        ("RNN", "bh", {"layout": 1}),
        ("LSTM", "bhcp", {"made": f64, "direction": "bidirectional", "lens": (2, 4), "clip": 0.5, "oracles": (),
                          "unverified": "onnxruntime has no LSTM of float64, and onnx does not clip"}),
        ("GRU", "bh", {"made": f64, "direction": "reverse"}),
        ("GRU", "b", {"made": f64, "constant": False, "linear_before_reset": 1}),
        ("RNN", "bh", {"made": f64}),
    )
]
