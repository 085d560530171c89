"""The option `memory_limit`, and drivers that have no more memory: numbers, nothing lost, and all else goes on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft
from tests.helpers.null_gpu import NullCreator, NullDevice
from tests.helpers.plugins import in_new_process
from weft.backends.gpu.device.device import GpuBuffer, GpuDevice
from weft.backends.gpu.memory.heap import DeviceHeap
from weft.backends.gpu.runtime import GpuRuntime
from weft.core.registry.backend_registry import registry
from weft.errors import DeviceError, OutOfMemory

LIMIT = 4 << 20
SMALL, LARGE = 1000, 3_000_000
GPUS = pytest.mark.parametrize("device", ["opencl", "vulkan"])


def network(n: int | str, weight: int = 0) -> weft.Network:
    net = weft.Network("sum")
    y = net.add_layer("Relu", net.add_input("x", (n,)))
    if weight:
        y = net.add_layer("Add", y, net.add_constant(np.ones(weight, np.float32)))
    net.add_output("y", y)
    return net


def load(device: str, net: weft.Network, limit: int = LIMIT) -> weft.Session:
    return weft.load(net, device, fallback="error", backend_options={device: {"memory_limit": limit}})


def held(session: weft.Session) -> tuple[int, int]:
    """Return the bytes that Weft counts on the session's device, and those that the device counts."""
    backend: Any = session.pipelines[0].backend
    return backend.runtime.heap.held, backend.device.stats.live_bytes


def check(session: weft.Session, n: int, plus: float = 0) -> None:
    x = np.linspace(-1, 1, n, dtype=np.float32)
    np.testing.assert_array_equal(session.run(x)[0], np.maximum(x, 0) + np.float32(plus))


@GPUS
def test_a_load_that_goes_beyond_the_limit_says_the_numbers_and_leaves_nothing(device: str) -> None:
    with load(device, network(SMALL)) as small:
        before = held(small)
        for _ in range(3):
            with pytest.raises(OutOfMemory) as caught:
                load(device, network(LARGE))
            said = str(caught.value)
            assert "12,000,000 bytes cannot be allocated" in said and f"allows {LIMIT:,} in all" in said
            assert f"{before[0]:,} bytes are in use by Weft" in said and f'"{device}": {{"memory_limit": ' in said
            assert held(small) == before
        check(small, SMALL)
        with load(device, network(SMALL)) as another:
            check(another, SMALL)
            check(small, SMALL)
        assert held(small) == before


@GPUS
def test_a_resize_that_goes_beyond_the_limit_can_be_taken_back(device: str) -> None:
    with load(device, network(SMALL)) as small, load(device, network("n")) as session:
        check(session, SMALL)
        before = held(small)
        for _ in range(2):
            with pytest.raises(OutOfMemory, match="memory_limit"):
                session.run(np.ones(LARGE, np.float32))
            check(small, SMALL)
            check(session, SMALL)
            assert held(small) == before


@GPUS
def test_weights_count_and_small_ones_take_no_more_than_they_need(device: str) -> None:
    with load(device, network(SMALL, weight=SMALL)) as session:
        check(session, SMALL, plus=1)
        assert held(session)[0] < LIMIT, "a chunk for further weights would have been larger"
        with pytest.raises(OutOfMemory, match="memory_limit"):
            load(device, network(LARGE, weight=LARGE))
        check(session, SMALL, plus=1)


@GPUS
def test_what_is_closed_makes_room(device: str) -> None:
    limit = 60_000_000  # one of them has 36 or 48 MB, as inputs and outputs need copies or not
    first = load(device, network(LARGE), limit)
    with load(device, network(SMALL), limit) as small:
        with pytest.raises(OutOfMemory):
            load(device, network(LARGE), limit)
        first.close()
        with load(device, network(LARGE), limit) as second:
            check(second, LARGE)
        check(small, SMALL)


