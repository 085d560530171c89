"""A pool: sessions of one network on several devices, which take requests from one queue."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from weft.core.contract.doors import door
from weft.core.contract.error_context import caught, do_all
from weft.core.contract.not_copied import NotCopied
from weft.core.contract.session_config import ForwardType, Precision
from weft.core.graph.graph import Graph, bind
from weft.core.graph.tensor import SequenceSpec, TensorSpec
from weft.core.host import shutdown
from weft.core.placement.optimized_network import OptimizedNetwork
from weft.core.registry.backend_registry import registry
from weft.core.registry.device_choice import DeviceName
from weft.core.registry.front_ends import front_ends
from weft.core.session.arguments import Forms, Input, hosted, take_inputs, take_planned
from weft.core.session.load_options import LoadOptions, PoolKeywords, described
from weft.core.session.session import Session
from weft.errors import ClosedError, ConfigError, DeviceError, InputError, is_fatal
from weft.loading import load, read_once
from weft.serving.batches import BatchRunner, batch_sizes, check_batches
from weft.serving.request_queue import Request, RequestQueue
from weft.serving.worker import WorkerSession

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from weft.loading import Model

log = logging.getLogger("weft.serving")

RELOADS = 5
"""How often a dead replica is loaded anew before it is given up."""
PAUSE = 0.1
"""Seconds before the second of these attempts; each later one waits twice as long."""
MOST_KINDS = 1024
"""How many kinds of requests, by shapes and types, a pool knows to fit its network."""
Devices: TypeAlias = "DeviceName | Sequence[DeviceName | Sequence[DeviceName]]"


@dataclass(frozen=True)
class ReplicaReport:
    """What one session of a pool did."""

    device: str
    """The device that it was loaded for; several with "+", in order of preference."""
    state: str
    """"ready", "running", "loading", "closed", or "lost": it died and could not be loaded again."""
    runs: int
    rows: int
    """The rows of all requests in these runs; without batches each request counts as one."""
    busy_seconds: float
    """The time of these runs."""
    gather_seconds: float
    """The part of it in which the host put batches together, since the session was loaded."""
    replaced: int
    """How often it died and was loaded anew."""
    why: str
    """Why it died last; "" if it never did."""
    process: int
    """The id of the process that it runs in."""


@dataclass(frozen=True)
class PoolReport:
    """What a pool did so far."""

    waiting: int
    """Requests in the queue."""
    running: int
    """Requests that replicas run now."""
    done: int
    failed: int
    cancelled: int
    retried: int
    """How often a request was tried again, because a replica died while it ran."""
    padded_rows: int
    """Rows that filled up batches."""
    replicas: tuple[ReplicaReport, ...]

    def __str__(self) -> str:
        counts = ("waiting", "running", "done", "failed", "cancelled", "retried", "padded_rows")
        lines = [", ".join(f"{name.replace('_', ' ')} {getattr(self, name)}" for name in counts)]
        for each in self.replicas:
            line = f"{each.device}: {each.state}, {each.runs} runs of {each.rows} rows in {each.busy_seconds:.3f} s"
            lines.append(line + (f", replaced {each.replaced} times: {each.why}" if each.why else ""))
        return "\n".join(lines)


@dataclass(eq=False)
class _Replica:
    """A session that one thread runs, and what it did."""

    device: str
    load: Callable[[], BatchRunner]
    runner: BatchRunner
    state: str = "ready"
    runs: int = 0
    rows: int = 0
    busy: float = 0.0
    replaced: int = 0
    why: str = ""
    good: dict[str, Any] | None = None
    """The inputs of the last run that succeeded."""

    def works(self) -> bool:
        """Tell whether a run that succeeded before still does; True if there was none."""
        try:
            self.repeat()
        except Exception as e:
            log.warning("%s fails at what it ran before: %s", self.device, e)
            return False
        return True

    def repeat(self) -> None:
        """Run again what succeeded before."""
        if self.good is not None:
            self.runner.session.run(self.good)

    def load_again(self) -> None:
        """Replace the session by a new one that works."""
        self.runner.session.close()
        self.runner = self.load()
        self.repeat()

    def report(self) -> ReplicaReport:
        session = self.runner.session
        return ReplicaReport(
            self.device, self.state, self.runs, self.rows, self.busy, self.runner.gather_seconds, self.replaced,
            self.why, session.process if isinstance(session, WorkerSession) else os.getpid(),
        )


@dataclass(eq=False)
class _Core:
    """What the threads of a pool work on. They do not refer to the pool, which can be dropped."""

    queue: RequestQueue
    sizes: tuple[int, ...]
    """The rows that batches have."""
    attempts: int
    replicas: list[_Replica] = field(default_factory=list)
    threads: list[threading.Thread] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Guards the counts."""
    ending: threading.Event = field(default_factory=threading.Event)
    running: int = 0
    done: int = 0
    failed: int = 0
    cancelled: int = 0
    retried: int = 0
    padded: int = 0

    def serve(self, replica: _Replica) -> None:
        """Run batches until the queue is closed and empty, or the replica is lost. With the last one all is over."""
        try:
            while (batch := self.queue.take()) is not None:
                wanted = [request for request in batch if request.begin()]
                self.count(cancelled=len(batch) - len(wanted))
                if wanted and not self.run(replica, wanted) and not self.replace(replica):
                    break
        finally:
            replica.state = "closed" if replica.state == "ready" else "lost"
            if all(each.state in ("closed", "lost") for each in self.replicas):
                self.fail_all(replica)
            with caught(lambda e: log.warning("closing a session on %s failed: %s", replica.device, e)):
                replica.runner.session.close()

    def run(self, replica: _Replica, batch: list[Request]) -> bool:
        """Run requests together and give their futures what comes of it; tell whether the replica still works."""
        rows = sum(request.rows for request in batch)
        replica.state = "running"
        self.count(running=len(batch))
        began = monotonic()
        try:
            results, padded = replica.runner.run(batch)
        except Exception as e:
            works = not is_fatal(e) and (isinstance(e, (InputError, ConfigError)) or replica.works())
            self.count(running=-len(batch))
            self.take_failure(batch, e, works)
            replica.state, replica.why = "ready", replica.why if works else str(e)
            return works
        except BaseException as e:  # what ends a thread, such as SystemExit of a callback
            self.count(running=-len(batch), failed=len(batch))
            for request in batch:
                request.future.set_exception(e)
            raise
        replica.busy += monotonic() - began
        replica.runs, replica.rows, replica.good = replica.runs + 1, replica.rows + rows, batch[0].inputs
        replica.state = "ready"
        self.count(running=-len(batch), done=len(batch), padded=padded)
        for request, result in zip(batch, results, strict=True):
            request.future.set_result(result)
        return True

    def take_failure(self, batch: list[Request], e: Exception, works: bool) -> None:
        """Put back what may succeed by itself, or on another replica if this one is dead; the rest fails."""
        if not works:
            for request in batch:
                request.failures += 1
        again = [r for r in batch if (len(batch) > 1 if works else r.failures < self.attempts)]
        self.count(failed=len(batch) - len(again), retried=0 if works else len(again))
        self.queue.put_back(again)
        for request in batch:
            if request not in again:
                request.future.set_exception(e)

    def replace(self, replica: _Replica) -> bool:
        """Load a dead replica anew; tell whether that worked."""
        replica.state, pause = "loading", PAUSE
        log.warning("a replica on %s is replaced: %s", replica.device, replica.why)
        error: Exception | None = None
        for k in range(RELOADS):
            if k and self.ending.wait(pause):
                break
            pause *= 2
            try:
                replica.load_again()
            except Exception as e:
                error = e
                continue
            replica.state, replica.replaced = "ready", replica.replaced + 1
            return True
        replica.why += f"; and it could not be loaded again: {error}"
        log.error("a replica on %s is lost: %s", replica.device, replica.why)
        return False

    def fail_all(self, last: _Replica) -> None:
        """Fail what waits, and refuse what comes, since the last replica has ended."""

        def refusal() -> Exception:
            why, fix = f"{last.device}: {last.why}", "run 'weft doctor', and make another pool"
            return DeviceError("the pool has no replica left", why=why, fix=fix)

        self.queue.close(refusal)
        waiting = [request for request in self.queue.clear() if request.begin()]
        self.count(failed=len(waiting))
        for request in waiting:
            request.future.set_exception(refusal())

    def count(self, **changes: int) -> None:
        with self.lock:
            for name, change in changes.items():
                setattr(self, name, getattr(self, name) + change)

    def end(self, *, cancel: bool) -> None:
        """Take no more requests; with `cancel`, those that wait are cancelled."""
        self.queue.close(_closed)
        self.ending.set()
        if cancel:
            for request in self.queue.clear():
                if request.future.running():
                    request.future.set_exception(_closed())
                else:
                    request.future.cancel()
                self.count(cancelled=1)

    def join(self, patience: float | None = None) -> bool:
        """Wait for the threads, but for the one that calls this; tell whether all have ended."""
        last = None if patience is None else monotonic() + patience
        for thread in self.threads:
            if thread is not threading.current_thread():
                thread.join(None if last is None else max(last - monotonic(), 0.0))
        return not any(thread.is_alive() for thread in self.threads)


