"""Ops are equal by their attributes, unless they are declared to be equal only to themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft.core.graph.layout import Array
from weft.core.graph.op import Constants, Op
from weft.core.graph.tensor import TensorSpec
from weft.core.placement.optimized_network import PreCompiled


class Same(Op):
    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        return ()

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        return ()


@dataclass(frozen=True)
class ByAttributes(Same):
    value: int = 0


@dataclass(frozen=True, eq=False)
class ByIdentity(Same):
    value: int = 0


def test_ops_are_equal_by_their_attributes() -> None:
    assert ByAttributes(1) == ByAttributes(1) != ByAttributes(2)
    assert len({ByAttributes(1), ByAttributes(1), ByAttributes(2)}) == 2


def test_ops_without_equality_are_equal_only_to_themselves() -> None:
    for one, two in ((ByIdentity(1), ByIdentity(1)), (PreCompiled("acme", b""), PreCompiled("acme", b""))):
        assert one == one != two
        assert len({one, two}) == 2
