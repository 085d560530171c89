"""Ops that are made dataclasses on their first use are like other frozen dataclasses."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import FrozenInstanceError, dataclass, fields, replace
from inspect import signature
from threading import Barrier

import pytest

from tests.helpers.waits import LIMIT
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


def is_made(op: type[Op]) -> bool:
    return "__dataclass_params__" in vars(op)


@pytest.mark.parametrize(
    "use",
    [
        lambda op: op(),
        lambda op: op(1, second=(2,)),
        fields,
        lambda op: object.__reduce_ex__(op(), 2),
        lambda op: type("Undecorated", (op,), {})(first=2),
        lambda op: dataclass(frozen=True)(type("Decorated", (op,), {})),
    ],
)
def test_the_first_use_makes_the_class(use: Callable[[type[Op]], object]) -> None:
    declared = op_dataclass(type("Op", (MadeAtOnce,), {"__annotations__": {"second": "tuple[int, ...]"}, "second": ()}))
    assert not is_made(declared)
    use(declared)
    assert is_made(declared) and [f.name for f in fields(declared)] == ["first", "second"]


def test_a_declared_class_is_a_frozen_dataclass() -> None:
    op = Declared(2, second=(3,))
    assert op == replace(Declared(), first=2, second=(3,)) == copy.copy(op) == pickle.loads(pickle.dumps(op))
    assert len({op, replace(op), Declared()}) == 2
    assert repr(op) == "Declared(first=2, second=(3,))" and op.attributes() == {"first": 2, "second": (3,)}
    assert list(signature(Declared).parameters) == ["first", "second"]
    assert list(signature(Softmax).parameters) == ["axis", "flatten"], "of an op, which has Op's __new__"
    bare = op_dataclass(type("Bare", (Without,), {"__annotations__": {"only": "int"}, "only": 1}))
    assert bare().__doc__ == "Bare(only: 'int' = 1)", "made from its signature, while the class is made"
    with pytest.raises(FrozenInstanceError):
        op.first = 3  # type: ignore[misc]


def test_a_declared_class_may_be_subclassed() -> None:
    @dataclass(frozen=True)
    class Decorated(Declared):
        third: int = 3

    class Undecorated(Declared):
        pass

    assert Decorated(1, (2,), 4).attributes() == {"first": 1, "second": (2,), "third": 4}
    assert Undecorated(5).attributes() == {"first": 5, "second": ()}


def test_threads_that_use_a_class_first_all_find_it_made() -> None:
    threads = 8
    for _ in range(20):
        body = {"__annotations__": {"second": "int"}, "second": 0}
        declared, together = op_dataclass(type("Op", (MadeAtOnce,), body)), Barrier(threads, timeout=LIMIT)

        def made(number: int, declared: type[Op] = declared, together: Barrier = together) -> dict[str, object]:
            together.wait()
            return declared(number, number).attributes()  # type: ignore[call-arg]

        with ThreadPoolExecutor(threads) as pool:
            assert list(pool.map(made, range(threads))) == [{"first": n, "second": n} for n in range(threads)]
