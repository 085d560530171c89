"""What is done about a family that is found wrong: its fallback computes the same, and nothing launches its kernels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import weft
from tests.helpers import fake_kernels as fakes
from tests.helpers.null_gpu import CAPS, null_gpu
from tests.helpers.op_rows import Net, run
from weft.backends.gpu.backend import GpuBackend
from weft.backends.gpu.creator import GpuCreator
from weft.backends.gpu.device.device import DeviceCaps
from weft.backends.gpu.runtime import GpuRuntime
from weft.backends.gpu.selftest import value_check
from weft.core.graph.layout import Array
from weft.core.registry.backend_registry import registry
from weft.errors import ExecutionError
from weft.kernels.special import KernelFamily, kernel_families
from weft.kernels.verdict import Verdict, is_refused, told
from weft.ops.binary import Add
from weft.ops.concat import Concat
from weft.ops.pool import MaxPool

FAMILIES = {family.name: family for family in kernel_families()}
WITH_FALLBACKS = [name for name, family in FAMILIES.items() if family.fallback and name != "attention"]
"""That of attention is several nodes in its place, which `test_families` loads."""


def runtime_of(api: str) -> GpuRuntime:
    creator = registry.find(api)
    assert isinstance(creator, GpuCreator)
    return creator.runtime(0)


@pytest.mark.parametrize("api", ["opencl", pytest.param("vulkan", marks=pytest.mark.long)])
@pytest.mark.parametrize("name", WITH_FALLBACKS)
def test_each_fallback_is_right_and_the_family_is_not_launched(
    name: str, api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    family, runtime = FAMILIES[name], runtime_of(api)
    caps = family.disable(family.forced(runtime.device.caps))
    assert name in caps.without
    monkeypatch.setattr(runtime.device, "caps", caps)
    for case in family.cases()[:2]:
        # A candidate can be preferred for one node alone; a network chooses layouts.
        ready = value_check.ready(case, runtime) if case.prefer else value_check.ReadyGraph(case, runtime)
        try:
            worst, launched = ready.difference(), ready.templates
        finally:
            ready.close()
        assert worst <= case.allowed, case.text
        assert launched and (not family.whole or not set(launched) & set(family.templates)), case.text


def lowered(net: Net, api: str) -> tuple[list[Array], set[str], set[str]]:
    """Return the outputs of a network, the templates it launches, and the kinds of their arguments."""
    with weft.load(net.graph, api, fallback="error") as session:
        backends = [p.backend for p in session.pipelines if isinstance(p.backend, GpuBackend)]
        launches = [launch for b in backends for launch in b.recording.run.rest]
        kinds = {str(arg.kind) for launch in launches for arg in launch.build.source.args}
        return session.run(net.feeds), {launch.label.rpartition("/")[2] for launch in launches}, kinds


def without(caps: DeviceCaps, *names: str) -> DeviceCaps:
    for name in names:
        caps = FAMILIES[name].disable(caps)
    return caps


@pytest.mark.parametrize("api", ["opencl", "vulkan"])
def test_a_network_without_copies_of_blocks_moves_elements(api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    net = Net()
    pooled = net.add(MaxPool(kernel_shape=(2, 2)), net.feed((1, 4, 7, 9)))
    joined = net.add(Concat(axis=1), pooled, pooled)  # it can lie in one place only, so that something is copied
    net.graph.outputs = [net.add(MaxPool(kernel_shape=(2, 2)), joined)]
    device = runtime_of(api).device
    expected = run(net.graph, net.feeds, "cpu")
    assert "block_copy" in lowered(net, api)[1]
    monkeypatch.setattr(device, "caps", without(device.caps, "block_copy"))
    found, launched, _ = lowered(net, api)
    assert "block_copy" not in launched and "relayout" in launched
    np.testing.assert_allclose(found[0], expected[0], 1e-5, 1e-6)


@pytest.mark.parametrize("api", ["opencl", "vulkan"])
def test_a_network_without_vectors_computes_element_by_element(api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    net = Net()
    net.graph.outputs = [net.add(Add(), net.feed((8, 12)), net.feed((8, 12)))]
    device = runtime_of(api).device
    expected = run(net.graph, net.feeds, "cpu")
    like_a_gpu = replace(device.caps, software=False)
    for caps, wide in ((like_a_gpu, True), (without(like_a_gpu, "elementwise_wide"), False)):
        monkeypatch.setattr(device, "caps", caps)
        found, launched, kinds = lowered(net, api)
        assert launched == {"elementwise"} and ("fours" in kinds) == wide
        np.testing.assert_allclose(found[0], expected[0], 1e-5, 1e-6)


@pytest.mark.parametrize("name", ["pool", "matmul", "lrn"])
def test_what_is_found_wrong_is_not_launched_whoever_asks_for_it(name: str) -> None:
    """`why_not` refuses such nodes before; this is the last line."""
    family = FAMILIES[name]
    with null_gpu() as device:
        runtime = GpuRuntime(device)
        case = family.cases()[0]
        value_check.ready(case, runtime).close()
        device.caps = family.disable(CAPS)
        with pytest.raises(ExecutionError, match=f"the kernel '{family.templates[0]}' is not launched"):
            value_check.ready(case, runtime)


def test_a_family_that_shares_its_templates_takes_none_from_the_others() -> None:
    with null_gpu() as device:
        runtime = GpuRuntime(device)
        device.caps = without(CAPS, "elementwise_wide", "move_wide", "conv_planar")
        for name in ("elementwise", "move", "conv_gemm"):
            ready = value_check.ready(FAMILIES[name].cases()[0], runtime)
            ready.close()
            assert set(ready.templates) & set(FAMILIES[name].templates), name


VERDICTS = {
    "right": Verdict(None),
    "wrong": Verdict("it was wrong by 1.0e-02"),
    "did not run": Verdict("none of its cases ran", ran=False),
    "no memory": Verdict("its test found no memory", lasting=False),
    "failed for a day": Verdict("did not end", until=1e12),
}


@pytest.mark.parametrize(("found", "word", "family", "special"), [
    ("right", "right", False, False),
    ("wrong", "wrong", True, True),
    ("did not run", "untested", False, True),
    ("no memory", "untested", False, True),
    ("failed for a day", "wrong", True, True),
])
def test_untested_portable_kernels_are_used_and_special_ones_are_not(
    found: str, word: str, family: bool, special: bool
) -> None:
    pool, verdict = FAMILIES["pool"], VERDICTS[found]
    assert isinstance(pool, KernelFamily) and verdict.word == word
    assert (is_refused(pool, verdict), is_refused(fakes.RIGHT, verdict)) == (family, special)
    if word != "right":
        assert told(fakes.RIGHT, verdict) == f"kernels that are right are not used: {verdict.why}"
        said = "are not used, nodes that need them go to the next device" if family else "are used untested"
        assert told(pool, verdict) == f"pools {said}: {verdict.why}"
