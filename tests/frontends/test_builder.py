"""Networks built by hand: layers, slots, constants, and what is inferred before a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import weft
from tests.helpers.built import X, one_input, run
from weft.core.graph.layout import Array
from weft.core.graph.op import Constants, Op
from weft.core.graph.tensor import TensorSpec
from weft.errors import ModelError
from weft.ops.concat import Split

# -- building ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["cpu", "opencl", "vulkan"])
def test_a_network_by_hand_runs_on_the_device_that_was_named(device: str) -> None:
    net = weft.Network("adder")
    x = net.add_input("x", (2, 6), "float32")
    y = net.add_input("y", (2, 6))
    add = net.add_layer("Add", name="sum")
    x.output(0).connect(add.input(0))
    y.output(0).connect(add.input(1))
    net.add_output("z", add.output(0))
    with weft.load(net, device, fallback="error") as session:
        assert session.report.placement["sum"].partition(":")[0] == device
        (z,) = session.run(X, 2 * X)
    np.testing.assert_array_equal(z, 3 * X)


def test_the_short_form_takes_layers_slots_and_arrays() -> None:
    net, x = one_input()
    relu = net.add_layer("Relu", x)
    scaled = net.add_layer("Mul", relu.output(0), np.float32(3))
    net.add_output("y", net.add_layer("Sum", relu, scaled, x))
    (y,) = run(net, X)
    np.testing.assert_array_equal(y, 4 * np.maximum(X, 0) + X)
    assert [layer.name for layer in net.layers.values()] == ["relu0", "mul0", "sum0"]


def test_constants_have_names_and_can_be_set() -> None:
    net, x = one_input()
    w = net.add_constant(np.ones((6, 3), np.float32), name="w")
    net.add_output("y", net.add_layer("MatMul", x, w))
    assert net.outputs["y"] is not None and net.outputs["y"].spec == TensorSpec((2, 3), weft.DType.FLOAT32)
    w.value = np.ones((6, 5), np.float32)
    np.testing.assert_array_equal(run(net, X)[0], np.repeat(X.sum(1, keepdims=True), 5, axis=1))


def test_an_output_feeds_many_inputs_and_an_input_has_one_source() -> None:
    net, x = one_input()
    add = net.add_layer("Add", x, x, name="twice")
    assert add.input("A").source is add.input(1).source is x.output()
    assert x.output().targets == add.inputs
    with pytest.raises(ModelError, match=r"input 0 of 'twice' has a source already.*(?s:.)*output 0 of 'x'"):
        x.output().connect(add.input(0))
    add.input(1).disconnect()
    assert x.output().targets == (add.input(0),)


def test_slots_follow_the_op() -> None:
    net, x = one_input(1, 3, 8, 8)
    assert [len(net.add_layer(t).inputs) for t in ("Relu", "Add", "Clip", "Sum", "Where")] == [1, 2, 3, 1, 3]
    concat = net.add_layer("Concat", x, x, x, axis=1)
    assert len(concat.inputs) == 3
    assert concat.input(7).index == 7
    with pytest.raises(ModelError, match="has no input 1"):
        net.layer("relu0").input(1)
    with pytest.raises(ModelError, match="has no output 1"):
        net.layer("relu0").output(1)


def test_optional_inputs_may_stay_unconnected() -> None:
    net, x = one_input()
    net.add_output("y", net.add_layer("Clip", x, None, np.float32(1)))
    np.testing.assert_array_equal(run(net, X)[0], np.minimum(X, 1))


def test_ops_with_several_outputs_have_so_many_slots() -> None:
    net, x = one_input()
    parts = net.add_layer("Split", x, axis=1, num_outputs=3)
    by_sizes = net.add_layer("Split", x, np.array([1, 1, 2, 2]), axis=1)
    top = net.add_layer("TopK", x, np.array([2])) if "TopK" in _types() else None
    assert (len(parts.outputs), len(by_sizes.outputs)) == (3, 4)
    assert top is None or len(top.outputs) == 2
    net.add_output("last", parts.output(2))
    net.add_output("third", by_sizes.output(2))
    last, third = run(net, X)
    np.testing.assert_array_equal(last, X[:, 4:])
    np.testing.assert_array_equal(third, X[:, 2:4])
    with pytest.raises(ModelError, match="has no output 3"):
        parts.output(3)
    with pytest.raises(ModelError, match="has 3 outputs"):
        net.add_layer("Relu", parts)


def _types() -> set[str]:
    from weft.core.graph.op import op_types

    return set(op_types())


def test_a_split_is_told_how_many_parts_were_asked_for() -> None:
    net, x = one_input()
    parts = net.add_layer("Split", x, axis=1)
    net.add_output("left", parts.output(0))
    net.add_output("right", parts.output(1))
    np.testing.assert_array_equal(run(net, X)[1], X[:, 3:])
    assert parts.completed_op == Split(axis=1, outputs=2)


def test_an_optional_output_is_made_when_it_is_asked_for() -> None:
    net, x = one_input(1, 1, 4, 4)
    pool = net.add_layer("MaxPool", x, kernel_shape=(2, 2), strides=[2, 2])
    assert len(pool.outputs) == 1
    net.add_output("y", pool.output(0))
    net.add_output("where", pool.output(1))
    y, where = run(net, np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4))
    np.testing.assert_array_equal(y.reshape(-1), where.reshape(-1))
    with pytest.raises(ModelError, match="has no output 2"):
        pool.output(2)


def test_attributes_may_be_lists_names_of_types_and_numbers_of_numpy() -> None:
    net, x = one_input()
    turned = net.add_layer("Transpose", x, perm=[np.int64(1), 0])
    net.add_output("y", net.add_layer("Cast", net.add_layer("LeakyRelu", turned, alpha=1), to="float64"))
    net.add_output("z", net.add_layer("Cast", x, to=11))
    y, z = run(net, X)
    assert y.dtype == z.dtype == np.float64
    np.testing.assert_array_equal(y, X.T)


@dataclass(frozen=True)
class Twice(Op):
    """A user's op that nobody else knows: each input doubled."""

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        return tuple(i for i in inputs if i)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        return tuple(2 * i for i in inputs if i is not None)


