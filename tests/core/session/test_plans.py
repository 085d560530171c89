"""The plans of a session: which one runs use, which stay, and that what comes back is not planned again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Thread
from typing import Any

import numpy as np
import pytest

import weft
from tests.helpers.fakes import Creator, Inputs, Mock, Outputs, mock, mocks, registered
from tests.helpers.nets import Net
from weft.core.contract.backend import Execution, StorageType
from weft.core.graph.graph import Graph, bind
from weft.core.graph.interpreter import outputs
from weft.core.graph.op import Op
from weft.core.graph.tensor import Tensor
from weft.core.placement import optimizer
from weft.core.placement.optimized_network import OptimizedNetwork
from weft.core.session import planner
from weft.core.session.executable import Executable
from weft.core.session.plans import MOST_PLANS
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

    for module in (planner, optimizer):
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
        for batch in range(1, MOST_PLANS + 2):
            run(session, batch)
        run(session, 2)
        run(session, MOST_PLANS + 1)
        assert optimised == [*range(1, MOST_PLANS + 2)]
        run(session, 1)
        run(session, 2)
        run(session, 3)
    assert optimised == [*range(1, MOST_PLANS + 2), 1, 3]


def test_a_report_while_another_thread_runs_a_new_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    usual, new = vars(Executable)["nbytes"].fget, [3]

    def nbytes(executable: Executable) -> Any:
        while new:
            thread = Thread(target=run, args=[session, new.pop()])
            thread.start()
            thread.join()
        return usual(executable)

    with weft.load(product(), "cpu") as session:
        for batch in (1, 2, 1, 2):  # what comes back is loaded beside the other
            run(session, batch)
        monkeypatch.setattr(Executable, "nbytes", property(nbytes))
        assert "2 kept" in str(session.report.plan) and not new
        assert "3 kept" in str(session.report.plan)


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


def test_a_backend_that_changes_its_mind_on_the_way_back_is_heeded(optimised: list[int]) -> None:
    class Moody(Mock):
        moody = False

        def onCreate(self, inputs: Inputs, outputs: Outputs, op: Op) -> Execution | None:
            return None if Moody.moody and op.type == "Relu" else super().onCreate(inputs, outputs, op)

    with registered(Creator(Moody), "moody"), weft.load(product(), ["moody", "cpu"]) as session:
        run(session, 1)
        run(session, 2)
        Moody.moody = True
        session._planner.loader.drop()  # as after an error: the next load makes all executions anew
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


# -- what stays loaded ---------------------------------------------------------------------------------------


class Noting(Mock):
    """Notes all calls but those of a run."""

    calls: list[str]

    def onCreate(self, inputs: Inputs, outputs: Outputs, op: Op) -> Execution | None:
        self.calls.append("onCreate")
        return super().onCreate(inputs, outputs, op)

    def onResizeBegin(self) -> None:
        self.calls.append("onResizeBegin")
        super().onResizeBegin()

    def onAcquireBuffer(self, tensor: Tensor, storage_type: StorageType) -> bool:
        self.calls.append(storage_type.name)
        return super().onAcquireBuffer(tensor, storage_type)

    def close(self) -> None:
        self.calls.append("close")
        super().close()


@pytest.fixture
def noting() -> Iterator[list[str]]:
    """Register the backend `noting` and return its calls."""
    Noting.calls = []
    with registered(Creator(Noting), "noting"):
        yield Noting.calls


def test_shapes_in_turns_call_nothing_but_runs(noting: list[str]) -> None:
    """From the second time on that a shape comes back."""
    with weft.load(product(), "noting", fallback="error") as session:
        for batch in (1, 2, 4) * 2:
            run(session, batch)
        noting.clear()
        for batch in (1, 2, 4) * 3:
            run(session, batch)
            assert session.inputs == {"x": (batch, 3)}
            assert session.optimized.graph.specs["x"].dims == (batch, 3)
        session.resize({"x": (2, 3)})
        session.resize({"x": (2, 3)})
        run(session, 2)
        assert noting == []
    assert noting.count("close") == 3


def test_shapes_that_never_come_back_take_the_place_of_the_last(noting: list[str]) -> None:
    with weft.load(product(), "noting", fallback="error") as session:
        for batch in range(1, 30):
            run(session, batch)
        assert "close" not in noting
    assert noting.count("close") == 1


def test_not_more_stays_loaded_than_a_few_shapes(noting: list[str]) -> None:
    with weft.load(product(), "noting", fallback="error") as session:
        for batch in [*range(1, MOST_PLANS + 4)] * 2 + [*range(8, MOST_PLANS + 4)] * 2:
            run(session, batch)
        assert len(session.pipelines) == 1
        closed = noting.count("close")
    assert MOST_PLANS // 2 < noting.count("close") - closed <= MOST_PLANS


def test_not_more_bytes_stay_loaded_than_are_allowed(noting: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.core.session.plans.MOST_BYTES", 0)
    with weft.load(product(), "noting", fallback="error") as session:
        for batch in (1, 2, 4) * 3:
            run(session, batch)
        noting.clear()
    assert noting.count("close") == 1


def test_the_report_says_which_plan_runs_use_and_why() -> None:
    with weft.load(product(), "cpu", shapes={"x": (2, 3)}) as session:
        assert session.report.plan == "made for n 2, because it was the first; 1 loaded so far, 1 kept"
        run(session, 4)
        assert session.report.plan == "made for n 4, because none was kept for these; 2 loaded so far, 2 kept"
        run(session, 2)
        told = "made for n 2, because these came back; 3 loaded so far, 2 kept, 1 loaded beside it with "
        assert session.report.plan.startswith(told) and f"plan: {told}" in str(session.report)
        run(session, 4)
        run(session, 2)
        assert session.report.plan.startswith(told), "a run in turns makes no plan"
    with weft.load(product(), "cpu", memory="limit", shapes={"x": (2, 3)}) as session:
        assert session.report.plan.endswith("1 loaded so far, none kept")


def test_memory_limit_keeps_nothing_loaded(noting: list[str]) -> None:
    with weft.load(product(), "noting", fallback="error", memory="limit") as session:
        for batch in (1, 2, 4) * 3:
            run(session, batch)
        noting.clear()
    assert noting.count("close") == 1


def test_what_stays_loaded_goes_where_another_session_lacks_memory(noting: list[str]) -> None:
    class Short(Noting):
        def onAllocateBuffer(self) -> bool:
            return "close" in self.calls and super().onAllocateBuffer()

    with weft.load(product(), "noting", fallback="error") as session:
        for batch in (1, 2) * 3:
            run(session, batch)
        noting.clear()
        with registered(Creator(Short), "short"), weft.load(product(), "short", fallback="error") as other:
            run(other, 3)
        for batch in (1, 2) * 3:
            run(session, batch)


def pictures() -> Graph:
    """Return a network whose values have other sizes at each batch and width."""
    net = Net()
    x = net.input("x", "n", 3, 4, "w")
    y = net.add("Relu", net.add("Conv", x, net.random(5, 3, 3, 3), pads=(1, 1, 1, 1)))
    rows = net.add("Softmax", net.add("Flatten", net.add("GlobalAveragePool", y), axis=1), axis=-1)
    return net.finish(net.add("Add", y, y), rows)


def picture(shape: tuple[int, int], seed: int) -> np.ndarray:
    batch, width = shape
    return np.random.default_rng(seed).standard_normal((batch, 3, 4, width)).astype(np.float32)


SIZES = ((1, 4), (2, 4), (1, 6), (3, 5))


@pytest.mark.parametrize("arrays", ["own", "lent", "half", "submitted", "strided"])
@pytest.mark.parametrize("device", ["cpu", "opencl", "vulkan"])
def test_shapes_in_any_order_give_what_each_gives_alone(device: str, arrays: str) -> None:
    """With arrays of the caller's own, of the backend's, in fp16, in runs that are waited for later, and strided."""
    precision, tolerance = ("low", 2e-2) if arrays == "half" else ("high", 1e-4)
    order = np.random.default_rng(5).integers(0, len(SIZES), 24)
    with weft.load(pictures(), device, fallback="error", precision=precision) as session:
        lent: dict[int, tuple[dict[str, np.ndarray], dict[str, np.ndarray]]] = {}
        for seed, k in enumerate(order):
            x = picture(SIZES[k], seed)
            want = outputs(bind(pictures(), {"x": x.shape}), {"x": x})
            if arrays == "lent":
                if k not in lent:
                    session.resize({"x": x.shape})
                    lent[k] = session.input_arrays(), session.output_arrays()
                given, results = lent[k]
                given["x"][...] = x
                got = session.run(given, outputs=results)
                assert all(a is results[name] for name, a in zip(session.outputs, got, strict=True))
            elif arrays == "submitted":
                session.submit(x)
                got = session.wait()
            elif arrays == "half" and seed % 3:
                got = session.run(x.astype(np.float16))
            else:
                got = session.run(np.asfortranarray(x) if arrays == "strided" else x)
            for a, b in zip(got, want, strict=True):
                np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("device", ["cpu", "opencl"])
def test_threads_with_other_shapes_take_turns(device: str) -> None:
    wrong = list[str]()
    with weft.load(pictures(), device, fallback="error") as session:

        def work(k: int) -> None:
            for seed in range(8):
                x = picture(SIZES[(k + seed) % len(SIZES)], 10 * k + seed)
                want = outputs(bind(pictures(), {"x": x.shape}), {"x": x})
                got = session.run(x)
                if not all(np.allclose(a, b, rtol=1e-4, atol=1e-4) for a, b in zip(got, want, strict=True)):
                    wrong.append(f"{k}.{seed}")

        threads = [Thread(target=work, args=(k,)) for k in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


@pytest.mark.parametrize("device", ["opencl", "vulkan"])
def test_a_limit_of_the_devices_memory_holds_with_shapes_in_turns(device: str) -> None:
    """What stays loaded goes before a load fails; each session alone needs less than the limit."""
    options = {device: {"memory_limit": 32 << 20}}
    shapes = [(n, 3, 128, 512) for n in (1, 2, 3)]
    net = Net()
    y = net.add("Relu", net.add("Conv", net.input("x", "n", 3, 128, 512), net.random(8, 3, 3, 3), pads=(1, 1, 1, 1)))
    graph = net.finish(net.add("ReduceMean", y, np.array([2, 3])))
    with weft.load(graph, device, fallback="error", backend_options=options) as session:
        for shape in shapes * 2:
            x = np.ones(shape, np.float32)
            assert session.run(x)[0].shape[0] == shape[0]
