"""Processes that compile OpenCL kernels into the cache: what they do the program loads, what they fail at it does."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from weft.backends.opencl import compilers
from weft.backends.opencl.compilers import Compilers, process_count
from weft.backends.opencl.device import OpenCLDevice, open_device
from weft.backends.opencl.dialect import OpenCLDialect
from weft.core.graph.dtypes import DType
from weft.errors import CompileError, ConfigError
from weft.kernels.source import Arg, KernelCode, KernelSource

TEXT = """
__kernel void k(__global const float* restrict x, __global float* restrict y) { y[0] = x[0] * NUMBER; }
"""
CONSTANTS: Any = (("LX", "int"), ("LY", "int"), ("LZ", "int"))
ARGS = (Arg("x", DType.FLOAT32, "linear"), Arg("y", DType.FLOAT32, "linear", True))
ONE = {"LX": 1, "LY": 1, "LZ": 1}


def source(number: int) -> KernelSource:
    """Return a kernel that differs by its number; one below 0 does not compile."""
    text = TEXT.replace("NUMBER", f"{number}.0f" if number >= 0 else "nothing")
    return KernelSource("k", KernelCode(text), ARGS, CONSTANTS)


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenCLDevice]:
    """Open the device as if its driver were one that compiles a kernel at a time."""
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(compilers, "LEAST", 1)
    made = open_device(0, OpenCLDialect())
    facts = {"index": 0, "name": made.info.name, "driver": made.info.driver}
    made.compilers = made.programs._compilers = Compilers(facts, 1)
    yield made
    made.close()


@pytest.fixture
def ready(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Tell when a process is ready."""
    event, welcome = threading.Event(), compilers._Process._welcome

    def heard(self: Any, ready: Any) -> None:
        welcome(self, ready)
        event.set()

    monkeypatch.setattr(compilers._Process, "_welcome", heard)
    return event


