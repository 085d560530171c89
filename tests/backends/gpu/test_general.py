"""The option `general`: few kernels, none of those that only save time, and the same results."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import weft
from benchmarks.cards import CARDS, _CardCreator
from benchmarks.models import MODELS, feeds
from weft.backends.gpu.lowering.lower import GpuPlan
from weft.core.registry.backend_registry import registry
from weft.kernels.general import LEFT_OUT
from weft.kernels.special import kernel_families


@pytest.mark.parametrize("device", ["opencl", "vulkan"])
def test_general_kernels_compute_the_same(device: str) -> None:
    model = MODELS["squeezenet1_1"](1, image=32, width=0.1, classes=4)
    x = feeds(model)
    with weft.load(model, "cpu") as reference:
        expected = reference.run(x)
    with weft.load(model, device, fallback="error", backend_options={device: {"general": True}}) as session:
        assert set(session.report.placement.values()) == {device}
        np.testing.assert_allclose(session.run(x)[0], expected[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("api", list(CARDS))
def test_they_are_few(api: str) -> None:
    card = CARDS[api]
    creator = _CardCreator(replace(card, caps=replace(card.caps, resident_groups=132)))
    registry.insert(creator.id, creator)
    try:
        usual, few = (
            weft.optimize(
                MODELS["squeezenet1_1"](1, image=112), creator.id, fallback="error", precision="low",
                backend_options={creator.id: {"general": general}},
            ).parts[0].lowered
            for general in (False, True)
        )
    finally:
        registry.remove(creator.id)
        creator.close()
    assert usual is not None and few is not None
    assert isinstance(usual.plan, GpuPlan) and isinstance(few.plan, GpuPlan)
    before, now = ({launch.source.digest for launch in plan.launches} for plan in (usual.plan, few.plan))
    assert len(now) <= 8 < len(before)
    assert {launch.kernel for launch in few.launches} <= {"conv_gemm", "pool", "pool_global", "relayout", "block_copy"}


def test_what_is_left_out_has_a_fallback() -> None:
    families = {family.name: family for family in kernel_families()}
    assert {name for name in LEFT_OUT if not families[name].fallback} == set()



@pytest.mark.parametrize("device", ["opencl", "vulkan"])
def test_a_session_begins_with_them(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    caplog.set_level(logging.INFO, "weft.session")
    net = weft.Network("mixed")
    x = net.add_input("x", (3, 37))
    weights = np.random.default_rng(0).standard_normal((37, 19)).astype(np.float32)
    product = net.add_layer("MatMul", x, weights)
    net.add_output("soft", net.add_layer("Softmax", product, axis=-1))
    net.add_output("places", net.add_layer("ArgMax", product, axis=1))
    net.add_output("sums", net.add_layer("CumSum", product, 1))
    net.add_output("most", net.add_layer("TopK", product, [5], axis=1).output(0))
    given = np.random.default_rng(1).standard_normal((3, 37)).astype(np.float32)
    with weft.load(net, "cpu") as session:
        expected = session.run(given)
    options = {device: {"kernels_kept": 97}}  # a device that no other test has built kernels for
    with weft.load(net, device, fallback="error", backend_options=options, wait="first") as session:
        first = session.run(given)
        session.wait_all()
        assert session.report.final and set(session.report.placement.values()) == {device}
        assert "general kernels" not in str(session.report) and "all of its kernels from now on" in caplog.text
        later = session.run(given)
    for name, one, two, right in zip(session.outputs, first, later, expected, strict=True):
        np.testing.assert_allclose(one, right, rtol=1e-5, atol=1e-6, err_msg=name)
        np.testing.assert_allclose(two, right, rtol=1e-5, atol=1e-6, err_msg=name)
