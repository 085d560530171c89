"""The end of the process closes what is open: sessions, then devices, each once, whatever else goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.plugins import C_FACTORY, C_ID, C_VERSION, needs_compiler, write

LOUD = (
    r"""
#include <stdio.h>
#include <stdlib.h>
#include "weft_backend.h"
static void say(const char *what) { puts(what); fflush(stdout); }
static int32_t supports(void *d, const weft_node *n, char *reason, size_t size)
{ (void)d; snprintf(reason, size, "it rectifies alone"); return !strcmp(n->op_type, "Relu"); }
static int32_t create(void *d, const weft_node *n, void **s, char *e, size_t size)
{ (void)d; (void)e; (void)size; int64_t *made = malloc(sizeof *made); *made = weft_elements(n->outputs[0]); *s = made;
  return 0; }
static int32_t execute(void *s, const weft_tensor *const *i, const weft_tensor *const *o, char *e, size_t size)
{ (void)e; (void)size; const float *x = i[0]->data; float *y = o[0]->data;
  for (int64_t k = 0; k < *(int64_t *)s; ++k) y[k] = x[k] > 0 ? x[k] : 0;
  return 0; }
static void destroy(void *s) { free(s); say("destroy"); }
static int32_t open_device(int32_t k, void **d, char *e, size_t size)
{ (void)k; (void)d; (void)e; (void)size; say("open"); return 0; }
static void close_device(void *d) { (void)d; say("close"); }
static const weft_backend table = {.struct_size = sizeof table, .supports = supports, .create = create,
    .execute = execute, .destroy = destroy, .open = open_device, .close = close_device};
"""
    + C_ID.replace("acme", "loud")
    + C_VERSION
    + C_FACTORY
)
"""A backend that says when a device is opened and closed, and when a state is destroyed."""

PROLOGUE = """
import atexit, os, sys, threading
atexit.register(lambda: print("end", flush=True))  # before Weft, and so called after it
import numpy as np
import weft
from tests.helpers.nets import Net

x = np.ones((2, 3), np.float32)
net = Net()
graph = net.finish(net.add("Relu", net.input("x", 2, 3), name="y"))

def load(device="loud"):
    session = weft.load(graph, device, fallback="error")
    session.run(x)
    return session
"""
BUSY = """
from weft.core.contract.backend import BackendCreator
session, asked = load(), threading.Event()
class Slow(BackendCreator):
    id, onCreate = "slow", None
    def devices(self):
        asked.set()
        threading.Event().wait()
weft.registry.insert("slow", Slow())
"""
"""A session, and a backend that never says which devices it has."""

CASES = {
    "a session that is open": ("session = load()", "open destroy close end"),
    "two of them": ("a, b = load(), load()", "open destroy destroy close end"),
    "one that was closed": ("load().close()", "open destroy close end"),
    "one that nobody holds": ("load()", "open destroy close end"),
    "a run that was not waited for": ("session = load(); session.submit(x)", "open destroy close end"),
    "an exit": ("session = load(); sys.exit(3)", "open destroy close end"),
    "an error": ("session = load(); sys.stderr = open(os.devnull, 'w'); raise ValueError", "open destroy close end"),
    "a runtime": ("runtime = weft.Runtime(); runtime.load(weft.optimize(graph, 'loud'))", "open destroy close end"),
    "what was only optimised": ("weft.optimize(graph, 'loud')", "open close end"),
    "a use at the end": (
        "session = load(); atexit.register(lambda: print('ran', len(session.run(x)), flush=True))",
        "open ran 1 destroy close end",
    ),
    "a thread that runs for ever": (
        """
session, ran = load(), threading.Event()
def loop():
    while True:
        session.run(x)
        ran.set()
