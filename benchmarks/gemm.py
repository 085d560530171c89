"""Matrix products of fp16 (precision "low"): Weft's MatMul on each API against cuBLAS, interleaved in one process.

The time is that of the GPU per launch, as a difference: a chain of products, each reading the one before it, runs
with many and with one of them, and the difference of the medians (host array to host array) is divided by the launches
between. What both runs have in common cancels out: submitting, waiting, and transfers, of n x 8 numbers only.
Gaps and barriers between launches count. If a product takes less time than an OpenCL enqueue, the chain starts
behind a product that is large enough to keep the host ahead of the device until the end.

The right operand is a weight: Weft may store it as it likes, as in any network; the left one is what the launch
before has written. cuBLAS runs the same chain, with the same numbers, as a CUDA graph between two CUDA events.
The last outputs that were timed, of both chains, are compared with what is right; the error is the larger.
Rounds go over all contenders in turn, because the GPU's clock follows its power, and so what ran just before.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import weft
from benchmarks import cores
from benchmarks.measure import Array, Counts, Record, relative_error

SIZES = (1024, 2048, 4096)
THIN = 8
"""The width of the chain's input and output."""
AHEAD = 32768
"""The width of the product that small chains start behind."""
SMALL = 1024
"""The largest size that needs it."""
LAUNCHES = 32
CUBLAS = "cublas"


@dataclass(frozen=True)
class Chain:
    """The numbers of a chain: the input, the weights up to the first full matrix, the repeated weight, the last."""

    size: int
    x: Array
    first: tuple[Array, ...]
    weight: Array
    last: Array

    @classmethod
    def random(cls, size: int, ahead: int) -> Chain:
        """Return weights that keep the deviation at one; `ahead` is the width of the product to start behind."""
        rng = np.random.default_rng(size)

        def normal(rows: int, columns: int) -> Array:
            return rng.standard_normal((rows, columns), np.float32) * np.float32(rows**-0.5)

        first = (normal(THIN, ahead), normal(ahead, size)) if ahead else (normal(THIN, size),)
        x = rng.standard_normal((size, THIN), np.float32)
        return cls(size, x, first, normal(size, size), normal(size, THIN))

    def weights(self, launches: int) -> list[tuple[str, Array]]:
        """Return the right operands of all products in order, by name."""
        first = [(f"first{i}", w) for i, w in enumerate(self.first)]
        return [*first, *[("weight", self.weight)] * launches, ("last", self.last)]

    def model(self, launches: int) -> onnx.ModelProto:
        """Return the chain as a network."""
        pairs = self.weights(launches)
        names = ["x", *(f"v{i}" for i in range(len(pairs) - 1)), "y"]
        nodes = [
            helper.make_node("MatMul", [names[i], name], [names[i + 1]], name=f"product{i}")
            for i, (name, _) in enumerate(pairs)
        ]
        values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, (self.size, THIN)) for n in ("x", "y")]
        held = [numpy_helper.from_array(w, name) for name, w in dict(pairs).items()]
        graph = helper.make_graph(nodes, f"chain of {launches}", values[:1], values[1:], initializer=held)
        opsets = [helper.make_opsetid("", 17)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=helper.find_min_ir_version_for(opsets))

    def result(self, launches: int) -> Array:
        """Return the right output, computed from the back, where the matrices are thin."""
        value: Array = np.eye(THIN)
        for _, weight in reversed(self.weights(launches)):
            value = weight.astype(np.float64) @ value
        return self.x.astype(np.float64) @ value

    def results(self, launches: int) -> tuple[Array, Array]:
        """Return the right outputs for chains of one product and of `launches` more."""
        return self.result(1), self.result(1 + launches)


@dataclass
class Contender:
    """Who takes part in the rounds; `sample` adds times in ms of chains of one and of `launches` more products."""

    who: str
    launches: int
    short: list[float] = field(default_factory=list)
    long: list[float] = field(default_factory=list)

    def sample(self, runs: int) -> None:
        """Take the times of some runs."""
        raise NotImplementedError

    def outputs(self) -> list[Array]:
        """Return what the last runs of both chains gave."""
        raise NotImplementedError

    def per_launch(self) -> float:
        """Return the milliseconds of one launch."""
        return float(np.median(self.long) - np.median(self.short)) / self.launches


