"""`weft compare`: whether devices give what the first one gives, and the first value that a device gets wrong."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any

import numpy as np
import typer

from weft.cli.command import FOUND_WRONG
from weft.cli.console import line, note, table, working
from weft.cli.difference import Difference, difference, not_finite
from weft.cli.inputs import Preparation, collect, shaped
from weft.cli.json_output import JsonOption, answer
from weft.cli.model import read_model, stateless
from weft.cli.options import BackendPathOption, InputOption, ModelArgument, load_flags
from weft.cli.parsing import device_orders, parse_pairs
from weft.cli.results import precision_notes
from weft.core.contract.backend import Precision
from weft.core.graph.control_op import Value
from weft.core.graph.graph import Graph, Node, bind
from weft.core.graph.layout import Array
from weft.core.graph.limits import Budget
from weft.core.passes import PassContext, run_passes
from weft.core.placement.optimized_network import OptimizedNetwork
from weft.core.placement.stage_split import is_staged
from weft.core.registry.backend_registry import registry
from weft.errors import ConfigError
from weft.loading import load

ALLOWED = {Precision.HIGH: 1e-3, Precision.NORMAL: 1e-3, Precision.LOW: 3e-2}
"""How far a value may be off by default, as a share of its range."""
SCALED = 2
"""Integers of up to so many bytes may be quantised reals, and those of more are numbers of things, which are right or
wrong: the class or token beside the right one is another one."""
MOST_ROWS = 20
"""The most wrong values that are printed; JSON has all."""
MOST_NODES = 6
"""The most nodes of a part that are named."""


@load_flags("device", "shapes", "backend_options", "fusing", "winograd", "limits", "signature", device="cpu,auto")
def compare(
    options: dict[str, Any],
    model: ModelArgument,
    inputs: InputOption = None,
    precision: Annotated[
        Precision, typer.Option(help="Precision of all devices but the first, which runs at high.")
    ] = Precision.HIGH,
    threshold: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="The most that a value may be off, as a share of its range: 0.001, or 0.03 at low. Integers of 32 and "
            "64 bits must be the same.",
        ),
    ] = None,
    values: Annotated[
        bool, typer.Option("--values", help="Compare each value that a device stores, even if the outputs agree.")
    ] = False,
    backend_path: BackendPathOption = None,
    as_json: JsonOption = None,
) -> None:
    """Run a network as a user runs it on each device, and compare the outputs with those of the first device.

    Where outputs differ, the network runs once more with each value that the device stores as an output: no kernel
    becomes another by that, as it would if every value were one. The first wrong value names the nodes at fault.
    A number that is finite on one side only is a difference. Two runs on the same device at the same precision are
    refused. The last line of each device says PASS or FAIL; the exit status is 0 if all pass, 1 if one fails and 2
    after an error.
    """
    device, shape, limits = options.pop("device"), options.pop("shapes"), options["limits"]
    graph = stateless(read_model(model, limits, options.pop("signature")))
    first, *others = _runs(device, precision)
    files = parse_pairs(inputs, "--input", "x=x.npy")
    arrays, remarks = collect(*shaped(graph, shape), files, Preparation())
    for remark in remarks:
        note(remark)
    bound = bind(graph, {name: a.shape for name, a in arrays.items()})
    staged = is_staged(bound)
    base = bound if staged else run_passes(bound, context=PassContext(Budget(limits)))
    comparison = _Comparison(
        graph, base, staged, arrays, options, ALLOWED[precision] if threshold is None else threshold, values
    )
    reference = _Side(first, Precision.HIGH)
    told = [comparison.of(reference, _Side(names, precision)) for names in others]
    passed = all(each.passed for each in told)
    facts = {"model": model, "passed": passed, "runs": [each.as_json() for each in told]}
    answer(as_json, lambda: facts, lambda: _print(arrays, told))
    if not passed:
        raise typer.Exit(FOUND_WRONG)


def _print(arrays: Mapping[str, Array], told: Sequence[_Told]) -> None:
    for name, array in arrays.items():
        if not_finite(array):
            line(f"the input {name!r} has {not_finite(array)} of {array.size} numbers that are not finite")
    for each in told:
        each.print()


def _runs(device: str, precision: Precision) -> list[list[str]]:
    """Return the devices of each run; ConfigError unless there are several, none of which is as the first."""
    orders, where = device_orders(device), f"--device {device}"
    if len(orders) < 2:
        raise ConfigError(
            "one run was named, and there is nothing to compare it with", where=where, fix='name two: "cpu,vulkan"'
        )
    label = _label(orders[0])
    for names in orders[1:]:
        if label == _label(names) and precision is Precision.HIGH:
            chosen = [*registry.choose(orders[0]), *registry.choose(names)]
            raise ConfigError(
                f"both runs would be on {label} at precision high",
                where=where,
                why="; ".join(dict.fromkeys(c.why for c in chosen if c.why)) or "it was named twice",
                fix='name two devices that `weft devices` lists ("cpu,vulkan"), or --precision low for the second run',
            )
    return orders


def _label(names: list[str]) -> str:
    """Return the devices that names choose, with AUTO replaced by what it picks."""
    return "+".join(choice.device.removesuffix(":0") for choice in registry.choose(names))


@dataclass(frozen=True)
class _Side:
    """Where a network runs, and how."""

    names: list[str]
    precision: Precision

    def __str__(self) -> str:
        return f"{_label(self.names)} at precision {self.precision.value}"


@dataclass(frozen=True)
class _Run:
    """What a run gave: the values of its outputs, the network that ran, nodes by device, and notes on precision."""

    values: Mapping[str, Array]
    network: OptimizedNetwork
    nodes: Mapping[str, int]
    notes: Sequence[str]


@dataclass(frozen=True)
class _Stored:
    """A value that the device stores, and the nodes that compute it from others that it stores."""

    value: str
    device: str
    nodes: Sequence[Node]

    @property
    def part(self) -> str:
        """Return the nodes in words."""
        named = [f"{n.name!r} ({n.op.type})" for n in self.nodes[-MOST_NODES:]]
        left = len(self.nodes) - len(named)
        return ", ".join([*([f"{left} more"] if left else []), *named]) + f" on {self.device}"


@dataclass(frozen=True)
class _Apart:
    """How far a value is from the reference."""

    value: str
    range: float
    found: Difference
    passed: bool
    stored: _Stored | None = None
    whole: bool = False
    """Whether its elements are integers that must be the same."""

    @property
    def relative(self) -> float:
        """Return the largest difference as a share of the range; infinity if numbers or shapes are unlike."""
        return math.inf if self.found.bound == math.inf else self.found.largest / (self.range or 1.0)

    @property
    def text(self) -> str:
        """Return the difference in words, to follow the value."""
        if self.relative == math.inf:
            return f"({self.found.text('.2e')})"
        if self.whole:
            return f"by {self.found.largest:.15g}, and its integers must be the same"
        return f"by {self.relative:.2e} of its range"

    def as_json(self) -> dict[str, Any]:
        """Return it as data."""
        facts: dict[str, Any] = {
            "value": self.value, "passed": self.passed, "range": self.range,
            "difference": self.found.bound, "relative": self.relative,
            "not_finite_alike": self.found.alike, "not_finite_unlike": self.found.unlike,
            "other_shape": bool(self.found.shapes),
        }
        if self.stored is not None:
            facts |= {"device": self.stored.device, "nodes": [n.name for n in self.stored.nodes]}
        return facts


@dataclass
class _Told:
    """What is said of one device."""

    reference: _Side
    side: _Side
    threshold: float
    runs: tuple[_Run, _Run]
    outputs: Sequence[_Apart]
    stored: Sequence[_Apart] = ()
    remarks: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Tell whether all outputs agree, and all other values that were compared."""
        return all(a.passed for a in (*self.outputs, *self.stored))

    @property
    def first_wrong(self) -> _Apart | None:
        """Return the first stored value that is wrong."""
        return next((a for a in self.stored if not a.passed), None)

    def as_json(self) -> dict[str, Any]:
        """Return it as data."""
        sides = zip((self.reference, self.side), self.runs, strict=True)
        told = [
            {"device": _label(s.names), "precision": s.precision.value, "nodes": dict(r.nodes), "notes": list(r.notes)}
            for s, r in sides
        ]
        return {
            "reference": told[0],
            **told[1],
            "passed": self.passed,
            "threshold": self.threshold,
            "outputs": [a.as_json() for a in self.outputs],
            "values": [a.as_json() for a in self.stored],
            "first_wrong": None if self.first_wrong is None else self.first_wrong.as_json(),
            "remarks": self.remarks,
        }

    def print(self) -> None:
        """Print it, with the verdict in the last line."""
        for side, run in zip((self.reference, self.side), self.runs, strict=True):
            nodes = ", ".join(f"{device} {count}" for device, count in run.nodes.items())
            line(f"{side}, nodes: {nodes}", "bold")
            for text in precision_notes(_label(side.names), side.precision.value, run.notes):
                line(f"note: {text}")
        headers = ("range", "difference", "relative")
        table(("output", *headers), [(a.value, *_numbers(a)) for a in self.outputs], numbers=headers)
        wrong = [a for a in self.stored if not a.passed]
        if self.stored:
            line(f"{len(wrong)} of {len(self.stored)} values that the device stores differ")
        if wrong:
            shown = [(a.value, a.stored.part if a.stored else "", *_numbers(a)) for a in wrong[:MOST_ROWS]]
            table(("value", "nodes", *headers), shown, numbers=headers)
            if len(wrong) > MOST_ROWS:
                line(f"and {len(wrong) - MOST_ROWS} more, which --json lists")
        for text in self.remarks:
            line(text)
        line(self.verdict(), "bold")

    def verdict(self) -> str:
        """Return one line that begins with PASS or FAIL."""
        allowed = f"allowed is {self.threshold:g} (--threshold)"
        compared = (*self.outputs, *self.stored)
        if self.passed:
            worst = max((a.relative for a in compared), default=0.0)
            count = f"{len(self.outputs)} output(s)" + (f" and {len(self.stored)} stored values" if self.stored else "")
            return f"PASS: {self.side} is within {worst:.2e} of the range of {self.reference} in {count}; {allowed}"
        bad = max((a for a in compared if not a.passed), key=lambda a: a.relative)
        wrong = next((a for a in self.outputs if not a.passed), bad)
        said = f"FAIL: {self.side} differs from {self.reference} in {wrong.value!r} {wrong.text}; {allowed}"
        first = self.first_wrong
        if first is not None and first.stored is not None:
            said += f"; the first wrong value is {first.value!r}, of {first.stored.part}: it differs {first.text}"
        return said


