"""Which constants a kernel walks through its work by: templates note them as they open the loop."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from weft.backends.opencl.dialect import OpenCLDialect
from weft.backends.vulkan.dialect import GlslDialect
from weft.core.graph.dtypes import DType
from weft.kernels.dialect import Dialect
from weft.kernels.source import Arg
from weft.kernels.template import SHADERS, KernelRequest, Writer, render

Y = Arg("y", DType.FLOAT32, "linear", written=True)
RAW = (Arg("x", DType.FLOAT32, "raw"), Arg("y", DType.FLOAT32, "raw", written=True))
DIALECTS = [OpenCLDialect(), GlslDialect()]
STEPS = re.compile(r"\b(GROUPS_X|GLOBAL_SIZE)\b")


@pytest.mark.parametrize(
    "path", sorted(f for f in SHADERS.glob("*.mako") if not f.name.startswith("prelude.")), ids=lambda path: path.stem
)
def test_no_template_writes_the_head_of_the_loop_itself(path: Path) -> None:
    """Nothing would know its bounds, and where shapes change, each of them would cost a kernel of its own."""
    assert not STEPS.findall(path.read_text(encoding="utf-8")), "use k.for_each or k.for_groups"


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_the_heads_of_loops_note_what_bounds_them(dialect: Dialect) -> None:
    writer = Writer(KernelRequest("any", (), (Y,), ("LINES", "ROWS", "COLUMNS", "OTHER")), dialect)
    assert writer.for_each("i", "LINES") == "for (int i = GLOBAL_ID; i < LINES; i += GLOBAL_SIZE)"
    assert writer.bounds == {"LINES"}
    head = writer.for_groups("first", "(ROWS*COLUMNS + 3) / 4", "LX")
    assert head == "for (int first = GROUP_X * LX; first < (ROWS*COLUMNS + 3) / 4; first += GROUPS_X * LX)"
    assert writer.for_groups("g", "local_count") == "for (int g = GROUP_X; g < local_count; g += GROUPS_X)"
    assert writer.bounds == {"LINES", "ROWS", "COLUMNS"}


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_a_source_knows_bounds_and_axes_even_from_the_disk(
    dialect: Dialect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    axes = ("D0", "D1", "XS0", "XS1", "YS0", "YS1")
    request = KernelRequest("move", (("rank", 2),), RAW, (*axes, "TOTAL", "X0", "Y0"))
    for _ in range(2):
        render.cache_clear()
        source = render(request, dialect)
        assert source.bounds == {"TOTAL"}
        assert source.walk == {"TOTAL", *axes}
    render.cache_clear()
