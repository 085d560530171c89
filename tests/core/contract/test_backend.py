"""Contract rows M1 to M4: naming devices, the two base classes, creators."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import weft
from tests.helpers.fakes import Creator, Inputs, Outputs, registered
from tests.helpers.nets import Net, feeds, op
from weft.backends.cpu.backend import CpuBackend
from weft.core.contract.backend import Backend, BackendInfo, Execution, ForwardType, StorageType
from weft.core.contract.lowered import Lowered
from weft.core.graph.graph import Graph, Node
from weft.core.graph.interpreter import outputs
from weft.core.graph.tensor import Tensor
from weft.core.registry.backend_registry import BackendRegistry, registry
from weft.errors import BackendError, ConfigError, NoDevice

INFO = BackendInfo("acme")


def small() -> Graph:
    net = Net()
    return net.finish(net.add("Sigmoid", net.add("Relu", net.input("x", 2, 3), name="a"), name="y"))


# -- M1 ------------------------------------------------------------------------------------------------


def test_M1_forward_types_have_the_numbers_of_mnn() -> None:
    numbers = {"CPU": 0, "OPENCL": 3, "AUTO": 4, "VULKAN": 7, "USER_0": 8, "USER_1": 9, "USER_2": 10, "USER_3": 11}
    assert {t.name: t.value for t in ForwardType} == numbers


@pytest.mark.parametrize(
    ("name", "device"),
    [
        (ForwardType.CPU, "cpu:0"),
        ("cpu", "cpu:0"),
        (" CPU ", "cpu:0"),
        (ForwardType.OPENCL, "opencl:0"),
        ("opencl:0", "opencl:0"),
        (ForwardType.VULKAN, "vulkan:0"),
        ("Vulkan", "vulkan:0"),
    ],
)
def test_M1_a_forward_type_and_an_id_name_the_same_device(name: str | ForwardType, device: str) -> None:
    assert [c.device for c in registry.choose(name)] == [device]


@pytest.mark.parametrize("name", ["acme", "acme:1", ForwardType.USER_2])
def test_M1_a_user_backend_is_picked_by_id_index_or_type(name: str | ForwardType) -> None:
    index = 1 if name == "acme:1" else 0
    creator = Creator(id="acme", devices=(True, True))
    with registered(creator, ForwardType.USER_2), weft.load(small(), device=name) as session:
        assert session.report.devices[0] == f"acme:{index}"
        assert creator.backends[-1].info.index == index
        assert session.report.nodes_by_device == {"acme" if not index else "acme:1": 2}


def test_M1_an_id_keeps_its_letters_and_is_found_in_any_case() -> None:
    with registered(Creator(), "AcmeNPU"):
        assert "AcmeNPU" in registry.ids()
        assert registry.choose("acmenpu")[0].device == registry.choose("AcmeNPU")[0].device == "AcmeNPU:0"


def test_M1_an_index_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(NoDevice, match=r"no device cpu:3") as caught:
        weft.load(small(), device="cpu:3")
    assert "cpu:0 (numpy)" in caught.value.why


@pytest.mark.parametrize("name", ["", "cpu:", "cpu:-1", "a b", "cpu:x", [], None, 3, {"cpu"}, [None]])
def test_M1_a_name_that_makes_no_sense_is_refused(name: Any) -> None:
    with pytest.raises(ConfigError):
        weft.load(small(), device=name)


def test_M1_an_unknown_id_is_refused_with_the_known_ones() -> None:
    for device in ("acme", ["cpu", "acme"], ForwardType.USER_3):
        with pytest.raises(NoDevice, match=r"acme|USER_3") as caught:
            weft.load(small(), device=device)
        assert "cpu, opencl, vulkan" in caught.value.why


def auto(*creators: Creator) -> BackendRegistry:
    """Return a registry with a CPU and these."""
    made = BackendRegistry()
    made.insert(ForwardType.CPU, Creator(id="cpu"))
    for creator in creators:
        made.insert(creator.id, creator)
    return made


def test_M1_auto_prefers_a_real_gpu_over_software_and_says_so() -> None:
    software = Creator(id="first", auto_rank=1, devices=(True,))
    mixed = Creator(id="second", auto_rank=2, devices=(True, False))
    (choice,) = auto(software, mixed).choose(ForwardType.AUTO)
    assert choice.device == "second:1"
    assert choice.why == "AUTO picked second:1 (second-1), a GPU"


def test_M1_auto_takes_the_better_rank_among_real_ones() -> None:
    a, b = Creator(id="a", auto_rank=2, devices=(False,)), Creator(id="b", auto_rank=1, devices=(False,))
    assert auto(a, b).choose("auto")[0].device == "b:0"


def test_M1_auto_takes_the_cpu_rather_than_a_software_gpu_and_says_why() -> None:
    missing = Creator(id="gone", auto_rank=1, absent="there is no driver")
    (choice,) = auto(Creator(id="soft", auto_rank=2), missing).choose("auto")
    assert choice.device == "cpu:0"
    assert "soft:0 (soft-0) is software" in choice.why
    (choice,) = auto(missing).choose("auto")
    assert "gone: there is no driver" in choice.why


def test_M1_auto_leaves_out_backends_without_a_rank() -> None:
    assert auto(Creator(id="npu", devices=(False,))).choose("auto")[0].device == "cpu:0"


def test_M1_the_report_says_what_auto_picked() -> None:
    with weft.load(small(), device="auto") as session:
        assert any(note.startswith("AUTO picked") for note in session.report.notes)


# -- M2 ------------------------------------------------------------------------------------------------

REQUIRED = {
    "onCreate",
    "onAcquireBuffer",
    "onReleaseBuffer",
    "onClearBuffer",
    "onCopyBuffer",
    "onExecuteBegin",
    "onExecuteEnd",
}


def backend_class(*left_out: str) -> type[Backend]:
    body = {name: getattr(CpuBackend, name) for name in REQUIRED - set(left_out)}
    return type("AcmeBackend", (Backend,), body)


@pytest.mark.parametrize("left_out", sorted(REQUIRED))
def test_M2_a_backend_that_misses_a_callback_is_refused_with_its_name(left_out: str) -> None:
    with pytest.raises(BackendError, match="AcmeBackend cannot be used") as caught:
        backend_class(left_out)(INFO)
    assert caught.value.why == f"it does not implement {left_out}"


def test_M2_all_missing_callbacks_are_named_at_once() -> None:
    with pytest.raises(BackendError) as caught:
        backend_class(*REQUIRED)(INFO)
    assert all(name in caught.value.why for name in REQUIRED)


def test_M2_the_class_itself_may_be_incomplete() -> None:
    class Abstract(Backend):
        """A base for others, not refused before it is instantiated."""

    assert Abstract.onWaitFinish is Backend.onWaitFinish


def test_M2_the_other_callbacks_have_defaults() -> None:
    backend = backend_class()(INFO)
    assert backend.onResizeBegin() is None  # type: ignore[func-returns-value]
    assert backend.onResizeEnd() is None  # type: ignore[func-returns-value]
    assert backend.onAllocateBuffer() is True
    assert backend.onWaitFinish() is True
    assert Backend.onAllocateBuffer(backend) is True


def test_M2_creators_stand_in_for_onCreate() -> None:
    made = backend_class("onCreate")
    made.creator("Relu")(Doubling)
    assert made(INFO).find_creator("Relu") is not None


def test_M2_a_backend_with_the_seven_callbacks_alone_runs_a_network() -> None:
    class Plain(Backend):
        """A backend as the contract describes it: no creators, a switch in onCreate, no planning."""

        host_memory = True

        def onCreate(self, inputs: Inputs, outputs: Outputs, op: Any) -> Execution | None:
            return Doubling(inputs, outputs, op, self) if op.type == "Relu" else None

        def onAcquireBuffer(self, tensor: Tensor, storage_type: StorageType) -> bool:
            tensor.memory = np.empty(tensor.storage_shape, tensor.dtype.numpy)
            return True

        def onReleaseBuffer(self, tensor: Tensor, storage_type: StorageType) -> bool:
            return True

        def onClearBuffer(self) -> bool:
            return True

        def onCopyBuffer(self, src: Tensor, dst: Tensor) -> None:
            np.copyto(dst.memory, src.memory)

        def onExecuteBegin(self) -> None:
            pass

        def onExecuteEnd(self) -> None:
            pass

    x = np.array([[-1.0, 0.0, 2.0], [3.0, -4.0, 1.0]], np.float32)
    with registered(Creator(Plain)), weft.load(small(), device="acme") as session:
        (y,) = session.run(x)
        assert session.report.nodes_by_device == {"acme": 1, "cpu": 1}
        assert session.report.refusals["n_y"] == {"acme:0": "onCreate returned None for these shapes and types"}
    np.testing.assert_allclose(y, 1 / (1 + np.exp(-2 * x)), rtol=1e-5)


# -- M3 ------------------------------------------------------------------------------------------------


class Doubling(Execution):
    """An execution that a test can recognise: twice the first input."""

    def __init__(self, inputs: Inputs, outputs: Outputs, op: Any, backend: Any) -> None:
        self.resized = 0

    def onResize(self, inputs: Inputs, outputs: Outputs) -> None:
        self.resized += 1

    def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
        assert inputs[0] is not None
        outputs[0].memory[...] = 2 * inputs[0].memory


def test_M3_an_execution_must_have_both_methods() -> None:
    class OnlyResize(Execution):
        def onResize(self, inputs: Inputs, outputs: Outputs) -> None:
            pass

    with pytest.raises(TypeError, match="onExecute"):
        OnlyResize()  # type: ignore[abstract]


def test_M3_shapes_are_known_in_onResize_and_it_comes_once_a_resize() -> None:
    seen: list[tuple[int, ...]] = []

    class Watching(Doubling):
        def onResize(self, inputs: Inputs, outputs: Outputs) -> None:
            seen.append(outputs[0].shape)

    class Acme(CpuBackend):
        pass

    Acme.creator("Relu")(Watching)
    net = Net()
    graph = net.finish(net.add("Relu", net.input("x", "N", 3), name="y"))
    with registered(Creator(Acme)), weft.load(graph, device="acme", shapes={"x": (2, 3)}) as session:
        for _ in range(3):
            session.run(np.ones((2, 3), np.float32))
        session.run(np.ones((5, 3), np.float32))
    assert seen == [(2, 3), (5, 3)]


# -- M4 ------------------------------------------------------------------------------------------------


@pytest.fixture
def acme() -> Iterator[type[CpuBackend]]:
    """Return a backend class, registered as "acme"."""

    class Acme(CpuBackend):
        pass

    with registered(Creator(Acme)):
        yield Acme


class MakesDoubling:
    """A creator in the contract's form."""

    def __init__(self) -> None:
        self.saw: list[tuple[int, ...]] = []

    def onCreate(self, inputs: Inputs, outputs: Outputs, op: Any, backend: Any) -> Execution | None:
        self.saw.append(outputs[0].shape)
        return Doubling(inputs, outputs, op, backend)


