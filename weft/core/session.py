"""A session: a network bound to shapes and devices, ready to run."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np

from weft.core.assign import Assignment, Part, assign, split
from weft.core.backend import Backend, BackendConfig, BackendInfo, Precision
from weft.core.copy import copy_tensor
from weft.core.dtypes import DType
from weft.core.graph import Graph, bind
from weft.core.layout import Array, Shape
from weft.core.optimize import run_passes
from weft.core.optimize.precision import set_storage
from weft.core.pipeline import NodeRefused, Pipeline
from weft.core.registry import Choice
from weft.core.report import CopyRecord, Report
from weft.core.tensor import Tensor
from weft.errors import ClosedError, InputError, UnsupportedOps

log = logging.getLogger("weft.session")


@dataclass(frozen=True, slots=True)
class Transfer:
    """A copy that every run makes before a pipeline starts."""

    source: Tensor
    target: Tensor


class Session:
    """Run a network. Made by `weft.load`; close it, or use it as a context manager.

    `run` takes arrays in input order, or one dict by input name, and returns the outputs in order. A
    session may be used from several threads: runs take turns.
    """

    def __init__(
        self,
        graph: Graph,
        choices: Sequence[Choice],
        config: BackendConfig | None = None,
        *,
        shapes: Mapping[str, Shape] | None = None,
        fallback: str = "cpu",
    ) -> None:
        self.graph = graph
        self.config = config or BackendConfig()
        self._choices = list(choices)
        self._fallback = fallback
        self._lock = threading.RLock()
        self._pipelines: list[Pipeline] = []
        self._refused: dict[tuple[str, str], str] = {}
        self._bound: Graph | None = None
        self._report: Report | None = None
        self._closed = False
        if shapes or not graph.symbols():
            self._prepare(dict(shapes or {}))

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
        if self._report is None:
            self._require_bound()
        assert self._report is not None
        return self._report

    def resize(self, shapes: Mapping[str, Shape]) -> None:
        """Prepare for other input shapes; inputs that are not named keep theirs."""
        with self._lock:
            self._check_open()
            kept = {i: s for i, s in self.inputs.items() if all(isinstance(d, int) for d in s)} if self._bound else {}
            free = {i for i in self.graph.inputs if not self.graph.specs[i].is_static}
            merged = {i: tuple(int(d) for d in s) for i, s in kept.items() if i in free}
            self._prepare(merged | {i: tuple(s) for i, s in shapes.items()})

    def run(
        self,
        *inputs: Array | Mapping[str, Array],
        outputs: Sequence[Array | None] | Mapping[str, Array] | None = None,
    ) -> list[Array]:
        """Return the outputs, in order, for arrays in input order or a dict by name.

        `outputs` may hold arrays of the right shape and type that are written in place and returned.
        Symbolic dimensions that are unbound, or that differ from the last run, are bound to the arrays'
        shapes by a resize.
        """
        with self._lock:
            self.submit(*inputs)
            return self.wait(outputs=outputs)

    def submit(self, *inputs: Array | Mapping[str, Array]) -> None:
        """Start a run and return while the device may still be at work; `wait` returns its outputs.

        Where the network is divided over devices, only the last part is left running.
        """
        with self._lock:
            self._check_open()
            arrays = self._arrays(inputs)
            self._fit(arrays)
            for pipeline in self._pipelines:
                for transfer in self._transfers.get(id(pipeline), ()):
                    copy_tensor(transfer.source, transfer.target)
                self._feed(pipeline, arrays)
                pipeline.execute()
            self._last_inputs = arrays

    def wait(self, outputs: Sequence[Array | None] | Mapping[str, Array] | None = None) -> list[Array]:
        """Wait for the run that `submit` started and return its outputs."""
        with self._lock:
            self._check_open()
            if self._last_inputs is None:
                raise InputError("there is no run to wait for", fix="call submit first")
            given = self._given_outputs(outputs)
            for pipeline in self._pipelines:
                pipeline.wait()
            return [self._fetch(name, given.get(name)) for name in self.graph.outputs]

    def close(self) -> None:
        """Free everything; the devices stay open for other sessions. A second close does nothing."""
        with self._lock:
            for pipeline in self._pipelines:
                pipeline.close()
            self._pipelines, self._closed = [], True

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    # -- preparing -------------------------------------------------------------------------------------

    _transfers: dict[int, list[Transfer]]
    _last_inputs: dict[str, Array] | None = None
    _network: Graph

    def _require_bound(self) -> None:
        open_dims = {i: s for i, s in self.inputs.items() if not all(isinstance(d, int) for d in s)}
        raise InputError(
            "the network's shapes are not known yet",
            why="; ".join(f"{i}: {s}" for i, s in open_dims.items()),
            fix="pass shapes={name: shape} to weft.load, call resize, or run once",
        )

    def _prepare(self, shapes: Mapping[str, Shape]) -> None:
        bound = bind(self.graph, shapes)
        if bound.symbols():
            self._bound, self._report = bound, None
            return
        network = run_passes(bound)
        network = set_storage(network, DType.FLOAT16 if self.config.precision is Precision.LOW else DType.FLOAT32)
        self._last_inputs = None
        while True:
            try:
                self._place(network)
                break
            except NodeRefused as e:
                self._refused[e.node.name, e.device] = "onCreate returned None for these shapes and types"
        self._bound, self._network = bound, network

    def _place(self, network: Graph) -> None:
        old = self._pipelines
        self._pipelines = []
        probes = {c.device: self._backend(c) for c in self._choices}
        try:
            assignment = assign(network, probes, self._refused)
            self._check_fallback(network, assignment)
            parts = split(network, assignment.device)
            for part in parts:
                self._pipelines.append(self._pipeline(part, old))
        finally:
            for pipeline in old:
                pipeline.close()
            for probe in probes.values():
                probe.close()
        copies = self._connect()
        self._report = self._make_report(assignment, copies)

    def _backend(self, choice: Choice) -> Backend:
        return choice.creator.onCreate(BackendInfo(choice.creator.id, choice.index, self.config))

    def _pipeline(self, part: Part, old: list[Pipeline]) -> Pipeline:
        """Resize the old pipeline of the device that comes next, or make a new one."""
        for k, candidate in enumerate(old):
            if candidate.device == part.device:
                pipeline, first = old.pop(k), False
                break
        else:
            choice = next(c for c in self._choices if c.device == part.device)
            pipeline, first = Pipeline(part, self._backend(choice)), True
        try:
            pipeline.resize(part, first=first)
        except BaseException:
            pipeline.close()
            raise
        return pipeline

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
        log.warning("%d node(s) do not run on %s:\n  %s", len(lines), first, "\n  ".join(lines))

    def _connect(self) -> list[CopyRecord]:
        """Note the copies between pipelines: each value that one makes and a later one reads."""
        self._transfers, records = {}, []
        made: dict[str, Pipeline] = {}
        for pipeline in self._pipelines:
            for name in pipeline.graph.inputs:
                if name in made:
                    transfer = Transfer(made[name].output(name), pipeline.output(name))
                    self._transfers.setdefault(id(pipeline), []).append(transfer)
                    nbytes = transfer.source.nbytes
                    records.append(CopyRecord(name, made[name].device, pipeline.device, nbytes))
            made.update(dict.fromkeys(pipeline.graph.outputs, pipeline))
        self._made = made
        return records

    def _make_report(self, assignment: Assignment, copies: list[CopyRecord]) -> Report:
        counts: dict[str, int] = {}
        placement: dict[str, str] = {}
        statistics: dict[str, dict[str, int]] = {}
        for pipeline in self._pipelines:
            label = pipeline.device.removesuffix(":0")
            counts[label] = counts.get(label, 0) + len(pipeline.tasks)
            placement.update({t.node.name: label for t in pipeline.tasks})
            total = statistics.setdefault(label, {})
            for key, value in pipeline.backend.statistics().items():
                total[key] = total.get(key, 0) + value
        notes = [c.why for c in self._choices if c.why]
        if self.config.precision is Precision.NORMAL:
            notes.append("precision NORMAL was computed as HIGH: no faster arithmetic of fp32 accuracy is implemented")
        if self.config.power.name != "NORMAL":
            notes.append(f"power {self.config.power.name} was not granted: no backend can set clocks")
        devices = tuple(c.device for c in self._choices)
        return Report(
            devices, counts, placement, assignment.refusals, tuple(copies), statistics, self.config, tuple(notes)
        )

    # -- running ---------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the session is closed", fix="load the model again")

    def _arrays(self, inputs: Sequence[Array | Mapping[str, Array]]) -> dict[str, Array]:
        names = self.graph.inputs
        if len(inputs) == 1 and isinstance(inputs[0], Mapping):
            given: dict[str, Any] = dict(inputs[0])
        else:
            if len(inputs) != len(names):
                raise InputError(f"{len(inputs)} input(s) were given", why=f"the network has {len(names)}: {names}")
            given = dict(zip(names, inputs, strict=True))
        missing, unknown = [n for n in names if n not in given], [n for n in given if n not in names]
        if missing or unknown:
            why = "; ".join(
                [*(f"{n!r} is missing" for n in missing), *(f"there is no input {n!r}" for n in unknown)]
            )
            raise InputError("the inputs do not match the network's", why=why, fix=f"the inputs are {names}")
        return {n: self._checked(n, given[n]) for n in names}

    def _checked(self, name: str, value: Any) -> Array:
        array = np.asarray(value)
        want = self.graph.specs[name].dtype.numpy
        if array.dtype != want:
            same_kind = np.can_cast(array.dtype, want, "same_kind") and array.dtype.kind != "b"
            if not (same_kind or (array.dtype.kind in "iu" and want.kind == "f")):
                raise InputError(
                    f"input {name!r} has element type {array.dtype}",
                    why=f"the network wants {want}",
                    fix=f"convert it: x.astype('{want}')",
                )
            array = array.astype(want)
        return array

    def _fit(self, arrays: Mapping[str, Array]) -> None:
        if self._report is not None and all(a.shape == self.inputs[i] for i, a in arrays.items()):
            return
        self._prepare({i: a.shape for i, a in arrays.items()})

    def _feed(self, pipeline: Pipeline, arrays: Mapping[str, Array]) -> None:
        for name in pipeline.graph.inputs:
            if name not in arrays:
                continue
            if name in pipeline.mapped:
                np.copyto(pipeline.mapped[name], arrays[name])
            else:
                copy_tensor(Tensor.from_numpy(arrays[name], name=name), pipeline.output(name))

    def _given_outputs(self, outputs: Sequence[Array | None] | Mapping[str, Array] | None) -> dict[str, Array]:
        if outputs is None:
            return {}
        pairs = outputs.items() if isinstance(outputs, Mapping) else zip(self.graph.outputs, outputs, strict=False)
        given = {name: array for name, array in pairs if array is not None}
        for name, array in given.items():
            if name not in self.graph.outputs:
                raise InputError(f"there is no output {name!r}", why=f"the outputs are {self.graph.outputs}")
            spec = self._network.specs[name]
            if array.shape != spec.dims or array.dtype != spec.dtype.numpy or not array.flags.writeable:
                raise InputError(
                    f"the array for output {name!r} does not fit",
                    why=f"it is {array.dtype}{list(array.shape)}, needed is a writable {spec}",
                )
        return given

    def _fetch(self, name: str, target: Array | None) -> Array:
        spec = self._network.specs[name]
        result: Array = np.empty(spec.dims, spec.dtype.numpy) if target is None else target
        pipeline = self._made.get(name)
        if pipeline is None:
            known = self._network.constants.get(name)
            assert self._last_inputs is not None
            np.copyto(result, known if known is not None else self._last_inputs[name])
        elif name in pipeline.mapped:
            np.copyto(result, pipeline.mapped[name])
        elif result.flags.c_contiguous:
            copy_tensor(pipeline.output(name), Tensor(name, spec.dims, spec.dtype, memory=result))
        else:
            np.copyto(result, pipeline.output(name).numpy())
        return result

    _made: dict[str, Pipeline]
