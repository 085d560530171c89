"""`scripts/demo`: it fails when a device that it set up is not in its table."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import weft
from scripts import demo
from tests.helpers.fakes import registered
from weft.backends.cpu.backend import CpuBackend
from weft.core.registry.backend_registry import registry


class Refuses(CpuBackend):
    """Takes nothing."""

    def why_not(self, inputs: object, outputs: object, op: object) -> str | None:
        return "this device is a picture of one"


def test_the_demo_shows_no_device_that_runs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kinds = ("cpu", "acme")
    with registered(Refuses):
        found = [d for d in weft.devices() if d.id in kinds]
        assert [d.id for d in found] == list(kinds)
        monkeypatch.setattr(weft, "devices", lambda: found)
        arguments = ["demo", "--runs", "1", "--out", str(tmp_path / "demo.png"), "--expect", "acme"]
        monkeypatch.setattr(sys, "argv", arguments)
        with pytest.raises(SystemExit, match="acme was set up and is not in the table"):
            demo.main()
    assert "this device is a picture of one" in capsys.readouterr().out


@pytest.mark.parametrize(("expected", "status"), [((), 0), (("cpu",), 0), (("cpu", "opencl"), 1)])
def test_the_demo_fails_when_a_device_that_was_set_up_is_missing(
    expected: tuple[str, ...], status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
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