def run(device: Any, graph: Graph | None = None) -> tuple[np.ndarray[Any, Any], weft.Report]:
    graph = graph or small()
    with weft.load(graph, device=device) as session:
        return session.run(feeds(graph))[0], session.report


def doubled() -> np.ndarray[Any, Any]:
    result: np.ndarray[Any, Any] = 1 / (1 + np.exp(-2 * feeds(small())["x"]))
    return result


def test_M4_a_creator_makes_the_executions_of_its_op_and_sees_outputs(acme: type[CpuBackend]) -> None:
    creator = MakesDoubling()
    acme.addCreator("Relu", creator)
    np.testing.assert_allclose(run("acme")[0], doubled(), rtol=1e-5)
    assert creator.saw == [(2, 3)]


def test_M4_a_second_creator_is_refused(acme: type[CpuBackend]) -> None:
    acme.addCreator("Relu", MakesDoubling())
    with pytest.raises(BackendError, match="already has a creator for 'Relu'") as caught:
        acme.addCreator("Relu", MakesDoubling())
    assert "MakesDoubling" in caught.value.why and "replace=True" in caught.value.fix


def test_M4_replace_takes_the_place_of_a_creator(acme: type[CpuBackend]) -> None:
    first, second = MakesDoubling(), MakesDoubling()
    acme.addCreator("Relu", first)
    acme.addCreator("Relu", second, replace=True)
    run("acme")
    assert not first.saw and second.saw


