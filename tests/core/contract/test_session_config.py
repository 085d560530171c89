"""Contract row M9: memory and precision modes that are granted have an effect; the report lists those that are not."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Sequence

import numpy as np
import pytest

import weft
from tests.helpers.fakes import Creator, RecordingBackend, registered
from tests.helpers.nets import Net, branching, feeds
from weft.backends.cpu.backend import CpuBackend
from weft.core.contract.backend import BackendConfig, MemoryMode, Power, Precision
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph
from weft.core.graph.interpreter import outputs, values
from weft.core.graph.layout import Array
from weft.errors import ConfigError

GPUS = ("opencl", "vulkan")
DEVICES = ("cpu", "opencl", "vulkan")


def deep(width: int = 16, layers: int = 4) -> Graph:
    """Return a chain of convolutions and batch norms whose weights are most of its memory."""
    net = Net()
    x = net.input("x", 1, width, 3, 3)
    for k in range(layers):
        x = net.conv(x, width, 1, bias=False, name=f"conv{k}")
        parts = [net.random(width) ** 2 + 0.5 for _ in range(4)]
        x = net.add("BatchNormalization", x, *parts, name=f"bn{k}")
    return net.finish(net.add("Relu", x, name="y"))


# -- precision -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("precision", "error"), [("high", 2e-6), ("normal", 1e-5), ("low", 5e-3)])
def test_M9_a_network_is_right_at_every_precision(device: str, precision: str, error: float) -> None:
    graph = branching(8)
    with weft.load(graph, device=device, precision=precision, fallback="error") as session:
        (y,) = session.run(feeds(graph))
        assert session.report.config.precision is Precision(precision)
    assert y.dtype == np.float32
    np.testing.assert_allclose(y, outputs(graph, feeds(graph))[0], rtol=0, atol=error)


@pytest.mark.alike
@pytest.mark.parametrize("device", DEVICES)
def test_M9_low_stores_activations_in_half_the_memory(device: str) -> None:
    graph = branching(8, 16)
    arena = {}
    for precision in Precision:
        with weft.load(graph, device=device, precision=precision) as session:
            arena[precision] = session.report.memory_bytes
    assert arena[Precision.HIGH] == arena[Precision.NORMAL]
    assert arena[Precision.LOW] <= 0.6 * arena[Precision.HIGH]


@pytest.mark.parametrize("device", DEVICES)
def test_M9_low_accumulates_in_fp32(device: str) -> None:
    """Ten thousand ones add up to 10000; in fp16 the sum would stop at 2048."""
    net = Net()
    x = net.input("x", 1, 2500, 2, 2)
    w = np.ones((4, 2500, 2, 2), np.float32)
    graph = net.finish(net.add("Conv", x, w, name="y"))
    with weft.load(graph, device=device, precision="low", fallback="error") as session:
        (y,) = session.run(np.ones((1, 2500, 2, 2), np.float32))
    np.testing.assert_array_equal(y.reshape(-1), np.float32(10000))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("precision", ["high", "low"])
def test_M9_inputs_and_outputs_keep_their_types(device: str, precision: str) -> None:
    net = Net()
    half = net.input("half", 2, 3, dtype=DType.FLOAT16)
    whole = net.input("whole", 2, 3)
    graph = net.finish(net.add("Exp", half, name="h"), net.add("Exp", whole, name="w"))
    fed: dict[str, Array] = {"half": np.full((2, 3), 0.5, np.float16), "whole": np.full((2, 3), 0.5, np.float32)}
    with weft.load(graph, device=device, precision=precision, fallback="error") as session:
        h, w = session.run(fed)
    assert (h.dtype, w.dtype) == (np.float16, np.float32)
    np.testing.assert_allclose(h, np.exp(0.5), rtol=1e-3)
    np.testing.assert_allclose(w, np.exp(0.5), rtol=1e-3 if precision == "low" else 1e-6)


def test_M9_at_high_a_model_in_fp16_is_computed_in_fp32() -> None:
    net = Net()
    x = net.input("x", 4, dtype=DType.FLOAT16)
    big = net.add("Mul", x, x, name="big")
    graph = net.finish(net.add("Sqrt", big, name="y"))
    fed = np.full(4, 1000, np.float16)
    assert np.isinf(values(graph, {"x": fed})["y"]).all()
    with weft.load(graph, device="cpu", precision="high") as session:
        np.testing.assert_array_equal(session.run(fed)[0], fed)


# -- memory --------------------------------------------------------------------------------------------


def run(device: str, memory: str, graph: Graph) -> tuple[Array, weft.Report]:
    with weft.load(graph, device=device, memory=memory) as session:
        return session.run(feeds(graph))[0], session.report


@pytest.mark.parametrize("device", DEVICES)
def test_M9_limit_changes_no_result(device: str) -> None:
    graph = deep()
    np.testing.assert_array_equal(run(device, "limit", graph)[0], run(device, "normal", graph)[0])


def test_M9_limit_reads_weights_on_the_host_where_they_are() -> None:
    """A host backend of others copies them otherwise; Weft's own reads them in place in both modes."""
    graph = deep()
    with registered(Creator(RecordingBackend)):
        normal, limit = (run("acme", memory, graph)[1].statistics["acme"] for memory in ("normal", "limit"))
    assert normal["static_bytes"] >= 4 * 16 * 16 * 4
    assert limit["static_bytes"] == 0
    assert run("cpu", "normal", graph)[1].statistics["cpu"]["static_bytes"] == 0


