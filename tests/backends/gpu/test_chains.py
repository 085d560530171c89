"""Small launches that share one: what joins, in which order it runs, what is told of it, and that it is right."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

import weft
from benchmarks.models import MODELS
from tests.helpers.cards import CHAINED
from tests.helpers.conv_problems import compute_groups, take
from tests.helpers.emulated_gpus import emulated_gpu
from tests.helpers.nets import Net, feeds
from tests.helpers.null_gpu import NullDevice, null_gpu
from tests.helpers.random_nets import SLOW, networks
from tests.helpers.run_length import examples
from weft.backends.gpu.recording.launches import BoundChain, PlannedChain, access
from weft.backends.gpu.recording.schedule import levels
from weft.core.contract.backend_options import Options
from weft.core.contract.lowered import Listing
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph
from weft.core.graph.interpreter import outputs
from weft.core.graph.tensor import TensorSpec
from weft.core.registry.backend_registry import registry
from weft.errors import CompileError
from weft.kernels.chain import LEAST_PREFETCHED
from weft.kernels.device_caps import DeviceCaps
from weft.kernels.source import KernelSource
from weft.ops.attention import Attention
from weft.ops.gpu.conv.gemm.split_k import InParts
from weft.ops.gpu.conv.gemm.tiles import GemmTile, TiledConv

ONE_GROUP: dict[str, Any] = {
    "matrices": (), "resident_groups": 1, "compute_units": 132, "software": False, "max_local_items": 128,
}
"""A CPU runs work-groups in turn, so that only one may wait; it is said to have units for which launches are few."""


def block() -> Graph:
    """Return two branches of different launches that meet, twice, so that memory is used again."""
    net = Net()
    x = net.input("x", 1, 8, 12, 11)
    for b in range(2):
        wide = net.add("Relu", net.conv(x, 16, name=f"wide{b}"))
        deep = net.conv(wide, 16, 3, group=16, pads=(1, 1, 1, 1), name=f"deep{b}")
        most = net.add("MaxPool", wide, kernel_shape=(3, 3), strides=(1, 1), pads=(1, 1, 1, 1))
        x = net.conv(net.add("Add", deep, most, name=f"sum{b}"), 8, name=f"narrow{b}")
    return net.finish(x)


@contextmanager
def chaining(caps: DeviceCaps = CHAINED) -> Iterator[NullDevice]:
    """Register a device without kernels on which launches share one."""
    with null_gpu() as device:
        registry.find("null").runtime(0).trust()  # type: ignore[attr-defined]
        device.caps, device.launches_overlap = caps, False
        yield device


def chains(session: weft.Session) -> list[BoundChain]:
    """Return the chains of a session on one GPU."""
    planned = session.pipelines[0].backend.recording.run.planned  # type: ignore[attr-defined]
    return [launch for launch in planned if isinstance(launch, BoundChain)]


def listing(optimized: weft.OptimizedNetwork) -> Listing:
    """Return what a network on one device launches."""
    (part,) = optimized.parts
    assert part.listing is not None
    return part.listing


def told(session: weft.Session) -> list[tuple[str, Sequence[str]]]:
    """Return the launches that a report tells, each with the kernels of its levels."""
    return [(launch.kernel, [kernel for _, kernel in launch.levels]) for _, launch in session.report.launches]


def test_a_chain_is_right_in_every_run() -> None:
    graph = block()
    fed = feeds(graph)
    (want,) = outputs(graph, fed)
    with emulated_gpu("opencl", **ONE_GROUP), weft.load(graph, "emulated", fallback="error", profile=True) as session:
        assert set(session.report.placement.values()) == {"emulated"}
        for scale in (1, 2, 1):
            (got,) = session.run({"x": fed["x"] * np.float32(scale)})
            if scale == 1:
                np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * np.abs(want).max())
        made = chains(session)
        assert told(session) == [("chain", [level.templates[0] for level in chain.levels]) for chain in made]
        assert len(made) == 2 and sum(len(chain.levels) for chain in made) >= 8
        work = [event.work for event in session.profile.events if event.name in [chain.label for chain in made]]
        assert sum(each.flops for each in work if each) == listing(session.optimized).flops


def test_what_overflows_in_a_chain_is_found() -> None:
    net = Net()
    x = net.input("x", 1, 8, 12, 11)
    for k, scale in enumerate((300, 300, 1e-5)):
        x = net.add("Relu", net.add("Conv", x, net.random(8, 8, 1, 1, scale=scale), name=f"conv{k}"), name=f"relu{k}")
    graph = net.finish(net.add("Softmax", x, axis=1, name="y"))
    fed = feeds(graph)
    (want,) = outputs(graph, fed)
    with emulated_gpu("opencl", **ONE_GROUP), weft.load(graph, "emulated", precision="low") as session:
        assert chains(session)
        np.testing.assert_allclose(session.run(fed)[0], want, atol=5e-3)
        assert any("overflowed" in note for note in session.report.notes)


def test_arrays_of_the_session_keep_the_chains() -> None:
    graph = block()
    fed = feeds(graph)
    with emulated_gpu("opencl", **ONE_GROUP), weft.load(graph, "emulated", precision="low") as session:
        want = session.run(fed)
        before = told(session)
        inputs, results = session.input_arrays(), session.output_arrays()
        for name, array in inputs.items():
            array[...] = fed[name]
        got = session.run(inputs, outputs=results)
        assert inputs["x"].dtype == np.float16, "it was planned anew, for another type"
        assert told(session) == before and any(name == "chain" for name, _ in before)
    for each, right in zip(got, want, strict=True):
        np.testing.assert_allclose(each, right, rtol=0, atol=2e-3 * np.abs(right).max())


def test_the_option_leaves_each_launch_alone() -> None:
    with emulated_gpu("opencl", **ONE_GROUP) as creator:
        creator.runtime(0, Options({"chains": False})).trust()
        given = ({"emulated": {"chains": on}} for on in (True, False))
        made = [weft.optimize(block(), "emulated", backend_options=options) for options in given]
    assert [len(listing(each).launches) for each in made] == [2, 10]


def test_no_level_reads_by_the_cache_of_constants() -> None:
    """What `ld.global.nc` reads must not change while the kernel runs; a level may read what one before it wrote."""
    with chaining():
        network = weft.optimize(MODELS["resnet50"](1), "null", precision="normal")
    launches: Sequence[Any] = listing(network).launches
    reads = {isinstance(x, PlannedChain) for x in launches if "ld.global.nc" in x.source.text}
    assert reads == {False}, "a chain has such loads, or no kernel of this network"
    assert any(isinstance(x, PlannedChain) for x in launches)


@pytest.mark.parametrize(("precision", "most"), [("high", 14), ("low", 8)])
def test_a_network_of_small_layers_takes_few_launches(precision: str, most: int) -> None:
    with chaining():
        optimized = weft.optimize(MODELS["mobilenet_v2"](1), "null", precision=precision)
    launches = listing(optimized).launches
    assert len(launches) <= most
    assert sum(len(launch.levels) or 1 for launch in launches) == 54


def test_a_long_launch_shares_none_while_the_device_is_said_to_lose_by_it() -> None:
    """The one that adds its parts does, but a node that is not in a chain as a whole is no work of that."""
    net = Net()
    x = net.conv(net.input("x", 1, 256, 28, 28), 256, 3, strides=(2, 2), pads=(1, 1, 1, 1), name="long")
    graph, chained, owners = net.finish(net.conv(net.conv(x, 16), 16)), [], []
    for longest in (8.0, 1e9):
        with chaining() as device:
            device.longest_chained = longest
            launches = listing(weft.optimize(graph, "null", precision="high", fallback="error")).launches
            chained.append([level for launch in launches for level in launch.levels])
            owners.append([x for launch in launches if isinstance(launch, PlannedChain) for x in launch.whole_nodes])
    assert len(chained[0]) > 1 and [kernel for node, kernel in chained[0] if node == "n_long"] == ["sum_parts"]
    assert [kernel for node, kernel in chained[1] if node == "n_long"] == ["conv_gemm", "sum_parts"]
    assert ["long" in each for each in owners] == [False, True]


@pytest.mark.parametrize(("size", "longest", "joins"), [(28, 0.1, True), (112, 2.0, False)])
def test_a_sum_of_parts_of_many_waves_stays_alone(
    size: int, longest: float, joins: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit is between the time to move the bytes of the products and that of their sum."""
    take(monkeypatch, TiledConv(), InParts(GemmTile(4, 1, 8, 8, 1), 2))
    net = Net()
    x = net.conv(net.input("x", 1, 256, size, size), 64, name="long")
    graph = net.finish(net.add("MaxPool", net.add("MaxPool", x, kernel_shape=(3, 3)), kernel_shape=(3, 3)))
    with chaining() as device:
        device.longest_chained = longest
        launches = listing(weft.optimize(graph, "null", precision="high", fallback="error")).launches
    assert any(launch.kernel == "conv_gemm" for launch in launches)
    assert any(("n_long", "sum_parts") in launch.levels for launch in launches) is joins


