"""Arm NN's backend tutorial in Weft: an optimiser that replaces an addition by a node it compiled.

    python precompiled_add.py

The backend "custom" runs additions. In OptimizeSubgraph it puts one pre-compiled node, which holds the
backend's own object, in the place of an addition that is alone in its subgraph; all else is untouched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

import weft
from weft import DType, Execution, OptimizationViews, PreCompiled, SubgraphView, Tensor
from weft.extend import Array, HostBackend, precompiled

Inputs = Sequence[Tensor | None]
Outputs = Sequence[Tensor]


@dataclass(frozen=True)
class CompiledAddition:
    """What the backend's own compiler made of an addition; the network keeps it, the backend does not."""

    elements: int

    def __call__(self, a: Array, b: Array, out: Array) -> None:
        """Add."""
        assert out.size == self.elements, "it was compiled for another size"
        np.add(a, b, out=out)


class CustomBackend(HostBackend):
    """Runs additions of float32."""

    def why_not(self, inputs: Inputs, outputs: Outputs, op: weft.Op) -> str | None:
        """Refuse types other than float32, then ops that have no creator."""
        if any(t is not None and t.dtype is not DType.FLOAT32 for t in inputs):
            return "custom adds float32 alone"
        return super().why_not(inputs, outputs, op)

    def OptimizeSubgraph(self, view: SubgraphView) -> OptimizationViews:
        """Substitute an addition that is alone; leave everything else as it is."""
        views = OptimizationViews()
        if [node.op.type for node in view.nodes] != ["Add"]:
            return views.keep_rest(view)
        (add,) = view.nodes
        compiled = CompiledAddition(view.graph.specs[add.outputs[0]].size)
        # The same slots as the part; the node reads what the addition read, constants among it.
        views.substitute(view, precompiled(view, "custom", compiled, add.inputs))
        return views


@CustomBackend.creator("Add")
@CustomBackend.creator("PreCompiled")
class Addition(Execution):
    """Calls the compiled object, or numpy where there is none."""

    def __init__(self, inputs: Inputs, outputs: Outputs, op: weft.Op, backend: CustomBackend) -> None:
        self.add: Callable[..., object] = np.add
        if isinstance(op, PreCompiled):
            assert isinstance(op.payload, CompiledAddition)
            self.add = op.payload

    def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
        """Add into the memory of the output."""
        a, b = (t.memory for t in inputs if t is not None)
        self.add(a, b, out=outputs[0].memory)


def main() -> None:
    """Go the tutorial's way: network, optimise, runtime, load, run."""
    weft.registry.insert("custom", CustomBackend)

    # A network of two inputs, an addition and an output, connected slot by slot.
    network = weft.Network("addition")
    first = network.add_input("input1", (1, 1, 3, 4))
    second = network.add_input("input2", (1, 1, 3, 4))
    add = network.add_layer("Add", name="add")
    first.output(0).connect(add.input(0))
    second.output(0).connect(add.input(1))
    network.add_output("output", add)

    # Optimise it for a list of backends, in order of preference. The addition is one node of custom's now.
    optimized = weft.optimize(network, ["custom", "cpu"])
    print(optimized)

    # Load it into a runtime, which returns the network's id, and run it.
    with weft.Runtime() as runtime:
        network_id = runtime.load(optimized)
        input1 = np.arange(1, 13, dtype=np.float32).reshape(1, 1, 3, 4)
        (output,) = runtime.run(network_id, {"input1": input1, "input2": 100 * input1})
    assert (output == 101 * input1).all()
    print(output.reshape(3, 4))


if __name__ == "__main__":
    main()
