"""A network built by hand that makes no sense is refused with all problems together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import weft
from tests.helpers.built import HUNDRED, one_input
from weft.errors import ModelError
from weft.ops.unary import LeakyRelu


def shown(net: weft.Network, x: Any) -> weft.Network:
    """Return the network with an output y."""
    net.add_output("y", net.add_layer("Exp", x))
    return net


REFUSED: dict[str, tuple[Callable[[weft.Network, Any], object], str]] = {
    "unknown op": (lambda n, x: n.add_layer("Reul", x), r"there is no op 'Reul': did you mean 'Relu'"),
    "other case": (lambda n, x: n.add_layer("softmax", x), r"did you mean 'Softmax'"),
    "ONNX only": (lambda n, x: n.add_layer("ImageDecoder", x), r"Weft has no op 'ImageDecoder'(?s:.)*ONNX defines it"),
    "attributes": (
        lambda n, x: n.add_layer("Conv", x, stride=(2, 2), groups=1),
        r"no attribute 'stride': did you mean 'strides'\?; there is no attribute 'groups': did you mean 'group'"
        r"(?s:.)*its attributes are",
    ),
    "flag": (
        lambda n, x: n.add_layer("AveragePool", x, kernel_shape=(2, 2), ceil_mode=-1, count_include_pad=3),
        r"'ceil_mode' is -1; it must be 0 or 1; attribute 'count_include_pad' is 3",
    ),
    "missing": (lambda n, x: n.add_layer("Concat", x), r"attribute 'axis' is missing"),
    "kind": (lambda n, x: n.add_layer("Concat", x, axis="0"), r"attribute 'axis' = 0: it must be a int"),
    "too many": (lambda n, x: n.add_layer("Relu", x, x), r"has no input 1"),
    "no label": (lambda n, x: n.add_layer("Gemm").input("D"), r"has no input 'D'(?s:.)*A, B, C"),
    "no op": (lambda n, x: n.add_layer(3), r"3 is no op"),  # type: ignore[arg-type]
    "twice": (lambda n, x: n.add_layer(LeakyRelu(), x, alpha=1), r"given as an object(?s:.)*alpha"),
    "name": (lambda n, x: n.add_input("x", (1,)), r"'x' cannot be the name(?s:.)*an input"),
    "empty name": (lambda n, x: n.add_input("", (1,)), r"a name is a text"),
    "shape": (lambda n, x: n.add_input("y", (-1, 2)), r"is not a shape for input 'y'"),
    "type": (lambda n, x: n.add_input("y", (1,), "quaternion"), r"'quaternion' is not supported"),
    "array": (lambda n, x: n.add_constant(["a"]), r"is not supported"),
    "near layer": (
        lambda n, x: (n.add_layer("Relu", x, name="conv1"), n.layer("conv2")),
        r"no layer 'conv2': did you mean 'conv1'",
    ),
    "input": (lambda n, x: n.layer("x"), r"it is an input"),
    "no output": (lambda n, x: n.remove_output("y"), r"no output 'y'"),
    "output twice": (lambda n, x: shown(shown(n, x), x), r"an output 'y' already"),
    "output named": (
        lambda n, x: n.add_output("x", n.add_layer("Relu", x)),
        r"cannot be called 'x'(?s:.)*the name of an input",
    ),
    "constant named": (
        lambda n, x: shown(n, x).add_constant(HUNDRED, "y"),
        r"an output of network 'net' has that name",
    ),
    "other network": (
        lambda n, x: weft.Network("other").add_layer("Relu", x),
        r"output 0 of 'x' belongs to another network(?s:.)*of network 'net'",
    ),
    "no slot": (lambda n, x: n.add_output("y", "relu0"), r"is no output slot"),  # type: ignore[arg-type]
    "before": (lambda n, x: n.insert_before(n.add_layer("Relu").input(), "Neg"), r"it has no source"),
    "join": (lambda n, x: n.add_layer("Relu").remove(join=True), r"its first input has no source"),
    "inputs of inputs": (lambda n, x: x.input(0), r"'x' has no inputs"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_makes_no_sense_is_refused_with_a_reason(name: str) -> None:
    act, message = REFUSED[name]
    net, x = one_input()
    with pytest.raises(ModelError, match=message):
        act(net, x)


def test_a_layer_that_is_refused_leaves_nothing_behind() -> None:
    net, x = one_input()
    _, foreign = one_input()
    for sources in ((HUNDRED, foreign), (HUNDRED, ["a"]), (HUNDRED, x, x)):
        with pytest.raises(ModelError):
            net.add_layer("Add", *sources)
    assert not net.layers and not net.constants and not x.output().targets


def test_all_problems_are_told_together() -> None:
    net, x = one_input()
    a = net.add_layer("Add", x, name="a")
    a.input(1).connect(net.add_layer("Relu", a, name="b"))
    net.add_layer("MatMul", x, x, name="wrong")
    net.add_layer("Where", name="empty")
    concat = net.add_layer("Concat", x, axis=0, name="gap")
    concat.input(2).connect(x)
    gone = net.add_layer("Neg", x)
    net.add_output("y", gone)
    gone.remove()
    with pytest.raises(ModelError) as caught:
        weft.load(net, "cpu")
    message = str(caught.value)
    assert "network 'net' is not complete: 7 problem(s)" in message
    for part in (
        "the graph has a cycle (these nodes wait for each other: 'a', 'b'",
        "'wrong' (MatMul) does not fit its inputs (output 0 of 'x': float32[2x6]",
        "input 0 (condition) of 'empty'",
        "input 2 (Y) of 'empty'",
        "input 1 (inputs) of 'gap'",
        "output 'y' shows nothing",
    ):
        assert part in message, message


def test_a_network_without_outputs_is_refused() -> None:
    net, x = one_input()
    net.add_layer("Relu", x)
    with pytest.raises(ModelError, match="it has no outputs"):
        net.to_graph()
