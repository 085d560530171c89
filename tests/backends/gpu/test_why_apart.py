"""What is said of element-wise launches and moves: why they are not part of another one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from onnx import helper

import weft
from tests.helpers.cli import write_model
from tests.helpers.moving_nets import moving_networks
from tests.helpers.nets import Net
from tests.helpers.null_gpu import null_gpu
from tests.helpers.random_nets import SLOW
from tests.helpers.run_length import examples
from weft.core.graph.graph import Graph
from weft.kernels.gpu_op import find_gpu_op


def _apart(graph: Graph, *, fusing: bool = True) -> dict[str, str]:
    with null_gpu():
        (part,) = weft.optimize(graph, "null", fallback="error", fusing=fusing).parts
        assert part.lowered is not None
        launched = {launch.node for launch in part.lowered.launches}
        why = part.lowered.why_apart()
        assert why.keys() <= launched
        return dict(why)


def _gate(net: Net) -> str:
    """A scale for each channel that is computed, as in squeeze-and-excite."""
    x = net.conv(net.input("x", 1, 8, 6, 6), 8, name="image")
    pooled = net.add("GlobalAveragePool", x, name="pooled")
    return net.add("Mul", x, net.conv(pooled, 8, name="gate"), name="scaled")


def test_each_operand_of_an_element_wise_node_has_a_reason() -> None:
    net = Net()
    graph = net.finish(
        net.add("Relu", net.add("Concat", _gate(net), net.input("z", 1, 3, 6, 6), axis=1), name="y")
    )
    why = _apart(graph)
    assert "Conv 'n_image' makes 'image', which 1 other node reads too" in why["n_scaled"]
    assert "its result is float32[1x8x6x6], and what it reads is float32[1x8x1x1]" in why["n_scaled"]
    assert why["n_y"].endswith("the kernels of Concat store their results without steps")


def test_the_convolution_that_reads_it_has_a_reason_too() -> None:
    net = Net()
    graph = net.finish(net.conv(_gate(net), 8, 3, name="y"))
    assert "Conv 'n_y' does not compute it as it loads: it is no plain 1 x 1 convolution" in _apart(graph)["n_scaled"]


def test_a_value_that_is_a_result_or_an_input_is_said_to_be_one() -> None:
    net = Net()
    made = net.conv(net.input("x", 1, 4, 6, 6), 4, name="made")
    why = _apart(net.finish(made, net.add("Add", made, net.input("z", 1, 4, 1, 1), name="y")))
    assert "which is a result as well: its operand 'z" in why["n_y"]
    assert "'z' is an input of this part of the network" in why["n_y"]


def test_an_operand_that_would_be_broadcast_is_named() -> None:
    net = Net()
    made = net.add("MatMul", net.input("x", 6, 8), net.random(8, 5))
    why = _apart(net.finish(net.add("Add", made, net.input("z", 6, 1), name="y")))
    assert "its operand 'z', a value of shape (6, 1), would be broadcast" in why["n_y"]


def test_a_move_says_who_does_not_read_through_it_and_who_does_not_write() -> None:
    net = Net()
    moved = net.add("Transpose", net.input("x", 4, 6, 5), perm=(2, 0, 1), name="moved")
    why = _apart(net.finish(net.add("CumSum", moved, np.array(0), name="y")))
    assert "CumSum 'n_y' does not read 'moved' through" in why["n_moved"]
    assert "; and 'x' is an input of this part of the network" in why["n_moved"]


def test_a_conversion_names_both_layouts_and_its_reader() -> None:
    net = Net()
    graph = net.finish(
        net.conv(net.add("Softmax", net.input("x", 1, 6, 5, 5), axis=-1, name="soft"), 4, name="y")
    )
    (reason,) = (text for name, text in _apart(graph).items() if name.startswith("Relayout.soft"))
    assert reason == "'soft' lies as NCHW, and Conv 'n_y' reads NC4HW4"


def test_without_fusing_that_is_the_reason() -> None:
    net = Net()
    graph = net.finish(net.add("Relu", net.conv(net.input("x", 1, 4, 6, 6), 4), name="y"))
    assert "n_y" not in _apart(graph)
    assert _apart(graph, fusing=False)["n_y"] == "fusing is switched off"


@given(graph=moving_networks(8))
@settings(max_examples=examples(40), deadline=None, suppress_health_check=SLOW)
def test_every_launch_that_maps_or_moves_has_a_reason(graph: Graph) -> None:
    with null_gpu():
        for part in weft.optimize(graph, "null", fallback="error").parts:
            assert part.lowered is not None
            why, nodes = part.lowered.why_apart(), {node.name: node for node in part.lowered.graph.nodes}
            for name in {launch.node for launch in part.lowered.launches}:
                op = nodes[name].op
                form = find_gpu_op(op)
                assert name in why or not (op.is_elementwise or (form is not None and form.moves_bits)), (
                    nodes[name]
                )


def test_inspect_prints_the_reasons(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from weft.cli import main

    joined = helper.make_node("Concat", ["x", "z"], ["joined"], axis=0)
    nodes = [joined, helper.make_node("Relu", ["joined"], ["y"])]
    file = write_model(tmp_path / "joined.onnx", nodes, {"x": (3, 4), "z": (2, 4)}, ["y"])
    with null_gpu(), pytest.raises(SystemExit):
        main(["inspect", str(file), "--devices", "null", "--fusion"])
    printed = " ".join(capsys.readouterr().out.split())
    assert "1 Relu" in printed and "why it is not part of another launch" in printed
    assert "the kernels of Concat store their results without steps" in printed
