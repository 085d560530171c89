"""Contract rows M13 and M14: registering backends, and what the sessions on one device share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
from tests.helpers.fakes import Creator, registered
from tests.helpers.nets import Net, branching, feeds
from tests.helpers.null_gpu import null_gpu
from weft.backends.gpu.creator import GpuCreator
from weft.backends.gpu.device.device import DeviceStats
from weft.core.contract.backend import Backend, BackendInfo, ForwardType
from weft.core.graph.graph import Graph
from weft.core.registry.backend_registry import insertExtraBackendCreator, registry
from weft.errors import BackendError, DeviceError, NoDevice


def small() -> Graph:
    net = Net()
    return net.finish(net.add("Relu", net.input("x", 4), name="y"))


# -- M13 -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slot", [ForwardType.USER_0, ForwardType.USER_3])
def test_M13_a_user_slot_is_a_device(slot: ForwardType) -> None:
    creator = Creator()
    insertExtraBackendCreator(slot, creator)
    try:
        with weft.load(small(), device=slot) as session:
            assert session.report.nodes_by_device == {slot.name.lower(): 1}
        assert slot.name.lower() in registry.ids()
    finally:
        registry.remove(slot)
    assert slot.name.lower() not in registry.ids() and creator.closed


def test_M13_an_id_is_a_device() -> None:
    creator = Creator()
    insertExtraBackendCreator("acme", creator)
    try:
        assert creator.id == "acme"
        assert any(d.id == "acme" for d in weft.devices())
        with weft.load(small(), device=["acme", "cpu"]) as session:
            np.testing.assert_array_equal(session.run(np.array([-1, 2, -3, 4], np.float32))[0], [0, 2, 0, 4])
    finally:
        registry.remove("acme")


@pytest.mark.parametrize(
    ("key", "holder"),
    [
        ("cpu", "'cpu' (weft.backends.cpu.backend.CpuCreator)"),
        ("Vulkan", "'vulkan' (weft.backends.vulkan.creator.VulkanCreator)"),
        (ForwardType.OPENCL, "'opencl' (weft.backends.opencl.creator.OpenCLCreator)"),
    ],
)
def test_M13_a_taken_id_is_refused_with_the_holders_name(key: str | ForwardType, holder: str) -> None:
    before = registry.creators()
    with pytest.raises(BackendError, match="is taken") as caught:
        insertExtraBackendCreator(key, Creator())
    assert caught.value.why == f"held by {holder}"
    assert registry.creators() == before


def test_M13_a_taken_user_slot_is_refused_and_the_newcomer_is_unchanged() -> None:
    holder, newcomer = Creator(id="first"), Creator(id="second")
    with registered(holder, ForwardType.USER_1):
        with pytest.raises(BackendError, match="the slot USER_1 is taken") as caught:
            insertExtraBackendCreator(ForwardType.USER_1, newcomer)
        assert "'first'" in caught.value.why
        assert (newcomer.id, newcomer.forward_type) == ("second", None)
        assert registry.find("first") is registry.find(ForwardType.USER_1) is holder


def test_M13_one_creator_cannot_take_two_slots() -> None:
    creator = Creator(id="one")
    with registered(creator, ForwardType.USER_0):
        for key in (ForwardType.USER_1, "two"):
            with pytest.raises(BackendError, match="taken"):
                insertExtraBackendCreator(key, creator)
        assert (creator.id, creator.forward_type) == ("one", ForwardType.USER_0)


@pytest.mark.parametrize("key", ["", "a b", "x:1", "1st", "auto", ForwardType.AUTO])
def test_M13_what_cannot_be_an_id_is_refused(key: str | ForwardType) -> None:
    with pytest.raises(BackendError):
        insertExtraBackendCreator(key, Creator())


def test_M13_an_absent_backend_is_listed_with_its_reason_and_not_hidden() -> None:
    with registered(Creator(absent="the card is not plugged in"), "card"):
        assert "card" in registry.ids()
        assert registry.absent()["card"] == "the card is not plugged in"
        assert not any(d.id == "card" for d in weft.devices())
        with pytest.raises(NoDevice, match="card cannot be used here") as caught:
            weft.load(small(), device="card")
        assert caught.value.why == "the card is not plugged in" and caught.value.fix


def test_M13_a_creator_that_fails_to_answer_is_absent_and_stops_nobody() -> None:
    class Broken(Creator):
        def absent(self) -> str | None:
            raise OSError("libacme.so: cannot open shared object file")

    with registered(Broken(), "broken"):
        assert "libacme.so" in registry.absent()["broken"]
        assert any(d.id == "cpu" for d in weft.devices())
    with registered(Creator(absent=""), "mute"):
        assert registry.absent().get("mute", "a reason") == "its creator gives no reason"


def test_M13_in_a_list_an_absent_device_is_passed_over_and_the_report_says_so() -> None:
    with registered(Creator(absent="there is no driver"), "card"):
        with weft.load(small(), device=["card", "cpu"]) as session:
            assert session.report.devices == ("cpu:0",)
            assert "passed over" in session.report.notes[0] and "there is no driver" in session.report.notes[0]
        with registered(Creator(absent="there is no cable"), "modem"), pytest.raises(NoDevice) as caught:
            weft.load(small(), device=["card", "modem"])
        assert "there is no driver" in caught.value.why and "there is no cable" in caught.value.why


def test_M13_a_backend_that_cannot_be_made_is_an_error_of_that_device() -> None:
    class Stuck(Creator):
        def onCreate(self, info: BackendInfo) -> Backend:
            raise RuntimeError("the firmware does not answer")

    with registered(Stuck(), "stuck"), pytest.raises(DeviceError, match="stuck:0") as caught:
        weft.load(small(), device="stuck")
    assert "the firmware does not answer" in caught.value.why


def test_M13_something_else_than_a_backend_is_refused() -> None:
    class Wrong(Creator):
        def onCreate(self, info: BackendInfo) -> Backend:
            return 3  # type: ignore[return-value]

    with registered(Wrong(), "wrong"), pytest.raises(BackendError, match="not a Backend"):
        weft.load(small(), device="wrong")


# -- M13: devices that are there and do not work -----------------------------------------------------------

WHY = "a small kernel does not run: unknown CPU; install another driver"


def test_M13_an_unusable_device_is_listed_with_the_reason_and_passed_over_in_a_list(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with registered(Creator(devices=(True, True), broken={0: WHY}), "card"):
        assert [(d.id, d.index, why) for d, why in registry.unusable()] == [("card", 0, WHY)]
        assert [d.index for d in weft.devices() if d.id == "card"] == [1] and "card" not in registry.absent()
        with weft.load(small(), device=["card:0", "card:1"]) as session:
            assert session.report.nodes_by_device == {"card:1": 1}
            assert "passed over: card:0 (card-0) cannot be used" in session.report.notes[0]
        assert [r.levelname for r in caplog.records if WHY in r.message] == ["WARNING"]
        assert registry.choose("card")[0].device == "card:1", "an id alone means the first device that works"


@pytest.mark.parametrize(("device", "fallback"), [("card", "cpu"), ("card:0", "cpu"), (["card", "cpu"], "error")])
def test_M13_an_unusable_device_that_is_named_alone_or_without_a_fallback_is_an_error(
    device: str | list[str], fallback: str
) -> None:
    with registered(Creator(broken={0: WHY}), "card"):
        with pytest.raises(NoDevice, match=r"card.* cannot be used") as caught:
            weft.load(small(), device=device, fallback=fallback)
        assert WHY in caught.value.why and "weft doctor" in caught.value.fix
        assert registry.absent()["card"] == f"card:0 (card-0) cannot be used: {WHY}"


def test_M13_auto_never_picks_an_unusable_device_and_does_not_try_a_software_one() -> None:
    class Watched(Creator):
        def unusable(self, index: int) -> str | None:
            tried.append(index)
            return super().unusable(index)

    tried: list[int] = []
    creator = Watched(auto_rank=0, devices=(True, False, False, False), broken={1: WHY})
    with registered(creator, "card"):
        (choice,) = registry.choose("auto")
        assert choice.device == "card:2" and "card:1 (card-1) cannot be used" in choice.why
    assert tried == [1, 2]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda: 1 // 0, "asking whether it works failed: Odd.unusable raised ZeroDivisionError"),
        (lambda: False, "unusable() of its creator returned False, which is not a reason in words"),
        (lambda: " ", "its creator gives no reason"),
    ],
)
def test_M13_a_creator_that_does_not_say_whether_a_device_works_has_none(
    answer: Callable[[], Any], reason: str
) -> None:
    class Odd(Creator):
        def unusable(self, index: int) -> str | None:
            found: str | None = answer()
            return found

    with registered(Odd(), "card"):
        ((_, why),) = registry.unusable()
        assert reason in why and all(d.id != "card" for d in weft.devices())


# -- M14 -----------------------------------------------------------------------------------------------


def stats(device: str) -> DeviceStats:
    creator = registry.find(device)
    assert isinstance(creator, GpuCreator)
    return creator.runtime(0).device.stats


@pytest.mark.parametrize("device", ["opencl", "vulkan"])
def test_M14_sessions_on_one_device_share_device_and_kernels(device: str) -> None:
    graph = branching(12, 4)
    with weft.load(graph, device=device) as first:
        expected = first.run(feeds(graph))[0]
        compiled = stats(device).compiles
        with weft.load(graph, device=device) as second:
            np.testing.assert_array_equal(second.run(feeds(graph))[0], expected)
        assert stats(device).compiles == compiled
        np.testing.assert_array_equal(first.run(feeds(graph))[0], expected)


def test_M14_constants_of_sessions_come_from_one_pool() -> None:
    with null_gpu() as device, weft.load(branching(), device="null"):
        one = device.stats.live_buffers
        with weft.load(branching(), device="null"):
            # arena, inputs, staging for x and y; the weights lie in the first session's chunk
            assert device.stats.live_buffers == one + 4


def test_M14_the_device_is_opened_once_and_closed_with_its_creator() -> None:
    class Counting(GpuCreator):
        opened = 0

        def open(self, index: int) -> object:  # type: ignore[override]
            self.opened += 1
            nothing = {"close": lambda self: None, "hold_kernels": lambda self, count: None}
            return type("Device", (), {**nothing, "gone": False, "profile": None, "remarks": ()})()

    creator = Counting()
    assert creator.runtime(0) is creator.runtime(0)
    assert creator.runtime(1) is not creator.runtime(0)
    assert creator.opened == 2
    creator.close()
    creator.runtime(0)
    assert creator.opened == 3
