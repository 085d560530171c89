"""A session goes back to shapes that it had without optimising the network again."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import weft
from tests.helpers.fakes import Creator, Inputs, Mock, Outputs, mock, mocks, registered
from tests.helpers.nets import Net
from weft.core.contract.backend import Execution
from weft.core.graph.graph import Graph, bind
from weft.core.graph.interpreter import outputs
from weft.core.graph.op import Op
from weft.core.placement import optimizer
from weft.core.placement.optimized_network import OptimizedNetwork
from weft.core.session import session as sessions
from weft.core.session.network_cache import KEPT, NetworkCache
from weft.errors import OutOfMemory


def product() -> Graph:
    net = Net()
    y = net.add("MatMul", net.input("x", "n", 3), net.random(3, 4), name="product")
    return net.finish(net.add("Relu", net.add("BatchNormalization", y, *[np.ones(4, np.float32)] * 4), name="y"))


@pytest.fixture
def optimised(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the batches that are optimised, as they come."""
    seen: list[int] = []
    divide: Callable[..., OptimizedNetwork] = optimizer.divide

    def noted(bound: Graph, *given: object, **options: object) -> OptimizedNetwork:
        seen.append(bound.specs["x"].dims[0])
        return divide(bound, *given, **options)

    for module in (sessions, optimizer):
        monkeypatch.setattr(module, "divide", noted)
    return seen


def run(session: weft.Session, batch: int) -> None:
    """Run and compare; folding rounds the weights once."""
    x = np.random.default_rng(batch).standard_normal((batch, 3)).astype(np.float32)
    (want,) = outputs(bind(product(), {"x": x.shape}), {"x": x})
    np.testing.assert_allclose(session.run(x)[0], want, rtol=1e-4, atol=1e-6)


def test_the_way_back_to_a_shape_optimises_nothing(optimised: list[int]) -> None:
    with mocks(one=mock("Relu"), two=mock()), weft.load(product(), ["one", "two"]) as session:
        for batch in (1, 2, 1, 2, 1):
            run(session, batch)
        assert optimised == [1, 2]
        assert session.optimized.graph.specs["x"].dims == (1, 3)


def test_the_last_few_shapes_are_kept(optimised: list[int]) -> None:
    with mocks(one=mock("Relu"), two=mock()), weft.load(product(), ["one", "two"]) as session:
        for batch in range(1, KEPT + 2):
            run(session, batch)
        run(session, 2)
        run(session, KEPT + 1)
        assert optimised == [*range(1, KEPT + 2)]
        run(session, 1)
        run(session, 2)
        run(session, 3)
    assert optimised == [*range(1, KEPT + 2), 1, 3]


def test_memory_limit_keeps_none(optimised: list[int]) -> None:
    with weft.load(product(), "cpu", memory="limit") as session:
        for batch in (1, 2, 1):
            run(session, batch)
    assert optimised == [1, 2, 1]


def test_networks_of_other_shapes_share_the_weights_that_are_alike() -> None:
    with weft.load(product(), "cpu") as session:
        run(session, 1)
        first = session.optimized
        run(session, 2)
        second = session.optimized
    folded = [n for n in first.graph.constants if n not in product().constants]
    assert folded and all(first.graph.constants[n] is second.graph.constants[n] for n in folded)
    part = second.parts[0].graph.constants
    assert all(part[n] is first.graph.constants[n] for n in folded if n in part)


def test_weights_that_differ_in_a_bit_are_not_shared() -> None:
    def network(value: float) -> OptimizedNetwork:
        net = Net()
        c = net.constant(np.array([value, np.nan], np.float32), "c")
        return weft.optimize(net.finish(net.add("Add", net.input("x", 2), c, name="y")), "cpu")

    recent, old, equal, other = NetworkCache(), network(0.0), network(0.0), network(-0.0)
    recent.keep("shape", old)
    recent.share_weights(equal)
    recent.share_weights(other)
    assert equal.graph.constants["c"] is old.graph.constants["c"] is equal.parts[0].graph.constants["c"]
    assert other.graph.constants["c"] is not old.graph.constants["c"]


def test_a_backend_that_changes_its_mind_on_the_way_back_is_heeded(optimised: list[int]) -> None:
    class Moody(Mock):
        moody = False

        def onCreate(self, inputs: Inputs, outputs: Outputs, op: Op) -> Execution | None:
            return None if Moody.moody and op.type == "Relu" else super().onCreate(inputs, outputs, op)

    with registered(Creator(Moody), "moody"), weft.load(product(), ["moody", "cpu"]) as session:
        run(session, 1)
        run(session, 2)
        Moody.moody = True
        session._loaded.drop()  # as after an error: the next load makes all executions anew
        run(session, 1)
        assert optimised == [1, 2, 1]
        assert session.report.placement["n_y"] == "cpu" and "onCreate" in str(session.report.refusals)


def test_a_load_that_fails_can_be_tried_again_and_keeps_nothing(optimised: list[int]) -> None:
    class Short(Mock):
        short = False

        def onAllocateBuffer(self) -> bool:
            return not Short.short and super().onAllocateBuffer()

    with registered(Creator(Short), "short"), weft.load(product(), "short", fallback="error") as session:
        run(session, 1)
        Short.short = True
        with pytest.raises(OutOfMemory):
            run(session, 2)
        Short.short = False
        run(session, 2)
        run(session, 1)
    assert optimised == [1, 2, 2]