def test_M4_a_decorated_execution_class_is_a_creator(acme: type[CpuBackend]) -> None:
    assert acme.creator("Relu")(Doubling) is Doubling
    np.testing.assert_allclose(run("acme")[0], doubled(), rtol=1e-5)


def test_M4_a_decorated_creator_class_is_instantiated(acme: type[CpuBackend]) -> None:
    assert acme.creator("Relu")(MakesDoubling) is MakesDoubling
    np.testing.assert_allclose(run("acme")[0], doubled(), rtol=1e-5)


def test_M4_a_decorated_function_is_a_creator(acme: type[CpuBackend]) -> None:
    @acme.creator("Relu")
    def make(inputs: Inputs, outputs: Outputs, op: Any, backend: Any) -> Execution | None:
        assert backend.info.id == "acme"
        return Doubling(inputs, outputs, op, backend)

    np.testing.assert_allclose(run("acme")[0], doubled(), rtol=1e-5)
    with pytest.raises(BackendError, match="already"):
        acme.creator("Relu")(make)
    acme.creator("Relu", replace=True)(make)


def test_M4_a_subclass_inherits_creators_and_replaces_them_alone(acme: type[CpuBackend]) -> None:
    mine, other = MakesDoubling(), MakesDoubling()
    acme.addCreator("Relu", mine)

    class Child(acme):  # type: ignore[valid-type, misc]
        pass

    assert Child.find_creator("Relu") is mine
    Child.addCreator("Relu", other)
    assert Child.find_creator("Relu") is other and acme.find_creator("Relu") is mine
    acme.addCreator("Sigmoid", mine)
    assert Child.find_creator("Sigmoid") is mine
    assert CpuBackend.find_creator("Relu") is None