threading.Thread(target=loop, daemon=True).start()
ran.wait()
""",
        "open destroy close end",
    ),
    "a thread that has nothing to do with it": (
        "session = load(); threading.Thread(target=threading.Event().wait, daemon=True).start()",
        "open destroy close end",
    ),
    "a thread that is busy in Weft": (
        BUSY + "threading.Thread(target=weft.devices, daemon=True).start(); asked.wait()",
        "open destroy end",
    ),
    "a thread of Weft's own that is busy": (
        BUSY + "threading.Thread(target=weft.devices, daemon=True, name='weft-devices').start(); asked.wait()",
        "open destroy close end",
    ),
    "a forked process that ends first": (
        """
session = load()
if os.fork() == 0:
    sys.exit()
os.wait()
session.run(x)
""",
        "open end destroy close end",
    ),
    "a forked process with a session of its own": (
        """
session = load("cpu")
if os.fork() == 0:
    other = load()
    sys.exit()
os.wait()
""",
        "open destroy close end end",
    ),
}
SERVER = """
for case in sys.argv[1:]:
    sys.stdout.flush()
    if os.fork() == 0:
        exec(case, globals())
        sys.exit()
    os.wait()
    print("--", flush=True)
os._exit(0)
"""
"""Each case in a process of its own, forked when Weft is imported and nothing is open."""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return what each case says."""
    folder = tmp_path_factory.mktemp("loud")
    write(folder / "acme_loud_backend.so", LOUD)
    scripts = [script for script, _ in CASES.values()]
    done = run(PROLOGUE + SERVER, *scripts, backends=folder)
    return dict(zip(CASES, (" ".join(case.split()) for case in done.split("--")), strict=False))


def run(script: str, *arguments: str, backends: Path | None = None) -> str:
    """Return what a process prints to its end."""
    env = {**os.environ, **({"WEFT_DYNAMIC_BACKEND_PATHS": str(backends)} if backends else {})}
    command = [sys.executable, "-W", "ignore", "-c", script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=env, check=False)
    assert not done.stderr, done.stderr
    return done.stdout


@needs_compiler
@pytest.mark.parametrize("case", CASES)
def test_a_C_backend_hears_of_the_end_once(case: str, said: dict[str, str]) -> None:
    assert said[case] == CASES[case][1]


def test_a_buffer_may_be_closed_after_the_end() -> None:
    script = "import atexit\natexit.register(lambda: print(buffer.close(), buffer.is_closed))\n"
    assert run(script + "import weft\nbuffer = weft.array([1, 2], device='cpu')") == "None True\n"


GPU = (
    """
import atexit
def closed():
    try:
        device.allocate(64)
    except weft.WeftError as e:
        print(type(e).__name__)
atexit.register(closed)  # before Weft, and so called after it
"""
    + PROLOGUE
    + """
session = load(sys.argv[1])
device = weft.registry.find(sys.argv[1]).runtime(0).device
session.submit(x)
"""
)


ENDS = {
    "a thread that has nothing to do with it": (
        "threading.Thread(target=threading.Event().wait, daemon=True).start()",
        "end ClosedError",
    ),
    "a thread that is busy in Weft": (
        BUSY.replace("session, asked = load(),", "asked =")
        + "threading.Thread(target=weft.devices, daemon=True).start(); asked.wait()",
        "end open",
    ),
}


@pytest.mark.parametrize("case", ENDS)
@pytest.mark.parametrize("how", ["weft.registry.find('vulkan').runtime(0).device", "open_device(0, GlslDialect())"])
def test_one_rule_says_whether_a_device_is_closed_at_the_end(how: str, case: str) -> None:
    """Also of one that no registry knows."""
    script, wanted = ENDS[case]
    opens = f"""
from weft.backends.vulkan.device import open_device
from weft.backends.vulkan.dialect import GlslDialect
device = {how}
"""
    asks = GPU[: GPU.index(PROLOGUE)].replace("device.allocate(64)", "print('open' if device.allocate(64) else '')")
    assert run(asks + PROLOGUE + opens + script).split() == wanted.split()


@pytest.mark.parametrize("api", ["opencl", "vulkan"])
def test_the_devices_of_gpus_are_closed_at_the_end(api: str) -> None:
    assert run(GPU, api) == "end\nClosedError\n"
