"""The report of a session: which device runs which node and why, copies, memory, precision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from weft.core.contract import check_answers
from weft.core.contract.backend import Backend, BackendConfig
from weft.core.contract.error_context import caught
from weft.core.contract.lowered import Launch
from weft.core.passes.journal import Journal
from weft.core.placement.optimized_network import Part
from weft.core.registry.device_choice import DeviceChoice
from weft.core.registry.probe import described
from weft.core.session.pipeline import Pipeline
from weft.errors import brief


@dataclass(frozen=True, slots=True)
class CopyRecord:
    """A value that crosses from one device to another in every run."""

    value: str
    source: str
    target: str
    nbytes: int
    name: str = ""
    """The name of the copy's node in the optimised network."""

    def __str__(self) -> str:
        return f"copy {self.source} -> {self.target}: {self.value}, {self.nbytes} bytes"


@dataclass
class Transfers:
    """What the runs of a session copied, in bytes; a value that a device uses where the caller has it is not copied."""

    runs: int = 0
    to_devices: int = 0
    """Bytes of inputs, from arrays or buffers to where a device reads them."""
    from_devices: int = 0
    """Bytes of outputs, from where a device left them to arrays or buffers."""

    def add(self, other: Transfers) -> None:
        """Add what other runs copied."""
        self.runs += other.runs
        self.to_devices += other.to_devices
        self.from_devices += other.from_devices


@dataclass(frozen=True)
class Report:
    """Facts about a prepared session.

    `nodes_by_device` counts the nodes on each device, after fusing. `refusals` gives, for every node that is not on
    the first device, the reasons of the devices before its own. `statistics` are the backends' counters by device.
    `notes` say what Weft chose, and what it did not grant. `copies` copy values from one device to another.
    """

    devices: tuple[str, ...]
    nodes_by_device: Mapping[str, int]
    placement: Mapping[str, str]
    refusals: Mapping[str, Mapping[str, str]]
    copies: tuple[CopyRecord, ...]
    statistics: Mapping[str, Mapping[str, int]]
    config: BackendConfig
    notes: tuple[str, ...] = field(default=())
    subgraphs: tuple[str, ...] = ()
    """The device of each subgraph, in the order of execution."""
    drivers: Mapping[str, str] = field(default_factory=dict)
    """The name and driver of each device whose backend tells them."""
    journal: Journal = field(default_factory=Journal)
    """Which pass made, changed, merged or removed which node; `Session.optimized.why(name)` tells about one."""
    final: bool = True
    """Whether further runs have the same kernels; if not, better ones are being prepared (`Session.wait_all`)."""
    plan: str = ""
    """For which sizes the plan was made that runs use, why, and how many plans the session keeps."""
    launches: tuple[tuple[str, Launch], ...] = ()
    """The launches of every run, each with its device, for backends that plan launches (`Engine.lower`)."""

    @property
    def memory_bytes(self) -> int:
        """Return the bytes of activation memory over all devices."""
        return sum(s.get("arena_bytes", 0) for s in self.statistics.values())

    def __str__(self) -> str:
        nodes = ", ".join(f"{d} {n}" for d, n in self.nodes_by_device.items())
        lines = [f"nodes: {nodes}", f"precision: {self.config.precision.name}", f"memory: {self.config.memory.name}"]
        lines += [f"{name}: off" for name in self.config.switched_off]
        lines += [f"{d}: {driver}" for d, driver in self.drivers.items()]
        lines += [f"  {d}: {', '.join(f'{k} {v}' for k, v in s.items())}" for d, s in self.statistics.items() if s]
        lines += [f"plan: {self.plan}"] if self.plan else []
        lines += [f"note: {n}" for n in self.notes]
        lines += [str(c) for c in self.copies]
        for node, reasons in self.refusals.items():
            lines.append(f"{node}: " + "; ".join(f"not on {d}: {brief(why)}" for d, why in reasons.items()))
        return "\n".join(lines)


