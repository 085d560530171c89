"""Ops that `op_dataclass` made are like other frozen dataclasses."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Sequence
from dataclasses import FrozenInstanceError, dataclass, fields, replace
from inspect import signature

import pytest

from weft.core.graph.layout import Array
from weft.core.graph.op import Constants, Op
from weft.core.graph.op_class import op_dataclass
from weft.core.graph.tensor import TensorSpec
from weft.ops.softmax import Softmax


class Without(Op):
    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        return ()

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        return ()


@dataclass(frozen=True)
class MadeAtOnce(Without):
    first: int = 1


@op_dataclass
class Declared(MadeAtOnce):
    second: tuple[int, ...] = ()


@op_dataclass
class Same(Declared):
    """It has the attributes of its base."""


@op_dataclass
class Bare(Without):
    """It has no attributes."""


@op_dataclass
class Other(Without):
    """Nor has this."""


@op_dataclass
class Needing(Without):
    needed: int


def test_a_declared_class_is_a_frozen_dataclass() -> None:
    op = Declared(2, second=(3,))
    assert op == replace(Declared(), first=2, second=(3,)) == copy.copy(op) == pickle.loads(pickle.dumps(op))
    assert len({op, replace(op), Declared()}) == 2
    assert repr(op) == "Declared(first=2, second=(3,))" and op.attributes() == {"first": 2, "second": (3,)}
    assert list(signature(Declared).parameters) == ["first", "second"]
    assert list(signature(Softmax).parameters) == ["axis", "flatten"], "of an op, which has Op's __new__"
    for changed in (op, Bare()):
        with pytest.raises(FrozenInstanceError):
            changed.first = 3  # type: ignore[misc, union-attr]
        with pytest.raises(FrozenInstanceError):
            del changed.first  # type: ignore[union-attr]


def test_a_class_without_attributes_of_its_own_has_those_of_its_base() -> None:
    both: list[Op] = [Bare(), Other()]
    assert both[0] == Bare() and both[0] != both[1] and len({*both, Bare()}) == 2 and repr(Bare()) == "Bare()"
    assert Same(3) == Same(first=3) != Same() and Same(1, (2,)) != Declared(1, (2,))
    assert [f.name for f in fields(Same)] == ["first", "second"] and Same().attributes() == Declared().attributes()


@pytest.mark.parametrize(
    ("given", "named", "why"),
    [
        ((1, (), 3), {}, "more than 2 given"), ((1,), {"first": 2}, "given twice: 'first'"),
        ((), {"third": 3}, "unknown: 'third'"), ((), {}, "missing: 'needed'"),
    ],
)
def test_arguments_that_an_op_has_not_are_named(given: tuple[object, ...], named: dict[str, object], why: str) -> None:
    with pytest.raises(TypeError, match=why):
        (Needing if "needed" in why else Declared)(*given, **named)  # type: ignore[arg-type]


def test_a_declared_class_may_be_subclassed() -> None:
    @dataclass(frozen=True)
    class Decorated(Declared):
        third: int = 3

    class Undecorated(Declared):
        pass

    assert Decorated(1, (2,), 4).attributes() == {"first": 1, "second": (2,), "third": 4}
    assert Undecorated(5).attributes() == {"first": 5, "second": ()}
