"""Processes that fork, and that end while a thread still runs a network: neither hangs nor aborts."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest

from tests.helpers.run_length import examples
from tests.helpers.warm_python import WarmPython

BEGIN = """
import os, sys, threading, warnings
import numpy as np, weft
from tests.helpers.nets import Net
warnings.simplefilter("ignore")
net = Net()
x = net.input("x", 1, 8, 16, 16)
graph = net.finish(net.conv(x, 8, 3, name="y"))
api, fed = sys.argv[1], np.ones((1, 8, 16, 16), np.float32)
"""
FORK = """
session = weft.load(graph, api, fallback="error")
want = session.run(fed)[0]
if os.fork() == 0:
    for attempt in (lambda: session.run(fed), lambda: weft.load(graph, api)):
        try:
            attempt()
            print("it ran")
        except weft.WeftError as e:
            print(type(e).__name__, "spawn" in str(e), flush=True)
    with weft.load(graph, "cpu") as other:
        np.testing.assert_allclose(other.run(fed)[0], want, 1e-4, 1e-4)
    print("right on the CPU", flush=True)
    os._exit(0)
os.wait()
np.testing.assert_array_equal(session.run(fed)[0], want)
print("right in the parent")
"""
EARLY = """
if os.fork() == 0:
    with weft.load(graph, api, fallback="error") as session:
        session.run(fed)
    print("it ran", flush=True)
    os._exit(0)
os.wait()
"""
CLOSED = """
import signal
net = Net()
side = 48 if api == "vulkan" else 112  # llvmpipe takes a third of a second for the smaller
x = net.input("x", 1, 64, side, side)
graph = net.finish(net.conv(net.conv(x, 64, 3), 64, 3, name="y"))
fed = np.ones((1, 64, side, side), np.float32)
session = weft.load(graph, api, fallback="error")
want = session.run(fed)[0]
session.submit(fed)
if os.fork() == 0:
    signal.alarm(30)  # which ends a wait within a driver, too
    session.close()
    weft.registry.find(api).close()
    print("closed", flush=True)
    sys.exit()
print("ended with", os.wait()[1])
np.testing.assert_array_equal(session.wait()[0], want)
print("right in the parent")
"""
DROPPED = """
import gc
session = weft.load(graph, "opencl", fallback="error")
want = session.run(fed)[0]

def held():
    gc.collect()
    return sorted(type(each).__name__ for each in gc.get_objects() if type(each).__module__ == "pyopencl._cl")

before = held()
assert {"CommandQueue", "MemoryMap"} <= set(before), before
if os.fork() == 0:
    session.close()
    weft.registry.find("opencl").close()
    del session, want
    print("all are there" if held() == before else held())
    sys.exit(3)
print("ended with", os.waitstatus_to_exitcode(os.wait()[1]))
"""
WAITING = """
import ctypes, signal
with weft.load(graph, api, fallback="error") as session:
    session.run(fed)
libc = ctypes.CDLL(None)
libc.on_exit(libc.pause, None)  # a driver that waits at the end for its threads
if os.fork() == 0:
    signal.alarm(30)
    print("all is done")
    sys.exit(3)
print("ended with", os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
os._exit(0)
"""
DAEMON = """
session, ran = weft.load(graph, api, fallback="error"), threading.Event()
def loop():
    while True:
        session.run(fed)
        ran.set()
threading.Thread(target=loop, daemon=True).start()
ran.wait()
"""


Said = Callable[[str, str], str]


@pytest.fixture
def said(warm_python: WarmPython) -> Said:
    """Return what gives what a process prints that runs a script on a device to its end."""

    def run(script: str, api: str) -> str:
        done = warm_python.run("-c", BEGIN + script, api, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


@pytest.mark.parametrize("api", ["opencl", "vulkan"])
def test_a_forked_process_says_that_it_cannot_use_the_device(api: str, said: Said) -> None:
    assert said(FORK, api).splitlines() == [
        "DeviceError True", "NoDevice True", "right on the CPU", "right in the parent",
    ]


@pytest.mark.parametrize("api", ["opencl", "vulkan"])
def test_a_process_that_forked_before_can_use_it(api: str, said: Said) -> None:
    assert said(EARLY, api) == "it ran\n"


@pytest.mark.parametrize("api", ["cpu", "opencl", "vulkan"])
def test_a_forked_process_can_close_a_session_whose_run_is_pending(api: str, said: Said) -> None:
    assert said(CLOSED, api).splitlines() == ["closed", "ended with 0", "right in the parent"]


def test_a_forked_process_releases_nothing_of_the_driver(said: Said) -> None:
    """It would wait for ever where a thread of the driver held a lock at the fork."""
    assert said(DROPPED, "opencl").splitlines() == ["all are there", "ended with 3"]


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "on_exit"), reason="only glibc tells at its end with which status")
@pytest.mark.parametrize("api", ["opencl", "vulkan"])
def test_a_forked_process_ends_without_its_drivers(api: str, said: Said) -> None:
    """They wait for threads that the process lacks."""
    assert said(WAITING, api).splitlines() == ["all is done", "ended with 3"]


@pytest.mark.parametrize("api", ["opencl", "vulkan"])
def test_the_end_of_the_process_ends_a_thread_that_runs(api: str, said: Said) -> None:
    for _ in range(examples(3)):
        said(DAEMON, api)
