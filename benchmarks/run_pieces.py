"""The pieces of one run at batch 1 with arrays of 1 to 9 MB: filling the input, starting, waiting, fetching the output.

The networks have the inputs and outputs of a detector at 640 x 640, of a segmentation network at 320 x 320 and of a
classifier at 384 x 384, and next to no work between. Each row is one way to copy. They are sampled in turn, because
other tenants of a machine slow all of them for a while. First comes the copy alone, between the caller's memory and
each kind that a device has for the host, by number of threads.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np

import weft
from benchmarks import cores
from benchmarks.measure import Array
from weft.backends.gpu.creator import GpuCreator
from weft.backends.gpu.device.device import GpuDevice, MemoryKind
from weft.backends.gpu.recording import chunked_upload
from weft.core.host import parallel_copy
from weft.core.host.result_memory import PATIENCE

SHAPES = {
    "detector": ((1, 3, 640, 640), 4, 9),
    "segmentation": ((1, 3, 320, 320), 1, 7),
    "classifier": ((1, 3, 384, 384), 32, 2),
}
"""For each network, the input, the stride of the pool behind it, and how often its channels are in the output."""
UNARY = ("Relu", "Neg", "Abs", "Sigmoid", "Tanh", "Softplus", "Softsign", "Elu", "Selu")
COPIES = (1_228_800, 2_764_800, 4_915_200, 8_601_600)
"""Bytes of the inputs and outputs."""
CHUNK = 1 << 20
"""Bytes of a chunk, where inputs are sent in chunks while the host copies on."""
WARM = 10
"""Runs of each way that are not counted."""
ROUNDS = 4
"""How often each way has its turn."""
PIECES = ("fill", "start", "wait", "fetch", "run")


def network(name: str) -> weft.Network:
    """Return a network with the input and the output of one of SHAPES."""
    shape, stride, times = SHAPES[name]
    net = weft.Network(name)
    pooled = net.add_layer("MaxPool", net.add_input("x", shape), kernel_shape=[stride] * 2, strides=[stride] * 2)
    net.add_output("y", net.add_layer("Concat", *(net.add_layer(op, pooled) for op in UNARY[:times]), axis=1))
    return net


def opened(device: str) -> GpuDevice | None:
    """Return the open GPU of a name, or None for another device."""
    (choice,) = weft.registry.choose(device)
    return choice.creator.runtime(choice.index).device if isinstance(choice.creator, GpuCreator) else None


@contextmanager
def with_attributes(owner: Any, **values: object) -> Iterator[None]:
    """Set attributes for the block."""
    before = {name: getattr(owner, name) for name in values}
    for name, value in values.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)


class Way:
    """One way to run: a session of its own, and what holds while it runs."""

    def __init__(self, name: str, session: weft.Session, x: Array, threads: int, **more: Any) -> None:
        self.name, self._session, self._threads = name, session, threads
        self._given: Array | Mapping[str, Array] = x
        self._outputs = None
        self._one_core = more.get("one_core", False)
        if more.get("lent"):
            self._given, self._outputs = session.input_arrays(), session.output_arrays()
            np.copyto(self._given["x"], x, casting="same_kind")
        self._marks: dict[str, float] = {}
        self.times: dict[str, list[float]] = {piece: [] for piece in PIECES}
        (pipeline,) = session.pipelines
        for piece, method in (("fill", "fill"), ("start", "execute"), ("wait", "wait")):
            setattr(pipeline, method, self._marked(piece, getattr(pipeline, method)))

    def _marked(self, piece: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            begun = time.perf_counter()
            result = method(*arguments)
            now = time.perf_counter()
            self._marks[piece] = now - begun
            if piece == "wait":
                self._marks["waited"] = now
            return result

        return call

    def sample(self, seconds: float) -> None:
        """Run for some seconds, and note the microseconds of each piece."""
        parallel_copy.set_threads(self._threads)
        self._run(noted=False)  # starts the threads, which would stay on the caller's core
        with cores.quickest() if self._one_core else nullcontext():
            for _ in range(WARM):
                self._run(noted=False)
            stop, count = time.perf_counter() + seconds, 0
            while count < 2 or time.perf_counter() < stop:
                self._run(noted=True)
                count += 1

    def _run(self, *, noted: bool) -> None:
        begun = time.perf_counter()
        result = self._session.run(self._given, outputs=self._outputs)
        end = time.perf_counter()
        assert len(result) == 1
        if noted:
            marks = {**self._marks, "fetch": end - self._marks["waited"], "run": end - begun}
            for piece in PIECES:
                self.times[piece].append(marks[piece] * 1e6)

    def row(self) -> str:
        """Return the medians, and the 10th and 90th percentile of whole runs."""
        medians = "".join(f"{np.median(self.times[piece]):>8.0f}" for piece in PIECES)
        low, high = np.percentile(self.times["run"], [10, 90])
        return f"{self.name:<30}{medians}{low:>8.0f}{high:>8.0f}"


def ways(device: str, net: weft.Network, x: Array, precision: str) -> Iterator[Way]:
    """Yield each way to run on a device."""
    gpu = opened(device)

    def load() -> weft.Session:
        return weft.load(net, device, precision=precision, fallback="error", wait="all")

    usual = parallel_copy.default_threads()
    copies = with_attributes(gpu, adopt=lambda memory: None) if gpu is not None else nullcontext()
    with copies:
        yield Way("results copied", load(), x, usual)
        yield Way("results copied, 1 thread", load(), x, 1)
        yield Way("results copied, 2 threads", load(), x, 2)
    yield Way("results in reach", load(), x, usual)
    yield Way("results in reach, 2 threads", load(), x, 2)
    yield Way("results in reach, 6 threads", load(), x, 6)
    yield Way("results in reach, one core", load(), x, usual, one_core=True)
    if gpu is not None:
        if gpu.uploads_directly:
            with with_attributes(gpu, uploads_directly=False):
                yield Way("in reach, input staged", load(), x, usual)
        staged = with_attributes(gpu, sends_ahead=True, uploads_directly=False)
        with staged, with_attributes(chunked_upload, LEAST=CHUNK, CHUNK=CHUNK):
            yield Way("in reach, sent in chunks", load(), x, usual)
    yield Way("the session's arrays", load(), x, usual, lent=True)


def show_runs(device: str, name: str, precision: str, seconds: float) -> None:
    """Print the pieces of a run of one network, in microseconds, for each way."""
    x = np.random.default_rng(0).standard_normal(SHAPES[name][0]).astype(np.float32)
    with weft.load(network(name), device, precision=precision, fallback="error", wait="all") as session:
        (right,) = session.run(x)
    print(f"\n{device}, {name}, precision {precision}: {x.nbytes / 1e6:.1f} MB in, {right.nbytes / 1e6:.1f} MB out")
    print(f"{'us, medians':<30}" + "".join(f"{piece:>8}" for piece in PIECES) + f"{'p10':>8}{'p90':>8}", flush=True)
    found = list[Way]()
    for way in ways(device, network(name), x, precision):
        for _ in range(PATIENCE + 3):  # until result memory was offered to the device, while the way's settings hold
            (result,) = way._session.run(way._given, outputs=way._outputs)
        np.testing.assert_allclose(result, right, atol=1e-2)
        del result
        found.append(way)
    for _ in range(ROUNDS):
        for way in found:
            way.sample(seconds / ROUNDS)
    for way in found:
        print(way.row(), flush=True)
        way._session.close()
    parallel_copy.set_threads(parallel_copy.default_threads())


def show_copies(device: str, threads: Sequence[int], seconds: float) -> None:
    """Print the microseconds of copies between numpy's memory and that of a device, by number of threads."""
    gpu = opened(device)
    if gpu is None:
        return
    print(f"\n{device}: us of a copy, medians, by threads")
    print(" " * 28 + "".join(f"{count:>10}" for count in threads), flush=True)
    for kind in (MemoryKind.UPLOAD, MemoryKind.STREAM, MemoryKind.DOWNLOAD):
        for nbytes in COPIES:
            mine, buffer = np.zeros(nbytes, np.uint8), gpu.allocate(nbytes, kind)
            assert buffer.host is not None
            target, source = (mine, buffer.host) if kind is MemoryKind.DOWNLOAD else (buffer.host, mine)
            cells = []
            for count in threads:
                parallel_copy.set_threads(count)
                cells.append(f"{_median(target, source, seconds):>10.0f}")
            print(f"{kind.value:<10}{nbytes / 1e6:>8.1f} MB       " + "".join(cells), flush=True)
            del target, source
            gpu.free(buffer)
    parallel_copy.set_threads(parallel_copy.default_threads())


def _median(target: Array, source: Array, seconds: float) -> float:
    times = list[float]()
    stop = time.perf_counter() + seconds
    while len(times) < 4 or time.perf_counter() < stop:
        begun = time.perf_counter()
        parallel_copy.copy_into(target, source)
        times.append((time.perf_counter() - begun) * 1e6)
    return float(np.median(times[len(times) // 4 :]))  # the first ones start threads