class WeftChain(Contender):
    """Weft on one device."""

    def __init__(self, device: str, chain: Chain, launches: int, held: ExitStack) -> None:
        self._x = chain.x
        self._sessions = [
            held.enter_context(weft.load(chain.model(n), device, precision="low", fallback="error", wait="all"))
            for n in (1, 1 + launches)
        ]
        self._outputs: list[Array] = []
        self._sessions[1].run(self._x)
        super().__init__(f"weft {device.split(':')[0]}", launches)

    def sample(self, runs: int) -> None:
        """Take the times of some runs of both networks."""
        self._outputs = []
        for session, times in zip(self._sessions, (self.short, self.long), strict=True):
            last = session.run(self._x)
            for _ in range(runs):
                start = time.perf_counter()
                last = []  # first, so that the memory of one output serves the next
                last = session.run(self._x)
                times.append((time.perf_counter() - start) * 1e3)
            self._outputs += last

    def outputs(self) -> list[Array]:
        """Return what the last runs of both networks gave."""
        return self._outputs


class CublasChain(Contender):
    """PyTorch's matmul in CUDA graphs."""

    def __init__(self, chain: Chain, launches: int) -> None:
        import torch

        self._x = torch.from_numpy(chain.x).cuda().half()
        self._weights = {n: torch.from_numpy(w).cuda().half() for n, w in chain.weights(1)}
        self._names = [[n for n, _ in chain.weights(count)] for count in (1, 1 + launches)]
        captured = [self._captured(names) for names in self._names]
        self._graphs, self._ys = [graph for graph, _ in captured], [y for _, y in captured]
        self._graphs[1].replay()
        super().__init__(CUBLAS, launches)

    def _captured(self, names: Sequence[str]) -> tuple[Any, Any]:
        """Return the graph of a chain and the tensor of its output."""
        import torch

        with torch.inference_mode():
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                self._compute(names)
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                y = self._compute(names)
        return graph, y

    def _compute(self, names: Sequence[str]) -> Any:
        y = self._x
        for name in names:
            y = y @ self._weights[name]
        return y

    def sample(self, runs: int) -> None:
        """Take the times of some replays of both graphs."""
        import torch

        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        for graph, times in zip(self._graphs, (self.short, self.long), strict=True):
            graph.replay()
            for _ in range(runs):
                begin.record()
                graph.replay()
                end.record()
                end.synchronize()
                times.append(begin.elapsed_time(end))

    def outputs(self) -> list[Array]:
        """Return what the last replays of both graphs left."""
        return [y.float().cpu().numpy() for y in self._ys]


def measure(size: int, devices: Sequence[str], cublas: bool, counts: Counts, record: Record) -> None:
    """Add the figures of one size, for each device and for cuBLAS."""
    launches = 4 if counts.trial else LAUNCHES
    chain = Chain.random(size, AHEAD if size <= SMALL and not counts.trial else 0)
    with ExitStack() as held:
        contenders: list[Contender] = []

        def join(device: str) -> None:
            contenders.append(WeftChain(device, chain, launches, held))

        for device in devices:
            record.attempt(f"gemm {size} {device}", lambda d=device: join(d))  # type: ignore[misc]
        if cublas:
            record.attempt(f"gemm {size} cublas", lambda: contenders.append(CublasChain(chain, launches)))
        for _ in range(2 if counts.trial else 9):
            for contender in contenders:
                # Only short launches wait for the host; between long ones the GPU must stay at its power limit.
                with cores.quickest() if size <= SMALL else nullcontext():
                    contender.sample(2 if counts.trial else 5)
        right = chain.results(launches)
        for contender in contenders:
            _add(contender, size, relative_error(contender.outputs(), right), record)


def _add(contender: Contender, size: int, error: float, record: Record) -> None:
    ms = contender.per_launch()
    rate = 2 * size**3 / ms / 1e9 if ms > 0 else None
    spread = float(np.percentile(contender.long, 90) - np.median(contender.long)) / contender.launches
    found = {"size": size, "who": contender.who, "precision": "fp16", "us": ms * 1e3, "tflops": rate}
    record.add_gemm(found | {"p90_more_us": spread * 1e3, "error": error, "launches": contender.launches})