def _closed() -> Exception:
    return ClosedError("the pool is closed", fix="make another")


class Pool(NotCopied):
    """Run a network on several devices at once. Requests wait in one queue, and each gets a future.

        with weft.Pool("model.onnx", batch=16) as pool:
            future = pool.submit(x)
            y, = future.result()

    Close it, or use it as a context manager; one that is still open when the process ends is closed then.
    """

    _noun = "pool"
    _in_a_worker = "make a pool in each process, or give workers a weft.Predictor, which can be pickled"
    _a_second = "share it: any thread may submit"

    @described(PoolKeywords)
    @door
    def __init__(
        self,
        model: Model | OptimizedNetwork,
        devices: Devices = "all",
        *,
        replicas: int = 1,
        batch: int = 1,
        batch_wait: float = 0.0,
        queue: int = 1024,
        attempts: int = 3,
        processes: bool = False,
        **options: Unpack[PoolKeywords],
    ) -> None:
        """Load the network on each device.

        `devices` is "all", which is each GPU once, or the CPU if there is none; or a device; or a list of devices, each
        of which gets `replicas` sessions. An entry of the list may be a list itself: devices in order of preference,
        as `weft.load` takes them. Sessions on one device share its weights. A network that `weft.optimize` made has
        its own devices.

        Up to `batch` rows of requests that are alike in shapes and types run together: those that came while a session
        was busy, and with `batch_wait` those that come within so many seconds after the first. All inputs must have the
        same open first dimension, and what the network computes for a row must not depend on other rows. Batches have
        powers of two as sizes; they are filled up with copies of the last row.

        Up to `queue` requests wait. A session that dies, because its device fails, is replaced, and what it ran is
        tried again, `attempts` times in all.

        With `processes`, each session is in a process of its own: one that crashes is replaced, too, and the host's
        work for several GPUs runs side by side. They load the model's file again, or get the model in a pickle, and
        find backends and ops of installed packages alone.
        """
        asked = LoadOptions.of(dict(options), PoolKeywords, caller="weft.Pool")
        for name, value in (("replicas", replicas), ("batch", batch), ("queue", queue), ("attempts", attempts)):
            if not isinstance(value, int) or value < 1:
                raise ConfigError(f"{name}={value!r} is no number of things", fix="pass an integer from 1 on")
        if not batch_wait >= 0:
            raise ConfigError(f"batch_wait={batch_wait!r} is no time", fix="pass seconds, from 0 on")
        is_optimized = front_ends.choose(model).optimized
        if is_optimized and devices != "all":
            raise ConfigError(
                "an optimised network runs on the devices that it was optimised for",
                where=str(model) if isinstance(model, (str, os.PathLike)) else "",
                fix="leave devices out, or give the pool the model",
            )
        network: Any
        if processes and isinstance(model, (str, os.PathLike)):
            network = os.path.abspath(model)
        else:
            network = read_once(model, asked)
        places: list[list[DeviceName]] = [[]] if is_optimized else _places(devices)
        self._process = os.getpid()
        self._core = _Core(RequestQueue(queue, batch, batch_wait), batch_sizes(batch), attempts)
        try:
            for place in places:
                where = {"device": place} if place else {}
                kind: Any = partial(WorkerSession, network, where, options)
                opened = kind if processes else partial(load, network, **where, **options)  # type: ignore[arg-type]
                make = partial(_made, opened, self._core.sizes)
                named = network.devices if isinstance(network, OptimizedNetwork) else map(str, place or ["its own"])
                self._core.replicas += [_Replica("+".join(named), make, make()) for _ in range(replicas)]
            whole = self._core.replicas[0].runner.session.graph
            if batch > 1:
                check_batches(whole)
        except BaseException:
            do_all(replica.runner.session.close for replica in self._core.replicas)
            raise
        self._graph = replace(whole, nodes=[], constants={})
        self._keeps_half = asked.precision is Precision.LOW
        self._forms: Forms | None = None
        """The names, types and shapes of the last request's inputs."""
        self._kinds: dict[Hashable, tuple[Hashable, int]] = {}
        """Of inputs that are known to fit, by their shapes and types, the kind of the request and its rows."""
        for k, replica in enumerate(self._core.replicas):
            thread = threading.Thread(
                target=self._core.serve, args=(replica,), name=f"{shutdown.OWN_THREADS}pool-{k}", daemon=True
            )
            self._core.threads.append(thread)
            thread.start()
        weakref.finalize(self, self._core.end, cancel=True).atexit = False
        shutdown.note(self)

    @property
    def inputs(self) -> dict[str, tuple[int | str, ...]]:
        """Return the shape of each input; a str is a size that requests may choose."""
        return {name: self._graph.specs[name].shape for name in self._graph.inputs}

    @property
    def outputs(self) -> list[str]:
        """Return the names of the outputs, in order."""
        return list(self._graph.outputs)

    @property
    def graph(self) -> Graph:
        """Return the network's inputs and outputs, with their types, as a graph without nodes."""
        return self._graph

    @property
    def batch(self) -> int:
        """Return how many rows a run has at most, unless a single request has more."""
        return self._core.sizes[-1]

    @property
    def report(self) -> PoolReport:
        """Return what the pool did so far, and in which state each replica is."""
        core = self._core
        with core.lock:
            return PoolReport(
                len(core.queue), core.running, core.done, core.failed, core.cancelled, core.retried, core.padded,
                tuple(replica.report() for replica in core.replicas),
            )

    @door
    def submit(self, *inputs: Input | Mapping[str, Input], timeout: float | None = None) -> Future[list[Any]]:
        """Put a request in the queue, and return the future of its outputs.

        Inputs are arrays in order or one dict by name, as for `Session.run`; leave them alone until the future is done.
        With the queue full it waits for `timeout` seconds, by default until there is room, and raises QueueFull.
        InputError if the inputs do not fit, ClosedError if the pool is closed. A future that no replica has taken can
        be cancelled. Its callbacks run in a thread of the pool, so they should not wait for it.
        """
        if self._process != os.getpid():
            raise ClosedError(
                "a pool does not work in a forked process",
                why="its threads and devices belong to the process that made it",
                fix="make a pool in this process, or start it with multiprocessing's method spawn",
            )
        request = Request(*self._taken(inputs))
        self._core.queue.put(request, timeout)
        return request.future

    @door
    def run(self, *inputs: Input | Mapping[str, Input], timeout: float | None = None) -> list[Any]:
        """Return the outputs of one request, in order. TimeoutError after `timeout` seconds; it is not run then."""
        last = None if timeout is None else monotonic() + timeout
        future = self.submit(*inputs, timeout=timeout)
        try:
            return future.result(None if last is None else max(last - monotonic(), 0.0))
        except BaseException:
            future.cancel()
            raise

    @door
    def map(self, requests: Iterable[Any], *, ahead: int | None = None) -> Iterator[list[Any]]:
        """Yield the outputs of each request, in the order of the requests.

        A request is an array, a tuple of arrays, or a dict by name. They may be endless: at most `ahead` of them, by
        default two batches for each replica, are in the pool or wait to be yielded. An error of one is raised in its
        place.
        """
        most = ahead if ahead is not None else 2 * self._core.sizes[-1] * len(self._core.replicas)
        if most < 1:
            raise ConfigError(f"ahead={ahead!r} lets no request begin", fix="pass an integer from 1 on")
        return self._mapped(iter(requests), most)

    def _mapped(self, requests: Iterator[Any], most: int) -> Iterator[list[Any]]:
        begun: deque[Future[list[Any]]] = deque()
        try:
            for each in requests:
                begun.append(self.submit(*each) if isinstance(each, tuple) else self.submit(each))
                if len(begun) >= most:
                    yield begun.popleft().result()
            while begun:
                yield begun.popleft().result()
        finally:
            for future in begun:
                future.cancel()

    @door
    def warm(self) -> None:
        """Run zeros on each replica for each size of a batch, twice where there are several, to prepare for them.

        InputError if other sizes than the first one are open: then the first requests tell them.
        """
        specs = {name: self._graph.specs[name] for name in self._graph.inputs}
        unknown = [f"{n!r} is {s}" for n, s in specs.items() if isinstance(s, SequenceSpec) or not _has_rows(s)]
        if unknown:
            raise InputError(
                "the pool cannot prepare for requests whose sizes it does not know",
                why="; ".join(unknown),
                fix="leave warm out; the first request of each size is prepared when it comes",
            )
        is_batched = len(self._core.sizes) > 1
        for size in (*self._core.sizes, *self._core.sizes) if is_batched else (1,):
            shapes = {n: tuple(size if isinstance(d, str) else d for d in spec.shape) for n, spec in specs.items()}
            zeros = {name: np.zeros(shape, specs[name].dtype.numpy) for name, shape in shapes.items()}
            for replica in self._core.replicas:
                replica.runner.session.run(zeros)

    @door
    def close(self, *, cancel: bool = False) -> None:
        """Run what waits, or cancel it, then close the sessions; a second close does nothing.

        A replica's thread may call this, in a future's callback: then it does not wait.
        """
        self._core.end(cancel=cancel)
        self._core.join()

    def end(self, patience: float) -> bool:
        """Close at the end of the process; return False if a run does not end in time."""
        if self._process != os.getpid():
            return True
        self._core.end(cancel=True)
        return self._core.join(patience)

    @property
    def is_closed(self) -> bool:
        """Tell whether the pool takes no more requests: it was closed, or it has no replica left."""
        return self._core.queue.is_closed

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        self.close(cancel=e is not None)

    def _taken(self, inputs: Sequence[Input | Mapping[str, Input]]) -> tuple[dict[str, Any], Hashable, int]:
        """Return the inputs of a request by name, its kind and its rows; InputError if they do not fit."""
        forms = self._forms
        arrays = None if forms is None else take_planned(forms, inputs)
        if arrays is None:
            arrays = take_inputs(self._graph, inputs, keep_half=self._keeps_half)
        arrays = hosted(arrays)
        if any(not isinstance(array, np.ndarray) for array in arrays.values()):  # sequences and optionals
            return arrays, None, 1
        forms = tuple((name, array.dtype, array.shape) for name, array in arrays.items())
        found = self._kinds.get(forms)
        if found is None:
            bind(self._graph, {name: shape for name, _, shape in forms})
            is_batched = len(self._core.sizes) > 1
            kind = tuple((dtype, shape[1:]) for _, dtype, shape in forms) if is_batched else None
            found = kind, forms[0][2][0] if is_batched else 1
            if len(self._kinds) >= MOST_KINDS:
                self._kinds = {}
            self._kinds[forms] = found
        self._forms = forms
        return arrays, *found


def _made(open_one: Callable[[], Session | WorkerSession], sizes: Sequence[int]) -> BatchRunner:
    return BatchRunner(open_one(), sizes)


def _has_rows(spec: TensorSpec) -> bool:
    """Tell whether at most the first size is open."""
    return not spec.has_open_rank and not any(isinstance(d, str) for d in spec.shape[1:])


def _places(devices: Devices) -> list[list[DeviceName]]:
    """Return the devices of each replica in order of preference; see `Pool`."""
    if devices == "all":
        return [[device.identity] for device in registry.gpus()] or [["cpu"]]
    listed = [devices] if isinstance(devices, (str, ForwardType)) else list(devices)
    if not listed:
        raise ConfigError("a pool without devices runs nothing", fix='pass devices="all", or a list: ["vulkan:0"]')
    return [[each] if isinstance(each, (str, ForwardType)) else list(each) for each in listed]
