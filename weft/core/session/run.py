"""Runs: what one knows, and the steps that follow what is loaded for its sizes.

A network whose sizes follow from its inputs alone has no steps. Where sizes, or which nodes run, follow from values,
the last step goes on: it looks at the values, chooses the steps for them, and so on until the outputs are there. See
"A run" in docs/internals/running.md.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from weft.core.buffers.buffer import Buffer
from weft.core.contract.error_context import at_node, blame
from weft.core.graph.control_op import ControlOp, Value
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph, Node
from weft.core.graph.layout import Array, Shape
from weft.core.graph.tensor import TensorSpec
from weft.core.placement.rows import padded
from weft.core.placement.stage_split import Corner
from weft.core.session.arguments import Given, Outputs, apart, hosted, take_outputs
from weft.core.session.capacities import RoomyPlan
from weft.core.session.executable import Executable
from weft.core.session.overflow import OverflowWatch
from weft.core.session.report import Report
from weft.core.session.rests import Counted, Rest, Rests, Rows, StagePlan, corners_of, lasting_captures
from weft.core.session.state import StateStore
from weft.errors import ExecutionError, ModelError

MakeBuffer = Callable[[Mapping[str, TensorSpec], str], Buffer]
"""Makes a buffer for an output, where it is made: of the outputs' specs and its name."""


class Run:
    """One run: what it was given, and the values that it has made so far."""

    arrays: Mapping[str, Any] = MappingProxyType({})
    """What its plan takes, until that is there; as long as the run may be repeated."""
    unpadded: dict[str, Array] | None = None
    """The caller's arrays, if `arrays` has padding in their place."""
    shapes: Mapping[str, Shape] = MappingProxyType({})
    """Their shapes."""
    numbers: Sequence[int] = ()
    """What a network for capacities computes of the sizes of the run."""
    given: Sequence[Given | None] = ()
    """The arrays for the outputs, in order, that what is loaded may fill itself."""
    asked_outputs: Outputs | None = None
    """The caller's arrays for the outputs as they came, of whatever library."""
    watch: OverflowWatch | None = None
    """Sees what devices store."""
    store: StateStore | None = None
    """The values that live from run to run, if there are any."""
    state: Mapping[str, Array] = MappingProxyType({})
    """Those on the host before the run."""
    may_repeat = False
    """Whether it was submitted and is watched, so that it is repeated from copies of its inputs."""
    whole: Collection[str] = ()
    """The values in arrays that nobody else has and that hold nothing else."""
    went_on = False
    """Whether it went on by its values."""

    def __init__(self, asked: Graph, outputs: Outputs | None = None) -> None:
        self.asked = asked
        """The inputs and outputs of the network, as callers see them."""
        self.outputs = outputs
        """The caller's arrays for the outputs."""
        self.values: dict[str, Any] = {}
        """The values that steps may still read, by name."""
        self.rows: Rows = {}
        """Which values have a row for each thing that the run counted."""
        self.used: dict[Executable, Report] = {}
        """What ran as a step, in order, with its report."""
        self.own: dict[str, str] = {}
        """The nodes that ran on no device, by name, with their op types."""

    def within(self, values: dict[str, Value]) -> Run:
        """Return the run of a graph that a node of this one holds, for the values of its inputs."""
        made = Run(self.asked)
        made.watch, made.values, made.used, made.own = self.watch, values, self.used, self.own
        return made

    def pads(self, arrays: dict[str, Array], numbers: Sequence[int]) -> None:
        """Note that the plan takes padding in the place of these arrays, and what it computes of their sizes."""
        self.unpadded, self.numbers = arrays, numbers
        self.shapes = {name: array.shape for name, array in arrays.items()}

    def keep_apart(self) -> None:
        """Copy inputs that share memory with arrays for outputs, which may be written before they are read."""
        if self.outputs is None:
            return
        targets = self.given or self.outputs
        if self.unpadded is None:
            self.arrays = apart(self.arrays, targets)
        else:
            self.unpadded = apart(self.unpadded, targets)

    def keep_copies(self) -> None:
        """Copy the inputs, which the caller may change before the run is repeated."""
        self.arrays, self.unpadded = copy.deepcopy(hosted(self.arrays)), copy.deepcopy(self.unpadded)

    def let_go(self) -> None:
        """Hold no array of the caller's any more."""
        self.arrays, self.unpadded, self.given, self.outputs = {}, None, (), None

    def keep(self, steps: Sequence[Step], inputs: Mapping[str, Given], *, lasting: bool) -> None:
        """Keep what steps will read of the inputs; copies, if `lasting`, since the caller may change them."""
        reads = [i for step in steps for i in step.reads if i in inputs]
        self.values = {i: copy.deepcopy(inputs[i]) if lasting else inputs[i] for i in reads}

    def go_on(self, steps: Sequence[Step], made: Mapping[str, Any], make: MakeBuffer) -> list[Any]:
        """Run the steps behind what is loaded, which `made` values, and return the outputs.

        `make` makes the buffers that are asked for.
        """
        self.values.update(made)
        try:
            for step in steps:
                step.run(self)
            return self.results(make)
        finally:
            self.values = {}

    def results(self, make: MakeBuffer) -> list[Any]:
        """Return the outputs, in the caller's arrays, in new buffers, or in arrays that nobody else has."""
        names = self.asked.outputs  # one may be there twice
        given: Sequence[Any] = [None] * len(names)
        if self.outputs is not None:
            arrays = {name: _tensor(name, self.values[name]) for name in names}
            specs = {name: TensorSpec(a.shape, DType.of(a.dtype)) for name, a in arrays.items()}
            given = take_outputs(self.asked, specs, self.outputs, make=partial(make, specs))
        results = list[Any]()
        for target, name in zip(given, names, strict=True):
            value = self.values[name]
            if target is not None:
                _put(target, value)
            elif name not in self.whole and isinstance(value, np.ndarray):
                # A part of a roomy value would hold all of its memory, and one array may be two outputs.
                target = np.array(value)
            results.append(value if target is None else target)
        return results