def _numbers(apart: _Apart) -> tuple[str, str, str]:
    relative = "-" if apart.relative == math.inf else f"{apart.relative:.2e}"
    return f"{apart.range:.3g}", apart.found.text(".2e"), relative


@dataclass(frozen=True)
class _Comparison:
    """A network and what it is run on; `base` is the network as it is divided over devices: after the rewrites."""

    graph: Graph
    base: Graph
    staged: bool
    arrays: Mapping[str, Array]
    options: Mapping[str, Any]
    threshold: float
    all_values: bool
    _known: dict[tuple[str, ...], _Run] = field(default_factory=dict)
    """The runs of the reference, by their outputs."""

    def of(self, reference: _Side, side: _Side) -> _Told:
        """Compare one device with the reference."""
        expected, run = self._reference(self.graph, reference), self._run(self.graph, side)
        told = _Told(reference, side, self.threshold, (expected, run), self._apart(self.graph.outputs, run, expected))
        strange = any(map(not_finite, (*run.values.values(), *expected.values.values())))
        if self.all_values or strange or not told.passed:
            self._look_inside(told)
        return told

    def _run(self, graph: Graph, side: _Side) -> _Run:
        shapes = {name: array.shape for name, array in self.arrays.items()}
        session_of = partial(
            load, graph, side.names, precision=side.precision, shapes=shapes, wait="all", **self.options
        )
        with working(f"running on {_label(side.names)}"), session_of() as session:
            values = dict(zip(session.outputs, session.run(self.arrays), strict=True))
            report = session.report
            return _Run(_tensors(values), session.optimized, report.nodes_by_device, report.notes)

    def _reference(self, graph: Graph, side: _Side) -> _Run:
        key = (graph.name, *graph.outputs)
        if key not in self._known:
            self._known[key] = self._run(graph, side)
        return self._known[key]

    def _apart(
        self, names: Iterable[str], run: _Run, expected: _Run, stored: Mapping[str, _Stored] | None = None
    ) -> list[_Apart]:
        """Return how far values are from the reference, in order."""
        found = []
        for name in dict.fromkeys(names):
            each, reach = difference([run.values[name]], [expected.values[name]]), _range(expected.values[name])
            kind = expected.values[name].dtype
            whole = kind.kind in "iu" and kind.itemsize > SCALED
            passed = each.bound / (reach or 1.0) <= (0 if whole else self.threshold)
            found.append(_Apart(name, reach, each, passed, (stored or {}).get(name), whole))
        return found

    def _look_inside(self, told: _Told) -> None:
        """Compare the values that the device stores, and say where those that are not finite begin."""
        stored = self._stored(told.side, self._run(self.base, told.side).network)
        exposed = _exposed(self.base, [*stored, *self.base.outputs])
        run, expected = self._run(exposed, told.side), self._reference(exposed, told.reference)
        told.stored = self._apart(stored, run, expected, stored)
        if told.first_wrong is None and not told.passed:
            told.remarks.append("as outputs, all values that the device stores are right: each was run by itself")
            told.stored = self._by_itself(told, stored, expected)
        if self.staged:
            told.remarks.append("sizes follow from values: what is inside If and loops was not compared")
        if any(map(not_finite, (*run.values.values(), *expected.values.values()))):
            for side, values in ((told.reference, expected.values), (told.side, run.values)):
                told.remarks.append(_where_not_finite(side, values, [stored[a.value] for a in told.stored if a.stored]))

    def _stored(self, side: _Side, network: OptimizedNetwork) -> dict[str, _Stored]:
        """Return the values that the device stores as it runs the network, in the order of the network."""
        places = {
            value: part.device
            for stage in network.stages
            for part in stage.parts
            for node in (part.graph.nodes if part.listing is None else part.listing.nodes)
            for value in (node.outputs if isinstance(node, Node) else [v.name for v in node.outputs])
        }
        makers = self.base.producers()
        found = dict[str, _Stored]()
        for node in self.base.nodes:
            for value in node.outputs:
                if value in places:
                    found[value] = _Stored(value, places[value], _since(self.base, node, makers, places))
        return found

    def _by_itself(self, told: _Told, stored: Mapping[str, _Stored], expected: _Run) -> list[_Apart]:
        """Return the first value that is wrong where the network ends there, found by bisection; nothing if none is."""
        names = list(stored)
        low, high, wrong = 0, len(names), list[_Apart]()
        while low < high:
            middle = (low + high) // 2
            run = self._run(_exposed(self.base, [names[middle]]), told.side)
            (apart,) = self._apart([names[middle]], run, expected, stored)
            if apart.passed:
                low = middle + 1
            else:
                high, wrong = middle, [apart]
        return wrong


