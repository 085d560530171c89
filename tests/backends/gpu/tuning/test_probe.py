"""The probe: what it measures, that it is kept, and by what the next start chooses kernels."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from weft import config
from weft.backends.gpu.creator import GpuCreator
from weft.backends.gpu.runtime import GpuRuntime
from weft.backends.gpu.tuning import probe, rate_store
from weft.backends.opencl.creator import OpenCLCreator
from weft.backends.vulkan.creator import VulkanCreator
from weft.core.contract.backend_options import Options
from weft.core.host.disk_cache import DiskCache
from weft.errors import CompileError, ConfigError
from weft.kernels.rates import Rates

CREATORS = {"opencl": OpenCLCreator, "vulkan": VulkanCreator}
MEASURED = {
    "products", "item_products", "shared_vectors", "cache_bytes", "memory_bytes", "half_bytes", "wait_us", "barrier_us",
    "launch_us", "between_us", "start_us", "upload_bytes", "download_bytes",
}


@pytest.fixture(params=CREATORS)
def creator(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> GpuCreator:
    made: GpuCreator = CREATORS[request.param]()
    if made.absent() or not made.devices():
        pytest.skip(f"no {request.param}")
    for name, value in {"ENOUGH": 2e-5, "LARGE_OF_CPU": 1 << 20, "SENT": 1 << 16, "LAUNCHES": 3, "TIMES": 2}.items():
        monkeypatch.setattr(probe, name, value)
    monkeypatch.setattr(rate_store, "QUIET", 0.01)
    monkeypatch.setattr(rate_store, "LITTLE", 100.0)
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    request.addfinalizer(made.close)
    return made


def launch(runtime: GpuRuntime) -> None:
    """Run something, as a session would."""
    with probe.Probe(runtime) as made:
        next(made.rates())


def wait_for_the_probe() -> None:
    for thread in threading.enumerate():
        if thread.name == "weft-measure":
            thread.join()


def test_it_measures_everything_and_leaves_nothing(creator: GpuCreator) -> None:
    runtime = creator.runtime(0)
    before = runtime.device.stats.live_buffers, runtime.device.stats.live_recordings
    rates = probe.measure(runtime)
    assert rates is not None and rates.as_dict().keys() == MEASURED and rates.api == creator.id
    assert (runtime.device.stats.live_buffers, runtime.device.stats.live_recordings) == before


def test_the_first_start_measures_meanwhile_and_the_second_one_chooses_by_it(
    creator: GpuCreator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_MEASURE", "auto")
    creator.onPrepare(0)
    runtime = creator.runtime(0)
    assert not rate_store.kept(runtime.device.info), "nothing has run"
    launch(runtime)
    wait_for_the_probe()
    assert runtime.device.caps.rates is None, "a process does not change its choices"
    found = rate_store.kept(runtime.device.info)
    creator.close()
    creator.onPrepare(0)
    assert found is not None and creator.runtime(0).device.caps.rates == found
    monkeypatch.setenv("WEFT_MEASURE", "off")
    creator.close()
    creator.onPrepare(0)
    assert creator.runtime(0).device.caps.rates is None


def test_a_device_that_is_closed_ends_the_probe(creator: GpuCreator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_MEASURE", "auto")
    begun, ends = threading.Event(), threading.Event()
    whole = probe.Probe.rates

    def slow(self: probe.Probe) -> Iterator[dict[str, float]]:
        for each in whole(self):
            if threading.current_thread().name == "weft-measure":
                begun.set()
                assert ends.wait(60)
            yield each

    monkeypatch.setattr(probe.Probe, "rates", slow)
    creator.onPrepare(0)
    runtime = creator.runtime(0)
    launch(runtime)
    assert begun.wait(60)
    threading.Timer(0.05, ends.set).start()
    creator.close()
    assert runtime.closed and not [t for t in threading.enumerate() if t.name == "weft-measure"]
    assert rate_store.kept(runtime.device.info) is None


def test_now_measures_before_the_first_load(creator: GpuCreator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_MEASURE", "now")
    creator.onPrepare(0)
    assert creator.runtime(0).device.caps.rates == rate_store.kept(creator.runtime(0).device.info) is not None


def test_a_device_that_pretends_is_measured_as_what_it_pretends_to_be(creator: GpuCreator) -> None:
    plain, other = creator.runtime(0), creator.runtime(0, Options({"device_profile": "v3dv"}))
    rates = Rates(products=7.0, api=creator.id)
    rate_store.keep(other.device.info, rates)
    assert rate_store.kept(other.device.info) == rates and rate_store.kept(plain.device.info) is None


def test_a_device_that_cannot_be_measured_is_taken_for_another_card(
    creator: GpuCreator, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(runtime: object, pause: object) -> Rates:
        raise CompileError("the compiler is not there")

    monkeypatch.setattr(probe, "measure", refuse)
    monkeypatch.setenv("WEFT_MEASURE", "now")
    caplog.set_level("INFO", "weft.measure")
    creator.onPrepare(0)
    assert creator.runtime(0).device.caps.rates is None
    assert "is not measured, and kernels are chosen as for another card: the compiler is not there" in caplog.text


def test_what_is_kept_but_no_rates_counts_as_nothing(creator: GpuCreator) -> None:
    info = creator.runtime(0).device.info
    for content in (b"[]", b"7", b'{"products": "fast"}', b"\xff"):
        DiskCache("selftest").put(rate_store._key(info), content)
        assert rate_store.kept(info) is None


def test_a_wrong_value_of_the_variable_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_MEASURE", "later")
    with pytest.raises(ConfigError, match="WEFT_MEASURE=later is not known"):
        config.check()
