"""`OptimizeSubgraph`: views cover the part, results stay the same, and nothing needs the object that made it.

Rows A5 and A14.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace

from weft.core.contract import check_answers
from weft.core.contract.views import OptimizationViews, SubgraphView, substitute
from weft.core.graph.graph import Graph, infer_shapes
from weft.core.graph.layout import Array
from weft.core.registry.device_choice import DeviceChoice
from weft_conformance.drive import Drive, NotCreated
from weft_conformance.kit import Kit, Untried, check
from weft_conformance.report import Finding, is_sentence


@check("views", "A5", "OptimizeSubgraph covers its part once, keeps the slots, changes nothing that it was shown")
def views(kit: Kit) -> Iterable[Finding]:
    """Ask for the views of several networks, and look at them."""
    for name, graph in kit.blocks.all().items():
        yield kit.attempt(name, _valid, kit, infer_shapes(graph))


@check("short-lived", "A14 A5", "what OptimizeSubgraph made computes the same when the object that made it is gone")
def short_lived(kit: Kit) -> Iterable[Finding]:
    """Optimise on one object, close it, and run on another."""
    for name, graph in kit.blocks.all().items():
        yield kit.attempt(name, _on_another, kit, infer_shapes(graph))


def optimized(kit: Kit, graph: Graph, choice: DeviceChoice | None = None) -> Graph:
    """Return a graph after `OptimizeSubgraph` of a backend, by default the one examined; Untried if parts failed.

    The object that optimised it is closed.
    """
    device = choice or kit.choice
    view = SubgraphView(graph.copy())
    with closing(device.open(kit.config)) as backend:
        result = _views(backend.OptimizeSubgraph(view))
    result.check(view, device.device)
    if result.failed:
        raise Untried("; ".join(f.reason for f in result.failed))
    return substitute(graph, result, device.device)


def _views(answer: object) -> OptimizationViews:
    return check_answers.of_kind(answer, OptimizationViews, "OptimizeSubgraph", "OptimizationViews")


def _valid(kit: Kit, graph: Graph) -> str:
    shown = graph.copy()
    weights = {name: value.copy() for name, value in graph.constants.items()}
    view = SubgraphView(shown)
    with kit.opened() as backend:
        result = _views(backend.OptimizeSubgraph(view))
        result.check(view, kit.device)
    if any(getattr(shown, part) != getattr(graph, part) for part in ("nodes", "inputs", "outputs", "specs")):
        return "it changed the graph that it was shown"
    if shown.constants.keys() != weights.keys() or any(
        shown.constants[name].tobytes() != value.tobytes() for name, value in weights.items()
    ):
        return "it changed constants of the graph that it was shown"
    vague = [f.reason for f in result.failed if not is_sentence(f.reason)]
    return f"a part failed for the reason {vague[0]!r}" if vague else ""


def _on_another(kit: Kit, graph: Graph) -> str:
    changed = optimized(kit, graph)
    gc.collect()  # frees the object that made it, if nothing holds it
    fed: dict[str, Array] = kit.blocks.feeds(5)
    try:
        with Drive(kit.choice.open(kit.config), replace(changed)) as drive:
            return kit.compare(graph, fed, drive.run(fed))
    except NotCreated as e:
        return f"{e}, which OptimizeSubgraph left or made"
