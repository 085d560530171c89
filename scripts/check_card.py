"""Check on a GPU what no test without one can: names of cards, variables that hide them, chains, submissions.

    python -m scripts.check_card

It prints what it finds, a line a check, and exits with 1 if something is wrong. It needs minutes at most. Run it after
a change of how devices are named or hidden, of chains, or of submissions, on machines with one card and with several.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np

import weft
from benchmarks.models import MODELS
from weft.backends.gpu.creator import GpuCreator
from weft.core.contract.backend_options import Options
from weft.core.registry.backend_registry import registry
from weft.errors import WeftError

APIS = ("opencl", "vulkan")
VARIABLE = "CUDA_VISIBLE_DEVICES"
MANY = 1 << 16
"""More work-groups than any GPU runs at once."""
LISTED = """
import json, weft
facts = {"hidden": weft.registry.hidden(), "absent": weft.registry.absent()}
facts["cards"] = {api: [d.uuid for d in weft.devices() if d.id == api and not d.software] for api in %r}
print(json.dumps(facts))
"""
Found = Iterator[tuple[bool, str]]
"""Whether something is as it should be, and what was found."""


def cards(api: str) -> list[weft.DeviceInfo]:
    """Return the hardware devices of an API."""
    return [d for d in weft.devices() if d.id == api and not d.software]


def names() -> Found:
    """List the cards; the APIs must call them alike, and as nvidia-smi does."""
    for api in APIS:
        for info in cards(api):
            yield bool(info.uuid and info.pci), f"{api}:{info.index} {info.name} {info.uuid} {info.pci}"
            for name in (info.uuid, info.uuid[:12], info.pci, info.pci.partition(":")[2]):
                chosen = registry.choose(f"{api}:{name}")[0].device
                yield chosen == f"{api}:{info.index}", f"{api}:{name} means {chosen}"
    uuids = [{d.uuid for d in cards(api)} for api in APIS]
    yield uuids[0] == uuids[1], f"both APIs list the same cards: {uuids}"
    if shutil.which("nvidia-smi"):
        told = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False).stdout
        yield all(uuid in told for uuid in uuids[1]), f"nvidia-smi says {told.strip()}"


def variables() -> Found:
    """Hide cards by the variable: both APIs must show the same ones, in the same order."""
    uuids = [d.uuid for d in sorted(cards("vulkan"), key=lambda d: d.pci)]
    if not uuids:
        return
    last = len(uuids) - 1
    wanted = {
        "": [], "-1": [], "0": uuids[:1], f"{last}": uuids[last:], "0,99": uuids[:1], "99": [],
        uuids[0][:12]: uuids[:1], f"{uuids[-1]},{uuids[0]}": list(dict.fromkeys((uuids[-1], uuids[0]))),
    }
    for value, shown in wanted.items():
        environment = {**os.environ, VARIABLE: value, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        done = subprocess.run(
            [sys.executable, "-c", LISTED % (APIS,)], env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            yield False, f"{VARIABLE}={value!r}: {done.stderr[-500:]}"
            continue
        facts = json.loads(done.stdout.splitlines()[-1])
        for api in APIS:
            told = f"{VARIABLE}={value!r}: {api} shows {facts['cards'][api]}; {facts['hidden'].get(api)}"
            yield facts["cards"][api] == shown, told


def network(name: str) -> tuple[Any, dict[str, np.ndarray[Any, Any]]]:
    """Return a network of the benchmarks for one image, and an image."""
    model = MODELS[name](1)
    with weft.load(model, "cpu") as session:
        (key, shape), = session.inputs.items()
    return model, {key: np.random.default_rng(0).random(tuple(map(int, shape)), np.float32)}


def timed(session: weft.Session, given: dict[str, np.ndarray[Any, Any]]) -> float:
    """Return the median milliseconds of a run."""
    taken = []
    for _ in range(60):
        since = time.perf_counter()
        session.run(given)
        taken.append((time.perf_counter() - since) * 1e3)
    return median(taken[10:])


def submissions(api: str) -> Found:
    """Divide runs: the numbers must not change, and a run of small submissions shows what one costs."""
    model, given = network("mobilenet_v2")
    first, took = None, list[str]()
    for seconds in (0.0, -1.0, 2e-5, 1e-9):
        options = {api: {"submit_seconds": seconds}}
        with weft.load(model, api, fallback="error", wait="all", backend_options=options) as session:
            got = session.run(given)[0]
            first = got if first is None else first
            ms = timed(session, given)
            count = session.report.statistics[api]["submissions"]
            took.append(f"submit_seconds={seconds:g}: {count} submissions, {ms:.3f} ms")
            yield np.array_equal(session.run(given)[0], first), f"{api}: {took[-1]}"


def chains(api: str) -> Found:
    """Run with chains and without, and force a chain to give up: an error, and then the right numbers."""
    model, given = network("mobilenet_v2")
    results = []
    for on in (True, False):
        with weft.load(model, api, fallback="error", wait="all", backend_options={api: {"chains": on}}) as session:
            results.append(session.run(given)[0])
            levels = sum(bool(launch.levels) for _, launch in session.report.launches)
            yield True, f"{api}: chains={on}: {levels} chains, {timed(session, given):.3f} ms; {session.report.notes}"
    apart = float(np.abs(results[0] - results[1]).max() / np.abs(results[0]).max())
    yield apart < 1e-3, f"{api}: the same with chains and without"
    creator = registry.find(api)
    assert isinstance(creator, GpuCreator)
    options = Options({"kernels_kept": 255})  # a device of its own, which is said to run too many groups at once
    with creator.held(0, options) as runtime:
        if not runtime.device.caps.resident_groups:
            yield True, f"{api}: no chains here"
            return
        runtime.trust()
        runtime.device.caps = replace(runtime.device.caps, resident_groups=MANY, compute_units=MANY)
        net = weft.Network("wide")
        pool: dict[str, Any] = {"kernel_shape": (3, 3), "strides": (1, 1), "pads": (1, 1, 1, 1)}
        first = net.add_layer("MaxPool", net.add_input("x", (1, 64, 512, 512)), **pool)
        net.add_output("y", net.add_layer("MaxPool", net.add_layer("MaxPool", first, **pool), **pool))
        image = np.random.default_rng(0).random((1, 64, 512, 512), np.float32)
        with weft.load(net, "cpu") as session:
            want = session.run(image)[0]
        with weft.load(net, api, fallback="error", wait="all", backend_options={api: {"kernels_kept": 255}}) as session:
            grids = [launch.grid for _, launch in session.report.launches if launch.levels]
            since = time.perf_counter()
            try:
                session.run(image)
                yield False, f"{api}: a chain of {grids} groups was expected to give up"
            except WeftError as e:
                told = f"{api}: {grids}: after {time.perf_counter() - since:.2f} s: {e}"
                yield "run has no results" in str(e), told
            yield np.array_equal(session.run(image)[0], want), f"{api}: the next run is right"


def main() -> int:
    """Run all checks, and return the exit status."""
    checks = [names(), variables()]
    for api in APIS:
        if cards(api):
            checks += [submissions(api), chains(api)]
    wrong = 0
    for check in checks:
        try:
            for right, told in check:
                wrong += not right
                sys.stdout.write(f"{'ok   ' if right else 'WRONG'} {told}\n")
                sys.stdout.flush()
        except Exception as e:
            wrong += 1
            sys.stdout.write(f"WRONG {type(e).__name__}: {e}\n")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
