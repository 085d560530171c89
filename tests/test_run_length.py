"""Which rows of a product run in the short run, and which rows of the op table with `--op`."""

from __future__ import annotations

from itertools import product

import pytest

from tests.helpers.op_rows import ROWS as TABLE
from tests.helpers.rows_together import by_family
from tests.helpers.run_length import OP_VARIABLE, covering

ROWS = [dict(zip("abc", row, strict=True)) for row in product("123", "xy", "pq")]


def test_rows_have_every_value_and_spread_the_others() -> None:
    chosen = [ROWS[place] for place in covering(ROWS)]
    assert len(chosen) == 3
    assert {value for row in chosen for value in row.items()} == {value for row in ROWS for value in row.items()}
    device = [{"name": f"{k // 2}", "device": "gc"[k % 2]} for k in range(20)]
    assert sorted(device[place]["device"] for place in covering(device)) == ["c"] * 5 + ["g"] * 5


def test_only_rows_that_need_it_are_on_vulkan() -> None:
    rows = [{"name": repr(k), "device": repr(device)} for k in range(9) for device in ("vulkan", "opencl")]
    assert [rows[place]["device"] for place in sorted(covering(rows))].count(repr("vulkan")) == 1


def test_rows_have_every_pair() -> None:
    chosen = [ROWS[place] for place in covering(ROWS, 2)]
    assert len(chosen) == 6
    for one, other in ("ab", "ac", "bc"):
        assert {(row[one], row[other]) for row in chosen} == {(row[one], row[other]) for row in ROWS}


def test_rows_of_one_op(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OP_VARIABLE, "lppool")
    found = by_family(TABLE)
    assert list(found) == ["pool"]
    assert {row.op for row in found["pool"]} == {"GlobalLpPool", "LpPool", "weft::PlanarLpPool"}
    monkeypatch.setenv(OP_VARIABLE, "")
    assert len(by_family(TABLE)) > 20
