"""PyTorch's side of the measurement: cuDNN and cuBLAS, eager, as a CUDA graph, and compiled in a CUDA graph.

Host to host: a numpy array is copied into pinned memory, from there to the device; the result comes back to pinned
memory, where the caller reads it until the next run. `pinned_ms` is the same without the first copy, as if the caller's
array lay in pinned memory: in fp16, if the network computes in fp16, as are Weft's own arrays. Otherwise the cast to
fp16 is part of the network (and of its graph), and so is the change of layout, as they are in Weft's. In graphs batch
norms are folded into convolutions, as Weft does it; eager networks are torchvision's, layer for layer. Device: CUDA
events around five replays queued behind each other, a fifth of it; transfers do not count. TF32 is off but for the
rows that say tf32. "compile" is `torch.compile` with `freezing`, whose kernels (Inductor's, by Triton) are captured in
a graph. A graph is captured twice, with cuDNN's search for the fastest algorithms (`cudnn.benchmark`) and with its
rules of thumb, and a row is of the one that takes less time on the device: each was the slower one of some networks by
a quarter. That is done when a row is taken, since others may use the GPU before.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from benchmarks.measure import Array, Counts, PlannedRow, Row, Workload, middle, timed, timed_result

REPLAYS = 5
PLANS = (
    ("graph", "fp32"),
    ("graph", "fp16"),
    ("graph", "tf32"),
    ("compile", "fp32"),
    ("compile", "fp16"),
    ("eager", "fp32"),
    ("eager", "fp16"),
)
WAYS = tuple(dict.fromkeys(way for way, _ in PLANS))
ONE_VARIANT = ("eager", "compile")
"""Ways that are timed in the first variant alone: eager is no bar, and the compiler chooses the layout itself."""


def wake(seconds: float = 0.3) -> None:
    """Multiply matrices for a while, to raise the GPU's clock."""
    import torch

    a = torch.randn(4096, 4096, device="cuda", dtype=torch.float16)
    stop = time.perf_counter() + seconds
    while time.perf_counter() < stop:
        for _ in range(10):
            _ = a @ a
        torch.cuda.synchronize()


def facts() -> str:
    """Return the versions and the device; an error if PyTorch has no CUDA device."""
    import torch

    if not torch.cuda.is_available():
        raise RuntimeError(f"PyTorch {torch.__version__} finds no CUDA device")
    name, cudnn = torch.cuda.get_device_name(), torch.backends.cudnn.version()
    return f"{torch.__version__}, CUDA {torch.version.cuda}, cuDNN {cudnn}, {name}"


def is_there() -> bool:
    """Tell whether PyTorch is installed and has a CUDA device."""
    try:
        return bool(facts())
    except (ImportError, RuntimeError):
        return False


def rows(case: Workload, ways: Sequence[str], precisions: Collection[str], counts: Counts) -> Iterator[PlannedRow]:
    """Return the rows of one network: the ways of running, their variants, and those of the precisions."""
    variants = torch_side(case).variants
    for way, precision in PLANS:
        if way in ways and precision in precisions:
            for variant in variants[:1] if way in ONE_VARIANT else variants:
                found = Row(case.network, case.batch, f"torch {way} {variant}", precision)
                what = f"{case.network} x{case.batch} {found.who} {precision}"
                yield PlannedRow(what, partial(_prepared, case, found, way, variant, counts))


def torch_side(case: Workload, fold: bool = False) -> Any:
    """Return a network as PyTorch runs it; with `fold`, without batch norms of their own."""
    from benchmarks.torch_encoder import TorchEncoder
    from benchmarks.torch_networks import TorchModule, TorchNetwork, folded

    if case.module is not None:
        return TorchModule(case.module, fold, pictures=any(a.ndim in (4, 5) for a in case.inputs.values()))
    model = case.model
    if model.graph.input[0].name == "input_ids":
        return TorchEncoder(model)
    return TorchNetwork(folded(model) if fold else model)


def _prepared(case: Workload, row: Row, way: str, variant: str, counts: Counts) -> Callable[[], Row]:
    """Move a network to the device and compile it; return what captures, checks and times it."""
    import torch

    threads = torch.get_num_threads()  # a compiled network is compiled anew where this number is another
    dtype = torch.float16 if row.precision == "fp16" else torch.float32
    compiled = way == "compile"
    make = partial(_Side, case, dtype, variant, fold=way != "eager", compiled=compiled)
    side = make()
    kept = make(edges=dtype) if dtype is torch.float16 else side
    sides = list(dict.fromkeys((side, kept)))
    # The compiler folds constants without gradients, and not in inference mode.
    mode = torch.no_grad if compiled else torch.inference_mode

    def compute() -> None:
        torch.set_num_threads(threads)
        with mode():
            for each in sides:
                each.compute()

    if compiled:
        _set_precision(row.precision, search=False)
        _in_thread(compute)
        torch.cuda.empty_cache()

    def captured(search: bool) -> list[Callable[[], None]]:
        _set_precision(row.precision, search)
        with mode(), _threads(threads):
            return [each.captured() for each in sides]

    def take() -> Row:
        _set_precision(row.precision, search=way == "eager")
        with mode():
            if way == "graph":
                try:
                    row.more["gflop"] = side.flops() / 1e9
                except Exception as e:  # the times do not depend on PyTorch's count of operations
                    row.note = f"operations are not counted: {e}"
            starts: list[Callable[[], None]] = [each.compute for each in sides]
            if way != "eager":
                row.more["search"], starts = _faster(captured, counts)
            row.compare(side.run(starts[0]), case)
            _host_times(row, lambda: side.run(starts[0]), case, counts)
            row.device_ms, row.device_p90_ms = middle(list(_device_times(starts[0], counts)))
            row.compare(kept.run(starts[-1]), case)
            row.more["pinned_ms"], _ = timed(lambda: kept.run(starts[-1], pinned=True), replace(counts, wake=None))
        return row

    return take


