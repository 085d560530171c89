"""Check whether an optimised network may run: a saved file may say anything.

`check_network` checks the network by itself: values, shapes, parts and copies. `check_devices` asks the backends
whether they take each node, and whether they can use the memory that a part reads without a copy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from weft.core.contract import check_answers
from weft.core.contract.backend import Backend
from weft.core.contract.error_context import at_node, blame, callback_of
from weft.core.graph.described import described
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph
from weft.core.graph.layout import Layout
from weft.core.graph.validate import graph_problems, wrong_specs
from weft.core.placement.in_place import why_apart
from weft.core.placement.optimized_network import Copy, OptimizedNetwork, Part, PreCompiled, Tail
from weft.errors import ModelError, Problem, UnsupportedOps, listing

OPTIMIZE_AGAIN = "optimise the model again with this installation, and save that"


def check_network(network: OptimizedNetwork) -> None:
    """Raise ModelError with every contradiction in a network.

    Kernels trust shapes and types, so these are inferred again and compared. The parts must have the nodes of the
    network in its order, and read only values that exist by then.
    """
    whole = network.graph
    for stage in network.stages[1:]:
        check_network(stage)
    problems = graph_problems(whole) or _unknown(whole)
    problems = problems or wrong_specs(whole) + _layout_problems(network) + _division_problems(network)
    for each in (whole, *(part.graph for part in network.parts)) if not problems else ():
        problems += [f"{o!r} cannot lie in {each.aliases[o]!r}: {why}" for o, why in why_apart(each).items()]
    for part in network.parts:
        problems += [f"part {part.graph.name!r}: {p}" for p in graph_problems(part.graph)]
        problems += _part_problems(part, whole)
    problems += [] if network.tail is None else _tail_problems(network.tail, whole)
    if problems:
        raise ModelError(
            f"network {network.graph.name!r} contradicts itself",
            why=listing(problems),
            fix=OPTIMIZE_AGAIN,
        )


def check_devices(network: OptimizedNetwork, backends: Mapping[str, Backend]) -> None:
    """Raise UnsupportedOps with every node that its device refuses, and every value that it can use only as a copy."""
    problems: list[str] = []
    made: dict[str, str] = {}
    copied = {n.outputs[0] for n in network.copies}
    for part in network.parts:
        backend = backends[part.device]
        for node in part.graph.nodes:
            place, callback = at_node(node, part.device), callback_of(backend, "why_not_optimized")
            with blame(place, "the backend could not say whether it takes a node", callback=callback):
                reason = backend.why_not_optimized(*described(part.graph, node), node.op)
            reason = check_answers.reason(reason, f"{place}: {callback}")
            if reason is not None:
                problems.append(Problem(node.name, f" ({node.op.type}): {part.device}: {reason}"))
        for name in part.graph.inputs:
            source = made.get(name)
            if name in copied:
                made[name] = part.device
            elif source is not None and not imports(backend, backends[source]):
                problems.append(f"{name!r} of {source} is read by {part.device}, which needs a copy of it")
        made.update(dict.fromkeys(part.graph.outputs, part.device))
    if problems:
        what = f"{len(problems)} node(s) or values of network {network.graph.name!r} do not fit their devices"
        raise UnsupportedOps(what, problems, fix=OPTIMIZE_AGAIN)


def imports(backend: Backend, source: Backend) -> bool:
    """Ask a backend whether it can use the memory of another's tensors; BackendError unless it answers a bool."""
    device, callback = backend.info.device, callback_of(backend, "canImport")
    with blame(device, "the backend could not say whether it imports a value", callback=callback):
        return check_answers.granted(backend.canImport(source), f"{device}: {callback}", "where it cannot")


def _unknown(graph: Graph) -> list[str]:
    """Return the values without a shape and type, or with an unbound shape."""
    values = dict.fromkeys([*graph.inputs, *graph.constants, *(o for n in graph.nodes for o in n.outputs if o)])
    bare = [f"there is no shape and type of {v!r}" for v in values if v not in graph.specs]
    return bare or [f"{v!r} is {graph.specs[v]}, not of known size" for v in values if not graph.specs[v].is_static]


def _part_problems(part: Part, whole: Graph) -> list[str]:
    """Return where a part contradicts the network, and the outputs that it does not make."""
    graph, name = part.graph, part.graph.name
    made = {o for n in graph.nodes for o in n.outputs if o}
    read = {i for n in graph.nodes for i in n.inputs if i}
    problems = [f"part {name!r} makes no {o!r}" for o in graph.outputs if o not in made]
    for value in sorted(made | read | {*graph.inputs, *graph.outputs, *graph.constants}):
        told, known = graph.specs.get(value), whole.specs.get(value)
        if told is None or told != known:
            problems.append(f"{value!r} is {told or 'not told'} in part {name!r} and {known or 'unknown'} in the whole")
        if graph.layouts.get(value) != whole.layouts.get(value):
            problems.append(f"{value!r} has one layout in part {name!r} and another in the whole")
    for value, array in graph.constants.items():
        if whole.constants.get(value) is not array:
            problems.append(f"constant {value!r} has one value in part {name!r} and another in the whole")
    for node in graph.nodes:
        if isinstance(node.op, PreCompiled) and node.op.backend != part.device.partition(":")[0]:
            problems.append(f"{node.name!r} was compiled by {node.op.backend!r} and is on {part.device}")
    return problems