def test_a_chain_that_begins_with_a_sum_of_parts_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    take(monkeypatch, TiledConv(), InParts(GemmTile(4, 1, 8, 8, 1), 2))
    net = Net()
    long = net.conv(net.input("x", 1, 40, 6, 5), 24, 3, pads=(1, 1, 1, 1), name="long")
    most = net.add("MaxPool", long, kernel_shape=(3, 3), strides=(1, 1), pads=(1, 1, 1, 1))
    graph = net.finish(net.add("MaxPool", most, kernel_shape=(2, 2)))
    fed = feeds(graph)
    (want,) = outputs(graph, fed)
    with emulated_gpu("opencl", **ONE_GROUP) as creator:
        creator.runtime(0).device.longest_chained = 0.002  # between the bytes of the products and those of the sum
        with weft.load(graph, "emulated", fallback="error", profile=True) as session:
            for _ in range(2):
                (got,) = session.run(fed)
            np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * np.abs(want).max())
            (chain,) = chains(session)
            assert chain.templates[1:4] == ["sum_parts", "pool", "pool"] and "long" not in chain.plan.whole_nodes
            work = {event.work.node: event.work for event in session.profile.events if event.work}
            assert sum(each.flops for each in work.values()) == listing(session.optimized).flops


@pytest.mark.parametrize(("rows", "joins"), [(16, True), (512, False)])
def test_a_long_attention_stays_alone(rows: int, joins: bool) -> None:
    net = Net()
    names = [net.input(name, 1, 4, rows, 64) for name in ("q", "k", "v")]
    y = net.add("Relu", net.add(Attention(scale=0.125), *names, name="attends"))
    graph = net.finish(net.add("Softmax", net.add("Softmax", y, axis=-1), axis=-1))
    with chaining():
        launches = listing(weft.optimize(graph, "null", precision="high", fallback="error")).launches
    assert ("n_attends" in {node for launch in launches for node, _ in launch.levels}) is joins