def by_processes(device: OpenCLDevice, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that gets the text of what the program compiles by itself."""
    built: list[str] = []
    build = type(device.programs)._build

    def noted(self: Any, wanted: Any) -> Any:
        built.append(wanted.source.text)
        return build(self, wanted)

    monkeypatch.setattr(type(device.programs), "_build", noted)
    return built


def test_a_process_compiles_once_it_is_ready_and_the_program_until_then(
    device: OpenCLDevice, ready: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = by_processes(device, monkeypatch)
    device.compile(source(0), ONE)
    assert len(built) == 1 and not device.compilers._begun, "nobody holds them"
    with device.building():
        device.compile(source(1), ONE)
        assert len(device.compilers._begun) == 1
        assert ready.wait(60)
        before = len(built)
        for number in range(2, 6):
            device.compile(source(number), ONE)
        assert len(built) == before
        with pytest.raises(CompileError, match="does not compile"):
            device.compile(source(-1), ONE)
        assert len(built) == before + 1, "for its own error"
        device.compile(source(6), ONE)
        assert len(built) == before + 1
        (process,) = device.compilers._begun
    assert process._popen.wait(60) == 0
    device.compile(source(7), ONE)
    assert len(built) == before + 2


def test_processes_that_are_expected_to_be_needed_are_there(
    device: OpenCLDevice, ready: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = by_processes(device, monkeypatch)
    device.expect_building()
    assert ready.wait(60)
    (process,) = device.compilers._begun
    with device.building():
        device.compile(source(1), ONE)
        assert not built and device.compilers._begun == [process]
    assert process._popen.wait(60) == 0


@pytest.mark.parametrize("patience", [0.0, 1e6])
def test_processes_that_nobody_needs_end(
    patience: float, device: OpenCLDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, start = list[Any](), compilers.Compilers._start

    def noted(self: Any, *most: int) -> None:
        start(self, *most)
        begun.extend(self._begun)

    monkeypatch.setattr(compilers.Compilers, "_start", noted)
    monkeypatch.setattr(compilers, "PATIENCE", patience)
    device.expect_building()
    if patience:
        device.close()
    assert [process._popen.wait(60) for process in begun] == [0]


def test_a_process_that_ends_costs_nothing(
    device: OpenCLDevice, ready: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    with device.building():
        device.compile(source(1), ONE)
        assert ready.wait(60)
        (process,) = device.compilers._begun
        process._popen.send_signal(signal.SIGKILL)
        process._popen.wait()
        built = by_processes(device, monkeypatch)
        device.compile(source(2), ONE)
        device.compile(source(3), ONE)
        assert len(built) == 2


def test_a_process_that_is_ready_after_it_was_given_back_is_not_used(
    device: OpenCLDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    said, go, offered = threading.Event(), threading.Event(), threading.Event()
    welcome = compilers._Process._welcome

    def late(self: Any, ready: Any) -> None:
        def offer(process: Any) -> None:
            said.set()
            assert go.wait(60)
            ready(process)
            offered.set()

        welcome(self, offer)

    monkeypatch.setattr(compilers._Process, "_welcome", late)
    with device.building():
        device.compile(source(1), ONE)
        (process,) = device.compilers._begun
        assert said.wait(60)
    assert process._popen.wait(60) == 0
    go.set()
    assert offered.wait(60)
    assert not device.compilers._ready
    with device.building():
        device.compile(source(2), ONE)


def test_a_process_that_compiles_while_it_is_given_back_is_not_used_again(
    device: OpenCLDevice, ready: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go, compile_ = threading.Event(), threading.Event(), compilers._Process.compile

    def slow(self: Any, *task: Any) -> bool:
        done = compile_(self, *task)
        begun.set()
        assert go.wait(60)
        return done

    monkeypatch.setattr(compilers._Process, "compile", slow)
    with device.building():
        device.compile(source(1), ONE)
        (process,) = device.compilers._begun
        assert ready.wait(60)
        thread = threading.Thread(target=device.compile, args=[source(2), ONE])
        thread.start()
        assert begun.wait(60)
    assert process._popen.wait(60) == 0
    go.set()
    thread.join(60)
    assert not device.compilers._ready
    with device.building():
        device.compile(source(3), ONE)


def test_a_process_whose_files_are_closed_is_one_that_is_gone(device: OpenCLDevice, ready: threading.Event) -> None:
    with device.building():
        device.compile(source(1), ONE)
        assert ready.wait(60)
        device.compilers._begun[0].end()
        device.compile(source(2), ONE)
        assert not device.compilers._ready


@pytest.mark.parametrize("wrong", [{"index": 99}, {"driver": "another"}])
def test_a_process_that_does_not_find_the_device_is_not_used(
    device: OpenCLDevice, ready: threading.Event, wrong: dict[str, Any]
) -> None:
    facts = {"index": 0, "name": device.info.name, "driver": device.info.driver} | wrong
    made = Compilers(facts, 1)
    with made.hold():
        with made.compiled(source(1), ONE) as done:
            assert not done
        assert ready.wait(60)
        with made.compiled(source(1), ONE) as done:
            assert not done


def test_how_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WEFT_BUILD_PROCESSES", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(12)))
    assert process_count() == 6
    monkeypatch.setenv("WEFT_BUILD_PROCESSES", "0")
    assert process_count() == 0
    monkeypatch.setenv("WEFT_BUILD_PROCESSES", "many")
    with pytest.raises(ConfigError, match="many"):
        process_count()
    monkeypatch.setenv("WEFT_CACHE", "0")
    assert Compilers({}, 4)._count == 0, "there is nowhere to put kernels"


def test_a_kernel_waits_for_a_process_while_the_program_compiles_another_one(
    device: OpenCLDevice, ready: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = by_processes(device, monkeypatch)
    with device.building(), device.compilers.compiled(source(1), ONE) as done:
        assert not done and device.compilers._begun, "it is the program's turn"
        device.compile(source(2), ONE)
        assert ready.is_set() and not built


def test_a_kernel_does_not_wait_for_a_process_once_the_program_is_done(
    device: OpenCLDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = by_processes(device, monkeypatch)
    monkeypatch.setattr(compilers._Process, "_welcome", lambda self, ready: None)
    with device.building():
        turn = device.compilers.compiled(source(1), ONE)
        turn.__enter__()
        thread = threading.Thread(target=device.compile, args=[source(2), ONE])
        thread.start()
        thread.join(0.1)
        assert thread.is_alive()
        turn.__exit__(None, None, None)
        thread.join(60)
        assert len(built) == 1