def test_an_op_of_the_user_has_what_is_connected_and_what_it_infers() -> None:
    net, x = one_input()
    twice = net.add_layer(Twice(), x, x)
    assert len(twice.inputs) == len(twice.outputs) == 2
    net.add_output("y", twice.output(1))
    np.testing.assert_array_equal(run(net, X)[0], 2 * X)
    with pytest.raises(ModelError, match="has no output 2"):
        twice.output(2)


# -- what is known before a run ------------------------------------------------------------------------------


def shape_of(slot: Any) -> tuple[int | str, ...]:
    spec = slot.output().spec
    assert spec is not None
    return tuple(spec.shape)


def test_specs_are_known_before_a_run_with_symbols_in_them() -> None:
    net, x = one_input("n", 3, "h", "w")
    w = np.zeros((8, 3, 3, 3), np.float32)
    same = net.add_layer("Conv", x, w, pads=(1, 1, 1, 1))
    half = net.add_layer("MaxPool", same, kernel_shape=(2, 2), strides=(2, 2), name="half")
    assert shape_of(same) == ("n", 8, "h", "w")
    assert shape_of(half) == ("n", 8, "half.2", "half.3")
    assert shape_of(net.add_layer("Relu", half)) == ("n", 8, "half.2", "half.3")
    assert shape_of(net.add_layer("Concat", half, half, axis=1)) == ("n", 16, "half.2", "half.3")
    lines = net.add_layer("Reshape", same, np.array([0, 8, -1]))
    assert shape_of(lines)[:2] == ("n", 8)
    assert shape_of(net.add_layer("Flatten", net.add_layer("GlobalAveragePool", same))) == ("n", 8)
    net.inputs["x"].spec = TensorSpec((1, 3, 4, 4), weft.DType.FLOAT32)
    assert shape_of(half) == (1, 8, 2, 2)


def test_shapes_that_are_computed_are_followed() -> None:
    net, x = one_input("n", 4, 6)
    n = net.add_layer("Gather", net.add_layer("Shape", x), np.array([0]))
    shape = net.add_layer("Concat", n, np.array([24]), axis=0)
    assert shape_of(net.add_layer("Reshape", x, shape)) == ("n", 24)


def test_what_cannot_be_known_is_none() -> None:
    net, x = one_input("n", 4)
    shape = net.add_input("shape", (2,), "int64")
    assert net.add_layer("Reshape", x, shape).output().spec is None
    assert net.add_layer("Relu").output().spec is None


def test_a_network_tells_what_it_is() -> None:
    net, x = one_input("n", 6)
    add = net.add_layer("Add", x, name="sum")
    assert [str(layer) for layer in (x, add)] == ["<an input 'x'>", "<Add layer 'sum'>"]
    assert repr(add.input(1)) == "input 1 of 'sum'"
    assert "sum = Add()(x, -)  -> ?" in str(net)
