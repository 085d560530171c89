"""Rows of the op table that run together, as parts of one network: a session for all costs little more than for one.

In the short run a GPU plans every row, and may refuse none. Most rows differ by numbers alone, so those run that have,
between them, every line of every kernel, and every sign of each number that a kernel is given: a row that crops shows
what one that only pads does not. As little is compiled as possible, and every row runs whose kernels are compiled by
then: it costs a millisecond or two. In the long run each row runs by itself, and so do the rows of a group that fails,
to tell which it was.

Both GPUs render the same templates, and llvmpipe takes four times as long to compile one. So OpenCL shows each line of
a template, and Vulkan shows its dialect: it runs a row of each op and of each kernel. If a row launches one kernel
alone, Vulkan also runs a row for each element type that the kernel reads or writes, each function that it calls and
every sign of each number. For a helper of other kernels, the rows of its own op show that.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

import pytest

import weft
from tests.helpers.op_rows import GPUS, refusal, run
from tests.helpers.run_length import is_asked_about, is_long
from weft.backends.gpu.lowering.lower import GpuPlan
from weft.backends.gpu.recording.launches import PlannedLaunch
from weft.core.graph.graph import Graph
from weft.core.graph.layout import Array
from weft.core.graph.op import op_types
from weft.core.placement.optimized_network import OptimizedNetwork
from weft.errors import UnsupportedOps
from weft_conformance.cases.table import Case
from weft_conformance.checks.table import feeds_of, graph_of

COMPILES_SLOWLY = frozenset({"vulkan"})
"""Devices that have fewer rows; see above."""
_CALLED = re.compile(r"\b[a-zA-Z_]\w*(?=\()")
MOST_TOLD = 10
"""How many rows of a group a failure tells."""
Setup = Callable[[Case], tuple[Graph, dict[str, Array]]]
Check = Callable[[Case, list[Array]], None]


def by_family(rows: Iterable[Case]) -> dict[str, list[Case]]:
    """Return the rows of the ops of each module, those of all kinds of attention together: they share most kernels.

    In a run with `--op` it has the rows of these ops alone.
    """
    found: dict[str, list[Case]] = {}
    for row in filter(lambda row: is_asked_about(row.op), rows):
        module = op_types()[row.op].__module__.rpartition(".")[2]
        found.setdefault("attention" if module.endswith("attention") else module, []).append(row)
    return found


def as_it_is(row: Case) -> tuple[Graph, dict[str, Array]]:
    """Return the network of a row, and what it is fed."""
    return graph_of(row), feeds_of(row, row.arrays())


@dataclass(frozen=True)
class _Prepared:
    row: Case
    graph: Graph
    feeds: dict[str, Array]


def check_rows(
    rows: Iterable[Case], device: str, setup: Setup, check: Check, precision: str = "high"
) -> None:
    """Run rows on a device, all of which it must take, and check what comes out; tell every row that fails."""
    prepared = [_Prepared(row, *setup(row)) for row in rows]
    if is_long():
        failed = _one_by_one(prepared, device, check, precision)
    else:
        try:
            failed = _together(prepared, device, check, precision)
        except Exception:
            failed = _one_by_one(prepared, device, check, precision)
            if not failed:
                raise  # alone, each is right
    _raise(failed, len(prepared), f"{device} at precision {precision}")


def check_each(rows: Sequence[Case], check: Callable[[Case], None]) -> None:
    """Check rows one after the other, and tell every one that fails."""
    failed: dict[str, BaseException] = {}
    for row in rows:
        try:
            check(row)
        except (Exception, pytest.fail.Exception) as error:
            failed[row.id] = error
    _raise(failed, len(rows), "their checks")


def check_refused(rows: Sequence[Case], device: str) -> None:
    """Fail unless a device refuses every row with a sentence that holds what `refusal` says."""
    said: dict[int, str] = {}
    try:
        weft.optimize(joined([graph_of(row) for row in rows]), device, fallback="error")
    except UnsupportedOps as error:
        said = {_place(each.node): each.reason for each in error.refusals}

    def check(row: Case) -> None:
        reason = said.get(rows.index(row))
        if reason is None:  # It is refused later than others are, where shapes are known only in a run.
            with pytest.raises(UnsupportedOps) as alone:
                run(graph_of(row), feeds_of(row, row.arrays()), device)
            (one,) = alone.value.refusals
            reason = one.reason
        assert (refusal(row) or "") in reason and len(reason.split()) > 3, reason

    check_each(rows, check)


def joined(graphs: Sequence[Graph]) -> Graph:
    """Return one network of several that have nothing in common; names begin with the place of their network."""
    whole = Graph("rows", [], [])
    for place, graph in enumerate(graphs):

        def named(names: Iterable[str], place: int = place) -> list[str]:
            return [_named(place, name) for name in names]

        whole.inputs += named(graph.inputs)
        whole.outputs += named(graph.outputs)
        whole.nodes += [
            replace(n, name=_named(place, n.name), inputs=(*named(n.inputs),), outputs=(*named(n.outputs),))
            for n in graph.nodes
        ]
        whole.specs |= {_named(place, name): spec for name, spec in graph.specs.items()}
        whole.constants |= {_named(place, name): value for name, value in graph.constants.items()}
    return whole


def _named(place: int, name: str) -> str:
    return f"row{place}/{name}" if name else ""


def _place(name: str) -> int:
    """Return the place of the network that a node or value is of, as `joined` named it or as derived from that."""
    found = re.search(r"row(\d+)/", name)
    assert found, f"{name} is of no row"
    return int(found[1])


def _one_by_one(
    prepared: Sequence[_Prepared], device: str, check: Check, precision: str
) -> dict[str, Exception]:
    failed: dict[str, Exception] = {}
    for each in prepared:
        try:
            check(each.row, run(each.graph, each.feeds, device, precision))
        except Exception as error:
            failed[each.row.id] = error
        if len(failed) >= MOST_TOLD:
            break
    return failed


def _together(
    prepared: Sequence[_Prepared], device: str, check: Check, precision: str
) -> dict[str, Exception]:
    chosen = _chosen(prepared, device, precision) if device in GPUS else prepared
    fed = {_named(k, name): array for k, each in enumerate(chosen) for name, array in each.feeds.items()}
    outputs = run(joined([each.graph for each in chosen]), fed, device, precision)
    failed: dict[str, Exception] = {}
    for each in chosen:
        mine, outputs = outputs[: len(each.graph.outputs)], outputs[len(each.graph.outputs) :]
        try:
            check(each.row, mine)
        except Exception as error:
            failed[each.row.id] = error
    return failed


def _chosen(prepared: Sequence[_Prepared], device: str, precision: str) -> list[_Prepared]:
    """Plan all rows, and return those that are to run; see the top of this file."""
    launches = _launches([each.graph for each in prepared], device, precision)
    kernels = [{launch.source.digest: launch.source for launch in each} for each in launches]
    slow = device in COMPILES_SLOWLY
    alone = {entries.pop() for each in launches if len(entries := {launch.source.entry for launch in each}) == 1}
    shown = [
        _vocabulary(each, launched, alone) if slow else _signs(launched) | _lines(launched)
        for each, launched in zip(prepared, launches, strict=True)
    ]
    missing = [set(each) for each in shown]
    compiled, chosen = set[str](), set[int]()

    def cost(place: int) -> int:
        """Return how many characters are compiled for a row."""
        return sum(len(source.text) for kernel, source in kernels[place].items() if kernel not in compiled)

    while any(missing) or not chosen:
        best = max(range(len(prepared)), key=lambda place: len(missing[place]) / (1 + cost(place)))
        chosen.add(best)
        compiled |= kernels[best].keys()
        found = set(missing[best])
        for lines in missing:
            lines -= found
    if slow:
        chosen = _needed(chosen, shown, [sum(len(source.text) for source in each.values()) for each in kernels])
        compiled = {kernel for place in chosen for kernel in kernels[place]}
    chosen |= {place for place in range(len(prepared)) if kernels[place].keys() <= compiled}
    return [prepared[place] for place in sorted(chosen)]


def _needed(chosen: Iterable[int], shown: Sequence[Set[str]], costs: Sequence[int]) -> set[int]:
    """Return the chosen rows without those, the dearest first, of which others show all that they do."""
    left = set(chosen)
    times = Counter(each for place in left for each in shown[place])
    for place in sorted(left, key=lambda place: -costs[place]):
        if len(left) > 1 and all(times[each] > 1 for each in shown[place]):
            left.remove(place)
            times.subtract(shown[place])
    return left


def _lines(launches: Sequence[PlannedLaunch]) -> set[str]:
    """Return the lines of the kernels that run."""
    return {line.strip() for launch in launches for line in launch.source.text.splitlines()}


def _vocabulary(row: _Prepared, launches: Sequence[PlannedLaunch], alone: Set[str]) -> set[str]:
    """Return the op of a row, its element types and its kernels, and of those that are launched alone what they use."""
    types = {f"type {spec.dtype.value}" for spec in row.graph.specs.values()}
    kernels = {f"kernel {launch.source.entry}" for launch in launches}
    found = {f"op {row.row.op}"} | types | kernels
    for launch in launches:
        if launch.source.entry in alone:
            found |= {f"{launch.source.entry}: {arg.dtype.value}" for arg in launch.source.args}
            found |= {*_CALLED.findall(launch.source.text)}
            found |= _signs([launch])
    return found


def _signs(launches: Sequence[PlannedLaunch]) -> set[str]:
    """Return whether each number of the kernels that run is less than, equal to or more than 0."""
    return {
        f"{launch.source.entry}: {name} {'<' if value < 0 else '>' if value > 0 else '='} 0"
        for launch in launches
        for name, value in launch.values.items()
    }


def _launches(graphs: Sequence[Graph], device: str, precision: str) -> list[list[PlannedLaunch]]:
    """Return what each network launches on a GPU, which must take all of it."""
    network = weft.optimize(joined(graphs), device, precision=precision, fallback="error")
    assert {name.partition(":")[0] for name in network.placement.values()} <= {device}
    found: list[list[PlannedLaunch]] = [[] for _ in graphs]
    for label, launch in planned(network):
        found[_place(label)].append(launch)
    return found


def planned(network: OptimizedNetwork) -> Iterator[tuple[str, PlannedLaunch]]:
    """Give each launch that is planned on a GPU, behind the first output of its node."""
    for part in network.parts:
        assert part.lowered is not None and isinstance(part.lowered.plan, GpuPlan)
        for label, plans in part.lowered.plan.nodes.items():
            yield from ((label, launch) for plan in plans for launch in plan.launches)


def _raise(failed: Mapping[str, BaseException], count: int, where: str) -> None:
    """Fail if a row did."""
    told = [f"{row}: {error}" for row, error in failed.items()][:MOST_TOLD]
    assert not failed, "\n".join([f"{len(failed)} of {count} rows fail on {where}:", *told])