class Step(ABC):
    """A part of a run that needs values of what ran before."""

    @property
    def reads(self) -> Collection[str]:
        """Return the inputs of the network that it reads; none, as by default."""
        return ()

    @abstractmethod
    def run(self, run: Run) -> None:
        """Read values of the run, and add those that it makes."""


@dataclass(frozen=True, eq=False)
class Corners(Step):
    """Reads the values that are corners of others: a device computed them with room for the most there can be."""

    corners: Mapping[str, Corner]

    def run(self, run: Run) -> None:
        """Add them."""
        run.values.update(corners_of(self.corners, run.values, run.rows))


@dataclass(frozen=True, eq=False)
class Live(Step):
    """Cuts off what is live of the outputs of a network for capacities."""

    roomy: RoomyPlan

    def run(self, run: Run) -> None:
        """Put what is live in the place of the outputs, and keep the state that is on the host."""
        network, made = self.roomy.network, run.values
        if run.store is not None:
            run.store.take(made)
        run.values = {name: network.cut(name, made[name], run.numbers) for name in run.asked.outputs}
        run.whole = {name for name, array in run.values.items() if array.size == made[name].size}


@dataclass(frozen=True, eq=False)
class Stage(Step):
    """Runs what is loaded for a stage: its inputs are padded to the rows that it is planned for, its outputs cut."""

    plan: StagePlan
    counted: Counted | None

    def run(self, run: Run) -> None:
        """Run it on its devices."""
        executable = self.plan.executable
        arrays: dict[str, Any] = {i: run.values[i] for i in self.plan.inputs}
        if self.counted is not None:
            axes = self.counted.axes
            arrays |= {i: padded(arrays[i], axes[i], self.plan.size) for i in axes if i in arrays}
        executable.start(arrays, first=False, watch=run.watch)
        made = dict(zip(executable.results, executable.finish(()), strict=True))
        run.values.update(self.plan.values(made, self.counted, run.rows))
        assert executable.report is not None
        run.used[executable] = executable.report


