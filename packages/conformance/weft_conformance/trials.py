"""Runs networks several times, with other inputs and sizes, and finds the smallest part of one that is wrong."""

from __future__ import annotations

from collections.abc import Sequence

from weft.core.contract.backend import Backend
from weft.core.contract.error_context import ends_program
from weft.core.graph.graph import Graph, Node
from weft.core.graph.layout import Array
from weft.core.graph.tensor import Dim, TensorSpec
from weft_conformance.drawing import Accepts, Drawing, Trial, World, trial_of
from weft_conformance.drive import ask
from weft_conformance.kit import Kit, Untried, same_bits
from weft_conformance.networks import difference, part_of
from weft_conformance.report import Verdict


def problem_of(kit: Kit, trial: Trial) -> str:
    """Return what is wrong with a network's runs on the device, "" if nothing is.

    The runs come in order, and then the first again, which must give the same bits.
    """
    with kit.load(trial.graph) as session:
        first: list[Array] = []
        for number, run in enumerate((*trial.runs, trial.runs[0]), 1):
            given = {name: a.copy() for name, a in run.feeds.items()}
            actual = session.run(run.feeds)
            found = difference(actual, run.wanted, trial.bounds)
            if not found and any(a.tobytes() != given[name].tobytes() for name, a in run.feeds.items()):
                found = "the arrays of the caller were written to"
            if not found and number > len(trial.runs) and not same_bits(actual, first):
                found = "other bits than in the first run of these inputs"
            if found:
                return f"run {number}{_what_changed(trial, number)}: {found}"
            first = first or actual
    return ""


def _what_changed(trial: Trial, number: int) -> str:
    """Return how a run differs from the one before, as a part of a sentence."""
    if number == 1:
        return ""
    runs = (*trial.runs, trial.runs[0])
    before, now = ([a.shape for a in r.feeds.values()] for r in (runs[number - 2], runs[number - 1]))
    if before == now:
        return ", with other inputs"
    return f", with inputs of {_shapes(now)} after {_shapes(before)}"


def _shapes(shapes: Sequence[Sequence[int]]) -> str:
    return " and ".join("x".join(map(str, s)) or "()" for s in shapes)


def judged(kit: Kit, drawing: Drawing) -> str:
    """Return what is wrong with a drawn network, and with the smallest one in it that is wrong; Untried if refused."""
    trial = drawing.finish()
    if trial is None:
        return ""
    found = kit.attempt("", problem_of, kit, trial)
    if found.verdict is Verdict.REFUSED:
        raise Untried(found.message)
    if not found.verdict.is_bad:
        return ""
    small, said = shrunk(kit, trial, drawing.worlds)
    return f"{said or found.message}; in {described(small)}"


def accepts(backend: Backend) -> Accepts:
    """Return what tells whether a backend takes a node of a graph."""

    def takes(graph: Graph, node: Node) -> bool:
        part = graph.copy()
        part.nodes = [node]
        return is_taken(backend, part)

    return takes


def is_taken(backend: Backend, graph: Graph) -> bool:
    """Tell whether a backend takes a graph; what is wrong with its answer is the matter of other checks."""
    try:
        return ask(backend, graph) is None
    except BaseException as e:
        if ends_program(e):
            raise
        return False


def shrunk(kit: Kit, trial: Trial, worlds: Sequence[World]) -> tuple[Trial, str]:
    """Return the smallest network in a wrong one that is still wrong by itself, and what is wrong with it.

    First the nodes behind the first wrong value go, then those before it whose results can be fed in their place.
    """
    whole = trial.graph
    for node in whole.nodes:
        small = _trial(part_of(whole, list(filter(None, node.outputs))), worlds, trial)
        found = _attempt(kit, small)
        if found:
            return _with_fed_values(kit, small, worlds, found)
    return trial, _attempt(kit, trial)


def _with_fed_values(kit: Kit, trial: Trial, worlds: Sequence[World], problem: str) -> tuple[Trial, str]:
    """Feed the values between the nodes, as long as the network stays wrong."""
    for value in [o for n in reversed(trial.graph.nodes) for o in n.outputs if o]:
        if value in trial.graph.outputs or value not in {i for n in trial.graph.nodes for i in n.inputs}:
            continue
        small = _trial(_fed(trial.graph, value, worlds), worlds, trial)
        found = _attempt(kit, small)
        if found:
            trial, problem = small, found
    return trial, problem


def _attempt(kit: Kit, trial: Trial) -> str:
    """Return what is wrong with a smaller network; "" also if the device takes it no longer."""
    found = kit.attempt("", problem_of, kit, trial)
    return found.message if found.verdict.is_bad else ""


def _trial(graph: Graph, worlds: Sequence[World], like: Trial) -> Trial:
    bounds = max(like.bounds)
    return trial_of(graph, worlds, bounds)


def _fed(graph: Graph, value: str, worlds: Sequence[World]) -> Graph:
    """Return a graph with a value as an input in the place of the nodes that make it."""
    made = graph.copy()
    made.nodes = [n for n in graph.nodes if value not in n.outputs]
    spec = worlds[0].specs[value]
    sizes = zip(*(w.specs[value].dims for w in worlds), strict=True)
    dims: tuple[Dim, ...] = tuple(d[0] if len(set(d)) == 1 else f"{value}_{k}" for k, d in enumerate(sizes))
    made.inputs = [*graph.inputs, value]
    made.specs = {**graph.specs, value: TensorSpec(dims, spec.dtype)}
    return part_of(made, list(graph.outputs))


def described(trial: Trial) -> str:
    """Return a network as one line: its inputs with their shapes, and its nodes."""
    graph, first = trial.graph, trial.runs[0].feeds
    shapes = {n: f"{n} {a.dtype}[{'x'.join(map(str, a.shape))}]" for n, a in first.items()}
    shapes |= {n: _constant(c) for n, c in graph.constants.items()}
    return "; ".join(
        f"{', '.join(n.outputs)} = {_op(n)}({', '.join(shapes.get(i, i) or 'nothing' for i in n.inputs)})"
        for n in graph.nodes
    )


def _constant(value: Array) -> str:
    if value.size <= 4 and value.dtype.kind in "iu":
        return str(value.tolist())
    return f"constant {value.dtype}[{'x'.join(map(str, value.shape))}]"


def _op(node: Node) -> str:
    """Return an op with those attributes that are not the default."""
    op = node.op
    try:
        usual = type(op)().attributes()
    except TypeError:  # it has attributes without a default
        usual = {}
    told = {k: v for k, v in op.attributes().items() if k not in usual or usual[k] != v}
    return op.type + (f"[{', '.join(f'{k}={v}' for k, v in told.items())}]" if told else "")
