"""A network of the author's own on a backend: each layer by itself, then the network as it is used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from weft import loading
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph, Node, bind, depths
from weft.core.graph.interpreter import evaluate
from weft.core.graph.layout import Array
from weft.core.passes import PassContext, run_passes
from weft.core.placement.stage_split import is_staged
from weft.core.registry.front_ends import front_ends
from weft.core.session.session import Session
from weft.errors import ConfigError
from weft_conformance.cases.table import tolerance
from weft_conformance.kit import Check, Kit
from weft_conformance.networks import difference, part_of, rearranged
from weft_conformance.report import Finding

LAYERS, WHOLE = "layers", "network"
Feeds = Mapping[str, Array]


def read(model: str | Path | Graph) -> Graph:
    """Return the network in a file; ConfigError for one that `weft optimize` saved."""
    graph = model if isinstance(model, Graph) else front_ends.read(Path(model))
    if not isinstance(graph, Graph):
        raise ConfigError(f"{model} is a saved network", fix="name the model that it was made from")
    return graph


def looks(graph: Graph, feeds: Feeds) -> list[Check]:
    """Return the checks of a network with some inputs."""
    other = {name: rearranged(array) if array.dtype.kind == "f" else array for name, array in feeds.items()}
    return [
        Check(LAYERS, "", "", lambda kit: _layers(kit, graph, (feeds, other))),
        Check(WHOLE, "", "", lambda kit: _whole(kit, graph, (feeds, other, feeds))),
    ]


def _shown(graph: Graph, feeds: Feeds) -> Graph:
    """Return the network for some inputs, after the rewrites of a load, with every value as an output."""
    bound = bind(graph, {name: a.shape for name, a in feeds.items()})
    shown = (bound if is_staged(bound) else run_passes(bound, context=PassContext())).copy()
    shown.outputs = list(dict.fromkeys([*(o for n in shown.nodes for o in n.outputs if o), *graph.outputs]))
    return shown


def _layers(kit: Kit, graph: Graph, runs: Sequence[Feeds]) -> Iterable[Finding]:
    """Compute each layer of two runs again, from what the device made of the layers before it."""
    shown = _shown(graph, runs[0])
    with kit.load(shown, fallback="cpu") as session:
        values = [dict(zip(session.outputs, session.run(fed), strict=True)) for fed in runs]
        refusals = session.report.refusals
    found = False
    for node in shown.nodes:
        reasons = refusals.get(node.name, {})
        subject = f"{node.name} ({node.op.type})"
        if kit.device in reasons:
            yield kit.refused(subject, reasons[kit.device])
            continue
        problem = ""
        for when, fed, made in zip(("", "with other inputs: "), runs, values, strict=True):
            problem = problem or _of_layer(kit, node, {**shown.constants, **fed, **made}, when)
        if problem and not found:
            problem = f"this is the first layer that is wrong: {problem}"
        found = found or bool(problem)
        yield kit.judge(subject, problem)


def _of_layer(kit: Kit, node: Node, known: Mapping[str, object], when: str) -> str:
    """Return how a layer's results differ from what its reference makes of its inputs, "" if they do not."""
    inputs, made = ([known.get(n) for n in names] for names in (node.inputs, node.outputs))
    arrays = [a if isinstance(a, np.ndarray) else None for a in inputs]
    pairs = [(k, a) for k, a in enumerate(made) if isinstance(a, np.ndarray)]
    if len(pairs) < len([o for o in node.outputs if o]) or any(
        n and a is None for n, a in zip(node.inputs, arrays, strict=True)
    ):
        return ""  # a sequence, or what loops make: the network as a whole shows it
    wanted = evaluate(node.op, arrays)
    largest = max([1.0, *(_largest(a) for a in (*arrays, *wanted) if a is not None)])
    bounds = []
    for k, _ in pairs:
        rtol, atol = _tolerance(kit, node, wanted[k])
        bounds.append((rtol, atol * largest))
    found = difference([a for _, a in pairs], [wanted[k] for k, _ in pairs], bounds)
    return found and when + found