def _tail_problems(tail: Tail, first: Graph) -> list[str]:
    """Return where what comes after a first stage does not fit it."""
    rest, made = tail.rest, set(first.outputs)
    problems = _corner_problems(tail, first)
    waiting = (o for node in rest.nodes for o in node.outputs if o)
    names = Counter([*tail.inputs, *made, *tail.corners, *rest.constants, *waiting])
    problems += [f"value {name!r} is made {count} times" for name, count in names.items() if count > 1]
    open_sizes = ((name, spec) for name, spec in tail.inputs.items() if not spec.is_static)
    problems += [f"{name!r} is {spec}, not of known size" for name, spec in open_sizes]
    specs = rest.specs.keys() - rest.constants.keys()
    problems += [f"{name!r} waits for a run and has a spec before it" for name in sorted(specs)]
    there = {*tail.inputs, *made, *tail.corners}
    problems += [f"a later stage reads {i!r}, which nothing makes" for i in rest.inputs if i not in there]
    read = ((i, tail.inputs.get(i), first.specs.get(i)) for i in first.inputs)
    problems += [f"{i!r} is {told or 'not told'} and read as {known}" for i, told, known in read if told != known]
    if tuple(rest.outputs) != tail.outputs:
        problems.append("what comes after the first stage has other outputs than the network")
    return problems


def _corner_problems(tail: Tail, first: Graph) -> list[str]:
    """Return the corners that are none of an output of the first stage, and corners that share sizes."""
    problems, made = list[str](), set(first.outputs)
    used = dict[tuple[str, int], str]()
    for name, corner in tail.corners.items():
        room, sizes = first.specs.get(corner.room), first.specs.get(corner.sizes)
        if corner.room not in made or corner.sizes not in made or room is None or sizes is None:
            problems.append(f"{name!r} is a part of {corner.room!r} of the sizes {corner.sizes!r}, which are not made")
        elif (
            len(room.shape) != corner.rank
            or len(sizes.shape) != 1
            or not 0 <= corner.begin <= corner.begin + corner.rank <= sizes.size
            or sizes.dtype is not DType.INT64
            or corner.axis not in (None, *range(corner.rank))
        ):
            problems.append(f"{name!r} is no part of {corner.room!r}, which is {room}, by {corner.sizes!r}, {sizes}")
        else:
            places = [(corner.sizes, at) for at in range(corner.begin, corner.begin + corner.rank)]
            others = dict.fromkeys(used[place] for place in places if place in used)
            problems += [f"{name!r} and {other!r} have their sizes in one place" for other in others]
            used |= dict.fromkeys(places, name)
    return problems


def _layout_problems(network: OptimizedNetwork) -> list[str]:
    """Return the values at the borders of parts that are not stored as NCHW."""
    graph = network.graph
    border = {*graph.inputs, *graph.outputs, *graph.constants, *(n.outputs[0] for n in network.copies)}
    border.update(v for p in network.parts for v in (*p.graph.inputs, *p.graph.outputs))
    wrong = [(v, layout) for v, layout in graph.layouts.items() if v in border and layout is not Layout.NCHW]
    return [f"{v!r} lies as {layout.value}, and parts hand over NCHW" for v, layout in wrong]


def _division_problems(network: OptimizedNetwork) -> list[str]:
    """Return what is wrong with the division into parts: their nodes, and values that are read before they are made."""
    graph = network.graph
    inside = [n for p in network.parts for n in p.graph.nodes]
    whole = {n.name: n for n in graph.nodes if not isinstance(n.op, Copy)}
    if len(inside) != len(whole) or any(whole.get(n.name) != n for n in inside):
        return ["the nodes of the parts are not those of the network"]
    problems = []
    if [n.name for n in inside] != list(whole):
        problems.append("the parts have the nodes in another order than the network")
    copies = {n.outputs[0]: n for n in network.copies}
    holder: dict[str, str] = {}
    for part in network.parts:
        for value in part.graph.inputs:
            copy = copies.get(value)
            if copy is not None and value not in holder:
                assert isinstance(copy.op, Copy)
                source = holder.get(copy.inputs[0])
                if (source, part.device) != (copy.op.source, copy.op.target):
                    problems.append(
                        f"{copy.name!r} copies {copy.inputs[0]!r} from {copy.op.source} to {copy.op.target}; "
                        f"it is {f'on {source}' if source else 'not made by then'} and read on {part.device}"
                    )
                holder[value] = part.device
            elif value not in holder and value not in graph.inputs:
                problems.append(f"part {part.graph.name!r} reads {value!r}, which is not made by then")
        holder.update(dict.fromkeys(part.graph.outputs, part.device))
    there = {*holder, *graph.inputs, *graph.constants}
    return problems + [f"no part makes the output {o!r}" for o in graph.outputs if o not in there]