def answers_of(backend: Backend) -> tuple[Mapping[str, int], list[str]]:
    """Return the counters and notes of a backend. If it fails to tell them, a note says so, and the report goes on."""
    counted: Mapping[str, int] = {}
    notes: list[str] = []
    with caught(lambda e: notes.append(f"its statistics are missing: {described(e)}")):
        counted = check_answers.counters(backend.statistics(), "statistics")
    with caught(lambda e: notes.append(f"its notes are missing: {described(e)}")):
        notes += check_answers.sentences(backend.notes(), "notes")
    return counted, notes


def make_report(
    choices: Sequence[DeviceChoice], pipelines: Sequence[Pipeline], refusals: Mapping[str, Mapping[str, str]],
    copies: Sequence[CopyRecord], config: BackendConfig, remarks: Sequence[str] = (),
    journal: Journal | None = None, parts: Sequence[Part] = (),
) -> Report:
    """Return the report of a session with these pipelines, which run these parts."""
    counts: dict[str, int] = {}
    placement: dict[str, str] = {}
    statistics: dict[str, dict[str, int]] = {}
    notes = [*(c.why for c in choices if c.why), *remarks]
    for pipeline in pipelines:
        label = pipeline.device.removesuffix(":0")
        counts[label] = counts.get(label, 0) + len(pipeline.tasks)
        placement.update({t.node.name: label for t in pipeline.tasks})
        total = statistics.setdefault(label, {})
        counted, said = answers_of(pipeline.backend)
        for key, value in counted.items():
            total[key] = total.get(key, 0) + value
        notes += [f"{label}: {note}" for note in said]
    devices = tuple(c.device for c in choices)
    distinct = tuple(dict.fromkeys(notes))
    order = tuple(p.device for p in pipelines)
    infos = {c.device.removesuffix(":0"): c.info for c in choices if c.info and c.info.driver}
    drivers = {label: f"{info.name}, {info.driver}" for label, info in infos.items() if label in counts}
    launches = tuple((p.device, x) for p in parts if p.lowered is not None for x in p.lowered.launches)
    return Report(
        devices=devices, nodes_by_device=counts, placement=placement, refusals=refusals, copies=tuple(copies),
        statistics=statistics, config=config, notes=distinct, subgraphs=order, drivers=drivers,
        journal=journal or Journal(), launches=launches,
    )


def joined(first: Report, others: Sequence[Report], own: Mapping[str, str]) -> Report:
    """Return the report of a network that ran in stages: of the first, of the others, and the session's own nodes.

    `own` are the types of those ops, by the names of their nodes; they are placed on the "session".
    """
    if not others and not own:
        return first
    every = (first, *others)
    counts: dict[str, int] = {}
    statistics: dict[str, dict[str, int]] = {}
    for report in every:
        for label, count in report.nodes_by_device.items():
            counts[label] = counts.get(label, 0) + count
        for label, numbers in report.statistics.items():
            total = statistics.setdefault(label, {})
            for name, value in numbers.items():
                total[name] = total.get(name, 0) + value
    note = f"the network ran in {len(every)} stages: shapes follow from values that each of them makes"
    if own:
        note += f"; the session ran {len(own)} node(s) itself: {brief(', '.join(f'{n} ({t})' for n, t in own.items()))}"
    return replace(
        first,
        nodes_by_device=counts,
        placement={n: d for r in every for n, d in r.placement.items()} | dict.fromkeys(own, "session"),
        refusals={n: reasons for r in every for n, reasons in r.refusals.items()},
        copies=tuple(c for r in every for c in r.copies),
        statistics=statistics,
        notes=tuple(dict.fromkeys((*(n for r in every for n in r.notes), note))),
        subgraphs=tuple(d for r in every for d in r.subgraphs),
        drivers={d: text for r in every for d, text in r.drivers.items()},
        launches=tuple(launch for r in every for launch in r.launches),
    )