@pytest.mark.parametrize("device", GPUS)
def test_M9_limit_keeps_no_staging_memory_on_a_gpu(device: str) -> None:
    graph = deep()
    normal, limit = (run(device, memory, graph)[1].statistics[device] for memory in ("normal", "limit"))
    assert normal["staging_bytes"] == 2 * 16 * 3 * 3 * 4
    assert limit["staging_bytes"] == 0


@pytest.mark.parametrize("device", GPUS)
def test_M9_limit_keeps_no_second_copy_of_weights_on_the_host(device: str) -> None:
    """Folding a batch norm makes new weights: once they are on the device the host drops them."""
    graph = deep(96, 4)
    weights = 4 * 96 * 96 * 4
    with weft.load(graph, device=device):
        pass  # kernels, caches and imports are there now
    held = {}
    for memory in ("normal", "limit"):
        gc.collect()
        tracemalloc.start()
        with weft.load(graph, device=device, memory=memory) as session:
            session.run(feeds(graph))
            gc.collect()
            held[memory] = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
    assert held["normal"] - held["limit"] > 0.9 * weights


@pytest.mark.parametrize("device", DEVICES)
def test_M9_a_thrifty_session_can_be_resized_and_run_again(device: str) -> None:
    net = Net()
    x = net.input("x", "N", 4)
    w = net.random(4, 5)
    y = net.add("MatMul", x, w, name="y")
    graph = net.finish(y, net.constant(np.ones(3, np.float32), "k"))
    with weft.load(graph, device=device, memory="limit") as session:
        for n in (1, 3, 1):
            fed = np.full((n, 4), float(n), np.float32)
            y_, k = session.run(fed)
            np.testing.assert_allclose(y_, fed @ w, rtol=1e-5, atol=1e-5)
            np.testing.assert_array_equal(k, 1)


def test_M9_limit_frees_constants_before_it_places_new_ones() -> None:
    class OnDevice(RecordingBackend):
        host_memory = False

        def onCopyBuffer(self, src: weft.Tensor, dst: weft.Tensor) -> None:
            np.copyto((dst if dst.backend is self else src).memory, src.memory)

    net = Net()
    graph = net.finish(net.add("Add", net.input("x", "N", 3), np.ones(3, np.float32), name="y"))
    shapes = {"x": (1, 3)}
    with registered(Creator(OnDevice)), weft.load(graph, device="acme", memory="limit", shapes=shapes) as session:
        RecordingBackend.log = []
        session.resize({"x": (2, 3)})
        log = RecordingBackend.log
        assert log.index(("onReleaseBuffer", "c", "STATIC")) < log.index(("onAcquireBuffer", "c", "STATIC"))


# -- what is not granted -------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
def test_M9_what_cannot_be_granted_is_in_the_report(device: str) -> None:
    graph = Net()
    relu = graph.finish(graph.add("Relu", graph.input("x", 4), name="y"))
    with weft.load(relu, device=device) as session:
        assert not session.report.notes
    with weft.load(relu, device=device, precision="normal", power="low") as session:
        normal, power = session.report.notes
    assert normal.startswith(f"{device}: precision NORMAL was computed as HIGH")
    assert power.startswith(f"{device}: power LOW was not granted")


def test_M9_a_backend_says_itself_what_it_does_not_grant() -> None:
    class Honest(CpuBackend):
        def notes(self) -> Sequence[str]:
            assert self.info.config == BackendConfig(MemoryMode.LIMIT, Precision.LOW, Power.HIGH)
            return ["memory LIMIT changes nothing here"]

    config = {"memory": MemoryMode.LIMIT, "precision": Precision.LOW, "power": Power.HIGH}
    net = Net()
    graph = net.finish(net.add("Relu", net.input("x", 4), name="y"))
    with registered(Creator(Honest)), weft.load(graph, device="acme", **config) as session:  # type: ignore[arg-type]
        assert session.report.notes == ("acme: memory LIMIT changes nothing here",)
        assert "memory LIMIT changes nothing here" in str(session.report)


def test_M9_a_device_without_16_bit_storage_refuses_low_with_a_reason() -> None:
    class NoHalf(CpuBackend):
        def why_not(self, inputs: object, outputs: Sequence[weft.Tensor], op: object) -> str | None:
            return "the device has no 16-bit storage" if outputs[0].dtype is DType.FLOAT16 else None

    with registered(Creator(NoHalf)), weft.load(branching(), device="acme", precision="low") as session:
        reasons = {why for r in session.report.refusals.values() for why in r.values()}
    assert reasons == {"the device has no 16-bit storage"}


@pytest.mark.parametrize("option", ["precision", "memory", "power", "fallback"])
def test_M9_an_unknown_option_is_refused_with_the_known_ones(option: str) -> None:
    with pytest.raises(ConfigError, match=f"{option}='best' is not known") as caught:
        weft.load(branching(), device="cpu", **{option: "best"})  # type: ignore[arg-type]
    assert '"cpu"' in caught.value.fix or "'normal'" in caught.value.fix