@dataclass(frozen=True, eq=False)
class Own(Step):
    """Runs a node that no device runs: one that holds graphs, such as a loop, or one on lists of tensors."""

    node: Node
    rest: Rest
    rests: Rests

    def run(self, run: Run) -> None:
        """Run it; the graphs that it holds run on the session's devices."""
        node, constants = self.node, self.rest.graph.constants
        given = [self.rest.read(i, run.values) for i in node.inputs]
        run.own[node.name] = node.op.type
        results: Sequence[Value] = given  # an Identity of a sequence
        if isinstance(node.op, ControlOp):
            lasting = lasting_captures(node, node.op, constants)
            with blame(at_node(node, "the session"), f"{node.op.type} failed"):
                results = node.op.execute(given, partial(self._run_body, run, node.op.captures, lasting))
        if len(results) < len(node.outputs):
            what = f"node {node.name!r} ({node.op.type}) names more outputs than it makes"
            why = f"it names {len(node.outputs)} and makes {len(results)}"
            raise ModelError(what, why=why, fix="mend the model, or export it anew")
        run.values.update((o, v) for o, v in zip(node.outputs, results, strict=False) if o)

    def _run_body(
        self, run: Run, captures: int, lasting: Collection[int], body: Graph, inputs: Sequence[Value]
    ) -> list[Value]:
        """Run a graph that the node holds.

        Its last `captures` inputs come from outside. Those whose id is in `lasting` are the same in every run, so they
        become constants, which devices keep.
        """
        rest, values = self.rests.body(body, inputs, captures=captures, lasting=lasting)
        inner = run.within(values)
        GoOn(rest, self.rests).run(inner)
        return [inner.values[o] for o in rest.graph.outputs]


@dataclass(frozen=True, eq=False)
class GoOn(Step):
    """Runs what waits for values: steps that are chosen by the values that are there, until the outputs are there."""

    rest: Rest
    rests: Rests

    @property
    def reads(self) -> Collection[str]:
        """Return what waits reads, and what it passes on."""
        return {*self.rest.graph.inputs, *self.rest.graph.outputs}

    def run(self, run: Run) -> None:
        """Run them; the outputs remain."""
        rest: Rest | None = self.rest
        outputs = self.rest.graph.outputs
        while rest is not None:
            constants, needed = rest.graph.constants, {*rest.graph.inputs, *outputs}
            run.values.update((o, constants[o]) for o in outputs if o in constants)
            run.values = {name: value for name, value in run.values.items() if name in needed}
            if not rest.graph.nodes:
                break
            steps, rest = self.chosen(rest, run)
            for step in steps:
                step.run(run)
        run.went_on = True

    def chosen(self, rest: Rest, run: Run) -> tuple[Sequence[Step], Rest | None]:
        """Return the next steps: nodes that no device runs, or else one stage; and what waits behind them."""
        own = rest.own(run.values)
        if own:
            steps = [Own(node, rest, self.rests) for node in own]
            return steps, self.rests.left(rest, frozenset(node.name for node in own))
        plan, counted = self.rests.planned(rest, run.values, run.rows)
        return [Stage(plan, counted)] if plan.runs else [], plan.rest


def _put(target: Given, array: Array) -> None:
    """Copy an output to where the caller wants it."""
    if isinstance(target, Buffer):
        target.write(array)
    else:
        np.copyto(target, array)


def _tensor(name: str, value: Value) -> Array:
    """Return an output as an array; ExecutionError for a sequence or an empty optional."""
    if isinstance(value, np.ndarray):
        return value
    kind = "an optional that holds nothing" if value is None else f"a sequence of {len(value)}"
    fix = "have the network give tensors: ConcatFromSequence, SequenceAt"
    raise ExecutionError(f"output {name!r} is {kind}", fix=fix)