def test_a_launch_by_warpgroups_may_take_longer() -> None:
    net = Net()
    x = net.conv(net.input("x", 1, 256, 28, 28), 256, 3, pads=(1, 1, 1, 1), name="long")
    graph, chained = net.finish(net.conv(net.conv(x, 64), 64)), []
    with chaining() as device:
        device.longest_chained = 6.0
        for precision in ("high", "low"):
            launches = listing(weft.optimize(graph, "null", precision=precision, fallback="error")).launches
            chained.append({node for launch in launches for node, _ in launch.levels})
    assert "n_long" not in chained[0] and "n_long" in chained[1]


def test_large_constants_are_prefetched_while_a_level_before_theirs_is_awaited() -> None:
    net = Net()
    x = net.input("x", 1, 256, 7, 7)
    for i, channels in enumerate((256, 1024, 64, 512)):
        x = net.conv(x, channels, name=f"level{i}")
    with chaining():
        (chain,) = listing(weft.optimize(net.finish(x), "null", fallback="error")).launches
    assert isinstance(chain, PlannedChain)
    weights = [max(t.nbytes for t in level.reads if t.memory.is_constant) for level in chain.launches[1:5]]
    assert [n >= LEAST_PREFETCHED for n in weights] == [True, True, True, False], "as this test is made"
    steps = re.findall(r"(level_\d+|await|prefetch_l2)\(", chain.source.text.partition("void chain(")[2])
    assert steps[:8] == ["level_0", "prefetch_l2", "prefetch_l2", "await", "level_1", "prefetch_l2", "await", "level_2"]
    assert "prefetch_l2" not in steps[8:]
    assert sorted(v for name, v in chain.values.items() if name.startswith("PREFETCHED")) == sorted(weights[:3])


