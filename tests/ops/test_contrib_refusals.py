"""What ONNX Runtime's own ops refuse, and the sentences that they say it with."""

from __future__ import annotations

from typing import Any

import pytest

import weft.ops  # noqa: F401  (registers the ops)
from weft.core.graph.composite import Composite
from weft.core.graph.dtypes import DType
from weft.core.graph.layout import Shape
from weft.core.graph.op import find_op, op_types
from weft.core.graph.tensor import TensorSpec
from weft.errors import ModelError

MS = "com.microsoft::"
FLAT, CHANNELS = (4,), (1, 2, 4)
MODULES = ("weft.ops.contrib_gates", "weft.ops.contrib_math")


def refusal(name: str, *shapes: Shape | None, **attributes: Any) -> str:
    """Return what the op says of inputs of these shapes, None for a missing one; it must refuse them."""
    kind = find_op(MS + name)
    assert kind is not None
    specs = [None if shape is None else TensorSpec(shape, DType.FLOAT32) for shape in shapes]
    with pytest.raises(ModelError) as caught:
        kind(**attributes).inferred(specs, [None] * len(specs))
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "shapes", "attributes", "reason"),
    [
        ("ScaledSiLU", [(3, 4), (4,)], {}, "the scale of (4,) is no scalar"),
        ("ScaledSiLU", [(), (2, 3)], {}, "the scale of (2, 3) is no scalar"),
        ("ScaledSiLU", [(3, 4), (1,)], {}, "the scale of (1,) is no scalar"),
        ("GatedAdd", [(), (), ()], {}, "X is a scalar; it needs at least one axis"),
        ("GatedRMSNorm", [(), (1,), ()], {}, "X is a scalar; it needs at least one axis"),
        ("GatedRMSNorm", [FLAT, (3,), FLAT], {}, "a scale of (3,) and a gate of (4,) do not fit X of (4,)"),
        ("GatedRMSNorm", [FLAT, (0,), FLAT], {}, "a scale of (0,) and a gate of (4,) do not fit X of (4,)"),
        ("BranchwiseRMSNorm", [()], {"num_branches": 1}, "X of () has no 1 branches"),
        ("LinearAttentionGate", [CHANNELS, None, FLAT], {}, "it needs the first 3 inputs; missing: 1"),
        ("LinearAttentionGate", [CHANNELS, FLAT], {}, "it needs the first 3 inputs; missing: 2"),
        ("LinearAttentionGate", [CHANNELS, (1,), FLAT], {}, "dt_bias of (1,) needs an element for each"),
        ("LinearAttentionGate", [CHANNELS, FLAT, (2, 4)], {}, "decay_scale of (2, 4) needs an element for each"),
        ("LinearAttentionGate", [(), (1,), (1,)], {}, "dt_bias of (1,) needs an element for each of the last axis"),
        ("LinearAttentionGate", [CHANNELS, FLAT, FLAT, (4,)], {}, "b of (4,) and a of (1, 2, 4) are not alike"),
        ("LinearAttentionGate", [CHANNELS, FLAT, FLAT], {"outputs": 2}, "its second output is the sigmoid of b"),
        ("ExpandDims", [(2, 3), (0,)], {}, "the axis of (0,) is no scalar"),
        ("ExpandDims", [(2, 3), (2,)], {}, "the axis of (2,) is no scalar"),
        ("Pad", [(2, 3), (2, 2)], {}, "pads of (2, 2) are neither a list nor one row"),
        ("Pad", [(2, 3), (1, 1, 4)], {}, "pads of (1, 1, 4) are neither a list nor one row"),
        ("ExpandDims", [(2, 3)], {}, "it needs the first 2 inputs; missing: 1"),
    ],
)
def test_a_sentence_says_what_does_not_fit(
    name: str, shapes: list[Shape | None], attributes: dict[str, Any], reason: str
) -> None:
    assert reason in refusal(name, *shapes, **attributes)


@pytest.mark.parametrize(
    "name", [n for n, kind in op_types().items() if issubclass(kind, Composite) and kind.__module__ in MODULES]
)
def test_too_few_inputs_are_told_which_are_missing(name: str) -> None:
    kind = op_types()[name]
    assert issubclass(kind, Composite) and kind.least_inputs
    for count in range(kind.least_inputs):
        missing = ", ".join(str(k) for k in range(count, kind.least_inputs))
        said = refusal(name.removeprefix(MS), *[(2, 2)] * count)
        assert said.count(f"it needs the first {kind.least_inputs} inputs; missing: {missing}") == 1
