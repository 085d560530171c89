"""Networks whose sizes follow from values: optimised, printed, saved and loaded again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

import weft
from tests.helpers.onnx_models import make_model
from tests.helpers.saved_networks import as_saved, content, refusal, rewritten
from tests.helpers.staged_models import FLOAT, INT64, boxes, condition, loop, node
from weft.core.graph.graph import Graph
from weft.core.passes.manager import PassContext, graph_pass
from weft.core.session import stage_loader
from weft.errors import InputError, ModelError

GPUS = ["opencl", "vulkan"]


def given(model: ModelProto, seed: int) -> dict[str, Any]:
    """Return inputs of a model."""
    random = np.random.default_rng(seed)
    made = {}
    for each in model.graph.input:
        shape = [d.dim_value for d in each.type.tensor_type.shape.dim]
        is_float = each.type.tensor_type.elem_type == FLOAT
        made[each.name] = random.standard_normal(shape).astype(np.float32) if is_float else np.array(seed % 5)
    return made


MODELS = {"boxes": boxes, "if": condition, "loop": loop}
STAGES = {
    "boxes": ["for flat: float32[9x4], rows: int64[4x3]"],
    "if": ["where 'positive' is false, for x: float32[3]", "where 'positive' is true, for x: float32[3]"],
    "loop": [
        "in Loop 'last', for going: bool[], held: float32[2]",
        "in Loop 'last', where 'large' is false, for held: float32[2]",
        "in Loop 'last', where 'large' is false, for held: float32[2], next/places.1: int64[1x2]",
        "in Loop 'last', where 'large' is true, for held: float32[2]",
        "for last: float32[2]",
    ],
}


@pytest.mark.alike
@pytest.mark.parametrize("device", ["cpu", *GPUS])
@pytest.mark.parametrize("name", MODELS)
def test_all_stages_are_planned_printed_saved_and_run(
    name: str, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = MODELS[name]()
    network = weft.optimize(model, device)
    assert network.tail is not None and not network.tail.unforeseen
    assert [stage.about for stage in network.tail.stages] == STAGES[name]
    for stage in network.stages:
        assert {part.device for part in stage.parts} == {f"{device}:0"}
        assert all((part.listing is not None) == (device in GPUS) for part in stage.parts)
        assert all(part.listing is None or str(part.listing) in str(network) for part in stage.parts)
    network.save(tmp_path / "n.weft")
    assert str(weft.OptimizedNetwork.load(tmp_path / "n.weft")) == str(as_saved(network))
    feeds = [given(model, seed) for seed in range(4)]
    with weft.load(model, device) as session:
        expected = [session.run(feed) for feed in feeds]
    planned = noted(monkeypatch)
    for source in (network, tmp_path / "n.weft"):
        with weft.load(source) as session:
            for feed, wanted in zip(feeds, expected, strict=True):
                for mine, theirs in zip(session.run(feed), wanted, strict=True):
                    np.testing.assert_array_equal(mine, theirs)
                assert {*session.report.placement.values()} <= {device, "session"}
            assert str(session.optimized).startswith(str(replace(network, tail=None)))
    assert name == "boxes" or not planned  # a number of boxes below the most is planned when it comes up


def noted(monkeypatch: pytest.MonkeyPatch) -> list[Graph]:
    """Return a list to which each later stage is added that is optimised."""
    planned: list[Graph] = []
    optimize: Any = vars(stage_loader)["optimize"]

    def recorded(graph: Graph, *arguments: Any, **named: Any) -> Any:
        planned.append(graph)
        return optimize(graph, *arguments, **named)

    monkeypatch.setattr(stage_loader, "optimize", recorded)
    return planned


def test_what_only_a_run_can_plan_is_said_and_runs_from_a_file(tmp_path: Path) -> None:
    nodes = [node("NonZero", "x", "at"), node("ReduceSum", "x", "sum", keepdims=0), node("Cast", "sum", "n", to=INT64)]
    nodes += [node("Range", "zero n one", "numbers"), node("Neg", "numbers", "y")]
    constants = {"zero": np.array(0), "one": np.array(1)}
    model = make_model(nodes, {"x": (FLOAT, (4,))}, ["y", "at"], constants)
    network = weft.optimize(model, "cpu", hints={"y": "cpu"})
    assert network.tail is not None
    (said,) = network.tail.unforeseen
    assert said == "2 node(s) from 'numbers' (Range) on: shapes follow from the value(s) of 'n'"
    assert f"planned in a run: {said}" in str(network)
    assert any("'y' waits for values that a run makes" in text for text in network.why("y"))
    with pytest.raises(InputError, match="no node or value 'z'"):
        network.why("z")
    network.save(tmp_path / "n.weft")
    with weft.load(tmp_path / "n.weft") as session:
        y, at = session.run(np.array([1, 0, 2, 0], np.float32))
        assert y.tolist() == [0, -1, -2] and at.tolist() == [[0, 2]]
        session.optimized.save(tmp_path / "again.weft")
    again = weft.OptimizedNetwork.load(tmp_path / "again.weft")
    assert again.tail is not None and len(again.tail.stages) > 0
    with weft.load(again) as session:
        assert session.run(np.array([1, 0, 1, 0], np.float32))[0].tolist() == [0, -1]


def test_a_pass_of_the_users_is_no_part_of_a_file(tmp_path: Path) -> None:
    @graph_pass()
    def mine(graph: Graph, context: PassContext) -> Graph:
        """Change nothing."""
        return graph

    network = weft.optimize(condition(), "cpu", passes=[mine])
    with weft.load(network) as session:
        assert session.run(np.array([1, 2, 3], np.float32))[0].shape == (3,)
    with pytest.raises(ModelError, match="cannot be saved") as caught:
        network.save(tmp_path / "n.weft")
    assert "a run plans later stages with the passes 'mine' of your own" in caught.value.why


DAMAGE: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a room that is not made": (lambda tail: tail["corners"]["rows"].__setitem__(0, "no"), "'rows' is a part of 'no'"),
    "sizes that are too few": (lambda tail: tail["corners"]["rows"].__setitem__(2, 1), "'rows' is no part of"),
    "an input of another shape": (lambda tail: tail["inputs"][0][1].update(shape=[1, 8, 4]), "and read as"),
    "other outputs": (lambda tail: tail.update(outputs=["rows"]), "has other outputs than the network"),
    "a value that nothing makes": (lambda tail: tail["rest"]["inputs"].append("no"), "reads 'no', which nothing makes"),
    "a node twice": (lambda tail: tail["rest"]["nodes"].append(tail["rest"]["nodes"][0]), "graph 'test':"),
    "another fallback": (lambda tail: tail.update(fallback="no"), "'no' is no fallback"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_F8_a_contradiction_between_stages_is_refused(name: str, tmp_path: Path) -> None:
    damage, said = DAMAGE[name]
    saved = rewritten(content(weft.optimize(boxes(), "cpu"), tmp_path), lambda manifest: damage(manifest["tail"]))
    assert said in refusal(saved, tmp_path)
