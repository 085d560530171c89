"""What a run costs the host: microseconds of the calling thread, in trees that take turns.

    python -m benchmarks.host_time [--trees .,../older] [--devices cpu,opencl,vulkan,acme] [--rounds 40]

Kernels are left out: recordings launch none, so that the time is that of Weft, numpy and the driver. It is the
processor time of the thread: the median of rounds in which each case of each tree has its turn, since a process may be
slow for some seconds, and the median of the quotients of these rounds. `calls` counts calls of Python and C functions,
which is the same at each time. `acme` is examples/numpy_backend.py, a plug-in: its nodes run, on arrays of a few
numbers, as do those of the CPU.

`few` is a network of three nodes, `many` SqueezeNet (on the CPU and on acme 20 nodes). The ways to run it: with numpy's
arrays, with arrays for the outputs, with the session's own, with buffers, and by `submit` and `wait`.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

DEVICES = ("cpu", "opencl", "vulkan", "acme")
RUNS = 40
"""Runs of a sample."""
WARM = 1
"""Rounds that are not counted."""
PICTURE = 64
Case = tuple[str, str, str]
"""A device, a network, and a way to run it."""


# -- in a process of one tree ------------------------------------------------------------------------------


def chain(weft: Any, nodes: int) -> Any:
    """Return a network of nodes that nothing fuses, each of which all devices take."""
    net = weft.Network("chain")
    x = net.add_input("x", (1, 4, 2, 2))
    weights = np.random.default_rng(0).standard_normal((4, 4, 1, 1)).astype(np.float32) / 4
    for _ in range(nodes):
        x = net.add_layer("Conv", x, weights)
    net.add_output("y", x)
    return net


def without_kernels(sessions: Sequence[Any]) -> None:
    """Have the runs of sessions launch nothing from now on; while they are loaded, kernels are tested."""
    from weft.backends.opencl.native import NativeCalls
    from weft.backends.vulkan.ptx_kernels import PtxKernels
    from weft.backends.vulkan.recording import Recording

    owners: Sequence[Any] = NativeCalls, Recording, PtxKernels
    owners[0].launch = lambda *_: partial(int)
    owners[1]._launch = owners[2].record = lambda *_: None
    for session in sessions:
        for pipeline in session.pipelines:
            if hasattr(pipeline.backend, "recording"):
                pipeline.backend.recording._replays.clear()  # the next run records its commands anew


def ways(session: Any, weft: Any) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield the ways to run a network."""
    x = np.zeros(next(iter(session.inputs.values())), np.float32)
    yield "arrays", lambda: session.run(x)
    (y,) = (result.copy() for result in session.run(x))
    yield "into", lambda: session.run(x, outputs=[y])
    given, into = session.input_arrays(), session.output_arrays()
    yield "session's", lambda: session.run(given, outputs=into)
    yield "submit", lambda: (session.submit(x), session.wait())
    if hasattr(session, "buffer"):  # older trees have none
        (name,), (output,) = session.inputs, session.outputs
        buffer, made = session.buffer(name, x), [session.buffer(output)]
        yield "buffers", lambda: session.run(buffer, outputs=made)
        yield "new buffer", lambda: session.run(buffer, outputs=weft.Buffer)


def sessions(devices: Sequence[str]) -> Iterator[tuple[str, str, Any]]:
    """Yield the device, the name of the network, and the session."""
    import weft
    from benchmarks.models import squeezenet1_1

    if "acme" in devices:
        from examples.numpy_backend import AcmeCreator

        weft.insertExtraBackendCreator(weft.ForwardType.USER_0, AcmeCreator())
    for device in devices:
        on_host = device in ("cpu", "acme")
        many = chain(weft, 20) if on_host else squeezenet1_1(1, image=PICTURE)
        for network, model in (("few", chain(weft, 3)), ("many", many)):
            yield device, network, weft.load(model, device, fallback="error", wait="all")


def calls(run: Callable[[], object]) -> int:
    """Return how many functions a run calls."""
    made = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal made
        made += event in ("call", "c_call")

    gc.disable()
    sys.setprofile(count)
    try:
        run()
    finally:
        sys.setprofile(None)
        gc.enable()
    return made


def sampled(run: Callable[[], object]) -> float:
    """Return the microseconds of the thread for a run."""
    begun = time.thread_time()
    for _ in range(RUNS):
        run()
    return (time.thread_time() - begun) / RUNS * 1e6


def serve(devices: Sequence[str]) -> None:
    """Answer each line of the input by a sample of all cases; the first answer is the calls."""
    import weft

    cases: dict[Case, Callable[[], object]] = {}
    loaded = list(sessions(devices))
    without_kernels([session for _, _, session in loaded])
    for device, network, session in loaded:
        cases |= {(device, network, way): run for way, run in ways(session, weft)}
    for run in cases.values():
        for _ in range(3):
            run()
    print(json.dumps([[*case, calls(run)] for case, run in cases.items()]), flush=True)
    for line in sys.stdin:
        asked = tuple(json.loads(line))
        print(json.dumps(sampled(cases[asked])), flush=True)
    os._exit(0)


# -- in the process that asks ------------------------------------------------------------------------------


class Tree:
    """A process that runs the `weft` of a tree."""

    def __init__(self, path: str, devices: Sequence[str]) -> None:
        self.path = path
        environment = os.environ | {"PYTHONPATH": str(Path(path).resolve())}
        command = [sys.executable, str(Path(__file__).resolve()), "--serve", "--devices", ",".join(devices)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.calls: Mapping[Case, int] = {tuple(case): count for *case, count in self._answer()}

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def sample(self, case: Case) -> float:
        """Return the microseconds of a run."""
        assert self._process.stdin is not None
        print(json.dumps(case), file=self._process.stdin, flush=True)
        return float(self._answer())


def _round(trees: Sequence[Tree], case: Case, number: int) -> list[float]:
    """Return a sample of each tree; another one is first in each round."""
    found = {k % len(trees): trees[k % len(trees)].sample(case) for k in range(number, number + len(trees))}
    return [found[k] for k in range(len(trees))]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--trees", default=".", help="folders with a weft each, with commas between them")
    parser.add_argument("--devices", default=",".join(DEVICES), help="with commas between them")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    devices = given.devices.split(",")
    if given.serve:
        serve(devices)
        return
    trees = [Tree(path, devices) for path in given.trees.split(",")]
    first, *others = trees
    print("| device | network | way | " + " | ".join(f"us, {t.path} | calls" for t in trees) + " | quotients |")
    print("|---|---|---|" + "---|" * (2 * len(trees) + 1))
    cases = [case for case in first.calls if all(case in tree.calls for tree in trees)]
    rounds = [[_round(trees, case, k) for case in cases] for k in range(-WARM, given.rounds)][WARM:]
    for case, taken in zip(cases, zip(*rounds, strict=True), strict=True):
        cells = [f"{us:.1f} | {tree.calls[case]}" for us, tree in zip(np.median(taken, 0), trees, strict=True)]
        quotients = [f"{np.median([r[0] / r[k] for r in taken]):.3f}" for k in range(1, len(others) + 1)]
        print("| " + " | ".join([*case, *cells, ", ".join(quotients) or "-"]) + " |", flush=True)


if __name__ == "__main__":
    main()
