"""Groups are as large as the device and the work make sense of, and no larger than the device takes."""

from __future__ import annotations

from typing import Any

import pytest

from weft.kernels.device_caps import DeviceCaps
from weft.kernels.launch import KernelBuilder, LaunchRequest
from weft.ops.gpu.teams import SHORTEST, choose_team


class Sizes(KernelBuilder):
    """Knows a device's capabilities and nothing else."""

    def __init__(self, caps: DeviceCaps) -> None:
        self.caps = caps

    def add(self, asked: LaunchRequest) -> None:
        raise NotImplementedError

    def constant(self, *_: Any) -> Any:
        raise NotImplementedError

    def scratch(self, *_: Any) -> Any:
        raise NotImplementedError

    def shares_memory(self, *_: Any) -> bool:
        raise NotImplementedError


@pytest.mark.parametrize("items", [128, 192, 256, 1024])
@pytest.mark.parametrize("units", [1, 8, 132])
def test_a_team_holds_its_line_and_fits_the_device(items: int, units: int) -> None:
    k = Sizes(DeviceCaps(items, (items, items, 64), compute_units=units))
    for lines in (1, 3, 40, 5000, 100_000):
        for length in (16, 17, 20, 197, 384, 1000, 1001, 2052, 4096):
            team = choose_team(k, (), lines, length)
            if team is None:
                assert length > 128 * 16
                continue
            assert team.items * team.each * team.width >= length > team.items * (team.each - 1) * team.width
            assert team.items & (team.items - 1) == 0 and team.items * team.rows <= items
            assert team.fours == (length % 4 == 0)
    assert choose_team(k, (), 5, SHORTEST - 1) is None and choose_team(k, (), 0, 64) is None
    team = choose_team(k, (), 5, 64, [30])
    assert team is not None and not team.fours


def test_large_devices_begin_few_large_groups() -> None:
    large = Sizes(DeviceCaps(1024, (1024, 1024, 64), compute_units=132))
    for total, local in ((1000, 64), (70_000, 128), (1_600_000, 256)):
        assert large.for_items(total) == ((-(-total // local), 1, 1), (local, 1, 1))
    small = Sizes(DeviceCaps(1024, (1024, 1024, 64), compute_units=8))
    assert small.for_items(1_600_000)[1] == (64, 1, 1)


@pytest.mark.parametrize("total", [1, 1000, 1 << 24, 1_400_000_000, (1 << 31) - 1])
@pytest.mark.parametrize("units", [1, 132])
def test_no_index_of_a_loop_leaves_32_bits(total: int, units: int) -> None:
    """An item computes its next index before it is compared: that of the last one must fit, too."""
    caps = DeviceCaps(1024, (1024, 1024, 64), ((1 << 31) - 1, 65535, 65535), compute_units=units)
    (groups, _, _), (local, _, _) = Sizes(caps).for_items(total)
    assert groups >= 1
    assert total - 1 + groups * local < 1 << 31 or groups == 1
