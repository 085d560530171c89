"""Which drivers the OpenCL loader finds, in which order their devices come, and those on which nothing compiles."""

from __future__ import annotations

import ctypes
import json
import logging
import os
import platform
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyopencl as cl
import pytest

from tests.helpers import fake_opencl_driver
from weft.backends.gpu.device.cards import Card
from weft.backends.opencl import discovery, driver_trial, native, pip_driver
from weft.core.host import background, child_process

ROOT = Path(__file__).parents[3]
INTEL, POCL = "Intel(R) OpenCL", "Portable Computing Language"
HAS_PIP_DRIVER = sys.platform == "linux" and platform.machine() == "x86_64"
GIVEN = ("OCL_ICD_VENDORS", "OPENCL_VENDOR_PATH", "LD_LIBRARY_PATH", "WEFT_SELFTEST")
LISTED = """
import json, os
before = dict(os.environ)
import pyopencl
before["PYOPENCL_HOME"] = os.environ["PYOPENCL_HOME"]
import weft
facts = {
    "usable": [(d.index, d.details["platform"]) for d in weft.devices() if d.id == "opencl"],
    "unusable": [(d.index, d.driver, why) for d, why in weft.registry.unusable() if d.id == "opencl"],
    "environment": dict(os.environ) == before,
}
"""
CHOSEN = """
def tried(device, **how):
    try:
        return [(c.device, c.why) for c in weft.registry.choose(device, **how)]
    except weft.WeftError as e:
        return str(e)
bad = facts["unusable"][0][0]
facts |= {
    "list": tried([f"opencl:{bad}", "cpu"]), "alone": tried(f"opencl:{bad}"),
    "strict": tried([f"opencl:{bad}", "cpu"], pass_over=False), "id": tried("opencl"), "auto": tried("auto"),
}
"""


def in_new_process(code: str, **environment: str) -> dict[str, Any]:
    """Return the `facts` that a program gathers which starts the loader itself, with these variables alone."""
    own = {name: value for name, value in os.environ.items() if name not in GIVEN}
    command = [sys.executable, "-c", f"{code}\nprint(json.dumps(facts))"]
    done = subprocess.run(
        command, env={**own, **environment}, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


# -- the driver that pip installed -----------------------------------------------------------------------------


def test_the_driver_that_pip_installed_is_found_by_itself_and_comes_first(cache: Path, tmp_path: Path) -> None:
    facts = in_new_process(LISTED, TMPDIR=str(tmp_path))
    assert facts["environment"], "what was set for the loader is as it was before"
    if HAS_PIP_DRIVER:
        assert facts["usable"][0] == [0, INTEL]
        assert [name for _, name in facts["usable"]].count(INTEL) == 1
    assert list(tmp_path.glob("weft-opencl-*")) == []


def test_the_extra_brings_what_messages_say_is_to_be_installed() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    extra = project.partition("\nopencl-cpu = [")[2].partition("\n]")[0]
    assert all(f'"{package}>=' in extra for package in pip_driver.PACKAGES.split())


def pretend_installed(monkeypatch: pytest.MonkeyPatch, library: Path | None, system: Path | None = None) -> None:
    for name in GIVEN:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pip_driver, "_installed", lambda: library)
    monkeypatch.setattr(pip_driver, "_SYSTEM", system or Path("/nowhere"))


def test_a_library_that_lacks_others_is_told_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "libintelocl.so"
    library.write_text("no library")
    pretend_installed(monkeypatch, library)
    problem = pip_driver.problem()
    assert problem is not None and "cannot be loaded" in problem and "libintelocl.so" in problem
    assert problem.endswith(f"pip install --upgrade {pip_driver.PACKAGES}")
    monkeypatch.setattr(discovery, "_platforms", list)
    assert discovery.absent_reason() == problem


def test_what_the_user_or_the_system_names_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: None)
    library = tmp_path / "libintelocl.so"
    pretend_installed(monkeypatch, library)
    assert pip_driver._found() == (library, None)
    (tmp_path / "intel.icd").write_text("/opt/intel/libintelocl.so\n")
    pretend_installed(monkeypatch, library, system=tmp_path)
    assert pip_driver._found() == (None, None)
    pretend_installed(monkeypatch, library)
    monkeypatch.setenv("OCL_ICD_VENDORS", str(tmp_path))
    assert pip_driver._found() == (None, None)
    assert "libintelocl.so" in pip_driver.libraries()


