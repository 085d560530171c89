"""`weft inspect`: what is in a model, which devices take it, and how it is divided over them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

import weft.ops  # noqa: F401  (registers the ops)
from weft.cli.console import error, line, note, table
from weft.cli.inputs import fill_shapes, named_sizes, shaped
from weft.cli.model import is_optimized, read_model, read_optimized
from weft.cli.options import (
    MODEL_HELP,
    BackendOptionOption,
    BackendPathOption,
    FusingOption,
    HintOption,
    LimitOption,
    OnlyShapeOption,
    PrecisionOption,
    WinogradOption,
)
from weft.cli.parsing import device_orders, parse_backend_options, parse_hints, parse_limits
from weft.core.contract.backend import Backend, BackendConfig, ForwardType, Precision
from weft.core.contract.backend_options import BackendOptions
from weft.core.graph.graph import Graph, Node, bind, infer_node
from weft.core.graph.layout import Shape
from weft.core.graph.limits import Budget
from weft.core.passes import with_members
from weft.core.placement.assign import why_not
from weft.core.placement.hints import check_hints
from weft.core.placement.optimized_network import Copy, OptimizedNetwork
from weft.core.placement.optimizer import OptimizerOptions
from weft.core.placement.prepare import pass_context, prepare_network, steps
from weft.core.placement.stage_split import is_staged, split
from weft.core.registry.backend_registry import registry
from weft.core.registry.device_choice import DeviceChoice
from weft.core.session.loaded_network import opened
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


def inspect(
    model: Annotated[Path | None, typer.Argument(help=MODEL_HELP, show_default=False)] = None,
    devices: DevicesOption = "all",
    shape: OnlyShapeOption = None,
    hint: HintOption = None,
    precision: PrecisionOption = Precision.HIGH,
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
    backend_option: BackendOptionOption = None,
    fusing: FusingOption = True,
    winograd: WinogradOption = True,
    limit: LimitOption = None,
) -> None:
    """Show a network's inputs, outputs and ops, and how it would be divided over devices.

    A table has every node that a device refuses, with the reason; then come the subgraphs in the order of
    execution, with what their devices launch, and the copies between them with their bytes. Where sizes follow from
    values, each stage is shown as it is planned for the most elements that there can be. The exit status is 1 if the
    network has ops that Weft does not know. Without a model, --passes lists the rewrites, and the members of each
    group below it. --why prints the life of a node or value, by its name in the model or in the network that runs, and
    nothing else; of a saved network too.
    """
    if model is None:
        if not passes:
            raise ConfigError("no model was named", fix="write: weft inspect model.onnx")
        last = ("OptimizeSubgraph", "Each backend optimises its parts; GPUs fuse activations here.")
        rows = [
            (each.name if each is item else f"  {each.name}", each.description)
            for item in steps(precision)
            for each in with_members(item)
        ]
        table(("rewrite", "what it does"), [*rows, last])
        return
    others = {
        "--nodes": nodes, "--passes": passes, "--launches": launches, "--choices": choices, "--fusion": fusion,
        "--unsupported": unsupported,
    }
    beside = [option for option, given in others.items() if given]
    if why and beside:
        raise ConfigError(f"--why prints nothing else, so it takes no {' and no '.join(beside)}", fix="call it twice")
    if why and is_optimized(model):
        _say_why(read_optimized(model), why)
        return
    try:
        limits = parse_limits(limit)
        graph = read_model(model, limits)
    except UnsupportedOps as e:
        error(e.what)
        for problem in e.problems:
            line(f"  {problem}")
        table(("op", "not supported"), [(op, str(n)) for op, n in e.by_op.items()], numbers=("not supported",))
        if e.others is not None:
            choices_of = [choice for names in device_orders(devices) for choice in registry.choose(names)]
            _others(*shaped(e.others, shape), choices_of, BackendConfig(precision=precision))
        raise typer.Exit(1) from None
    if not unsupported and not why:
        _describe(graph, nodes)
    graph, shapes = shaped(graph, shape)
    if graph.symbols():
        _note_open(graph, shapes)
    bound = bind(graph, fill_shapes(graph, shapes))
    config = BackendConfig(precision=precision, fusing=fusing, winograd=winograd)
    options = OptimizerOptions(config, resolved(registry, parse_hints(hint)), limits=limits)
    own = parse_backend_options(backend_option)
    orders = device_orders(devices)
    for k, names in enumerate(orders):
        if len(orders) > 1:
            line(f"for {'+'.join(names)}", "bold")
        _division(
            bound, registry.choose(names), options, own,
            passes=passes and not k, nodes=nodes, launches=launches, reasons=choices, fusion=fusion, short=unsupported,
            why=why or [],
        )


def _others(graph: Graph, shapes: dict[str, Shape], choices: list[DeviceChoice], config: BackendConfig) -> None:
    """Print how many of the supported nodes each device takes, as far as their shapes do not follow from the others."""
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
        for device, backend in backends.items():
            taken = sum(why_not(bound, node, device, backend) is None for node in known)
            line(f"{device}: {taken} of {len(known)} other nodes whose shapes are known", "bold")
    if len(known) < len(bound.nodes):
        note(f"the shapes of {len(bound.nodes) - len(known)} more follow from those that are not supported")


def _describe(graph: Graph, nodes: bool) -> None:
    weights = [graph.constants[name] for name in sorted(graph.constants)]
    line(f"{graph.name}: {len(graph.nodes)} nodes, {sum(w.size for w in weights)} numbers of weights, "
         f"{sum(w.nbytes for w in weights) / 2**20:.1f} MiB", "bold")
    for name in graph.inputs:
        line(f"  input  {name}: {graph.specs[name]}")
    for name in graph.outputs:
        line(f"  output {name}" + (f": {graph.specs[name]}" if name in graph.specs else ""))
    if nodes:
        for node in graph.nodes:
            line(f"  {node}")
    counts = Counter(node.op.type for node in graph.nodes)
    table(("op", "nodes"), [(op, str(n)) for op, n in counts.most_common()], numbers=("nodes",))


def _note_open(graph: Graph, shapes: dict[str, Shape]) -> None:
    known = named_sizes(graph, shapes)
    unknown = {i: [d for d in graph.specs[i].shape if isinstance(d, str) and d not in known] for i in graph.inputs}
    left = [i for i, dims in unknown.items() if dims and i not in shapes]
    if left:
        note(f"sizes that the model leaves open are taken as 1 for {', '.join(left)}; --shape gives others")


def _passes(graph: Graph, options: OptimizerOptions) -> None:
    context = pass_context(options.config.precision, Budget(options.limits))
    line(f"as read: {len(graph.nodes)} nodes", "bold")
    line(str(graph))
    for each in steps(options.config.precision):
        rewritten = each(graph, context)
        changed = [str(n) for n in rewritten.nodes] != [str(n) for n in graph.nodes]
        line(f"{each.name}: {each.description}", "bold")
        line(f"  {len(graph.nodes)} -> {len(rewritten.nodes)} nodes" if changed else "  nothing to do")
        if changed:
            line(str(rewritten))
        graph = rewritten


def _division(
    bound: Graph,
    choices: list[DeviceChoice],
    options: OptimizerOptions,
    own: BackendOptions,
    *,
    passes: bool,
    nodes: bool,
    launches: bool,
    reasons: bool,
    fusion: bool,
    short: bool,
    why: list[str],
) -> None:
    """Print who refuses what, and what is done about it; as `weft.load` does, the CPU takes what is left."""
    if passes and not is_staged(bound):
        _passes(bound, options)
    cpu = DeviceChoice(registry.find(ForwardType.CPU), 0)
    asked = [c.device for c in choices]
    order = default_runtime().with_options(choices if cpu.device in asked else [*choices, cpu], own)
    check_hints(bound, options.hints, [c.device for c in order])
    with opened(order, options.config) as backends:
        network = optimize_stages(bound, backends, options)
        if why:
            _say_why(network, why)
            return
        stages = _stages(network, bound, options)
        rows, names = dict[tuple[str, str], tuple[str, str, str, str]](), set[str]()
        for _, given, stage in stages:
            # First the refusals on the way, then what the devices behind a node's own would say.
            rows |= {(r.node, r.device): (r.node, r.op, r.device, brief(r.reason)) for r in stage.refusals}
            prepared = prepare_network(given, options.config.precision, options.limits).graph
            names |= {n.name for n in prepared.nodes}
            for device in asked:
                for row in _refusals(prepared, device, backends[device]):
                    rows.setdefault((row[0], device), row)
    shown = [row for (_, device), row in rows.items() if device in asked]
    if shown:
        table(("node", "op", "device", "reason"), shown)
        sums = Counter((op, device) for _, op, device, _ in shown)
        if len(sums) < len(shown):
            rows_of = [(op, device, str(count)) for (op, device), count in sums.most_common()]
            table(("op", "device", "nodes refused"), rows_of, numbers=("nodes refused",))
    for device in asked:
        taken = len(names) - sum(node in names and where == device for node, where in rows)
        line(f"{device}: {taken} of {len(names)} nodes after the rewrites", "bold")
    for text in dict.fromkeys(text for _, _, stage in stages for text in stage.notes):
        note(text)
    for text in () if network.tail is None else network.tail.says():
        note(text)
    for head, given, stage in stages:
        if head:
            line(head, "bold")
        if passes and network.tail is not None:
            _passes(given, options)
        if not short:
            _subgraphs(stage, nodes)
            _launches(stage, launches or reasons, reasons)
        if fusion:
            _fusion(stage)


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


def _say_why(network: OptimizedNetwork, names: list[str]) -> None:
    """Print what became of each of these nodes or values."""
    for name in names:
        line(name, "bold")
        for text in network.why(name):
            line(f"  {text}")


def _refusals(graph: Graph, device: str, backend: Backend) -> list[tuple[str, str, str, str]]:
    """Return a row for each node that a device does not take."""
    asked = ((node, why_not(graph, node, device, backend)) for node in graph.nodes)
    return [(node.name, node.op.type, device, brief(why)) for node, why in asked if why is not None]


def _subgraphs(network: OptimizedNetwork, nodes: bool) -> None:
    """Print the parts in the order of execution, and the copies between them."""
    order = " -> ".join(f"{part.device} ({len(part.graph.nodes)})" for part in network.parts)
    line(f"{len(network.parts)} subgraph(s), with their nodes after the backends' rewrites: {order or 'none'}", "bold")
    rows = []
    total = 0
    for node in network.copies:
        assert isinstance(node.op, Copy)
        spec = network.graph.specs[node.inputs[0]]
        nbytes = spec.size * spec.dtype.itemsize
        total += nbytes
        rows.append((node.name, node.op.source, node.op.target, str(spec), str(nbytes)))
    if rows:
        table(("copy", "from", "to", "value", "bytes"), rows, numbers=("bytes",))
    line(f"{len(rows)} copies between devices, {total} bytes in every run")
    if nodes:
        for part in network.parts:
            line(f"on {part.device}:", "bold")
            for node in part.graph.nodes:
                line(f"  {node}")


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
            table(
                ("node", "ops", "launches", "why it is not part of another launch"),
                rows,
                numbers=("launches",),
            )
