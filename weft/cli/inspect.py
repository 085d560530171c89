"""`weft inspect`: what is in a model, which devices take it, and how it is divided over them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

import weft.ops  # noqa: F401  (registers the ops)
from weft.cli.command import FOUND_WRONG
from weft.cli.console import error, line, note, table
from weft.cli.inputs import fill_shapes, said_of_guesses, shaped
from weft.cli.json_output import JsonOption, JsonTarget, answer, prints_text
from weft.cli.model import is_optimized, read_model, read_optimized
from weft.cli.options import MODEL_HELP, BackendPathOption, load_flags
from weft.cli.parsing import device_orders
from weft.core.contract.backend import Backend, BackendConfig, ForwardType, Precision
from weft.core.contract.backend_options import BackendOptions
from weft.core.graph.graph import Graph, Node, bind, infer_node
from weft.core.graph.layout import Shape
from weft.core.graph.limits import Budget
from weft.core.passes import with_members
from weft.core.placement.assign import why_not
from weft.core.placement.hints import check_hints
from weft.core.placement.optimized_network import Copy, OptimizedNetwork, Part
from weft.core.placement.optimizer import OptimizerOptions
from weft.core.placement.prepare import pass_context, prepare_network, steps
from weft.core.placement.stage_split import split
from weft.core.registry.backend_registry import registry
from weft.core.registry.device_choice import DeviceChoice
from weft.core.session.loader import opened
from weft.core.session.runtime import default_runtime
from weft.core.session.stages_ahead import optimize_stages
from weft.errors import ConfigError, ModelError, UnsupportedOps, brief
from weft.loading import resolved

DevicesOption = Annotated[
    str,
    typer.Option(
        "--devices",
        "--device",
        "-d",
        help='Devices to divide the network over, each by itself, with commas: "vulkan,cpu". "vulkan+opencl" is one '
        'division, in which OpenCL takes the nodes that Vulkan refuses. "all" is every device found.',
    ),
]


@load_flags(
    "shapes", "hints", "precision", "backend_options", "fusing", "winograd", "limits", "signature", shapes="alone"
)
def inspect(
    options: dict[str, Any],
    model: Annotated[Path | None, typer.Argument(help=MODEL_HELP, show_default=False)] = None,
    devices: DevicesOption = "all",
    nodes: Annotated[bool, typer.Option("--nodes", help="Print every node, as read and as divided.")] = False,
    passes: Annotated[
        bool, typer.Option("--passes", help="List the rewrites, and print the network after each that changes it.")
    ] = False,
    why: Annotated[
        list[str] | None,
        typer.Option(
            "--why",
            metavar="NODE",
            help="Print what became of a node or value, and which rewrite did it; may be repeated.",
        ),
    ] = None,
    launches: Annotated[
        bool, typer.Option("--launches", help="Print the nodes that each device runs, with what they launch.")
    ] = False,
    choices: Annotated[
        bool,
        typer.Option(
            "--choices",
            help="Print the launches, and how they were chosen between kernels and tiles: estimated costs, reasons.",
        ),
    ] = False,
    fusion: Annotated[
        bool,
        typer.Option(
            "--fusion",
            help="Print why each element-wise launch, and each that moves elements, is not part of another one.",
        ),
    ] = False,
    unsupported: Annotated[bool, typer.Option("--unsupported", help="Print only what cannot run.")] = False,
    backend_path: BackendPathOption = None,
    as_json: JsonOption = None,
) -> None:
    """Show a network's inputs, outputs and ops, and how it would be divided over devices.

    A table has every node that a device refuses, with the reason; then come the subgraphs in the order of
    execution, with what their devices launch, and the copies between them with their bytes. Where sizes follow from
    values, each stage is shown as it is planned for the most elements that there can be. The exit status is 1 if the
    network has ops that Weft does not know. Without a model, --passes lists the rewrites, and the members of each
    group below it. --why prints the life of a node or value, by its name in the model or in the network that runs, and
    nothing else; of a saved network too. JSON has all nodes and launches; --passes, --choices and --fusion add theirs.
    """
    shape, hints, own, limits, signature = (
        options.pop(name) for name in ("shapes", "hints", "backend_options", "limits", "signature")
    )
    config = BackendConfig(**options)
    if model is None:
        if not passes:
            raise ConfigError("no model was named", fix="write: weft inspect model.onnx")
        rewrites = _rewrites(config.precision)
        facts = [{"name": name.strip(), "description": description} for name, description in rewrites]
        answer(as_json, lambda: {"rewrites": facts}, lambda: table(("rewrite", "what it does"), rewrites))
        return
    others = {
        "--nodes": nodes, "--passes": passes, "--launches": launches, "--choices": choices, "--fusion": fusion,
        "--unsupported": unsupported,
    }
    beside = [option for option, given in others.items() if given]
    if why and beside:
        raise ConfigError(f"--why prints nothing else, so it takes no {' and no '.join(beside)}", fix="call it twice")
    if why and is_optimized(model):
        network = read_optimized(model)
        lives = [_Lives("+".join(network.devices), {name: network.why(name) for name in why})]
        answer(as_json, lambda: {"model": model, "why": [asdict(each) for each in lives]}, lives[0].print)
        return
    try:
        graph = read_model(model, limits, signature)
    except UnsupportedOps as e:
        _say_unknown(model, e, devices, shape, BackendConfig(precision=config.precision), as_json)
        raise typer.Exit(FOUND_WRONG) from None
    shown = _Shown(passes, nodes, launches, choices, fusion, unsupported)
    if not unsupported and not why and prints_text(as_json):
        _describe(graph, nodes)
    described = _facts(graph)
    graph, shapes = shaped(graph, shape)
    for remark in said_of_guesses(graph, shapes):
        note(remark)
    bound = bind(graph, fill_shapes(graph, shapes))
    asked = OptimizerOptions(config, resolved(registry, hints), limits=limits)
    orders = device_orders(devices)
    told: list[dict[str, Any]] = []
    for k, names in enumerate(orders):
        if len(orders) > 1 and prints_text(as_json):
            line(f"for {'+'.join(names)}", "bold")
        division = _divide(bound, registry.choose(names), asked, own)
        if why:
            one = _Lives("+".join(names), {name: division.network.why(name) for name in why})
            told.append(asdict(one))
            if prints_text(as_json):
                one.print()
            continue
        if prints_text(as_json):
            division.print(shown if not k else replace(shown, passes=False))
        if as_json is not None:
            told.append(division.as_json(shown))
    if why:
        answer(as_json, lambda: {"model": model, "why": told})
    else:
        answer(as_json, lambda: {"model": model, **described, "divisions": told})


@dataclass(frozen=True)
class _Shown:
    """What is asked for beside the usual: see the options of these names."""

    passes: bool
    nodes: bool
    launches: bool
    choices: bool
    fusion: bool
    unsupported: bool


@dataclass(frozen=True)
class _Lives:
    """What became of nodes and values, divided over devices."""

    device: str
    names: Mapping[str, list[str]]

    def print(self) -> None:
        for name, texts in self.names.items():
            line(name, "bold")
            for text in texts:
                line(f"  {text}")


def _rewrites(precision: Precision) -> list[tuple[str, str]]:
    """Return the name of each rewrite, indented in a group, and what it does."""
    rows = [
        (each.name if each is item else f"  {each.name}", each.description)
        for item in steps(precision)
        for each in with_members(item)
    ]
    return [*rows, ("OptimizeSubgraph", "Each backend optimises its parts; GPUs fuse activations here.")]


def _say_unknown(
    model: Path, found: UnsupportedOps, devices: str, shape: list[str] | None, config: BackendConfig,
    as_json: JsonTarget | None,
) -> None:
    """Tell of a network with ops that Weft does not know, and what devices take of the rest."""

    def text() -> None:
        error(found.what)
        for problem in found.problems:
            line(f"  {problem}")
        rows = [(op, str(n)) for op, n in found.by_op.items()]
        table(("op", "not supported"), rows, numbers=("not supported",))

    if prints_text(as_json):
        text()
    others = None
    if found.others is not None:
        choices = [choice for names in device_orders(devices) for choice in registry.choose(names)]
        others = _others(*shaped(found.others, shape), choices, config)
        for device, taken in others["taken"].items() if prints_text(as_json) else ():
            line(f"{device}: {taken} of {others['known']} other nodes whose shapes are known", "bold")
        if others["unknown"]:
            note(f"the shapes of {others['unknown']} more follow from those that are not supported")
    unknown = {"what": found.what, "problems": found.problems, "ops": found.by_op}
    answer(as_json, lambda: {"model": model, "not_supported": unknown, "others": others})


def _others(
    graph: Graph, shapes: dict[str, Shape], choices: list[DeviceChoice], config: BackendConfig
) -> dict[str, Any]:
    """Return how many of the supported nodes have shapes that do not follow from the others, and who takes them."""
    bound = bind(graph, fill_shapes(graph, shapes))
    known: list[Node] = []
    for node in bound.nodes:
        if all(i in bound.specs for i in node.inputs if i):
            try:
                infer_node(bound, node)
            except ModelError:
                continue
            known.append(node)
    with opened(choices, config) as backends:
        taken = {
            device: sum(why_not(bound, node, device, backend) is None for node in known)
            for device, backend in backends.items()
        }
    return {"known": len(known), "unknown": len(bound.nodes) - len(known), "taken": taken}


def _facts(graph: Graph) -> dict[str, Any]:
    """Return what is in a model as data."""
    weights = graph.constants.values()
    return {
        "name": graph.name,
        "nodes": len(graph.nodes),
        "weights": {"numbers": sum(w.size for w in weights), "bytes": sum(w.nbytes for w in weights)},
        "inputs": {name: _described(graph, name) for name in graph.inputs},
        "outputs": {name: _described(graph, name) for name in graph.outputs},
        "ops": dict(Counter(node.op.type for node in graph.nodes).most_common()),
    }


def _described(graph: Graph, name: str) -> str | None:
    """Return the type and shape of an input or output, as in the text; None if the model does not tell."""
    return str(graph.specs[name]) if name in graph.specs else None


def _describe(graph: Graph, nodes: bool) -> None:
    facts = _facts(graph)
    weights = facts["weights"]
    line(f"{graph.name}: {facts['nodes']} nodes, {weights['numbers']} numbers of weights, "
         f"{weights['bytes'] / 2**20:.1f} MiB", "bold")
    for name, spec in facts["inputs"].items():
        line(f"  input  {name}: {spec}")
    for name, spec in facts["outputs"].items():
        line(f"  output {name}" + (f": {spec}" if spec else ""))
    if nodes:
        for node in graph.nodes:
            line(f"  {node}")
    table(("op", "nodes"), [(op, str(n)) for op, n in facts["ops"].items()], numbers=("nodes",))


@dataclass(frozen=True)
class _Rewrite:
    """A rewrite of a network, and the network after it if it was changed."""

    name: str
    description: str
    before: int
    after: int
    text: str

    def print(self) -> None:
        line(f"{self.name}: {self.description}", "bold")
        line(f"  {self.before} -> {self.after} nodes" if self.text else "  nothing to do")
        if self.text:
            line(self.text)


def _passes(graph: Graph, options: OptimizerOptions) -> Iterator[_Rewrite]:
    """Apply the rewrites to a network, and yield each."""
    context = pass_context(options.config.precision, Budget(options.limits))
    for each in steps(options.config.precision):
        rewritten = each(graph, context)
        changed = [str(n) for n in rewritten.nodes] != [str(n) for n in graph.nodes]
        text = str(rewritten) if changed else ""
        yield _Rewrite(each.name, each.description, len(graph.nodes), len(rewritten.nodes), text)
        graph = rewritten


def _print_passes(graph: Graph, options: OptimizerOptions) -> None:
    line(f"as read: {len(graph.nodes)} nodes", "bold")
    line(str(graph))
    for each in _passes(graph, options):
        each.print()


class _Refused(NamedTuple):
    """A node that a device does not take."""

    node: str
    op: str
    device: str
    reason: str


@dataclass(frozen=True)
class _Division:
    """A network, divided over devices, and what each device that was asked for refuses."""

    bound: Graph
    network: OptimizedNetwork
    options: OptimizerOptions
    asked: Sequence[str]
    refused: Mapping[tuple[str, str], _Refused]
    """By node and device."""
    names: frozenset[str]
    """The nodes after the rewrites that all devices share."""

    @cached_property
    def stages(self) -> list[tuple[str, Graph, OptimizedNetwork]]:
        return _stages(self.network, self.bound, self.options)

    @property
    def _rows(self) -> list[_Refused]:
        return [row for row in self.refused.values() if row.device in self.asked]

    @property
    def _taken(self) -> dict[str, int]:
        """Return how many nodes each device takes."""
        refused = Counter(device for node, device in self.refused if node in self.names)
        return {device: len(self.names) - refused[device] for device in self.asked}

    @property
    def _notes(self) -> list[str]:
        own = dict.fromkeys(text for _, _, stage in self.stages for text in stage.notes)
        return [*own, *(() if self.network.tail is None else self.network.tail.says())]

    def print(self, shown: _Shown) -> None:
        """Print who refuses what, and what is done about it."""
        if shown.passes and self.network.tail is None:
            _print_passes(self.bound, self.options)
        if self._rows:
            table(("node", "op", "device", "reason"), self._rows)
            sums = Counter((row.op, row.device) for row in self._rows)
            if len(sums) < len(self._rows):
                rows = [(op, device, str(count)) for (op, device), count in sums.most_common()]
                table(("op", "device", "nodes refused"), rows, numbers=("nodes refused",))
        for device, taken in self._taken.items():
            line(f"{device}: {taken} of {len(self.names)} nodes after the rewrites", "bold")
        for text in self._notes:
            note(text)
        for head, given, stage in self.stages:
            if head:
                line(head, "bold")
            if shown.passes and self.network.tail is not None:
                _print_passes(given, self.options)
            if not shown.unsupported:
                _subgraphs(stage, shown.nodes)
                _launches(stage, shown.launches or shown.choices, shown.choices)
            if shown.fusion:
                _fusion(stage)

    def as_json(self, shown: _Shown) -> dict[str, Any]:
        """Return it as data; what is only known by more work, if it is asked for."""
        return {
            "devices": self.asked,
            "nodes": len(self.names),
            "taken": self._taken,
            "refused": [row._asdict() for row in self._rows],
            "notes": self._notes,
            "stages": [
                {
                    "about": head,
                    **({"passes": [asdict(r) for r in _passes(given, self.options)]} if shown.passes else {}),
                    "subgraphs": [_part_facts(part, shown) for part in stage.parts],
                    "copies": _copies(stage),
                }
                for head, given, stage in self.stages
            ],
        }


def _part_facts(part: Part, shown: _Shown) -> dict[str, Any]:
    """Return a part of a network as data."""
    facts: dict[str, Any] = {
        "name": part.graph.name,
        "device": part.device,
        "nodes": [{"name": n.name, "op": n.op.type, "text": str(n)} for n in part.graph.nodes],
        "launches": None if part.listing is None else [asdict(each) for each in part.listing.launches],
    }
    if part.lowered is not None and shown.choices:
        facts["choices"] = {node: [str(each) for each in told] for node, told in part.lowered.decisions.items()}
    if part.lowered is not None and shown.fusion:
        facts["fusion"] = part.lowered.why_apart()
    return facts


def _divide(bound: Graph, choices: list[DeviceChoice], options: OptimizerOptions, own: BackendOptions) -> _Division:
    """Return the division of a network over devices; as `weft.load` does, the CPU takes what is left."""
    cpu = DeviceChoice(registry.find(ForwardType.CPU), 0)
    asked = [c.device for c in choices]
    order = default_runtime().with_options(choices if cpu.device in asked else [*choices, cpu], own)
    check_hints(bound, options.hints, [c.device for c in order])
    with opened(order, options.config) as backends:
        network = optimize_stages(bound, backends, options)
        rows, names = dict[tuple[str, str], _Refused](), set[str]()
        for _, given, stage in _stages(network, bound, options):
            # First the refusals on the way, then what the devices behind a node's own would say.
            rows |= {(r.node, r.device): _Refused(r.node, r.op, r.device, brief(r.reason)) for r in stage.refusals}
            prepared = prepare_network(given, options.config.precision, options.limits).graph
            names |= {n.name for n in prepared.nodes}
            for device in asked:
                for row in _refusals(prepared, device, backends[device]):
                    rows.setdefault((row.node, device), row)
    return _Division(bound, network, options, asked, rows, frozenset(names))


def _stages(
    network: OptimizedNetwork, bound: Graph, options: OptimizerOptions
) -> list[tuple[str, Graph, OptimizedNetwork]]:
    """Return the stages of a network, each with a heading and its graph before it was optimised; most have just one."""
    if network.tail is None:
        return [("", bound, network)]
    first = split(bound, Budget(options.limits)).graph
    later = ((s.about, s.given, s.network) for s in network.tail.stages)
    stages = [("", first, network), *((about, given, stage) for about, given, stage in later if given is not None)]
    heads = (f"stage {k} of {len(stages)}{about and ', '}{about}" for k, (about, _, _) in enumerate(stages, 1))
    return [(head, given, stage) for head, (_, given, stage) in zip(heads, stages, strict=True)]


def _refusals(graph: Graph, device: str, backend: Backend) -> list[_Refused]:
    """Return a row for each node that a device does not take."""
    asked = ((node, why_not(graph, node, device, backend)) for node in graph.nodes)
    return [_Refused(node.name, node.op.type, device, brief(why)) for node, why in asked if why is not None]


def _subgraphs(network: OptimizedNetwork, nodes: bool) -> None:
    """Print the parts in the order of execution, and the copies between them."""
    order = " -> ".join(f"{part.device} ({len(part.graph.nodes)})" for part in network.parts)
    line(f"{len(network.parts)} subgraph(s), with their nodes after the backends' rewrites: {order or 'none'}", "bold")
    copies = _copies(network)
    if copies:
        rows = [tuple(map(str, each.values())) for each in copies]
        table(("copy", "from", "to", "value", "bytes"), rows, numbers=("bytes",))
    line(f"{len(copies)} copies between devices, {sum(each['bytes'] for each in copies)} bytes in every run")
    if nodes:
        for part in network.parts:
            line(f"on {part.device}:", "bold")
            for node in part.graph.nodes:
                line(f"  {node}")


def _copies(network: OptimizedNetwork) -> list[dict[str, Any]]:
    """Return the copies between devices as data."""
    copies = []
    for node in network.copies:
        assert isinstance(node.op, Copy)
        spec = network.graph.specs[node.inputs[0]]
        ends = {"name": node.name, "from": node.op.source, "to": node.op.target}
        copies.append({**ends, "value": str(spec), "bytes": spec.size * spec.dtype.itemsize})
    return copies


def _launches(network: OptimizedNetwork, each: bool, choices: bool) -> None:
    """Print what the device of each part launches: how much, or every node with its launches, and why these."""
    for part in network.parts:
        if part.listing is not None:
            reasons = part.lowered.decisions if choices and part.lowered is not None else {}
            head, *rest = part.listing.text(reasons).splitlines()
            line(f"{part.graph.name} on {part.device}: {head}", "bold")
            for text in rest if each else ():
                line(text)


def _fusion(network: OptimizedNetwork) -> None:
    """Print what the launches of each part are for, and why element-wise ones and moves are launches of their own."""
    for part in network.parts:
        if part.lowered is None:
            line(f"{part.graph.name} on {part.device}: it runs node by node, and fuses none", "bold")
            continue
        nodes = {node.name: node for node in part.lowered.listing.nodes}
        launches = part.lowered.launches
        counts = Counter(name for x in launches for name, _ in x.levels or [(x.node, x.kernel)])
        kinds: Counter[str] = Counter()
        for name, count in counts.items():
            kinds[nodes[name].kind] += count
        of = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
        shared = f" for {counts.total()} kernels" if counts.total() != len(launches) else ""
        line(f"{part.graph.name} on {part.device}: {len(launches)} launches{shared}: {of or 'none'}", "bold")
        why = part.lowered.why_apart()
        rows = [(name, nodes[name].kind, str(counts[name]), why[name]) for name in counts if name in why]
        if rows:
            table(("node", "ops", "launches", "why it is not part of another launch"), rows, numbers=("launches",))