def test_groups_of_odd_sizes_join_where_items_may_repeat_each_other() -> None:
    net = Net()
    wide = net.conv(net.input("x", 1, 40, 9, 11), 72)
    graph = net.finish(net.conv(net.conv(wide, 72, 5, group=72, pads=(2,) * 4), 40))
    with chaining():
        whole = listing(weft.optimize(graph, "null"))
    with chaining(replace(CHAINED, partial_barriers=False)):
        apart = listing(weft.optimize(graph, "null"))
    (chain,) = whole.launches
    (odd,) = (launch for launch in apart.launches if launch.kernel == "conv_depthwise_staged")
    assert prod(odd.local) % 32 and "conv_depthwise_staged" in [kernel for _, kernel in chain.levels]


def test_teams_of_warpgroups_stay_alone() -> None:
    """They have more items than other kernels may, so that the rest of a chain would get few registers."""
    net = Net()
    x = net.conv(net.input("x", 16, 232, 14, 14), 232, name="many")
    graph = net.finish(net.conv(net.conv(x, 232, 3, group=232, pads=(1,) * 4), 232, strides=(2, 2)))
    with chaining(replace(CHAINED, shared_alone=48 << 10)):
        launches = listing(weft.optimize(graph, "null", precision="low", fallback="error")).launches
    assert any(prod(launch.local) > CHAINED.max_local_items for launch in launches)
    assert all(prod(launch.local) <= CHAINED.max_local_items for launch in launches if launch.levels)


