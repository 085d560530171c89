"""Networks that are prepared side by side and timed one after the other."""

from __future__ import annotations

from benchmarks.bars import wrong_rows
from benchmarks.jobs import side_by_side
from benchmarks.measure import Record, Row


def test_networks_are_prepared_together_and_timed_one_after_the_other() -> None:
    record = Record({})
    arguments = ["--networks", "all", "--rest", "--json=elsewhere", "--jobs", "2", "--gpus=2"]
    cases = [("first", 4), ("second", 8), ("broken", 4)]
    side_by_side("tests.helpers.measuring_process", arguments, cases, 2, record, gpus=2)
    first, second = record.rows
    assert (first.network, first.batch, second.network, second.batch) == ("first", 4, "second", 8)
    assert max(first.more["prepared"], second.more["prepared"]) < first.more["began"] < second.more["began"]
    assert (first.more["gpu"], second.more["gpu"]) == (0, 1)
    assert first.more["rest"] == 1
    assert record.done == ["first x4", "second x8"]
    assert "status 3" in record.absent["broken x4"]


def test_the_only_gpu_of_all_processes_is_passed_on() -> None:
    record = Record({})
    side_by_side("tests.helpers.measuring_process", ["--gpu", "3"], [("first", 1)], 1, record)
    assert record.rows[0].more["gpu"] == 3


def test_rounding_to_fp16_may_take_weft_as_far_off_as_pytorch() -> None:
    def row(who: str, error: float, network: str = "deep") -> Row:
        return Row(network, 1, who, "fp16", host_ms=1.0, error=error)

    deep = [row("weft vulkan", 1.2e-2), row("weft opencl", 1.6e-2), row("torch compile channels-last", 1.5e-2)]
    lost = [row("weft vulkan", 4e-2, "other"), row("torch graph nchw", float("nan"), "other")]
    wrong = {(r.network, r.who) for r, _ in wrong_rows([*deep, *lost])}
    assert ("deep", "weft vulkan") not in wrong and ("deep", "weft opencl") in wrong
    assert ("deep", "torch compile channels-last") in wrong  # a peer's own row has no such allowance
    assert ("other", "weft vulkan") in wrong and ("other", "torch graph nchw") in wrong
