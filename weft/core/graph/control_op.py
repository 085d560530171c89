"""Ops that a session runs itself, on no device: ops that hold graphs, and ops on lists of tensors."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from weft.core.graph.graph import Graph, Node
from weft.core.graph.interpreter import evaluate
from weft.core.graph.layout import Array
from weft.core.graph.op import Constants, Op
from weft.core.graph.tensor import TensorSpec
from weft.errors import ModelError, ValueNeeded

Value = Array | list[Array] | None
"""What a value of a network may be in a run: a tensor, a sequence of tensors, or an optional that holds nothing."""

RunGraph = Callable[[Graph, Sequence[Value]], list[Value]]
"""Runs a graph that an op holds: its outputs for a value for each of its inputs."""


@dataclass(frozen=True)
class ControlOp(Op):
    """An op that no backend is asked about. The graphs it holds run on the session's devices.

    The last `captures` inputs are values around the node that its graphs read; they are the last inputs of each graph.
    """

    captures: int = 0

    @abstractmethod
    def execute(self, inputs: Sequence[Value], run: RunGraph) -> Sequence[Value]:
        """Return the outputs; `run` runs one of its graphs."""

    def misfit(self, inputs: int, outputs: int) -> str:
        """Return why no node of so many inputs and outputs can have this op; "" if one can."""
        return "" if 0 <= self.captures <= inputs else f"it captures {self.captures} of {inputs} input(s)"

    def chosen(self, inputs: Constants) -> Graph | None:
        """Return the graph that replaces the op, given the inputs that are known; None as long as that is open.

        Its inputs are the last ones of the node, in order, and its outputs are the node's.
        """
        return None

    def first_runs(self, inputs: Sequence[Value]) -> Sequence[tuple[Graph, Sequence[Value]]]:
        """Return the graphs that `execute` runs, each with inputs of the shapes of its first run; none by default.

        A load plans them. The shapes of `inputs` are right and their values mean nothing.
        """
        return ()

    def foreseen(
        self, inputs: Sequence[Value], constants: Constants, ends: Sequence[Sequence[Value] | None]
    ) -> Sequence[Value]:
        """Return values of the shapes that the outputs have at most, None where only a run tells; none by default.

        `inputs` are those of `first_runs`, and `constants` the ones among them whose values are right, too. `ends` has
        the outputs of each graph of `first_runs`, of right shapes alone, or None where they are open.
        """
        return ()

    def needs(self) -> int | None:
        """Return the position of the input that decides which graph replaces the op; None if there is none."""
        return None

    def __str__(self) -> str:
        shown = {k: f"{len(v.nodes)} nodes" if isinstance(v, Graph) else v for k, v in self.attributes().items()}
        return f"{self.type}({', '.join(f'{k}={v}' for k, v in shown.items())})"

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        """Raise ValueNeeded: a session runs such an op between the stages of a network."""
        raise ValueNeeded(f"the outputs of {self.type} are only known in a run", index=self.needs())

    def reference(self, *inputs: Array | None) -> Array | tuple[Array, ...]:
        """Return the outputs, with graphs run by their ops' references; ModelError for one that is not a tensor."""
        results = self.execute(inputs, interpret)
        if any(each is None or isinstance(each, list) for each in results):
            raise ModelError(f"an output of {self.type} is not a tensor")
        return tuple(results)  # type: ignore[arg-type]


def given_value(values: Sequence[Value], index: int) -> Value:
    """Return the input at that position, or None if it is missing."""
    return values[index] if index < len(values) else None


def interpret(graph: Graph, inputs: Sequence[Value]) -> list[Value]:
    """Return the outputs of a graph by its ops' references, node by node on the host."""
    known: dict[str, Value] = {**graph.constants, **dict(zip(graph.inputs, inputs, strict=True))}
    for node in graph.nodes:
        known.update((name, value) for name, value in zip(node.outputs, step(node, known), strict=False) if name)
    return [known[name] for name in graph.outputs]


def step(node: Node, known: dict[str, Value]) -> Sequence[Value]:
    """Return the outputs of one node on the host."""
    given = [known[i] if i else None for i in node.inputs]
    if isinstance(node.op, ControlOp):
        return node.op.execute(given, interpret)
    if node.op.type == "Identity":
        return given
    return evaluate(node.op, given)  # type: ignore[arg-type]  # other ops have tensors