def _tolerance(kit: Kit, node: Node, wanted: Array) -> tuple[float, float]:
    """Return (rtol, atol) of a layer; at precision LOW, what it reads from a fused node may not have been rounded."""
    dtype = DType.of(wanted.dtype)
    if dtype is DType.FLOAT32 and kit.dtype is DType.FLOAT16:
        return tolerance(kit.dtype, "reduction")
    return tolerance(dtype, node.op.op_class)


def _largest(array: Array) -> float:
    """Return the largest absolute value of the finite floats of an array."""
    if array.dtype.kind != "f" or not array.size:
        return 0.0
    return float(np.abs(np.where(np.isfinite(array), array, 0)).max())


def _whole(kit: Kit, graph: Graph, runs: Sequence[Feeds]) -> Iterable[Finding]:
    """Run the network as it is used: nodes may be fused, and values share memory."""
    problem = _used(kit, graph, runs)
    yield kit.judge("as it is used", problem)
    if problem:
        first = _first_prefix(kit, _shown(graph, runs[0]), runs)
        if first is not None:
            said = f"the network up to this layer is wrong where no value on the way is an output: {first[1]}"
            yield kit.wrong(f"{first[0].name} ({first[0].op.type})", said)


def _used(kit: Kit, graph: Graph, runs: Sequence[Feeds]) -> str:
    """Return how the outputs of several runs differ from the CPU's, "" if they do not.

    What a change of the inputs as small as their rounding changes is allowed too.
    """
    sizes = dict.fromkeys(graph.outputs, len(depths(graph)))
    with loading.load(graph, "cpu") as reference, kit.load(graph, fallback="cpu") as session:
        for number, whole in enumerate(runs, 1):
            fed = {name: whole[name] for name in graph.inputs}
            wanted, near = (_arrays(reference, each) for each in (fed, _rounded(kit, fed)))
            actual = _arrays(session, fed)
            bounds = [_bounds(kit, w, n, depth) for w, n, depth in zip(wanted, near, sizes.values(), strict=False)]
            bounds += [(0.0, 0.0)] * (len(wanted) - len(bounds))
            problem = difference(actual, wanted, bounds)
            if problem:
                return f"run {number}: {problem}"
    return ""


def _arrays(session: Session, fed: Feeds) -> list[Array]:
    """Return the tensors among the outputs of a run, the elements of a sequence one by one."""
    made = session.run(dict(fed))
    return [a for each in made for a in ([each] if isinstance(each, np.ndarray) else each or ())]


def _rounded(kit: Kit, fed: Feeds) -> dict[str, Array]:
    """Return inputs of which floats differ as much as the precision's type rounds."""
    step = np.finfo(kit.dtype.numpy).eps
    return {n: (a * (1 + step)).astype(a.dtype) if a.dtype.kind == "f" else a for n, a in fed.items()}


def _bounds(kit: Kit, wanted: Array, near: Array, depth: int) -> tuple[float, float]:
    if wanted.dtype.kind != "f":
        return 0.0, 0.0
    rtol, atol = kit.bounds(depth)
    moved = _largest(near - wanted) if near.shape == wanted.shape else 0.0
    return rtol, atol * max(1.0, _largest(wanted)) + 8 * moved


def _first_prefix(kit: Kit, shown: Graph, runs: Sequence[Feeds]) -> tuple[Node, str] | None:
    """Return the layer up to which the network is wrong by itself, by halving, and what is wrong; None if it is not."""
    low, high, found = 0, len(shown.nodes), None
    while low < high:
        middle = (low + high) // 2
        node = shown.nodes[middle]
        problem = _used(kit, part_of(shown, [o for o in node.outputs if o]), runs)
        if problem:
            high, found = middle, (node, problem)
        else:
            low = middle + 1
    return found
