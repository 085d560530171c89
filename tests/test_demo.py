"""`scripts/demo`: it fails when a device that it set up is not in its table."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import weft
from scripts import demo
from weft.core.registry.backend_registry import registry


@pytest.mark.parametrize(("expected", "status"), [((), 0), (("cpu",), 0), (("cpu", "opencl"), 1)])
def test_the_demo_fails_when_a_device_that_was_set_up_is_missing(
    expected: tuple[str, ...], status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    cpu = [d for d in weft.devices() if d.id == "cpu"]
    monkeypatch.setattr(weft, "devices", lambda: cpu)
    monkeypatch.setattr(registry.find("opencl"), "unusable", lambda index: "nothing compiles: install another")
    expects = [word for kind in expected for word in ("--expect", kind)]
    monkeypatch.setattr(sys, "argv", ["demo", "--runs", "1", "--out", str(tmp_path / "demo.png"), *expects])
    said = None
    try:
        demo.main()
    except SystemExit as e:
        said = e.code
    out, err = capsys.readouterr()
    assert "numpy" in out and "is unusable: nothing compiles: install another" in err
    assert (tmp_path / "demo.png").exists()
    assert (said is not None) == bool(status)
    if status:
        assert said == "the demo failed: opencl was set up and is not in the table; `weft doctor` says why"