def test_launches_of_parts_of_a_result_run_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two groups of a convolution, each by a sum in parts; two branches, joined in place."""
    compute_groups(monkeypatch, TiledConv(), InParts(GemmTile(4, 1, 8, 8, 1), 2))
    net = Net()
    wide = net.add("Relu", net.conv(net.input("x", 1, 8, 6, 5), 40))
    groups = net.conv(wide, 24, 3, group=2, pads=(1, 1, 1, 1), name="groups")
    branches = net.conv(groups, 8, name="left"), net.conv(groups, 12, 3, pads=(1, 1, 1, 1), name="right")
    graph = net.finish(net.conv(net.add("Concat", *branches, axis=1), 8, 3, name="last"))
    fed = feeds(graph)
    (want,) = outputs(graph, fed)
    with emulated_gpu("opencl", **ONE_GROUP), weft.load(graph, "emulated", fallback="error") as session:
        (got,) = session.run(fed)
        levels = [level for chain in chains(session) for level in zip(chain.plan.levels, chain.plan.waits, strict=True)]
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * np.abs(want).max())
    told = [(node.removeprefix("n_"), kernel, waits) for (node, kernel), waits in levels]
    assert [each for each in told if each[0] in ("groups", "left", "right")] == [
        ("groups", "conv_gemm", True), ("groups", "conv_gemm", False),
        ("groups", "sum_parts", True), ("groups", "sum_parts", False),
        ("left", "conv_gemm", True), ("right", "conv_gemm", False),
    ]


@given(graph=networks(12))
@settings(max_examples=examples(40), deadline=None, suppress_health_check=SLOW)
def test_levels_that_do_not_wait_do_not_touch_each_other(graph: Graph) -> None:
    with chaining(), weft.load(graph, "null", fallback="error") as session:
        if not session.pipelines:
            return
        for chain in chains(session):
            beside: list[Any] = []
            for level, waits in zip(chain.levels, chain.plan.waits, strict=True):
                beside = [access(level)] if waits else [*beside, access(level)]
                assert len(levels(beside)) == 1, level.label


def test_a_chain_that_the_compiler_refuses_is_launched_level_by_level() -> None:
    graph = block()
    with chaining() as device:
        compile_ = device.compile

        def refuse(source: KernelSource, values: Any) -> Any:
            if source.entry == "chain":
                raise CompileError("it has too many levels")
            return compile_(source, values)

        device.compile = refuse  # type: ignore[method-assign]
        with weft.load(graph, "null", fallback="error") as session:
            assert not chains(session)
            assert any("do not share one: it has too many levels" in note for note in session.report.notes)
            planned = session.pipelines[0].backend.recording.run.planned  # type: ignore[attr-defined]
            assert len(planned) >= 8


def test_a_shape_that_changes_has_launches_of_its_own() -> None:
    graph = block()
    graph.specs = {name: graph.specs[name] for name in graph.constants}
    graph.specs["x"] = TensorSpec((1, 8, "h", 11), DType.FLOAT32)
    with chaining(), weft.load(graph, "null", shapes={"x": (1, 8, 9, 11)}, fallback="error") as session:
        assert chains(session)
        session.resize({"x": (1, 8, 10, 11)})
        assert not chains(session)


def test_a_saved_network_runs_in_the_chains_that_it_shows(tmp_path: Path) -> None:
    with chaining():
        optimized = weft.optimize(block(), "null")
        optimized.save(tmp_path / "net.weft")
        with weft.load(tmp_path / "net.weft") as session:
            assert listing(session.optimized).launches == listing(optimized).launches
    text = str(listing(optimized))
    assert "its levels are conv_gemm for" in text
    assert "in the chain of" in text


# -- groups that do not come -----------------------------------------------------------------------------------

TOO_MANY = ONE_GROUP | {"resident_groups": 1 << 12, "compute_units": 1 << 12}
"""It is said to run more work-groups at once than any CPU does, so that those which run wait for others in vain."""


def wide_block() -> Graph:
    """Return launches of many work-groups that share one."""
    net = Net()
    x = net.add("Relu", net.input("x", 1, 8, 192, 160), name="a")
    for side in (3, 5):
        x = net.add("MaxPool", x, kernel_shape=(side, side), strides=(1, 1), pads=(side // 2,) * 4, name=f"p{side}")
    return net.finish(x)


def test_a_group_that_never_comes_is_an_error_and_the_next_run_is_right() -> None:
    graph = wide_block()
    fed = feeds(graph)
    (want,) = outputs(graph, fed)
    with emulated_gpu("opencl", **TOO_MANY), weft.load(graph, "emulated", fallback="error") as session:
        assert any(prod(chain.grid) > 100 for chain in chains(session))
        with pytest.raises(weft.WeftError, match="the run has no results") as caught:
            session.run(fed)
        said = str(caught.value)
        assert "emulated:0" in said and "chains" in said and "another program may keep the device busy" in said
        for _ in range(2):
            np.testing.assert_array_equal(session.run(fed)[0], want)
        assert chains(session) == [] and any("run separately since" in note for note in session.report.notes)
        with weft.load(graph, "emulated") as later:
            np.testing.assert_array_equal(later.run(fed)[0], want)
            assert chains(later) == []


def test_a_run_that_gave_up_is_told_to_whoever_waits_for_it_and_once() -> None:
    graph = wide_block()
    fed = feeds(graph)
    with emulated_gpu("opencl", **TOO_MANY), weft.load(graph, "emulated", fallback="error") as session:
        session.submit(fed)
        with pytest.raises(weft.WeftError, match="the run has no results"):
            session.submit(fed)  # it waits for the first one
        session.submit(fed)
        np.testing.assert_array_equal(session.wait()[0], outputs(graph, fed)[0])


def test_a_session_whose_run_gave_up_can_be_resized_and_closed() -> None:
    net = Net()
    x = net.add("MaxPool", net.input("x", 1, 8, "h", 160), kernel_shape=(3, 3), name="p")
    graph = net.finish(net.add("MaxPool", x, kernel_shape=(3, 3), name="q"))
    with (
        emulated_gpu("opencl", **TOO_MANY),
        weft.load(graph, "emulated", shapes={"x": (1, 8, 192, 160)}, fallback="error") as session,
    ):
        assert chains(session)
        with pytest.raises(weft.WeftError, match="the run has no results"):
            session.run(np.ones((1, 8, 192, 160), np.float32))
        session.resize({"x": (1, 8, 96, 160)})
        np.testing.assert_array_equal(session.run(np.ones((1, 8, 96, 160), np.float32))[0], 1)
