"""A network that is ready to be loaded: optimised, divided over devices, with the copies between them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, ClassVar

from weft.core.contract.backend import BackendConfig
from weft.core.contract.backend_options import Options
from weft.core.contract.doors import door
from weft.core.contract.lowered import Listing, Lowered
from weft.core.contract.views import SubgraphView
from weft.core.graph.control_op import ControlOp
from weft.core.graph.graph import Graph, Node
from weft.core.graph.layout import Array
from weft.core.graph.op import Constants, Op, register_op
from weft.core.graph.tensor import TensorSpec
from weft.core.passes.journal import Journal
from weft.core.passes.manager import PassRecord
from weft.core.placement.stage_split import Corner
from weft.errors import ExecutionError, InputError, ModelError, Refusal, brief

if TYPE_CHECKING:
    from weft.core.placement.optimizer import OptimizerOptions
    from weft.core.registry.backend_registry import BackendRegistry


@register_op
@dataclass(frozen=True)
class Copy(Op):
    """Copy a value from one device to another. Sessions run it; no backend sees it."""

    most_inputs: ClassVar[int | None] = 1
    from_optimizing: ClassVar[bool] = True
    source: str
    target: str

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        """Return the spec of the copied value."""
        if len(inputs) != 1 or inputs[0] is None:
            raise ModelError(f"a copy has one input, and this one {len(inputs)}")
        return (inputs[0],)

    def reference(self, *inputs: Array | None) -> Array:
        """Return the same array."""
        (value,) = inputs
        assert value is not None
        return value


@register_op
@dataclass(frozen=True, eq=False)
class PreCompiled(Op):
    """A part of a network as one node that only `backend` can run, because it holds that backend's own object.

    A backend substitutes it for a part in `OptimizeSubgraph`. `payload` is the object; it can be saved if it is bytes.
    `results` are the specs of the outputs.
    """

    from_optimizing: ClassVar[bool] = True
    backend: str
    payload: object
    results: tuple[TensorSpec, ...] = ()

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        """Return the specs that the backend gave."""
        return self.results

    def reference(self, *inputs: Array | None) -> Array:
        """Raise ExecutionError: only the backend knows what the object does."""
        what = f"a node that {self.backend} compiled runs on {self.backend} alone"
        raise ExecutionError(what, fix="run the model that it was made from")

    def __str__(self) -> str:
        return f"PreCompiled(backend={self.backend})"


def precompiled(part: SubgraphView, backend: str, payload: object, inputs: Sequence[str] | None = None) -> Graph:
    """Return the graph of one `PreCompiled` node that replaces a part and has its slots.

    The node reads `inputs`, which may name constants of the part; by default only the input slots.
    """
    read = tuple(part.inputs if inputs is None else inputs)
    op = PreCompiled(backend, payload, tuple(part.graph.specs[o] for o in part.outputs))
    node = Node(f"{backend}:{part.outputs[0] if part.outputs else part.nodes[0].name}", op, read, part.outputs)
    graph = Graph(part.graph.name, list(part.inputs), list(part.outputs), [node])
    graph.specs = {v: part.graph.specs[v] for v in (*part.inputs, *read, *part.outputs) if v}
    graph.constants = {v: part.graph.constants[v] for v in read if v in part.graph.constants}
    return graph


@dataclass(frozen=True, eq=False)
class Part:
    """A subgraph of one device, as a graph of its own."""

    device: str
    graph: Graph
    lowered: Lowered | None = None
    """What its backend lowered it to, for these shapes and this device; None if the backend runs the graph as it is."""

    @property
    def listing(self) -> Listing | None:
        """Return the launches of its device, if they are known."""
        return None if self.lowered is None else self.lowered.listing


@dataclass(frozen=True, eq=False)
class LaterStage:
    """A later stage of a network whose sizes follow from values, as it was planned before a run, or for one.

    A run that comes to a stage with the same nodes, shapes and constants runs this network.
    """

    about: str
    """For which shapes it was planned, and when a run comes to it."""
    network: OptimizedNetwork
    given: Graph | None = None
    """The stage before it was optimised; None in a network that was read from a file."""
    key: str = ""
    """The name of its graph in the file from which it was read; "" if it was not read."""


@dataclass(frozen=True, eq=False)
class Tail:
    """What comes after the first stage of a network whose sizes follow from values."""

    inputs: Mapping[str, TensorSpec]
    """The inputs of the whole network. The first stage may read some of them only."""
    outputs: tuple[str, ...]
    """The outputs of the whole network."""
    corners: Mapping[str, Corner]
    """The values that are corners of outputs of the first stage."""
    rest: Graph
    """The nodes that wait, as the model has them."""
    options: OptimizerOptions
    """What a run plans further stages with: stages of other sizes, and stages that could not be foreseen."""
    stages: tuple[LaterStage, ...] = ()
    """The stages that were planned."""
    unforeseen: tuple[str, ...] = ()
    """The stages that only a run can plan, and why."""

    def says(self) -> list[str]:
        """Return what is told of it beside its stages."""
        waiting = Counter(node.op.type for node in self.rest.nodes)
        ops = ", ".join(f"{count} {op}" for op, count in waiting.most_common())
        own = [f"{n.name} ({n.op.type})" for n in self.rest.nodes if isinstance(n.op, ControlOp)]
        lines = [f"{len(self.rest.nodes)} node(s) wait for values of the first stage: {ops}"]
        lines += [f"the session itself runs, or resolves: {', '.join(own)}"] if own else []
        return [*lines, *(f"planned in a run: {text}" for text in self.unforeseen)]


@dataclass(frozen=True, slots=True)
class StateSpec:
    """An input in whose memory an output lies: its device, its shape and type there, and the output's name.

    Its type is the one that the network stores, which need not be the model's.
    """

    device: str
    spec: TensorSpec
    output: str


@dataclass(frozen=True, slots=True)
class _Running:
    """A node as it runs: its device, none for a copy; the values that it makes; how it is printed."""

    device: str
    makes: tuple[str, ...]
    text: str


@dataclass(frozen=True, eq=False)
class OptimizedNetwork:
    """What `weft.optimize` returns: it can be printed, saved, and loaded by a `Runtime` or `weft.load`.

    `graph` has every node in the order of execution, including the copies between devices (op `Copy`). `parts` are the
    subgraphs in the same order. A part that reads another part's output without a copy uses that part's memory.
    `Part.listing` shows what a device runs, launch by launch. `refusals` has an entry for each node and each device
    before its own in the order of preference.

    Where sizes follow from values, all this is of the first stage, and `tail` has the rest of the network, with the
    later stages as they were planned for the most elements that there can be.
    """

    graph: Graph
    parts: tuple[Part, ...]
    devices: tuple[str, ...]
    config: BackendConfig
    refusals: tuple[Refusal, ...] = ()
    notes: tuple[str, ...] = ()
    passes: tuple[PassRecord, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    """The version of each backend that took part, by its id ("cpu")."""
    backend_options: Mapping[str, Options] = field(default_factory=dict)
    """The options that the network depends on, by backend id: those declared `saved` that are not the defaults. The
    backend gets them again when the network is loaded; whoever loads it sets the others."""
    named: Mapping[str, str] = field(default_factory=dict)
    """The identities of devices that the user named by UUID or PCI address, by device: {"vulkan:1": "vulkan:GPU-..."}.
    The network runs on these wherever they are listed when it is loaded."""
    journal: Journal = field(default_factory=Journal)
    """Which pass, and which backend's optimiser, made, changed, merged or removed which node."""
    weights: bool = True
    """Whether the constants that the nodes read are still there; see `without_constants`."""
    tail: Tail | None = None
    """The later stages, if this is the first stage of a network whose sizes follow from values."""

    @property
    def stages(self) -> tuple[OptimizedNetwork, ...]:
        """Return the networks of all stages that were planned, this one first."""
        return (self, *(() if self.tail is None else (stage.network for stage in self.tail.stages)))

    @property
    def interface(self) -> Graph:
        """Return a graph with the inputs and outputs of the whole network, and the nodes of the first stage."""
        if self.tail is None:
            return self.graph
        whole = self.graph.copy()
        whole.inputs, whole.outputs = list(self.tail.inputs), list(self.tail.outputs)
        whole.specs |= self.tail.inputs
        return whole

    @property
    def copies(self) -> tuple[Node, ...]:
        """Return the nodes that copy values from one device to another."""
        return tuple(n for n in self.graph.nodes if isinstance(n.op, Copy))

    @property
    def state(self) -> dict[str, StateSpec]:
        """Return the inputs in whose memory outputs lie, by name: what may stay on its device from run to run."""
        return {
            source: StateSpec(part.device, part.graph.specs[source], output)
            for part in self.parts
            for output, source in part.graph.aliases.items()
        }

    @property
    def placement(self) -> dict[str, str]:
        """Return the device of each node that a backend runs."""
        return {n.name: part.device for part in self.parts for n in part.graph.nodes}

    def on(self, devices: Mapping[str, str]) -> OptimizedNetwork:
        """Return the network on devices of other names, by those that it has."""

        def now(device: str) -> str:
            return devices.get(device, device)

        graph = self.graph.copy()
        graph.nodes = [
            replace(n, op=Copy(now(n.op.source), now(n.op.target))) if isinstance(n.op, Copy) else n
            for n in graph.nodes
        ]
        tail = self.tail
        if tail is not None:
            hints = {name: now(device) for name, device in tail.options.hints.items()}
            stages = tuple(replace(stage, network=stage.network.on(devices)) for stage in tail.stages)
            tail = replace(tail, options=replace(tail.options, hints=hints), stages=stages)
        return replace(
            self,
            graph=graph,
            parts=tuple(replace(part, device=now(part.device)) for part in self.parts),
            devices=tuple(map(now, self.devices)),
            refusals=tuple(replace(r, device=now(r.device)) for r in self.refusals),
            named={now(device): identity for device, identity in self.named.items()},
            tail=tail,
        )

    def why(self, name: str) -> list[str]:
        """Return the history of a node or value of the model's file or of this network, a line for each change.

        InputError suggests similar names if neither has one of that name.
        """
        lines = self._history(name)
        if self.tail is not None:
            waiting = [n for n in self.tail.rest.nodes if name == n.name or name in n.outputs]
            for stage in self.tail.stages:
                found = stage.network._history(name)
                waiting = [] if found and not any(isinstance(n.op, ControlOp) for n in waiting) else waiting
                lines += [f"in the stage {stage.about}:", *found] if found else []
            lines += [f"{node.name!r} waits for values that a run makes: {node}" for node in waiting]
            lines += [f"planned in a run: {text}" for text in self.tail.unforeseen] if waiting else []
        if not lines:
            known = set[str]()
            for network in self.stages:
                known |= {*network._running(), *network.graph.specs, *network.journal.names()}
            near = get_close_matches(name, sorted(known), 3)
            nodes = sum(len(network._running()) for network in self.stages)
            raise InputError(
                f"the network has no node or value {name!r}, neither as it was read nor as it runs",
                where=f"network {self.graph.name!r}",
                why=f"similar are {', '.join(map(repr, near))}" if near else f"its {nodes} nodes have other names",
                fix="`weft inspect MODEL --nodes` lists all nodes, as read and as they run",
            )
        return lines

    def _history(self, name: str) -> list[str]:
        """Return what `why` says of this stage."""
        lines = self.journal.explain(name)
        running = self._running()
        here = [n for n in dict.fromkeys([name, *self.journal.heirs(name)]) if n in running]
        here += [n for n, each in running.items() if name in each.makes and n not in here]
        for node in here:
            each = running[node]
            lines += [f"{r.device} refuses {node!r}: {brief(r.reason)}" for r in self.refusals if r.node == node]
            runs = f"runs on {each.device}" if each.device else "brings a value from one device to another"
            lines.append(f"now: {node!r} {runs}: {each.text}")
        if name in self.graph.inputs or name in self.graph.constants:
            kind = "an input" if name in self.graph.inputs else "a constant"
            lines.append(f"now: {name!r} is {kind} of the network, {self.graph.specs[name]}")
        return lines

    def _running(self) -> dict[str, _Running]:
        """Return what runs by its name: copies, and the nodes of all parts as their backends lowered them."""
        found = {node.name: _Running("", node.outputs, str(node)) for node in self.copies}
        for part in self.parts:
            own = {node.name: node for node in part.graph.nodes}
            if part.listing is None:
                found |= {name: _Running(part.device, node.outputs, str(node)) for name, node in own.items()}
                continue
            for listed in part.listing.nodes:
                node, makes = own.get(listed.name), tuple(value.name for value in listed.outputs)
                # Lowering also gives some nodes other inputs, which no listing has.
                text = str(node if node is not None and node.outputs == makes else listed)
                found[listed.name] = _Running(part.device, makes, text)
        return found

    def without_constants(self) -> OptimizedNetwork:
        """Return the network without its weights, which is all that a session keeps in memory mode LIMIT."""
        graph = self.graph.copy()
        results = set(self.graph.outputs)
        graph.constants = {o: c for o, c in self.graph.constants.items() if o in results}
        kept = self.weights and len(graph.constants) == len(self.graph.constants)
        parts = tuple(Part(p.device, _named(p.graph), _bare(p.lowered)) for p in self.parts)
        tail = self.tail and replace(
            self.tail,
            rest=_named(self.tail.rest),
            stages=tuple(replace(s, network=s.network.without_constants(), given=None) for s in self.tail.stages),
        )
        return replace(self, graph=graph, parts=parts, weights=kept and tail is None, tail=tail)

    @door
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the network to a file that `load` reads; see `weft.core.saved.network_file`."""
        from weft.core.saved.network_file import save  # late: it imports this module

        save(self, path)

    def __reduce__(self) -> tuple[object, ...]:
        """Return what a pickle holds: the content of the file that `save` writes, which is checked as it is loaded."""
        from weft.core.saved.network_file import from_bytes, to_bytes

        return from_bytes, (to_bytes(self),)

    def __copy__(self) -> OptimizedNetwork:
        return replace(self)

    def __deepcopy__(self, memo: dict[int, object]) -> OptimizedNetwork:
        return replace(self, **{f.name: deepcopy(getattr(self, f.name), memo) for f in fields(self)})

    @staticmethod
    def load(path: str | os.PathLike[str], *, backends: BackendRegistry | None = None) -> OptimizedNetwork:
        """Return the network that was saved to a file, for the backends of a registry (default: all known).

        BackendError if a backend is missing or has another version, ModelError if the file is damaged.
        """
        from weft.core.saved.network_file import load_saved

        return load_saved(path, backends=backends)

    def __str__(self) -> str:
        where = self.placement
        lines = [f"network {self.graph.name}: {len(self.parts)} subgraph(s) on {', '.join(self.devices)}"]
        for node in self.graph.nodes:
            lines.append(f"  {where.get(node.name, 'copy'):12} {node}")
        for part in self.parts:
            if part.listing is not None:
                lines.append(f"{part.graph.name} on {part.device}: {part.listing}")
        lines += [f"{s.output!r} lies in {name!r} on {s.device}: {s.spec}" for name, s in self.state.items()]
        lines += [f"note: {n}" for n in self.notes]
        if self.tail is not None:
            lines += [f"after this first stage, {text}" for text in self.tail.says()]
            lines += [f"stage {s.about}\n{s.network}" for s in self.tail.stages]
        return "\n".join(lines)


def _bare(lowered: Lowered | None) -> Lowered | None:
    return lowered and replace(lowered, graph=_named(lowered.graph), plan=None, why_apart=dict)


def _named(graph: Graph) -> Graph:
    bare = graph.copy()
    bare.constants = {}
    return bare
