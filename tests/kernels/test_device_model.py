"""What cost estimates know of kinds of device is data."""

from __future__ import annotations

import json
import re
from dataclasses import fields, replace
from pathlib import Path

import pytest

import weft
from tests.helpers.cards import H200
from tests.helpers.conv_problems import conv_problem
from tests.helpers.device_figures import set_figures
from weft.core.graph.dtypes import DType
from weft.kernels.device_caps import DeviceCaps
from weft.kernels.device_model import DATA, MODELS, DeviceModel
from weft.ops.gpu.conv.algorithms import CONVOLUTIONS

PACKAGE = Path(weft.__file__).parent
CARDS = re.compile(r"\b(GH?200|H[12]00|B[12]00|A100|L40S?|V100|RTX|GTX|Radeon|Arc)\b", re.IGNORECASE)


def test_no_code_knows_a_card_by_its_name() -> None:
    sources = [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.mako")]
    named = [path.name for path in sources if CARDS.search(path.read_text(encoding="utf-8"))]
    assert len(sources) > 300 and named == []


def test_every_figure_is_in_the_data_and_read_somewhere() -> None:
    names = {f.name for f in fields(DeviceModel)}
    assert json.loads(DATA.read_text())["kinds"]["gpu"].keys() == names
    text = "\n".join(p.read_text(encoding="utf-8") for p in PACKAGE.rglob("*.py") if p.name != "device_model.py")
    assert [name for name in sorted(names - {"measured_on"}) if not re.search(rf"model\.{name}\b", text)] == []


def test_a_device_has_the_figures_of_its_kind() -> None:
    assert DeviceCaps().model is MODELS["gpu"] and DeviceCaps(software=True).model is MODELS["software"]
    assert MODELS["software"].idle_products == 0 < MODELS["gpu"].idle_products
    assert MODELS["software"].read_bytes == MODELS["gpu"].read_bytes


def test_choices_follow_the_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = replace(conv_problem((1, 64, 56, 56), (64, 1, 3, 3), H200, dtype=DType.FLOAT32), group=64)
    few = CONVOLUTIONS.decide(problem).default
    set_figures(monkeypatch, depthwise_items=1)
    assert CONVOLUTIONS.decide(problem).default != few
