"""Recurrent layers on GPUs: one product for the inputs of all steps, then a kernel that goes through the steps.

A step needs the whole state of the one before. Where one work-group computes a row of the batch, it goes through the
steps by itself with the state in its own memory, and nothing waits for a launch. But then one compute unit reads all of
R at every step; from some size on it is faster to spread each step over the device, one launch a step. These launches
have the same constants, for which a Vulkan kernel is compiled: the number of the step goes from launch to launch in
memory, as the states do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from weft.core.graph.dtypes import DType
from weft.core.graph.tensor import Tensor, TensorSpec
from weft.kernels.chooser import Algorithm, Candidate, Chooser, Facts, Rivals, candidates_of
from weft.kernels.device_caps import DeviceCaps
from weft.kernels.gpu_op import GpuOp, Inputs, Outputs, gpu_op
from weft.kernels.launch import KernelBuilder, computed, power_of_two
from weft.kernels.self_test_cases import one_node
from weft.kernels.special import register_family
from weft.ops.gpu.matmul.matmul import PRODUCTS
from weft.ops.gpu.matmul.problem import ProductPlan
from weft.ops.recurrent import GRU, LSTM, RNN, Recurrent, Sizes
from weft.ops.shape import given

UNIT_BYTES, LAUNCH = 1e5, 4.0
"""Bytes that a compute unit reads in a microsecond, and microseconds between launches: guessed, not measured."""
MOST_PARTS = 16
"""The most items that share the sum of one unit."""
SHORTEST = 8
"""The fewest products that each of these items should compute."""
ROOM = 64
"""In work-group memory, the elements of a state are rounded up to a multiple of this."""
FILLING = 256
"""Items with which a compute unit reads at its full speed."""


@dataclass(frozen=True)
class RecurrentTile:
    """How a layer is divided: a group of `units * parts` items computes a whole row, or `units` of it."""

    units: int
    parts: int
    whole: bool

    @property
    def items(self) -> int:
        """Return the work-items of a group."""
        return self.units * self.parts


@dataclass(frozen=True)
class RecurrentProblem:
    """The sizes of a layer, and what else decides its kernel."""

    each: Sizes
    kind: str
    gates: int
    resets_first: bool
    """Whether a GRU's reset gates scale the state before its product: that takes a step of its own."""
    caps: DeviceCaps
    real: DType = DType.FLOAT32
    """The type of the computation."""

    def rounds(self, tile: RecurrentTile) -> int:
        """Return about how often an item loops in a step."""
        blocks = -(-self.each.hidden // tile.units) if tile.whole else 1
        once = -(-self.each.hidden // tile.parts) + tile.parts + 2
        return blocks * (once * (2 if self.resets_first else 1) + 1)

    def shared_bytes(self, tile: RecurrentTile) -> int:
        """Return the bytes of work-group memory."""
        states = 3 if self.kind == "LSTM" or self.resets_first else 2
        sums = tile.items * self.gates if tile.parts > 1 else 0
        return self.real.itemsize * (sums + (states * self.room if tile.whole else 0))

    @property
    def room(self) -> int:
        """Return the elements that a state takes in work-group memory: layers of similar sizes share a kernel."""
        return -(-self.each.hidden // ROOM) * ROOM

    def legal(self, tile: RecurrentTile) -> bool:
        """Tell whether the device takes the tile."""
        caps = self.caps
        fits = tile.items <= caps.max_local_items and self.shared_bytes(tile) <= caps.local_memory
        return fits and not (caps.max_rounds and self.rounds(tile) > caps.max_rounds // 2)

    def tiles(self) -> list[RecurrentTile]:
        """Return the tiles that the device takes: first those whose groups compute all units of a row."""
        caps, hidden = self.caps, self.each.hidden
        most = caps.max_local_items
        enough = min(power_of_two(hidden), 64 if caps.software else most)
        parts = (
            [1]
            if caps.software
            else [p for p in (16, 8, 4, 2, 1) if (p <= MOST_PARTS and p * SHORTEST <= hidden) or p == 1]
        )
        tiles = [RecurrentTile(enough, p, True) for p in parts]
        tiles += [RecurrentTile(max(enough // 2, 1), p, True) for p in parts if hidden > 1]
        tiles += [RecurrentTile(min(units, enough), p, False) for units in (32, 16, 64) for p in parts]
        return [t for t in dict.fromkeys(tiles) if self.legal(t)]

    def time(self, tile: RecurrentTile) -> float:
        """Return the estimated microseconds of a step: R is read for each row, by one unit or by all of them."""
        read = self.gates * self.each.hidden**2 * self.real.itemsize / UNIT_BYTES / min(tile.items / FILLING, 1.0)
        rows = self.each.batch * self.each.directions
        if tile.whole:
            return read * -(-rows // self.caps.compute_units)
        groups = rows * -(-self.each.hidden // tile.units)
        idle = max(self.caps.compute_units / groups, 1.0)
        return LAUNCH * (1 + self.resets_first) + read * rows / self.caps.compute_units * idle

    def facts(self) -> Facts:
        """Return the key of the problem in tuning tables."""
        each = self.each
        return {
            "kind": self.kind, "steps": each.steps, "batch": each.batch, "directions": each.directions,
            "hidden": each.hidden, "resets_first": self.resets_first,
        }


@dataclass(frozen=True)
class RecurrentPlan:
    """A layer's problem with its tensors; `brought` is what the inputs add to the gates of all steps."""

    k: KernelBuilder
    problem: RecurrentProblem
    op: Recurrent
    brought: Tensor
    inputs: Sequence[Tensor | None]
    outputs: Sequence[Tensor]


class WholeRows(Algorithm[RecurrentProblem, RecurrentPlan, RecurrentTile]):
    """A work-group goes through the steps of a row of the batch by itself."""

    name = "recurrent rows"
    whole = True

    def candidates(self, problem: RecurrentProblem) -> Sequence[Candidate]:
        tiles = sorted((t for t in problem.tiles() if t.whole is self.whole), key=problem.time)
        return candidates_of(tiles, problem.time, problem.time(tiles[0])) if tiles else []

    def launch(self, plan: RecurrentPlan, tile: RecurrentTile) -> None:
        _launch_steps(plan, tile)


class SingleSteps(WholeRows):
    """Each step is a launch of its own, over the whole device."""

    name = "recurrent steps"
    whole = False

    def why_not(self, problem: RecurrentProblem) -> str | None:
        """Refuse software devices on which a group can compute a whole row: launches cost them more than they gain."""
        in_software = problem.caps.software and any(t.whole for t in problem.tiles())
        return "a software device gains nothing by it" if in_software else None


LAYERS = Chooser[RecurrentProblem, RecurrentPlan](
    Rivals("recurrent", (WholeRows(), SingleSteps()), RecurrentProblem.facts),
)
"""Which of them computes a recurrent layer."""


@gpu_op(LSTM, GRU, RNN)
class RecurrentOnGpu(GpuOp):
    """One product, then a launch for all steps, or one for every few."""

    fuses_into_store = False
    integers = frozenset({DType.INT32})
    computes_double = True

    def why_not(self, op: Recurrent, inputs: Inputs, outputs: Outputs, caps: DeviceCaps) -> str | None:
        """Refuse loops longer than the driver allows, and more buffers than the device binds."""
        problem = _problem(op, inputs, caps)
        if problem.each.hidden and not problem.tiles():
            return f"a step of {problem.each.hidden} units loops longer than the driver allows"
        bound = len(inputs) + len(outputs) + 6
        return (
            f"it may bind {bound} buffers and the device takes {caps.max_buffers}"
            if bound > caps.max_buffers
            else None
        )

    def rounds(self, op: Recurrent, inputs: Inputs, caps: DeviceCaps) -> int:
        """Return twice the multiplications of one output of the product. Steps do not count: launches divide them."""
        x = given(inputs, 0)
        return 2 * x.shape[-1]

    def launches(self, op: Recurrent, k: KernelBuilder, inputs: Inputs, outputs: Outputs) -> None:
        problem = _problem(op, inputs, k.caps)
        each = problem.each
        if not each.steps:
            for state in outputs[1:]:
                _clear(k, state)
            return
        x, w = given(inputs, 0), given(inputs, 1)
        rows, columns = each.steps * each.batch, each.directions * problem.gates * each.hidden
        brought = k.scratch((rows, columns), problem.real)
        flat = replace(
            w,
            shape=(columns, each.features),
            constant=None if w.constant is None else w.constant.reshape(columns, each.features),
        )
        steps = (each.features, 1), (1, each.features)
        PRODUCTS.launch(ProductPlan.of(k, (rows, columns, each.features), (x, flat, brought), *steps))
        LAYERS.launch(RecurrentPlan(k, problem, op, brought, inputs, outputs))


def _clear(k: KernelBuilder, state: Tensor) -> None:
    """Launch what makes a state 0: a product of matrices that have 0 columns and 0 rows."""
    rows, columns = prod(state.shape[:-1]), state.shape[-1]
    nothing = k.scratch((rows, 0), state.dtype), k.scratch((0, columns), state.dtype)
    PRODUCTS.launch(ProductPlan.of(k, (rows, columns, 0), (*nothing, state), (0, 1), (columns, 1)))


def _problem(op: Recurrent, inputs: Inputs, caps: DeviceCaps) -> RecurrentProblem:
    x, w, r = (t for t in inputs[:3] if t is not None)
    resets_first = isinstance(op, GRU) and not op.linear_before_reset
    sizes = op.sizes(x.shape, w.shape, r.shape)
    return RecurrentProblem(sizes, op.type, op.gates, resets_first, caps, computed(x.dtype))


def _launch_steps(plan: RecurrentPlan, tile: RecurrentTile) -> None:
    k, op, problem, brought, inputs = plan.k, plan.op, plan.problem, plan.brought, plan.inputs
    each, hidden = problem.each, problem.each.hidden
    names = ("x", "w", "r", "b", "lens", "h_in", "c_in", "p")
    given = {name: t for name, t in zip(names, inputs, strict=False) if t is not None and name not in ("x", "w")}
    given["r"], r_steps = _recurrence(k, given["r"], problem)
    first: dict[str, Tensor] = {n: given.pop(n) for n in ("h_in", "c_in") if n in given}
    rows = each.directions * each.batch
    at_once = 1
    if tile.whole:
        limit = k.caps.max_rounds
        at_once = max(min(limit // 2 // problem.rounds(tile), each.steps), 1) if limit else each.steps
    slices = 1 if tile.whole else -(-hidden // tile.units)
    groups = rows * slices
    gates = problem.gates
    pair = (each.directions * hidden, hidden) if op.layout else (hidden, each.batch * hidden)
    columns = each.directions * gates * hidden
    ints = {
        "HIDDEN": hidden, "BATCH": each.batch, "TOTAL": each.steps, "STEPS": at_once, "GROUPS": groups,
        "GT": columns * (1 if op.layout else each.batch), "GB": columns * (each.steps if op.layout else 1),
        "YT": each.directions * hidden * (1 if op.layout else each.batch),
        "YB": each.directions * hidden * each.steps if op.layout else hidden, "YD": pair[1],
        "SB": pair[0], "SD": pair[1], **r_steps,
    }
    if op.layout:
        ints["YD"] = ints["SD"] = hidden
    if not tile.whole:
        ints["SLICES"] = slices
    known: dict[str, str] = {}
    floats = {} if op.clip is None else {"CLIP": op.clip}

    def constant(value: float) -> str:
        """Return the name of the kernel's constant of this value."""
        name = known.setdefault(repr(value), f"NUMBER{len(known)}")
        floats[name] = value
        return name

    acts = tuple(chosen.text("$", constant) for direction in op.chosen() for chosen in direction)
    variant: dict[str, Any] = {
        "kind": problem.kind, "whole": tile.whole, "parts": tile.parts, "acts": acts, "directions": each.directions,
        "reverse": op.direction == "reverse", "clipped": op.clip is not None, "phase": "",
        "room": problem.room if tile.whole else 0,
        "linear": isinstance(op, GRU) and bool(op.linear_before_reset),
        "coupled": isinstance(op, LSTM) and bool(op.input_forget),
    }
    results = dict(zip(("y", "y_h", "y_c"), plan.outputs, strict=False))
    launches = -(-each.steps // at_once)
    handed = _states(k, op, problem) if launches > 1 else None
    reset = k.scratch((rows, hidden), problem.real) if problem.resets_first and not tile.whole else None
    taken: dict[str, Tensor] = first
    places = {"HD": ints["SD"], "HB": ints["SB"]}
    for number in range(launches):
        writes, follow = dict(results), dict[str, Tensor]()
        if handed is not None and number < launches - 1:
            follow = handed[number % 2]
            writes |= {f"{name.removesuffix('_in')}_out": t for name, t in follow.items()}
        phases = ("reset", "rest") if reset is not None else ("",)
        for phase in phases:
            reads = {"brought": brought, **given, **taken}
            made = writes
            if phase == "reset":
                assert reset is not None
                reads.pop("p", None)
                made = {"reset_out": reset}
            elif phase == "rest":
                assert reset is not None
                reads["reset"] = reset
            k.launch(
                "recurrent", reads=reads, writes=made, ints={**ints, **places},
                floats=floats, variant={**variant, "phase": phase},
                grid=(max(1, min(groups, k.caps.max_grid[0])), 1, 1), local=(tile.items, 1, 1), epilogue=False,
            )
        if follow:
            taken, places = follow, {"HD": each.batch * hidden, "HB": hidden}


def _states(k: KernelBuilder, op: Recurrent, problem: RecurrentProblem) -> list[dict[str, Tensor]]:
    """Return two sets of the states that launches hand on: one is written while the other is read."""
    shape = (problem.each.directions, problem.each.batch, problem.each.hidden)
    made = []
    for _ in range(2):
        each = {"h_in": k.scratch(shape, problem.real)}
        if op.states == 2:
            each["c_in"] = k.scratch(shape, problem.real)
        made.append({**each, "done": k.scratch((1,), DType.INT32)})
    return made


def _recurrence(k: KernelBuilder, r: Tensor, problem: RecurrentProblem) -> tuple[Tensor, dict[str, int]]:
    """Return R and its steps; a constant is turned so that neighbouring items read neighbouring units."""
    hidden, gates, value = problem.each.hidden, problem.gates, r.constant
    if value is None:
        return r, {"RD": gates * hidden * hidden, "RG": hidden * hidden, "RJ": hidden, "RK": 1}

    def turned() -> np.ndarray[Any, Any]:
        return np.ascontiguousarray(value.reshape(-1, gates, hidden, hidden).transpose(0, 3, 1, 2))

    spec = TensorSpec((value.size // (gates * hidden * hidden), hidden, gates, hidden), DType.of(value.dtype))
    return k.constant("recurrence", turned, spec=spec), {
        "RD": gates * hidden * hidden,
        "RG": hidden,
        "RJ": 1,
        "RK": gates * hidden,
    }


__all__ = ["LAYERS", "RecurrentOnGpu", "RecurrentPlan", "RecurrentProblem", "RecurrentTile"]


register_family(
    "recurrent", "recurrent layers",
    cases=lambda: (
        one_node(
            LSTM(hidden_size=9, direction="bidirectional", outputs=3),
            (3, 2, 5), (2, 36, 5), (2, 36, 9), constants=(1, 2),
        ),
        one_node(GRU(hidden_size=6, outputs=2), (3, 2, 5), (1, 18, 5), (1, 18, 6), constants=(1, 2)),
    ),
)
