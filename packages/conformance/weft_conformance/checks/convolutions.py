"""Convolutions of every form, with every epilogue that backends fuse into them (M3, M4, A5)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import product
from typing import Any

import numpy as np

from weft.core.contract.backend import Backend
from weft.core.graph.layout import Array
from weft.core.graph.op import new_op
from weft_conformance.drawing import CHANNELS, Drawing, Made
from weft_conformance.kit import Kit, Untried, check
from weft_conformance.report import Finding
from weft_conformance.trials import accepts, judged

Attributes = dict[str, Any]
SIDES = ((7, 6), (12, 9))
"""Heights and widths, at first and after a resize."""

PADDED: tuple[Attributes, ...] = (
    {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1)},
    {"kernel_shape": (3, 2), "pads": (0, 1, 2, 0)},
    {"kernel_shape": (5, 5), "pads": (2, 2, 2, 2)},
    {"kernel_shape": (1, 1)},
    {"kernel_shape": (3, 3), "dilations": (2, 2), "pads": (2, 1, 2, 3)},
    {"kernel_shape": (4, 3), "auto_pad": "SAME_LOWER"},
)
STRIDED: tuple[Attributes, ...] = (
    {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)},
    {"kernel_shape": (1, 1), "strides": (2, 2)},
    {"kernel_shape": (3, 3), "strides": (2, 1), "pads": (0, 0, 1, 1)},
    {"kernel_shape": (5, 3), "strides": (3, 2), "pads": (2, 1, 2, 1)},
    {"kernel_shape": (2, 2), "strides": (2, 2)},
    {"kernel_shape": (3, 3), "strides": (2, 2), "auto_pad": "SAME_UPPER"},
)
FORMS: dict[str, tuple[Attributes, ...]] = {"padded": PADDED, "strided": STRIDED, "grouped": PADDED + STRIDED}

Epilogue = Callable[[Drawing, str, str], list[str]]
"""Adds nodes behind a convolution, whose result and input are named; it returns the types of those that were taken."""


def _steps(*kinds: str, **attributes: Any) -> Epilogue:
    """Return an epilogue of ops of one input, one after the other."""

    def add(d: Drawing, y: str, x: str) -> list[str]:
        return [kind for kind in kinds if d.try_node(Made(new_op(kind, **attributes), [_last(d)]))]

    return add


def _with_constant(kind: str, *, of_channels: bool = True, first: bool = False) -> Epilogue:
    def add(d: Drawing, y: str, x: str) -> list[str]:
        given: Array = d.numbers(d.shape(y)[1], 1, 1, low=0.2) if of_channels else d.numbers(low=0.2)
        return _added(d, kind, [given, y] if first else [y, given])

    return add


def _clip(d: Drawing, y: str, x: str) -> list[str]:
    return _added(d, "Clip", [y, np.array(0, np.float32), np.array(6, np.float32)])


def _batch_norm(d: Drawing, y: str, x: str) -> list[str]:
    of = d.shape(y)[1]
    return _added(d, "BatchNormalization", [y, *(d.numbers(of) for _ in range(3)), d.numbers(of, low=0.3)])


def _gate(d: Drawing, y: str, x: str) -> list[str]:
    """Multiply the result by its own sigmoid."""
    return _added(d, "Sigmoid", [y]) and ["Sigmoid", *_added(d, "Mul", [y, _last(d)])]


def _residual(kind: str, *behind: str) -> Epilogue:
    """Join the result with its input, or with itself where their shapes differ."""

    def add(d: Drawing, y: str, x: str) -> list[str]:
        done = _added(d, kind, [y, x if d.shape(x) == d.shape(y) else y])
        return done and [*done, *_steps(*behind)(d, _last(d), x)]

    return add


def _added(d: Drawing, kind: str, inputs: Sequence[str | Array | None]) -> list[str]:
    return [kind] if d.try_node(Made(new_op(kind), inputs)) else []


def _last(d: Drawing) -> str:
    return d.graph.nodes[-1].outputs[0]


EPILOGUES: dict[str, Epilogue] = {
    "nothing": lambda d, y, x: [],
    "Relu": _steps("Relu"),
    "Clip": _clip,
    "LeakyRelu": _steps("LeakyRelu"),
    "Sigmoid": _steps("Sigmoid"),
    "Tanh": _steps("Tanh"),
    "HardSwish": _steps("HardSwish"),
    "a gate": _gate,
    "Add a constant": _with_constant("Add"),
    "Mul by a constant": _with_constant("Mul"),
    "Sub from a number": _with_constant("Sub", of_channels=False, first=True),
    "PRelu": _with_constant("PRelu"),
    "BatchNormalization": _batch_norm,
    "Add a residual": _residual("Add"),
    "Add a residual, Relu": _residual("Add", "Relu"),
    "Relu, Neg": _steps("Relu", "Neg"),
    "Abs, Sigmoid": _steps("Abs", "Sigmoid"),
}


@check("convolutions", "M3 M4 A5", "convolutions of many forms and numbers of channels are right with every epilogue")
def convolutions(kit: Kit) -> Iterable[Finding]:
    """Try every epilogue behind each kind of form; forms, channels and biases take turns."""
    with kit.opened() as backend:
        for number, (epilogue, kind) in enumerate(product(EPILOGUES, FORMS)):
            yield kit.attempt(f"{kind}, {epilogue}", _convolution, kit, backend, kind, epilogue, number)


def _convolution(kit: Kit, backend: Backend, kind: str, epilogue: str, number: int) -> str:
    channels = CHANNELS[number % len(CHANNELS)]
    batches = (2, 1) if number % 2 else (1, 3)
    shapes = tuple((n, channels, *sides) for n, sides in zip(batches, SIDES, strict=True))
    d = Drawing(kit.seed + number, accepts(backend), kit.dtype, (shapes[0], shapes[1]))
    forms = FORMS[kind]
    form = forms[number // 3 % len(forms)]
    group, out = 1, (4, 7, channels, 65, 8, 3)[number // 2 % 6]
    if kind == "grouped":
        group, out = _groups(channels, number)
    per_group = channels // group
    most = 2 * float(per_group * np.prod(form["kernel_shape"])) ** -0.5
    weights = d.numbers(out, per_group, *form["kernel_shape"], low=-most, high=most)
    bias = [] if number % 4 == 3 else [d.numbers(out)]
    if not d.try_node(Made(new_op("Conv", group=group, **form), ["x0", weights, *bias])):
        raise Untried("the backend does not take this convolution")
    done = EPILOGUES[epilogue](d, _last(d), "x0")
    if not done and epilogue != "nothing":
        raise Untried(f"the backend does not take {epilogue} behind a convolution")
    return judged(kit, d)


def _groups(channels: int, number: int) -> tuple[int, int]:
    """Return a number of groups, in turn one for each channel and fewer, and of output channels."""
    divisors = [g for g in (5, 2, 3, 7, 13) if channels % g == 0 and g < channels]
    group = divisors[number % len(divisors)] if divisors and number % 2 else channels
    return group, group * (1 + number % 3) if group < 30 else group