def test_a_drivers_own_memory_can_run_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """PoCL can be told how many GB its device has."""
    code = f"""
import numpy, weft
from weft.errors import DeviceError, OutOfMemory

def net(n):
    net = weft.Network("sum")
    net.add_output("y", net.add_layer("Relu", net.add_input("x", (n,))))
    return net

drivers = {{d.driver: f"opencl:{{d.index}}" for d in weft.devices() if d.id == "opencl"}}
pocl = next((device for driver, device in drivers.items() if "Portable" in driver), None)
assert pocl is not None, f"PoCL is missing: scripts/test installs it; found {{drivers}}"
small = weft.load(net({SMALL}), pocl, fallback="error")
device, sessions = small.pipelines[0].backend.device, []
for round in range(2):
    try:
        while len(sessions) < 9:
            before = device.stats.live_bytes
            sessions.append(weft.load(net(30_000_000), pocl, fallback="error", memory="limit"))
    except OutOfMemory as e:
        assert "120,000,000 bytes cannot be allocated" in str(e), e
        assert "of the device's 1,073,741,824 bytes are in use by Weft" in str(e), e
    assert sessions and len(sessions) < 9 and device.stats.live_bytes == before
    x = numpy.ones({SMALL}, "float32")
    assert (small.run(x)[0] == 1).all()
    weft.load(net({SMALL}), pocl, fallback="error").close()
    sessions.pop().close()
print("done")
"""
    monkeypatch.setenv("POCL_MEMORY_LIMIT", "1")
    said = in_new_process(code)
    assert said.strip() == "done"


@GPUS
def test_devices_of_options_that_nobody_has_any_more_are_closed(device: str) -> None:
    def opened(n: int) -> tuple[weft.Session, Any]:
        session = load(device, network(SMALL), LIMIT + 1 + n)
        return session, session.pipelines[0].backend.runtime  # type: ignore[attr-defined]

    in_use, held = opened(0)
    runtimes = []
    for n in range(1, 8):
        session, runtime = opened(n)
        check(session, SMALL)
        session.close()
        runtimes.append(runtime)
    assert [runtime.closed for runtime in runtimes] == [True, True, True, False, False, False, False]
    assert not held.closed
    check(in_use, SMALL)
    in_use.close()
    session, again = opened(7)
    assert again is runtimes[-1]
    session.close()


class _Many(NullCreator):
    def open(self, index: int) -> GpuDevice:
        return NullDevice()


@pytest.mark.parametrize("profile", ["", "items=64"])
def test_the_device_without_options_stays_open_with_and_without_a_profile(
    profile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_DEVICE_PROFILE", profile)
    creator = _Many()
    registry.insert("null", creator)
    try:
        usual = creator.runtime(0)
        for n in range(1, 8):
            load("null", network(SMALL), LIMIT + n).close()
        assert creator.runtime(0) is usual and not usual.closed
    finally:
        registry.remove("null")


@pytest.mark.parametrize(("limit", "memory", "said"), [
    (1 << 20, "", "the option memory_limit allows 1,048,576 in all"),
    (0, "memory=2MiB", "the device pretends to have 2,097,152 in all"),
    (1 << 20, "memory=2MiB", "the option memory_limit allows 1,048,576 in all"),
    (4 << 20, "memory=2MiB", "the device pretends to have 2,097,152 in all"),
])
def test_of_a_limit_and_a_profile_the_lesser_holds(
    limit: int, memory: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_DEVICE_PROFILE", memory)
    registry.insert("null", _Many())
    try:
        with pytest.raises(OutOfMemory) as caught:
            load("null", network(LARGE), limit)
        assert said in caught.value.why
    finally:
        registry.remove("null")


def test_a_device_whose_kernels_are_being_tested_is_not_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """No backend is on it yet; sessions of other threads open as many devices as there are meanwhile."""
    seen: list[bool] = []

    def recall(runtime: GpuRuntime) -> None:
        if not seen:
            seen.append(runtime.closed)
            for n in range(1, 8):
                load("null", network(SMALL), LIMIT + n).close()
            seen.append(runtime.closed)

    monkeypatch.setattr("weft.backends.gpu.selftest.verdict_store.recall", recall)
    registry.insert("null", _Many())
    try:
        load("null", network(SMALL), LIMIT).close()
    finally:
        registry.remove("null")
    assert seen == [False, False]


def test_a_buffer_that_the_driver_fails_to_free_does_not_count_on() -> None:
    class Fails(NullDevice):
        def free(self, buffer: GpuBuffer) -> None:
            raise DeviceError("the device is lost", where="null:0")

    heap = DeviceHeap(Fails(), limit=100)
    with pytest.raises(DeviceError):
        heap.free(heap.allocate(100))
    assert heap.held == 0
