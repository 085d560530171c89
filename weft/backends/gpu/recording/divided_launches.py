"""A launch that takes longer than a submission should, as several: each runs some of its work-groups.

The groups of a launch do not know of each other, but for those of a chain, so they may run in several launches. Their
kernel is the same but for where its groups begin, which it reads when it runs: one kernel serves all of them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from weft.backends.gpu.device.device import GpuDevice
from weft.backends.gpu.device.kernel_builds import Build
from weft.backends.gpu.recording.launches import BoundChain, BoundLaunch
from weft.errors import CompileError
from weft.kernels.dialect import ALL_GROUPS, FIRST_GROUP
from weft.kernels.launch import FOR_SHAPES

log = logging.getLogger("weft.gpu")

MOST_PARTS = 32
"""Into how many launches one is divided at most."""


def most_parts(launch: BoundLaunch, device: GpuDevice) -> int:
    """Return into how many launches one can be divided; 1 if it cannot."""
    source = launch.plan.source
    special = source.subgroup or source.warpgroup  # their self-tests say nothing of another form
    if isinstance(launch, BoundChain) or special or FOR_SHAPES in device.caps.without:
        return 1
    return min(MOST_PARTS, max(launch.grid))


def divided(launch: BoundLaunch, count: int, device: GpuDevice) -> Sequence[BoundLaunch]:
    """Return launches that together do what one does, `count` of them if it can be divided so far."""
    count = min(count, most_parts(launch, device))
    if count < 2:
        return [launch]
    plan, grid = launch.plan, launch.grid
    axis = next((k for k in (2, 1, 0) if grid[k] >= count), grid.index(max(grid)))
    source = device.dialect.from_group(plan.source, axis)
    if source is None:
        return [launch]
    parts = []
    for first, end in pairwise(grid[axis] * k // count for k in range(count + 1)):
        values = {**plan.values, FIRST_GROUP: first, ALL_GROUPS: grid[axis]}
        x, y, z = (end - first if k == axis else size for k, size in enumerate(grid))
        some = replace(plan, source=source, values=values, grid=(x, y, z))
        build = Build(device, source, values, frozenset({FIRST_GROUP}))
        parts.append(BoundLaunch(some, build, launch.reads, launch.writes))
    try:
        for part in parts:
            _ = part.kernel
    except CompileError as e:
        log.info("launch %s is not divided: %s", launch.label, e.what)
        return [launch]
    return parts