def _since(graph: Graph, last: Node, makers: Mapping[str, Node], stored: Mapping[str, object]) -> list[Node]:
    """Return the nodes that compute a node's values from stored ones, in order, that node among them."""
    inside, waiting = {last.name}, [last]
    while waiting:
        for value in waiting.pop().inputs:
            maker = makers.get(value)
            if maker is not None and value not in stored and maker.name not in inside:
                inside.add(maker.name)
                waiting.append(maker)
    return [node for node in graph.nodes if node.name in inside]


def _exposed(graph: Graph, outputs: Sequence[str]) -> Graph:
    """Return the part of the graph that computes these outputs."""
    out = graph.copy()
    out.outputs = list(dict.fromkeys(outputs))
    wanted, kept = set(out.outputs), list[Node]()
    for node in reversed(graph.nodes):
        if wanted & {*node.outputs}:
            kept.append(node)
            wanted.update(node.inputs)
    out.nodes = kept[::-1]
    out.declared = {name: each for name, each in graph.declared.items() if name in out.outputs}
    return out


def _tensors(values: Mapping[str, Value]) -> dict[str, Array]:
    """Return the values as tensors: a sequence as all its elements one after the other, an empty optional as none."""
    made = {}
    for name, value in values.items():
        each = [] if value is None else [value] if isinstance(value, np.ndarray) else value
        made[name] = each[0] if isinstance(value, np.ndarray) else np.concatenate([np.zeros(0), *map(np.ravel, each)])
    return made


def _range(values: Array) -> float:
    """Return the largest absolute value of the finite numbers."""
    finite = values[np.isfinite(values)]
    finite = np.abs(finite.astype(np.float64) if finite.dtype.kind == "i" else finite)  # INT_MIN has no opposite
    return float(finite.max()) if finite.size else 0.0


def _where_not_finite(side: _Side, values: Mapping[str, Array], stored: Sequence[_Stored]) -> str:
    """Say where numbers that are not finite begin on one side."""
    begin = next((each for each in stored if not_finite(values[each.value])), None)
    if begin is None:
        return f"{side}: all stored numbers are finite"
    array = values[begin.value]
    count = f"{not_finite(array)} of {array.size}"
    return f"{side}: numbers that are not finite begin in {begin.value!r}, of {begin.part}: {count}"
