"""Contract rows A2 and A3: support with reasons, and the order of preference."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import pairwise

import numpy as np
import pytest

import weft
from tests.helpers.fakes import Creator, Inputs, Outputs, registered
from tests.helpers.nets import Net, branching, chain, feeds
from weft.backends.cpu.backend import CpuBackend
from weft.core.contract.backend import Backend, BackendInfo
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph
from weft.core.graph.interpreter import outputs
from weft.core.graph.op import Op, op_types
from weft.core.graph.tensor import Tensor
from weft.core.placement.assign import assign
from weft.core.registry.backend_registry import registry
from weft.errors import BackendError, ExecutionError, ModelError, UnsupportedOps


def only(*types: str) -> type[Backend]:
    """Return a backend class that takes these ops alone, with memory of its own."""

    class Only(CpuBackend):
        def canImport(self, source: Backend) -> bool:
            return False

        def why_not(self, inputs: Inputs, outputs: Outputs, op: Op) -> str | None:
            return None if op.type in types else f"this one does {' and '.join(types)}, not {op.type}"

    return Only


# -- A2: reasons -------------------------------------------------------------------------------------------


def test_A2_a_backend_is_asked_with_types_shapes_attributes_and_constants() -> None:
    seen: dict[str, tuple[list[object], list[object], Op]] = {}

    class Asking(CpuBackend):
        def why_not(self, inputs: Inputs, outputs: Outputs, op: Op) -> str | None:
            known = [None if t is None else (t.shape, t.dtype, t.constant is not None) for t in inputs]
            seen[op.type] = (list(known), [(t.shape, t.dtype) for t in outputs], op)
            return None

    net = Net()
    x = net.input("x", 1, 4, 5, 5)
    graph = net.finish(net.add("Clip", net.conv(x, 2, 3, bias=False), "", np.array(6, np.float32), name="y"))
    with registered(Creator(Asking)), weft.load(graph, device="acme"):
        pass
    f32 = DType.FLOAT32
    assert seen["Conv"][0] == [((1, 4, 5, 5), f32, False), ((2, 4, 3, 3), f32, True)]
    assert seen["Conv"][1] == [((1, 2, 3, 3), f32)]
    assert seen["Clip"][0] == [((1, 2, 3, 3), f32, False), None, ((), f32, True)]


@pytest.mark.parametrize("reason", ["", "  \n"])
def test_A2_an_empty_reason_is_an_error_that_names_the_backend_and_the_node(reason: str) -> None:
    class Mute(CpuBackend):
        def why_not(self, inputs: Inputs, outputs: Outputs, op: Op) -> str | None:
            return reason

    with registered(Creator(Mute)), pytest.raises(BackendError, match="why_not returned") as caught:
        weft.load(chain("Relu"), device="acme")
    assert caught.value.where == "node 'n_v0' (Relu) on acme:0: Mute.why_not"
    assert caught.value.why == "it must return a reason that is not empty, or None"


def test_A2_a_backend_that_fails_to_answer_is_an_error_that_names_the_node() -> None:
    class Broken(CpuBackend):
        def why_not(self, inputs: Inputs, outputs: Outputs, op: Op) -> str | None:
            raise KeyError("table")

    with registered(Creator(Broken)), pytest.raises(ExecutionError, match=r"n_v0.*acme:0"):
        weft.load(chain("Relu"), device="acme")


def test_A2_a_creator_says_why_not_before_anything_is_created() -> None:
    class Acme(CpuBackend):
        def why_not(self, inputs: Inputs, outputs: Outputs, op: Op) -> str | None:
            return Backend.why_not(self, inputs, outputs, op)

    class Tall:
        """A creator with a reason."""

        def why_not(self, inputs: Inputs, outputs: Outputs, op: Op, backend: Backend) -> str | None:
            return "it takes matrices of four rows and more" if outputs[0].shape[0] < 4 else None

        def onCreate(self, inputs: Inputs, outputs: Outputs, op: Op, backend: Backend) -> weft.Execution | None:
            raise AssertionError("a refused node is not created")

    Acme.addCreator("Relu", Tall())
    with registered(Creator(Acme)), weft.load(chain("Relu"), device="acme") as session:
        assert session.report.refusals["n_v0"] == {"acme:0": "it takes matrices of four rows and more"}


def test_A2_a_backend_with_creators_alone_names_the_op_it_lacks() -> None:
    class Acme(CpuBackend):
        why_not = Backend.why_not
        onCreate = Backend.onCreate

    Acme.creator("Relu")(lambda *_: None)
    with registered(Creator(Acme)), weft.load(chain("Tanh"), device="acme") as session:
        assert session.report.refusals["n_v0"] == {"acme:0": "acme has no implementation of Tanh"}


@pytest.mark.parametrize("device", ["opencl", "vulkan"])
def test_A2_gpu_backends_give_a_sentence_for_whatever_they_refuse(device: str) -> None:
    (choice,) = registry.choose(device)
    backend = choice.creator.onCreate(BackendInfo(device))
    refused = 0
    try:
        for kind, cls in op_types().items():
            try:
                op = cls()
            except TypeError:
                continue  # an op with an attribute that has no default
            for dtype in (DType.FLOAT64, DType.INT64, DType.FLOAT32):
                x = Tensor("x", (2, 3, 4, 4), dtype)
                inputs: list[Tensor | None] = [x] * 5
                try:
                    why = backend.why_not(inputs, [Tensor("y", (2, 3, 4, 4), dtype)], op)
                except (IndexError, ValueError, AssertionError, AttributeError, TypeError, ModelError):
                    continue  # these inputs are no inputs of this op
                assert why is None or len(why.split()) > 2, f"{kind}: {why!r} is no sentence"
                refused += why is not None
    finally:
        backend.close()
    assert refused > 20


# -- A3: assignment ----------------------------------------------------------------------------------------


def place(graph: Graph, devices: Mapping[str, type[Backend]], **options: object) -> tuple[weft.Report, list[object]]:
    """Run a graph on backends of these classes, in order of preference; return report and outputs."""
    with ExitStack() as stack:
        for id_, made in devices.items():
            stack.enter_context(registered(Creator(made), id_))
        session = stack.enter_context(weft.load(graph, device=list(devices), **options))  # type: ignore[arg-type]
        return session.report, list(session.run(feeds(graph)))


def test_A3_each_node_goes_to_the_first_backend_that_takes_it() -> None:
    graph = chain("Relu", "Tanh", "Exp", "Relu")
    report, (y,) = place(graph, {"one": only("Exp"), "two": only("Relu", "Exp"), "three": only("Tanh")})
    assert report.placement == {"n_v0": "two", "n_v1": "three", "n_v2": "one", "n_v3": "two"}
    assert report.nodes_by_device == {"two": 2, "three": 1, "one": 1}
    assert report.refusals["n_v1"] == {
        "one:0": "this one does Exp, not Tanh",
        "two:0": "this one does Relu and Exp, not Tanh",
    }
    assert "n_v2" not in report.refusals
    assert [(c.value, c.source, c.target) for c in report.copies] == [
        ("v0", "two:0", "three:0"),
        ("v1", "three:0", "one:0"),
        ("v2", "one:0", "two:0"),
    ]
    np.testing.assert_allclose(np.asarray(y), outputs(graph, feeds(graph))[0], rtol=1e-6)


def test_A3_the_order_of_preference_decides() -> None:
    graph = chain("Relu", "Tanh")
    for order in (["one", "two"], ["two", "one"]):
        report, _ = place(graph, dict.fromkeys(order, CpuBackend))
        assert report.nodes_by_device == {order[0]: 2}


def test_A3_nodes_that_nobody_takes_are_reported_all_at_once_with_every_reason() -> None:
    graph = chain("Relu", "Tanh", "Exp", "Sqrt")
    backends = {f"{k}:0": only(kind)(BackendInfo(k)) for k, kind in (("one", "Relu"), ("two", "Tanh"))}
    with pytest.raises(UnsupportedOps) as caught:
        assign(graph, backends)
    assert caught.value.problems == (
        "'n_v2' (Exp): one:0: this one does Relu, not Exp; two:0: this one does Tanh, not Exp",
        "'n_v3' (Sqrt): one:0: this one does Relu, not Sqrt; two:0: this one does Tanh, not Sqrt",
    )
    assert all(problem in str(caught.value) for problem in caught.value.problems)


def test_A3_fallback_error_lists_every_node_that_is_not_on_the_first_device() -> None:
    with registered(Creator(only("Relu")), "one"), pytest.raises(UnsupportedOps) as caught:
        weft.load(chain("Relu", "Tanh", "Exp"), device=["one", "cpu"], fallback="error")
    assert len(caught.value.problems) == 2
    with registered(Creator(only("Relu")), "one"), pytest.raises(UnsupportedOps, match="run on none of one:0"):
        weft.load(chain("Relu", "Tanh", "Exp"), device="one", fallback="error")


def test_A3_falling_back_to_the_cpu_is_said_once_with_the_reasons(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "weft"), registered(Creator(only("Relu")), "one"):
        session = weft.load(chain("Relu", "Tanh"), device="one")
        assert session.report.nodes_by_device == {"one": 1, "cpu": 1}
        session.close()
    (record,) = caplog.records
    assert "n_v1" in record.getMessage() and "this one does Relu, not Tanh" in record.getMessage()


def test_A3_all_on_the_first_device_is_not_worth_a_word(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "weft"), weft.load(chain("Relu"), device="cpu") as session:
        assert not session.report.refusals
    assert [r.levelname for r in caplog.records] == ["INFO"], "what the load took, and no warning"


@pytest.mark.parametrize("pattern", ["ABABAB", "AABB", "ABBA", "BAAB"])
def test_A3_values_cross_devices_whatever_the_pattern(pattern: str) -> None:
    graph = chain(*({"A": "Relu", "B": "Tanh"}[p] for p in pattern))
    report, (y,) = place(graph, {"one": only("Relu"), "two": only("Tanh")})
    assert len(report.copies) == sum(a != b for a, b in pairwise(pattern))
    np.testing.assert_allclose(np.asarray(y), outputs(graph, feeds(graph))[0], rtol=1e-6)


@pytest.mark.alike
@pytest.mark.parametrize("gpu", ["opencl", "vulkan"])
def test_A3_values_cross_between_gpu_and_cpu_in_every_run(gpu: str) -> None:
    class Softly(CpuBackend):
        def why_not(self, inputs: Inputs, outputs: Outputs, op: Op) -> str | None:
            return None if op.type in ("Concat", "Softmax") else "only Concat and Softmax are here"

    graph = branching()
    with registered(Creator(Softly), "soft"), weft.load(graph, device=["soft", gpu]) as session:
        assert set(session.report.nodes_by_device) == {"soft", gpu}
        for seed in range(3):
            (y,) = session.run(feeds(graph, seed))
            np.testing.assert_allclose(y, outputs(graph, feeds(graph, seed))[0], rtol=1e-4, atol=1e-6)


def test_A3_values_cross_between_two_gpus() -> None:
    (vulkan,) = registry.choose("vulkan")

    class Convs(type(vulkan.open(weft.BackendConfig()))):  # type: ignore[misc]
        def why_not(self, inputs: Inputs, outputs: Outputs, op: Op) -> str | None:
            return super().why_not(inputs, outputs, op) if op.type == "Conv" else "only Conv is here"

    class OnVulkan(Creator):
        def onCreate(self, info: BackendInfo) -> Backend:
            return Convs(info, vulkan.creator.runtime(0))  # type: ignore[attr-defined, no-any-return]

    graph = branching(8)
    with registered(OnVulkan(), "convs"), weft.load(graph, device=["convs", "opencl"]) as session:
        assert session.report.nodes_by_device["convs"] >= 3 and session.report.nodes_by_device["opencl"] >= 3
        for seed in range(2):
            (y,) = session.run(feeds(graph, seed))
            np.testing.assert_allclose(y, outputs(graph, feeds(graph, seed))[0], rtol=1e-4, atol=1e-6)


def names(report: weft.Report) -> Sequence[str]:
    return list(report.placement)


def test_A3_the_same_network_is_placed_the_same_way_each_time() -> None:
    devices: dict[str, type[Backend]] = {"one": only("Relu", "Softmax"), "two": CpuBackend}
    first, second = (place(branching(), devices)[0] for _ in range(2))
    assert first.placement == second.placement and names(first) == names(second)
