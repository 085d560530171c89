"""`weft selftest` and `weft doctor`: what the tests of kernels found."""

from __future__ import annotations

import json

import pytest

from weft.backends.gpu.runtime import GpuRuntime
from weft.backends.gpu.selftest import verdict_store
from weft.cli.app import main
from weft.kernels.special import SpecialKernel, kernel_families
from weft.kernels.verdict import Verdict

FEW = [family for family in kernel_families() if family.name in ("pool", "conv_gemm", "lrn")]


def called(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return int(ended.value.code or 0)


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_SELFTEST", "process")
    monkeypatch.setattr(verdict_store, "kernel_families", lambda: FEW)


def test_it_prints_each_family_with_verdict_and_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    assert called("selftest", "-d", "vulkan", "--json") == 0
    rows = json.loads(capsys.readouterr().out)["kernels"]
    assert [row["kernels"] for row in rows] == ["conv_gemm", "lrn", "pool", "all"]
    assert all(row["why"] is None and row["seconds"] >= 0 and row["driver"] for row in rows)


def test_what_is_wrong_is_told_and_is_the_exit_status(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(kind: SpecialKernel, runtime: GpuRuntime) -> Verdict:
        return Verdict("it was wrong by 1" if kind.name == "conv_gemm" else None, 0.25)

    monkeypatch.setattr(verdict_store, "verdict", wrong)
    monkeypatch.setenv("WEFT_CACHE", "0")
    assert called("selftest", "-d", "vulkan", "--backend-option", "vulkan.device_profile=items=256") == 1
    printed = " ".join(capsys.readouterr().out.split())
    assert "WRONG: it was wrong by 1" in printed and "right" in printed
    assert "1 kinds of kernels are wrong" in printed
    assert "tiled convolutions are not used, convolutions by the direct kernel are: it was wrong by 1" in printed


@pytest.mark.parametrize(
    ("arguments", "piece"),
    [(("-d", "cpu"), "cpu is no GPU"), (("-d", "opencl:99"), "opencl"), (("-d", "nobody"), "nobody")],
)
def test_what_cannot_be_tested_is_a_mistake(
    arguments: tuple[str, ...], piece: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert called("selftest", *arguments) == 2
    assert piece in capsys.readouterr().err


def test_with_the_tests_off_there_is_nothing_to_do(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_SELFTEST", "off")
    assert called("selftest") == 2
    assert "leaves nothing to test" in capsys.readouterr().err