# -- order -----------------------------------------------------------------------------------------------------


def test_indices_do_not_depend_on_the_order_of_the_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    def fake(name: str, version: str, *kinds: int) -> SimpleNamespace:
        own = SimpleNamespace(name=name, version=version)
        works = {"available": True, "compiler_available": True, "of": own}
        own.devices = [SimpleNamespace(type=kind, at=at, **works) for at, kind in enumerate(kinds)]
        return own

    cpu, gpu = int(cl.device_type.CPU), int(cl.device_type.GPU)
    old = fake(POCL, "OpenCL 3.0 PoCL 3.0-rc2", cpu)
    new = fake(POCL, "OpenCL 3.0 PoCL 3.1+debian", cpu)
    intel, cards = fake(INTEL, "OpenCL 3.1 LINUX", cpu), fake("Acme", "OpenCL 3.0", gpu, cpu, gpu)
    emulation = fake("Intel(R) FPGA Emulation Platform for OpenCL(TM)", "OpenCL 1.2", 8)
    platforms = [old, cards, new, emulation, intel]
    monkeypatch.setattr(cl, "get_platforms", lambda: platforms)
    monkeypatch.setattr(discovery, "_devices_of", lambda p: p.devices)
    monkeypatch.setattr(discovery, "card_of", lambda d: Card(d.of.name))
    for _ in range(len(platforms)):
        found = [(d.of.version, d.at) for d in discovery.raw_devices()]
        assert found[:3] == [(cards.version, 0), (cards.version, 2), (intel.version, 0)]
        assert found[3:] == [(cards.version, 1), (new.version, 0), (old.version, 0)]
        platforms.append(platforms.pop(0))


# -- devices on which nothing compiles -------------------------------------------------------------------------


