"""What is kept of the last time that a backend's parts were lowered: it saves work, and changes no result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import is_
from typing import TYPE_CHECKING
from weakref import ref

from weft.backends.gpu.device.device import DeviceCaps
from weft.backends.gpu.lowering.layout.fold_moves import KeptMaps
from weft.core.graph.graph import Node
from weft.core.graph.layout import Array
from weft.core.graph.op import Op
from weft.core.graph.tensor import Tensor, TensorSpec

if TYPE_CHECKING:
    from weft.backends.gpu.lowering.lower import NodePlan

State = tuple[DeviceCaps, int, bool]
"""What the device can do, what tuning has found so far, and whether it counts."""


@dataclass(frozen=True, eq=False, slots=True)
class _Constants:
    """Specs, by key, of constants that an op made without declaring them; valid for this op and these weights."""

    op: Op
    weights: tuple[ref[Array], ...]
    specs: dict[str, TensorSpec]

    def is_of(self, op: Op, weights: Sequence[Array]) -> bool:
        same = len(weights) == len(self.weights) and all(a() is b for a, b in zip(self.weights, weights, strict=True))
        return same and self.op == op


@dataclass(frozen=True, eq=False, slots=True)
class _Planned:
    """The plan of a node, and all that it follows from."""

    node: Node
    tensors: Sequence[Tensor | None]
    state: State
    plan: NodePlan

    def is_of(self, node: Node, tensors: Sequence[Tensor | None], state: State) -> bool:
        if len(self.tensors) != len(tensors) or not all(map(is_, self.tensors, tensors)):
            return False
        if self.state[0] is not state[0] or self.state[1:] != state[1:]:
            return False
        return self.node is node or (self.node.name == node.name and self.node.op == node.op)


class KeptPlans:
    """The last plans of a backend's nodes, and the specs of the constants that they made, by label.

    Most of a network is as before when a cache grows by a word. `thrifty`: keep nothing, as memory is short.
    """

    def __init__(self, *, thrifty: bool = False) -> None:
        self._thrifty = thrifty
        self._constants: dict[str, _Constants] = {}
        self._plans: dict[str, _Planned] = {}
        self._labels: dict[str, frozenset[str]] = {}
        """The labels of each part as it was lowered last."""
        self._tensors: dict[str, Mapping[str, Tensor]] = {}
        self._maps: dict[str, KeptMaps] = {}

    def maps(self, part: str) -> KeptMaps | None:
        """Return the maps of the moves of a part."""
        return None if self._thrifty else self._maps.setdefault(part, KeptMaps())

    def tensors(self, part: str) -> Mapping[str, Tensor]:
        """Return the planned tensors that a part had last, by name."""
        return self._tensors.get(part, {})

    def keep_tensors(self, part: str, tensors: Mapping[str, Tensor]) -> None:
        """Keep the planned tensors of a part; plans are kept for these objects."""
        if not self._thrifty:
            self._tensors[part] = tensors

    def specs(self, label: str, op: Op, weights: Sequence[Array]) -> Mapping[str, TensorSpec]:
        """Return the specs of the constants that an op with these weights made before, by key."""
        found = self._constants.get(label)
        return found.specs if found is not None and found.is_of(op, weights) else {}

    def keep_specs(self, label: str, op: Op, weights: Sequence[Array], specs: Mapping[str, TensorSpec]) -> None:
        """Keep the specs of constants, so that no resize makes them again to know these."""
        if not self._thrifty:
            self._constants[label] = _Constants(op, tuple(map(ref, weights)), dict(specs))

    def plan(
        self,
        label: str,
        node: Node,
        tensors: Sequence[Tensor | None],
        state: State,
        make: Callable[[], NodePlan],
    ) -> NodePlan:
        """Return the plan that a node had last if nothing that it follows from has changed, else what `make` gives.

        `tensors` are its inputs and outputs: those of the last time, where they are the same values at the same places.
        """
        if self._thrifty:
            return make()
        last = self._plans.get(label)
        if last is None or not last.is_of(node, tensors, state):
            last = self._plans[label] = _Planned(node, tensors, state, make())
        return last.plan

    def forget(self, part: str, labels: Iterable[str]) -> None:
        """Forget the nodes that a part had at an earlier shape and that are not among the `labels` it has now."""
        for label in self._labels.get(part, frozenset()).difference(labels):
            self._constants.pop(label, None)
            self._plans.pop(label, None)
        self._labels[part] = frozenset(labels)
