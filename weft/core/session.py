"""A session: a network bound to shapes and devices, ready to run."""

from __future__ import annotations

import logging
import threading
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np

from weft.core.arrays import Outputs, take_inputs, take_outputs, take_shapes
from weft.core.assign import Assignment, Part, assign, split
from weft.core.backend import Backend, BackendConfig, MemoryMode
from weft.core.copy import copy_tensor
from weft.core.graph import Graph, bind
from weft.core.layout import Array, Shape
from weft.core.network import prepare_network
from weft.core.pipeline import NodeRefused, Pipeline, Progress
from weft.core.registry import Choice
from weft.core.report import CopyRecord, Report, make_report
from weft.core.tensor import Tensor
from weft.core.validate import validate
from weft.errors import BackendError, ClosedError, InputError, UnsupportedOps

log = logging.getLogger("weft.session")


@dataclass(frozen=True, slots=True)
class Transfer:
    """A copy that every run makes before a pipeline starts."""

    value: str
    source: Pipeline
    target: Pipeline

    def run(self) -> None:
        """Wait for the value and copy it."""
        self.source.wait()
        copy_tensor(self.source.port(self.value), self.target.port(self.value))


class Session:
    """Run a network. Made by `weft.load`; close it, or use it as a context manager.

    `run` takes arrays in input order, or one dict by input name, and returns the outputs in order. A
    session may be used from several threads: runs take turns. After an error a session can be used again,
    or closed.
    """

    def __init__(
        self,
        graph: Graph,
        choices: Sequence[Choice],
        config: BackendConfig | None = None,
        *,
        shapes: Mapping[str, Shape] | None = None,
        fallback: str = "cpu",
        progress: Progress | None = None,
    ) -> None:
        close_forgotten()
        validate(graph)
        self.graph = graph
        self.config = config or BackendConfig()
        self._choices = list(choices)
        self._fallback = fallback
        self._progress = progress
        self._lock = threading.RLock()
        self._pipelines: list[Pipeline] = []
        self._made: dict[str, Pipeline] = {}
        self._transfers: dict[Pipeline, list[Transfer]] = {}
        self._notes: tuple[str, ...] = ()
        self._warned = ""
        self._refused: dict[tuple[str, str], str] = {}
        self._bound: Graph | None = None
        self._network = graph
        self._report: Report | None = None
        self._passed: dict[str, Array] | None = None
        """Of the last run, the inputs that are outputs too; None if there is no run to wait for."""
        self._closed = False
        weakref.finalize(self, _forgotten.append, self._pipelines).atexit = False
        if shapes or not graph.symbols():
            self._prepare(shapes or {})

    # -- what a user sees ------------------------------------------------------------------------------

    @property
    def inputs(self) -> dict[str, tuple[int | str, ...]]:
        """Return the shape of each input; a str is a dimension that is not bound yet."""
        bound = self._bound or self.graph
        return {i: bound.specs[i].shape for i in self.graph.inputs}

    @property
    def outputs(self) -> list[str]:
        """Return the names of the outputs, in order."""
        return list(self.graph.outputs)

    @property
    def report(self) -> Report:
        """Return what runs where and why; InputError while symbolic dimensions are unbound."""
        self._check_open()
        if self._report is None:
            open_dims = {i: s for i, s in self.inputs.items() if not all(isinstance(d, int) for d in s)}
            raise InputError(
                "there is no report yet",
                why="; ".join(f"the shape of {i!r} is {s}" for i, s in open_dims.items())
                or "the last resize failed",
                fix="pass shapes={name: shape} to weft.load, call resize, or run once; it will run on "
                + ", ".join(c.why or c.device for c in self._choices),
            )
        return self._report

    def resize(self, shapes: Mapping[str, Shape]) -> None:
        """Prepare for other input shapes; inputs that are not named keep theirs."""
        with self._lock:
            self._check_open()
            given = take_shapes(shapes)
            self._prepare(self._kept(given) | given)

    def run(self, *inputs: Array | Mapping[str, Array], outputs: Outputs | None = None) -> list[Array]:
        """Return the outputs, in order, for arrays in input order or a dict by name.

        `outputs` may hold arrays of the right shape and type that are written in place and returned.
        Symbolic dimensions that are unbound, or that differ from the last run, are bound to the arrays'
        shapes by a resize.
        """
        with self._lock:
            arrays = self._accept(inputs)
            given = take_outputs(self.graph.outputs, self._network.specs, outputs)
            self._start(arrays)
            return self._finish(given)

    def submit(self, *inputs: Array | Mapping[str, Array]) -> None:
        """Start a run and return while the device may still be at work; `wait` returns its outputs.

        Where the network is divided over devices, only the last part is left running. A second submit
        waits for the first, whose outputs are lost.
        """
        with self._lock:
            self._start(self._accept(inputs))

    def wait(self, outputs: Outputs | None = None) -> list[Array]:
        """Wait for the run that `submit` started and return its outputs, once."""
        with self._lock:
            self._check_open()
            if self._passed is None:
                raise InputError(
                    "there is no run to wait for", why="its outputs were taken, or none was started", fix="call submit"
                )
            return self._finish(take_outputs(self.graph.outputs, self._network.specs, outputs))

    def close(self) -> None:
        """Free everything; the devices stay open for other sessions. A second close does nothing."""
        with self._lock:
            self._drop()
            self._closed = True

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    # -- preparing -------------------------------------------------------------------------------------

    def _kept(self, given: Mapping[str, Shape]) -> dict[str, Shape]:
        """Return the shapes that the other inputs keep, changed where they share a symbol with a given one."""
        declared = {i: self.graph.specs[i].shape for i in self.graph.inputs}
        sizes = {d: n for i, shape in given.items() for d, n in zip(declared.get(i, ()), shape, strict=False)}
        kept = {}
        for name, old in self.inputs.items():
            dims = tuple(sizes.get(d, now) for d, now in zip(declared[name], old, strict=True))
            whole = tuple(d for d in dims if isinstance(d, int))
            if name not in given and len(whole) == len(dims):
                kept[name] = whole
        return kept

    def _prepare(self, shapes: Mapping[str, Any]) -> None:
        bound = bind(self.graph, take_shapes(shapes))
        if bound.symbols():
            self._drop()
            self._bound = bound
            return
        prepared = prepare_network(bound, self.config.precision)
        network, self._notes = prepared.graph, prepared.notes
        self._refused = {}
        self._report = self._passed = None
        try:
            while not self._placed(network):
                pass
        except BaseException:
            self._drop()
            raise
        self._bound, self._network = bound, network
        if self.config.memory is MemoryMode.LIMIT:
            self._network = network.copy()
            self._network.constants = {o: network.constants[o] for o in network.outputs if o in network.constants}

    def _drop(self) -> None:
        """Close the pipelines; what follows must prepare anew."""
        pipelines = self._pipelines[:]
        self._pipelines.clear()
        self._made, self._transfers, self._report, self._passed = {}, {}, None, None
        close_all(pipelines)

    def _placed(self, network: Graph) -> bool:
        """Place the network on the devices; False if a backend refused nodes, so that it must be done again."""
        old, spare = self._pipelines[:], dict[str, Backend]()
        self._pipelines.clear()
        try:
            backends = {c.device: self._ask(c, old, spare) for c in self._choices}
            assignment = assign(network, backends, self._refused)
            self._check_fallback(network, assignment)
            for part in split(network, assignment.device):
                self._pipelines.append(self._pipeline(part, old, spare))
        except NodeRefused as e:
            self._note_refusal(network, e)
            return False
        finally:
            close_all([*old, *spare.values()])
        self._report = make_report(
            self._choices, self._pipelines, assignment.refusals, self._connect(), self.config, self._notes
        )
        return True

    def _ask(self, choice: Choice, old: list[Pipeline], spare: dict[str, Backend]) -> Backend:
        """Return a backend of the device to ask for support: that of a pipeline, or one for a new pipeline."""
        for pipeline in old:
            if pipeline.device == choice.device:
                return pipeline.backend
        spare[choice.device] = choice.open(self.config)
        return spare[choice.device]

    def _pipeline(self, part: Part, old: list[Pipeline], spare: dict[str, Backend]) -> Pipeline:
        """Resize the old pipeline of the device that comes next, or make a new one."""
        pipeline = next((p for p in old if p.device == part.device), None)
        first = pipeline is None
        if pipeline is None:
            choice = next(c for c in self._choices if c.device == part.device)
            backend = spare.pop(part.device, None) or choice.open(self.config)
            thrifty = self.config.memory is MemoryMode.LIMIT
            pipeline = Pipeline(part, backend, thrifty=thrifty, progress=self._progress)
        else:
            old.remove(pipeline)
        try:
            pipeline.resize(part, first=first)
        except BaseException:
            close_all([pipeline])
            raise
        return pipeline

    def _note_refusal(self, network: Graph, refusal: NodeRefused) -> None:
        names = {n.name for n in network.nodes}
        for node in refusal.nodes:
            key = (node.name, refusal.device)
            if node.name not in names or key in self._refused:
                raise BackendError(
                    f"onCreate returned None for node {node.name!r} ({node.op.type}), which its backend put there",
                    where=refusal.device,
                    fix="OptimizeSubgraph may only make nodes that the backend takes",
                )
            self._refused[key] = "onCreate returned None for these shapes and types"

    def _check_fallback(self, network: Graph, assignment: Assignment) -> None:
        if not assignment.refusals:
            return
        ops = {n.name: n.op.type for n in network.nodes}
        lines = [
            f"{name!r} ({ops[name]}) is on {assignment.device[name]}: "
            + "; ".join(f"{d}: {why}" for d, why in reasons.items())
            for name, reasons in assignment.refusals.items()
        ]
        first = self._choices[0].device
        if self._fallback == "error":
            raise UnsupportedOps(
                f"{len(lines)} node(s) cannot run on {first}", tuple(lines), fix='allow other devices: fallback="cpu"'
            )
        text = "\n  ".join([f"{len(lines)} node(s) do not run on {first}:", *lines])
        if text != self._warned:  # a resize that changes nothing about it says nothing
            log.warning("%s", text)
        self._warned = text

    def _connect(self) -> list[CopyRecord]:
        """Note the copies between pipelines: each value that one makes and a later one reads."""
        self._transfers, self._made, records = {}, {}, []
        for pipeline in self._pipelines:
            for name in pipeline.graph.inputs:
                source = self._made.get(name)
                if source is not None:
                    self._transfers.setdefault(pipeline, []).append(Transfer(name, source, pipeline))
                    nbytes = source.tensor(name).nbytes
                    records.append(CopyRecord(name, source.device, pipeline.device, nbytes))
            self._made.update(dict.fromkeys(pipeline.graph.outputs, pipeline))
        return records

    # -- running ---------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the session is closed", fix="load the model again")

    def _accept(self, inputs: Sequence[Array | Mapping[str, Array]]) -> dict[str, Array]:
        """Return the checked arrays, with the session prepared for their shapes."""
        self._check_open()
        arrays = take_inputs(self.graph, inputs)
        specs = (self._bound or self.graph).specs
        if self._report is None or any(a.shape != specs[i].shape for i, a in arrays.items()):
            self._prepare({i: a.shape for i, a in arrays.items()})
        return arrays

    def _start(self, arrays: dict[str, Array]) -> None:
        self._passed = None
        for pipeline in self._pipelines:
            pipeline.wait()
        for pipeline in self._pipelines:
            for transfer in self._transfers.get(pipeline, ()):
                transfer.run()
            for name in pipeline.graph.inputs:
                if name in arrays:
                    self._feed(pipeline, name, arrays[name])
            pipeline.execute()
        self._passed = {i: a.copy() for i, a in arrays.items() if i in self.graph.outputs}

    @staticmethod
    def _feed(pipeline: Pipeline, name: str, array: Array) -> None:
        if name in pipeline.mapped:
            np.copyto(pipeline.mapped[name], array)
        else:
            copy_tensor(Tensor.from_numpy(array, name=name), pipeline.tensor(name))

    def _finish(self, given: Sequence[Array | None]) -> list[Array]:
        for pipeline in self._pipelines:
            pipeline.wait()
        results = [self._fetch(name, target) for name, target in zip(self.graph.outputs, given, strict=True)]
        self._passed = None
        return results

    def _fetch(self, name: str, target: Array | None) -> Array:
        spec = self._network.specs[name]
        result: Array = np.empty(spec.dims, spec.dtype.numpy) if target is None else target
        pipeline = self._made.get(name)
        if pipeline is None:
            known = self._network.constants.get(name)
            assert self._passed is not None
            np.copyto(result, known if known is not None else self._passed[name])
        elif name in pipeline.mapped:
            np.copyto(result, pipeline.mapped[name])
        elif result.flags.c_contiguous:
            copy_tensor(pipeline.tensor(name), Tensor(name, spec.dims, spec.dtype, memory=result))
        else:
            np.copyto(result, pipeline.tensor(name).numpy())
        return result


_forgotten: deque[list[Pipeline]] = deque()
"""Pipelines of sessions that were dropped without a close. They are closed when the next session is made,
not where the collector ran, which may be in the middle of a driver call."""


def close_forgotten() -> None:
    """Close what sessions that nobody closed have left behind."""
    while _forgotten:
        close_all(_forgotten.popleft())


def close_all(owners: Sequence[Pipeline | Backend]) -> None:
    """Close each; an error (of a lost device, say) is logged and stops none of the others."""
    for owner in owners:
        try:
            owner.close()
        except Exception as e:
            log.warning("closing %s failed: %s", type(owner).__name__, e)