def _faster(
    captured: Callable[[bool], list[Callable[[], None]]], counts: Counts
) -> tuple[bool, list[Callable[[], None]]]:
    """Capture graphs with cuDNN's search and without; return which are faster on the device by the first, and these."""
    graphs = {search: _in_thread(captured, search) for search in (True, False)}
    taken = {search: middle(list(_device_times(starts[0], counts)))[0] for search, starts in graphs.items()}
    best = min(taken, key=lambda search: taken[search])
    return best, graphs[best]


def _in_thread(make: Callable[..., Any], *arguments: object) -> Any:
    """Call a function in a thread of its own: cuDNN remembers by thread what it took, with a search or without."""
    with ThreadPoolExecutor(1) as other:
        return other.submit(make, *arguments).result()


def _host_times(row: Row, run: Callable[[], list[Array]], case: Workload, counts: Counts) -> None:
    """Time runs with one thread, at batch 1 on the fastest core, and with all threads; the faster counts.

    OpenMP's threads wait for each other without sleeping. Where the caller keeps to one core, a thread woken there
    to copy its part of an input waits for the end of the caller's time slice, which made a run of 0.4 ms one of 8. On
    a host with 64 cores, runs with all threads at batch 16 took 6.0 ms, whatever the network.
    """
    with _threads(1):
        row.compare(row.time(run, counts), case)
    taken = timed_result(run, replace(counts, one_core=False, wake=None))
    row.compare(taken.last, case)
    if row.host_ms is not None and taken.median < row.host_ms:
        row.host_ms, row.host_p90_ms = taken.median, taken.p90


@contextmanager
def _threads(number: int) -> Iterator[None]:
    """Let PyTorch use this many threads meanwhile."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _set_precision(precision: str, search: bool = True) -> None:
    import torch

    torch.backends.cudnn.benchmark = search
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # these switches have newer names, which older versions lack
        torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
        torch.backends.cudnn.allow_tf32 = precision == "tf32"


def _device_times(start: Callable[[], object], counts: Counts) -> Iterator[float]:
    import torch

    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for _ in range(max(3, counts.iterations // REPLAYS)):
        begin.record()
        for _ in range(REPLAYS):
            start()
        end.record()
        end.synchronize()
        yield begin.elapsed_time(end) / REPLAYS


class _Side:
    """A network on the device with its inputs and outputs, there and in pinned memory."""

    def __init__(
        self, case: Workload, dtype: Any, variant: str, fold: bool, compiled: bool = False, edges: Any = None
    ) -> None:
        import torch

        edges = edges or torch.float32
        self._counted = self._network = torch_side(case, fold).to("cuda", dtype, variant, edges)
        if compiled:
            self._network = torch.compile(self._network, options={"freezing": True})
        self._arrays = list(case.inputs.values())
        tensors = map(torch.from_numpy, self._arrays)
        self._pinned = [(t.to(edges) if t.is_floating_point() else t).pin_memory() for t in tensors]
        self._inputs = [t.cuda() for t in self._pinned]
        self._results = [torch.empty(o.shape, dtype=edges).pin_memory() for o in case.outputs]
        self._outputs: list[Any] = []

    def compute(self) -> None:
        """Start the network on the inputs that are on the device."""
        self._outputs = self._network(*self._inputs)

    def captured(self) -> Callable[[], None]:
        """Return what starts the network as a CUDA graph, whose outputs are then the side's."""
        import torch

        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self.compute()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.compute()
        outputs = self._outputs

        def replay() -> None:
            graph.replay()
            self._outputs = outputs

        return replay

    def run(self, start: Callable[[], None], pinned: bool = False) -> list[Array]:
        """Return the outputs for the arrays of the case, in pinned memory that the next run overwrites."""
        import torch

        for array, host, device in zip(self._arrays, self._pinned, self._inputs, strict=True):
            if not pinned:
                host.copy_(torch.from_numpy(array))
            device.copy_(host, non_blocking=True)
        start()
        for host, device in zip(self._results, self._outputs, strict=True):
            host.copy_(device, non_blocking=True)
        torch.cuda.synchronize()
        return [r.numpy() for r in self._results]

    def flops(self) -> float:
        """Count the operations as PyTorch does."""
        from torch.utils.flop_counter import FlopCounterMode

        with FlopCounterMode(display=False) as counter:
            self._counted(*self._inputs)
        return float(counter.get_total_flops())
