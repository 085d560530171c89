"""Python's numbers, lists and names as the shapes of inputs and the sources of layers of a network in the making."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
from weft.core.graph.dtypes import DType
from weft.errors import ModelError

NUMBER: Any = 4
FRACTIONS: Any = (1.0, 2)
REFUSED: dict[str, tuple[Callable[[weft.Network, Any], object], str]] = {
    "shape that is a number": (lambda n, x: n.add_input("y", NUMBER), r"4 is not a shape(?s:.)*write \(4,\)"),
    "shape of bools": (lambda n, x: n.add_input("y", (True, 2)), r"is not a shape for input 'y'"),
    "shape of fractions": (lambda n, x: n.add_input("y", FRACTIONS), r"is not a shape"),
    "name of a layer": (lambda n, x: n.add_layer("Relu", "x"), r"'x' is a name(?s:.)*pass the layer itself"),
    "list of layers": (lambda n, x: n.add_layer("Concat", [x, x], axis=0), r"pass them one after the other"),
    "ragged list": (lambda n, x: n.add_layer("Add", x, [[1], [1, 2]]), r"is no array"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_makes_no_sense_is_refused_with_a_reason(case: str) -> None:
    act, message = REFUSED[case]
    net = weft.Network("net")
    x = net.add_input("x", (2, 6))
    with pytest.raises(ModelError, match=message):
        act(net, x)
    assert list(net.inputs) == ["x"] and not net.layers and not net.constants


F16, F32, F64 = DType.FLOAT16, DType.FLOAT32, DType.FLOAT64
U8, I32, I64, BOOL = DType.UINT8, DType.INT32, DType.INT64, DType.BOOL
LITERALS: dict[str, tuple[str, tuple[DType | Any, ...], DType]] = {
    "fraction, of a float": ("Add", (F16, 0.5), F16),
    "whole, of a float": ("Add", (F64, 2), F64),
    "before the other": ("Sub", (1, F16), F16),
    "list": ("Mul", (F16, [1, 2.5]), F16),
    "whole, of whole": ("Add", (U8, 200), U8),
    "whole that does not fit": ("Add", (U8, 300), I64),
    "fraction, of whole": ("Add", (I32, 0.5), F32),
    "bool": ("And", (BOOL, True), BOOL),
    "fixed by ONNX": ("Reshape", (F16, [3, 1]), I64),
    "fixed to float": ("Resize", (F16, None, [2, 2]), F32),
    "another type of its own": ("Pow", (F32, 2), F32),
    "indices": ("Gather", (F32, [0, 1]), I64),
    "indices as the data are": ("Gather", (I32, 1), I32),
    "condition": ("Where", (BOOL, 1.5, F16), F16),
    "nothing that is known": ("Where", (BOOL, 1, 0), I64),
    "fraction, nothing known": ("Where", (BOOL, 1.5, 0), F32),
    "numpy's scalar": ("Add", (F32, np.float64(2)), F64),
    "array": ("Add", (F32, np.ones(1, np.int32)), I32),
    "beside an array": ("Add", (0.5, np.ones(1, np.float16)), F16),
}


@pytest.mark.parametrize("case", LITERALS)
def test_a_number_has_the_type_that_fits_the_op_and_its_other_inputs(case: str) -> None:
    op_type, sources, expected = LITERALS[case]
    net = weft.Network()
    given = [net.add_input(f"i{k}", (3,), s) if isinstance(s, DType) else s for k, s in enumerate(sources)]
    layer = net.add_layer(op_type, *given)
    index = next(k for k, s in enumerate(sources) if s is not None and not isinstance(s, DType))
    source = layer.input(index).source
    assert source is not None and source.spec is not None and source.spec.dtype is expected


def test_a_number_beside_a_layer_whose_type_is_inferred() -> None:
    net = weft.Network()
    two: Any = np.int64(2)
    x = net.add_input("x", ("n", two), "float16")
    assert x.spec.shape == ("n", 2) and type(x.spec.shape[1]) is int
    net.add_output("y", net.add_layer("Mul", net.add_layer("Relu", x), 0.5))
    with weft.load(net, "cpu", shapes={"x": (1, 2)}) as session:
        (y,) = session.run(np.array([[-1, 3]], np.float16))
    assert y.dtype == np.float16 and y.tolist() == [[0, 1.5]]
