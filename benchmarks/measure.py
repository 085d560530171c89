"""What every side of a measurement shares: cases with their references, counts, rows, and the record of a run."""

from __future__ import annotations

import inspect
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar, cast

import numpy as np
import onnx
from numpy.typing import NDArray

from benchmarks import cores, models, table_networks

Array = NDArray[Any]
T = TypeVar("T")
FASTER = 0.98
"""A call faster by this share than all calls before means that the clock or the caches are still warming up."""
MOST_WARM = 5.0
"""Seconds of calls that are not counted, whatever they show."""
SAME = ("devices", "source", "python", "tuning")
"""Facts that a run which resumes another one must share with it."""
PRODUCTS = "products"
"""The name of the part of a run that measures `Record.gemm`."""


@dataclass(frozen=True)
class Counts:
    """How often things run: warm-up calls, timed calls, and the seconds after which timing ends.

    Warm-up ends when no call was faster than those before for `warm` seconds: the clock of an idle GPU rises in
    steps, for seconds, and threads, pinned memory and caches are cold.
    """

    warmup: int = 5
    iterations: int = 50
    seconds: float = 3.0
    warm: float = 0.4
    wake: Callable[[], None] | None = None
    """Loads the device before a row, because networks that take a fraction of a millisecond hardly raise its clock."""
    one_core: bool = False
    """Whether the calling thread moves to the fastest core; not for work on several cores."""

    @property
    def trial(self) -> bool:
        """Tell whether the figures mean nothing: so few calls only show that everything works."""
        return self.iterations <= 2

    def for_batch(self, batch: int) -> Counts:
        """Return half of the calls if a run takes many pictures, and one core if it takes one.

        Several threads copy large inputs, and a thread that is woken begins on the core of its caller.
        """
        if batch == 1:
            return replace(self, one_core=True)
        return replace(self, warmup=3, iterations=-(-self.iterations // 2))

    @property
    def at_once(self) -> Counts:
        """Return the same without warm-up, for a measurement right after a similar one."""
        return replace(self, warmup=1, warm=0.0, wake=None)


@dataclass(frozen=True)
class PlannedRow:
    """A row to be measured: its name, and what prepares it and returns what takes it."""

    what: str
    prepare: Callable[[], Callable[[], Row]]


@dataclass(frozen=True)
class Workload:
    """One network at one batch size, its inputs, and ONNX Runtime's outputs for them on the CPU."""

    network: str
    batch: int
    model: onnx.ModelProto
    inputs: Mapping[str, Array]
    outputs: Sequence[Array]
    flops: int
    """Operations of one run as the builder of the network counts them, two for a multiply-add; 0 if it cannot."""
    module: Any = None
    """The network as a module of PyTorch, if it was exported from there."""


@dataclass
class Row:
    """One measurement; a time that was not or cannot be taken is None."""

    network: str
    batch: int
    who: str
    precision: str
    """fp32, tf32, normal (fp32 accuracy by faster means, Weft only) or fp16."""
    host_ms: float | None = None
    """Median from host array to host array."""
    host_p90_ms: float | None = None
    device_ms: float | None = None
    """Median on the device, without transfers; each side's module says how it is taken."""
    device_p90_ms: float | None = None
    error: float | None = None
    """Norm of the difference from ONNX Runtime over the norm of its output: the largest of what was compared."""
    note: str = ""
    more: dict[str, float] = field(default_factory=dict)

    def compare(self, got: Sequence[Array], case: Workload) -> None:
        """Compare an output with the reference; the row's error is the largest of all outputs compared, or NaN."""
        error = relative_error(got, case.outputs)
        self.error = error if self.error is None else float(np.max([self.error, error]))

    def time(self, run: Callable[[], T], counts: Counts) -> T:
        """Time `run`, host to host, and return its last result."""
        taken = timed_result(run, counts)
        self.host_ms, self.host_p90_ms = taken.median, taken.p90
        if taken.takes > 1:
            self.more["takes"] = taken.takes
        return taken.last

    @property
    def part(self) -> str:
        """Return what it was measured as a part of."""
        return f"{self.network} x{self.batch}" + (" tinygrad" if self.who.startswith("tinygrad") else "")

    def __str__(self) -> str:
        error = f"{self.error:.1e}" if self.error is not None else "-"
        host = f"host {shown(self.host_ms)} (p90 {shown(self.host_p90_ms)}) ms"
        more = "".join(f", {name} {value:.4g}" for name, value in self.more.items())
        return (
            f"{self.network:14s} x{self.batch:<3d} {self.who:30s} {self.precision:6s} {host}, "
            f"device {shown(self.device_ms)} ms, error {error}{more}{', ' + self.note if self.note else ''}"
        )


def shown(value: float | None) -> str:
    """Return a number of milliseconds, or a dash for none."""
    return "-" if value is None else f"{value:.3f}"


class Record:
    """Everything a run finds; it is printed at once and written to the JSON file after each row."""

    def __init__(self, facts: Mapping[str, Any], path: Path | None = None, budget: float = 1e9) -> None:
        self.facts = dict(facts)
        self.rows: list[Row] = []
        self.gemm: list[dict[str, Any]] = []
        self.absent: dict[str, str] = {}
        self.bars: list[dict[str, Any]] = []
        self.done: list[str] = []
        """What was measured as a whole, as `part` calls it."""
        self._failures = 0
        self._path, self._budget, self._start = path, budget, time.perf_counter()

    @property
    def seconds(self) -> float:
        """Return how long the run has taken so far."""
        return time.perf_counter() - self._start

    def add(self, row: Row) -> None:
        """Keep a row."""
        self.rows.append(row)
        print(f"[{self.seconds:4.0f} s] {row}", flush=True)
        self.write()

    def add_gemm(self, entry: dict[str, Any]) -> None:
        """Keep a matrix product's figures."""
        self.gemm.append(entry)
        print(f"[{self.seconds:4.0f} s] gemm {entry}", flush=True)
        self.write()

    def miss(self, what: str, why: object) -> None:
        """Keep the reason why something is not measured."""
        reason = " ".join(str(why).split()) or type(why).__name__
        self.absent[what] = reason[:400]
        print(f"[{self.seconds:4.0f} s] absent: {what}: {self.absent[what]}", flush=True)
        self.write()

    def resume(self, path: Path) -> None:
        """Take over what an earlier run wrote: `part` does not run again what it has.

        ValueError unless that was on the same devices, with the same versions, Weft and tuned choices.
        """
        held = json.loads(path.read_text())
        for fact in SAME:
            if held.get(fact) != self.facts.get(fact):
                was, now = held.get(fact), self.facts.get(fact)
                raise ValueError(f"{path} is of another run: its {fact} was {was!r}, and is {now!r}")
        self.done, self.absent = held["done"], held["absent"]
        self.rows = [row for row in (Row(**row) for row in held["rows"]) if row.part in self.done]
        self.gemm = held["gemm"] if PRODUCTS in self.done else []
        self.facts["resumed"] = {key: held.get(key) for key in ("date", "seconds")}

    def take_over(self, path: Path) -> None:
        """Add what a process that measured one part wrote; the part is not done if something of it failed."""
        held = json.loads(path.read_text())
        self.rows += [Row(**row) for row in held["rows"]]
        self.absent |= held["absent"]
        self._failures += not held["done"]
        self.write()

    def part(self, what: str, run: Callable[[], None]) -> None:
        """Measure something unless it is done already: it is done if nothing of it failed or ran out of time."""
        if what in self.done:
            return
        failures = self._failures
        self.attempt(what, run)
        if self.seconds <= self._budget and self._failures == failures:
            self.done.append(what)
            self.write()

    def attempt(self, what: str, run: Callable[[], None]) -> None:
        """Measure something unless the time is up; whatever it raises becomes the reason why it is absent."""
        self.absent.pop(what, None)
        if self.seconds > self._budget:
            self.miss(what, f"not begun: {self._budget:.0f} s were given")
            self._failures += 1
            return
        try:
            run()
        except Exception as e:  # a peer that fails must not take the others' rows with it
            self.miss(what, f"{type(e).__name__}: {e}")
            self._failures += 1

    def write(self) -> None:
        """Write the JSON file, if one was asked for."""
        if self._path:
            self._path.write_text(json.dumps(self.found(), indent=1))

    def found(self) -> dict[str, Any]:
        """Return everything, as the JSON file has it."""
        rows = [asdict(row) for row in self.rows]
        found = {"rows": rows, "gemm": self.gemm, "absent": self.absent, "bars": self.bars, "done": self.done}
        return self.facts | {"seconds": self.seconds} | found


def warm_up(run: Callable[[], object], counts: Counts) -> None:
    """Make the warm-up calls; they end after `MOST_WARM` seconds in any case. A trial makes no others."""
    if counts.wake is not None:
        counts.wake()
    start = last = time.perf_counter()
    calls, fastest, warm = 0, float("inf"), 0.0 if counts.trial else counts.warm
    while calls < counts.warmup or time.perf_counter() < last + warm:
        before = time.perf_counter()
        run()
        after = time.perf_counter()
        calls += 1
        if after - before < FASTER * fastest:
            fastest, last = after - before, after
        if after > start + MOST_WARM:
            break


def timed(run: Callable[[], object], counts: Counts) -> tuple[float, float]:
    """Return the median and the 90th percentile of the milliseconds that `run` takes, once it is warm."""
    return timed_result(run, counts)[:2]


class Taken(NamedTuple, Generic[T]):
    """Milliseconds of calls, the last result, and how often they were timed, because the core was disturbed."""

    median: float
    p90: float
    last: T
    takes: int = 1


def timed_result(run: Callable[[], T], counts: Counts) -> Taken[T]:
    """Time `run` once it is warm; return the last result for comparison. The time includes freeing a result."""
    warm_up(run, counts)
    if counts.trial or not counts.one_core:
        return _take(run, counts)
    for takes in range(1, cores.TAKES + 1):
        with cores.quickest() as disturbed:
            run()  # what this core's caches lack
            found = _take(run, counts)._replace(takes=takes)
            if not disturbed():
                break
    return found


def _take(run: Callable[[], T], counts: Counts) -> Taken[T]:
    times: list[float] = []
    last: T | None = None
    stop = time.perf_counter() + counts.seconds
    while len(times) < counts.iterations and (len(times) < 2 or time.perf_counter() < stop):
        start = time.perf_counter()
        last = None  # first, so that the memory of one result serves the next
        last = run()
        times.append((time.perf_counter() - start) * 1e3)
    return Taken(*middle(times), cast("T", last))


def middle(times: Sequence[float]) -> tuple[float, float]:
    """Return the median and the 90th percentile."""
    return float(np.median(times)), float(np.percentile(times, 90))


def relative_error(got: Sequence[Array], want: Sequence[Array]) -> float:
    """Return the largest of the outputs' errors: the norm of the difference over that of what is right."""
    errors = []
    for a, b in zip(got, want, strict=True):
        if a.shape != b.shape:
            raise ValueError(f"the output has shape {a.shape}, and {b.shape} is right")
        right = b.astype(np.float64)
        errors.append(float(np.linalg.norm(a.astype(np.float64) - right) / np.linalg.norm(right)))
    return float(np.max(errors))  # NaN, if there is one


def random_inputs(model: onnx.ModelProto, seed: int = 0) -> dict[str, Array]:
    """Return normal numbers for inputs of float; for integers, ones for a mask, zeros for types, else token ids."""
    rng = np.random.default_rng(seed)
    rows = max((t.dims[0] for t in model.graph.initializer if len(t.dims) == 2), default=2)
    arrays: dict[str, Array] = {}
    for info in model.graph.input:
        kind = info.type.tensor_type
        shape = tuple(d.dim_value or 1 for d in kind.shape.dim)
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        if dtype.kind == "f":
            arrays[info.name] = rng.standard_normal(shape).astype(dtype)
        elif "mask" in info.name:
            arrays[info.name] = np.ones(shape, dtype)
        elif "type" in info.name:
            arrays[info.name] = np.zeros(shape, dtype)
        else:
            arrays[info.name] = rng.integers(0, rows, shape).astype(dtype)
    return arrays


def onnxruntime_session(model: onnx.ModelProto, threads: int = 0) -> Any:
    """Return ONNX Runtime's session on the CPU; with 0 it takes as many threads as it likes."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def file_stem(network: str, batch: int) -> str:
    """Return what the name of a file begins with that belongs to a network at a batch size."""
    return f"{network.replace('/', '_')}_x{batch}"


def model_of(network: str, batch: int, image: int = 224) -> onnx.ModelProto:
    """Return a network of `benchmarks.models`, whose weights do not depend on the batch."""
    make = models.MODELS[network]
    keywords = {"image": image} if "image" in inspect.signature(make).parameters else {}
    return make(batch, **keywords)


def build(network: str, batch: int, image: int = 224, *, trial: bool = False) -> Workload:
    """Build a network of `benchmarks.models` or one that `table_networks` names, and compute its reference.

    `image` is for those of `models` that take pictures; all others have inputs of their own, small in a trial.
    """
    if network in models.MODELS:
        model, module = model_of(network, batch, image), None
    else:
        model, module = table_networks.named(network).made(batch, trial)
    inputs = random_inputs(model)
    threads = int(os.environ.get("OMP_NUM_THREADS", "0"))  # beside other processes, as `benchmarks.jobs` has it
    outputs = onnxruntime_session(model, threads).run(None, dict(inputs))
    known = [np.asarray(o) for o in outputs]
    return Workload(network, batch, model, inputs, known, table_networks.flops(model), module)