def test_M4_returning_None_sends_the_node_to_the_next_backend_with_a_reason() -> None:
    class Picky(CpuBackend):
        def onCreate(self, inputs: Inputs, outputs: Outputs, op: Any) -> Execution | None:
            return None if op.type in ("Relu", "Sigmoid") else super().onCreate(inputs, outputs, op)

    net = Net()
    x = net.input("x", 2, 3)
    mixed = net.finish(net.add("Sigmoid", net.add("Tanh", net.add("Relu", x, name="a"), name="b"), name="y"))
    with registered(Creator(Picky)):
        y, report = run("acme", mixed)
    np.testing.assert_allclose(y, outputs(mixed, feeds(mixed))[0], rtol=1e-6)
    assert report.placement == {"n_a": "cpu", "n_b": "acme", "n_y": "cpu"}
    why = "onCreate returned None for these shapes and types"
    assert report.refusals == {"n_a": {"acme:0": why}, "n_y": {"acme:0": why}}


def test_M4_a_refusal_is_for_those_shapes_only() -> None:
    class Picky(CpuBackend):
        def onCreate(self, inputs: Inputs, outputs: Outputs, op: Any) -> Execution | None:
            return None if outputs[0].shape[0] > 2 else super().onCreate(inputs, outputs, op)

    net = Net()
    graph = net.finish(net.add("Relu", net.input("x", "N", 3), name="y"))
    with registered(Creator(Picky)), weft.load(graph, device="acme") as session:
        where = []
        for n in (3, 2):
            session.run(np.ones((n, 3), np.float32))
            where.append(dict(session.report.nodes_by_device))
    assert where == [{"cpu": 1}, {"acme": 1}]


OF_THE_CONTRACT = {
    "onCreate", "onAcquireBuffer", "onReleaseBuffer", "onClearBuffer", "onCopyBuffer", "onExecuteBegin", "onExecuteEnd",
    "onResizeBegin", "onResizeEnd", "onAllocateBuffer", "onWaitFinish",
}
OF_NETWORKS = {"why_not", "why_not_optimized", "OptimizeSubgraph", "canImport", "onImportBuffer"}
OF_THE_CLASS = {"addCreator", "creator", "find_creator", "statistics", "notes", "close"}


def test_M2_the_public_class_has_the_callbacks_of_the_contract_and_what_networks_and_reports_need() -> None:
    methods = {name for name in vars(Backend) if name[0] != "_" and callable(getattr(Backend, name))}
    assert methods == OF_THE_CONTRACT | OF_NETWORKS | OF_THE_CLASS


def test_M4_a_node_that_a_backend_made_and_does_not_take_is_an_error_not_a_loop() -> None:
    class Confused(CpuBackend):
        def lower(self, graph: Graph) -> Lowered:
            graph.nodes = [Node("mine", op("Tanh"), tuple(graph.inputs), tuple(graph.outputs))]
            return Lowered(graph)

        def onCreate(self, inputs: Inputs, outputs: Outputs, op: Any) -> Execution | None:
            return None

    with registered(Creator(Confused)), pytest.raises(BackendError, match="which its backend put there"):
        net = Net()
        weft.load(net.finish(net.add("Relu", net.input("x", 2), name="z")), device="acme")