def test_a_device_on_which_nothing_compiles_is_unusable_and_passed_over(tmp_path: Path) -> None:
    folder = fake_opencl_driver.install(tmp_path / "vendors", "Fake", fake_opencl_driver.CPU)
    fake_opencl_driver.install(folder, "Card", fake_opencl_driver.GPU, fake_opencl_driver.ABORTS)
    emulation = "Intel(R) FPGA Emulation Platform for OpenCL(TM)"
    fake_opencl_driver.install(folder, emulation, fake_opencl_driver.ACCELERATOR)
    facts = in_new_process(LISTED + CHOSEN, OCL_ICD_VENDORS=str(folder), WEFT_CACHE_DIR=str(tmp_path / "cache"))
    (card, _, ends), (fake, _, refuses) = facts["unusable"]
    assert card == 0 < fake and "FPGA" not in str(facts)
    assert "ends the process (SIGABRT)" in ends and "update the driver" in ends
    assert "CL_BUILD_PROGRAM_FAILURE" in refuses and "unknown target CPU 'generic'" in refuses
    assert "__kernel" not in str(facts)
    ((device, why),) = facts["list"]
    assert device == "cpu:0" and "passed over: opencl:0 (card of the day) cannot be used" in why
    for error in (facts["alone"], facts["strict"]):
        assert "opencl:0 (card of the day) cannot be used" in error and "SIGABRT" in error
    assert facts["auto"][0][0] == "cpu:0" and "opencl:0 (card of the day) cannot be used" in facts["auto"][0][1]
    if facts["usable"]:
        assert facts["id"][0][0] == f"opencl:{facts['usable'][0][0]}"
    else:
        assert "opencl cannot be used here" in facts["id"] and driver_trial.for_the_cpu() in facts["id"]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the facts of the devices that a process of their own was asked to try; none is started."""
    asked: list[str] = []

    def in_child(facts: str) -> tuple[bool, str | None]:
        asked.append(facts)
        return True, None

    monkeypatch.setattr(driver_trial, "_tried_in_child", in_child)
    monkeypatch.setattr(driver_trial, "_known", {})
    monkeypatch.delenv("WEFT_SELFTEST", raising=False)
    return asked


def again(monkeypatch: pytest.MonkeyPatch) -> str | None:
    """Return the verdict on the first device, as in a new process."""
    monkeypatch.setattr(driver_trial, "_known", {})
    return driver_trial.why_unusable(discovery.raw_devices(), 0)


def test_a_device_that_is_right_is_remembered_until_its_driver_or_the_cpu_changes(
    asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [again(monkeypatch) for _ in range(3)] == [None] * 3 and len(asked) == 1
    assert pip_driver.libraries() and any("cl" in path for path, *_ in driver_trial._loaded_libraries())
    real = driver_trial._loaded_libraries()
    monkeypatch.setattr(driver_trial, "_loaded_libraries", lambda: [*real, ("libnew.so", 1, 2)])
    assert again(monkeypatch) is None and len(asked) == 2
    monkeypatch.setattr(driver_trial, "_machine", lambda: ["another"])
    assert again(monkeypatch) is None and len(asked) == 3
    assert driver_trial.why_unusable(discovery.raw_devices(), 0) is None and len(asked) == 3


def test_a_device_that_is_wrong_is_tried_again_by_the_next_program(
    asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    verdicts = [(True, "it computes wrong numbers"), (True, "it computes wrong numbers"), (True, None)]
    monkeypatch.setattr(driver_trial, "_tried_in_child", lambda facts: verdicts.pop(0))
    why = again(monkeypatch)
    assert why is not None and why.startswith("it computes wrong numbers; update this driver")
    assert driver_trial.why_unusable(discovery.raw_devices(), 0) == why and len(verdicts) == 2
    assert again(monkeypatch) == why and again(monkeypatch) is None and verdicts == []


@pytest.mark.parametrize("mode", ["off", "process"])
def test_where_a_device_is_tried_can_be_chosen(mode: str, asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    here: list[object] = []
    monkeypatch.setattr(driver_trial, "try_device", here.append)
    monkeypatch.setenv("WEFT_SELFTEST", mode)
    assert again(monkeypatch) is None and asked == [] and len(here) == (mode == "process")


def test_a_process_that_hangs_or_cannot_try_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    devices = discovery.raw_devices()
    assert driver_trial.try_device(devices[0]) is None
    with monkeypatch.context() as m, caplog.at_level(logging.WARNING):
        assert driver_trial._tried_in_child("no such device") == (False, None)
        m.setattr(child_process, "start", lambda *_, **__: (_ for _ in ()).throw(OSError(12, "no memory")))
        assert driver_trial._tried_in_child("any") == (False, None)
    assert ["used without a test" in r.message for r in caplog.records] == [True, True]
    monkeypatch.setattr(driver_trial, "TIMEOUT", 0.001)
    tried, why = driver_trial._tried_in_child(driver_trial.facts_of(devices, 0))
    assert tried and why is not None and "did not end within 0.001 s" in why


def test_ctrl_c_waits_for_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trial's child ends at once, which `subprocess` waits for in a main thread, and no driver starts there."""
    facts, tried = driver_trial.facts_of(discovery.raw_devices(), 0), list[subprocess.Popen[bytes]]()
    real, main, threads = subprocess.Popen.communicate, threading.main_thread(), set[threading.Thread]()

    def communicate(self: subprocess.Popen[bytes], *given: Any, **named: Any) -> Any:
        tried.append(self)
        threads.add(threading.current_thread())
        signal.pthread_kill(main.ident or 0, signal.SIGINT)
        return real(self, *given, **named)

    @contextmanager
    def offered() -> Iterator[None]:
        threads.add(threading.current_thread())
        yield

    monkeypatch.setattr(subprocess.Popen, "communicate", communicate)
    with pytest.raises(KeyboardInterrupt):
        driver_trial._tried_in_child(facts)
    background.wait()
    assert len(tried) == 1 and tried[0].returncode is not None
    monkeypatch.setattr(pip_driver, "offered", offered)
    native.start_drivers.cache_clear()
    native.start_drivers()
    assert len(threads) == 2 and main not in threads


def test_pocl_without_a_linker_is_not_even_tried(asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    device: Any = SimpleNamespace(
        platform=SimpleNamespace(name=POCL, version="1"), vendor="", name="", version="",
        driver_version="", type=int(cl.device_type.CPU),
    )
    monkeypatch.setattr(driver_trial, "can_link", lambda: False)
    why = driver_trial.why_unusable([device], 0)
    assert why is not None and "apt install gcc libc6-dev" in why and asked == []
