"""What cost estimates know of kinds of device is data."""

from __future__ import annotations

import inspect
import json
import re
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest

import weft
from tests.helpers.cards import H200
from tests.helpers.conv_problems import conv_problem
from tests.helpers.device_figures import set_figures
from weft.backends.gpu.lowering.rewrites.merge_convolutions import MergeFigures
from weft.core.graph.dtypes import DType
from weft.kernels.device_caps import DeviceCaps
from weft.kernels.device_model import DATA, MODELS, AlgorithmFigures, DeviceModel
from weft.ops.gpu.conv.algorithms import CONVOLUTIONS
from weft.ops.gpu.conv.grouped.depthwise import DepthwiseFigures

PACKAGE = Path(weft.__file__).parent
CARDS = re.compile(r"\b(GH?200|H[12]00|B[12]00|A100|L40S?|V100|RTX|GTX|Radeon|Arc)\b", re.IGNORECASE)


def test_no_code_knows_a_card_by_its_name() -> None:
    sources = [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.mako")]
    named = [path.name for path in sources if CARDS.search(path.read_text(encoding="utf-8"))]
    assert len(sources) > 300 and named == []


def test_every_figure_is_in_the_data_and_read_somewhere() -> None:
    names = {f.name for f in fields(DeviceModel) if f.init}
    held = json.loads(DATA.read_text())["kinds"]["gpu"]
    assert held.keys() == names
    text = "\n".join(p.read_text(encoding="utf-8") for p in PACKAGE.rglob("*.py") if p.name != "device_model.py")
    text += inspect.getsource(DeviceModel.side_by_side).replace("self.", "model.")
    unread = names - {"measured_on", "algorithms"}
    assert [name for name in sorted(unread) if not re.search(rf"model\.{name}\b", text)] == []


def test_every_figure_of_an_algorithm_is_in_the_data_and_read_in_its_file() -> None:
    held = json.loads(DATA.read_text())["kinds"]["gpu"]["algorithms"]
    algorithms = AlgorithmFigures.__subclasses__()
    assert sorted(held) == sorted(each.section for each in algorithms)
    for each in algorithms:
        names = {f.name for f in fields(each)}  # type: ignore[arg-type]  # each is a dataclass
        text = inspect.getsource(sys.modules[each.__module__])
        assert held[each.section].keys() == names, each
        assert {name for name in names if re.search(rf"[)\w]\.{name}\b", text)} == names, each


def test_a_device_has_the_figures_of_its_kind() -> None:
    assert DeviceCaps().model is MODELS["gpu"] and DeviceCaps(software=True).model is MODELS["software"]
    assert MODELS["software"].of(MergeFigures).idle_products == 0 < MODELS["gpu"].of(MergeFigures).idle_products
    assert MODELS["software"].read_bytes == MODELS["gpu"].read_bytes


def test_choices_follow_the_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = replace(conv_problem((1, 64, 56, 56), (64, 1, 3, 3), H200, dtype=DType.FLOAT32), group=64)
    few = CONVOLUTIONS.decide(problem).default
    set_figures(monkeypatch, DepthwiseFigures, items=1)
    assert CONVOLUTIONS.decide(problem).default != few
