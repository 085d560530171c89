"""Time a barrier of all work-groups inside one kernel beside a launch that waits for the one before it.

    python -m benchmarks.barrier [--devices vulkan,opencl] [--groups 132] [--levels 2000] [--json FILE]

If the barrier is cheaper, several small layers of a network in one launch are faster than a launch each. A level reads
what another work-group wrote in the level before and writes for the next one, so the barrier must also make memory
visible; all values are checked at the end. One counter in memory serves all groups: each adds one, and waits until the
count says that the level is complete. `poll` is how it waits: by reading the counter or by adding 0 to it. The launches
do the same work, a level each, with a barrier of the API between them.

Groups wait for each other, so all must be on the device at once: one group a unit. Software devices run groups in turn
and would never end; there the script runs a single group, and its times mean nothing.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from datetime import date

import numpy as np

from benchmarks.facts import command
from benchmarks.measure import Array
from benchmarks.options import number, output, words
from weft.backends.gpu.creator import GpuCreator
from weft.backends.gpu.device.device import (
    BarrierCommand,
    Binding,
    Command,
    GpuBuffer,
    GpuDevice,
    LaunchCommand,
)
from weft.core.contract.backend_options import NO_OPTIONS
from weft.core.graph.dtypes import DType
from weft.core.registry.backend_registry import registry
from weft.errors import WeftError
from weft.kernels.source import Arg, KernelCode, KernelSource

ITEMS = 256
RUNS = 15
LAUNCHES = 200
"""Launches of the chain that levels in one kernel are compared with."""
ARGS = (Arg("count", DType.INT32, "linear", written=True), Arg("data", DType.INT32, "linear", written=True))
CONSTANTS = ("LX", "LY", "LZ", "GROUPS", "LEVELS", "FIRST")
BODY = """
  const int mine = {group} * LX + {item}, other = ({group} + 1) % GROUPS * LX + {item}, all = GROUPS * LX;
  for (int level = FIRST; level < FIRST + LEVELS; level++) {{
    data[(level + 1) % 2 * all + mine] = data[level % 2 * all + other] + 1;
    if (level + 1 < FIRST + LEVELS) {{
      {fence}
      if ({item} == 0) {{
        {add}
        while ({poll} < (level + 1 - FIRST) * GROUPS) {{}}
      }}
      {fence}
    }}
  }}
"""
GLSL = """#version 450
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
{constants}
layout(std430, set = 0, binding = 0) coherent volatile buffer B0 {{ int count[]; }};
layout(std430, set = 0, binding = 1) coherent volatile buffer B1 {{ int data[]; }};
void main() {{{body}}}
"""
OPENCL = """
__kernel __attribute__((reqd_work_group_size(LX, LY, LZ)))
void levels(volatile __global int* count, volatile __global int* data) {{{body}}}
"""
POLLS = ("reading", "adding 0")


def source(api: str, poll: str) -> KernelSource:
    """Return the kernel: LEVELS levels from FIRST on, with a barrier of all groups between two."""
    if api == "vulkan":
        fence = "memoryBarrierBuffer(); barrier();"
        body = BODY.format(
            group="int(gl_WorkGroupID.x)", item="int(gl_LocalInvocationID.x)", fence=fence,
            add="atomicAdd(count[0], 1);", poll="count[0]" if poll == "reading" else "atomicAdd(count[0], 0)",
        )
        constants = "\n".join(
            f"layout(constant_id = {i + 3}) const int {name} = 1;" for i, name in enumerate(CONSTANTS)
        )
        text = GLSL.format(constants=constants, body=body)
    else:
        # The language's fence need not reach beyond the group; NVIDIA's instruction does.
        fence = '#ifdef __NV_CL_C_VERSION\n asm volatile("fence.acq_rel.gpu;" ::: "memory");\n#else\n'
        fence += " mem_fence(CLK_GLOBAL_MEM_FENCE);\n#endif\n barrier(CLK_GLOBAL_MEM_FENCE);"
        text = OPENCL.format(body=BODY.format(
            group="(int)get_group_id(0)", item="(int)get_local_id(0)", fence="\n" + fence,
            add="atomic_add(count, 1);", poll="count[0]" if poll == "reading" else "atomic_add(count, 0)",
        ))
    entry = "levels" if api == "opencl" else "main"
    return KernelSource(entry, KernelCode(text), ARGS, tuple((n, "int") for n in CONSTANTS))


class Bench:
    """The memory and kernels of one device."""

    def __init__(self, device: GpuDevice, api: str, groups: int) -> None:
        self.device, self.api, self.groups = device, api, groups
        self._count = device.allocate(4)
        self._data = device.allocate(2 * groups * ITEMS * 4)
        self._begin = np.arange(2 * groups * ITEMS, dtype=np.int32)

    def chain(self, levels: int, launches: int, poll: str) -> tuple[float, bool]:
        """Return the microseconds of `launches` launches of so many levels each, and whether all values are right."""
        commands: list[Command] = []
        for i in range(launches):
            values = dict(zip(CONSTANTS, (ITEMS, 1, 1, self.groups, levels, i * levels % 2), strict=True))
            kernel = self.device.compile(source(self.api, poll), values)
            bindings = tuple(Binding(b, 0, b.nbytes) for b in (self._count, self._data))
            commands += [LaunchCommand(kernel, bindings, (self.groups, 1, 1), "levels"), BarrierCommand()]
        recording = self.device.record(commands)
        try:
            times = [self._time(recording) for _ in range(RUNS)]
        finally:
            self.device.release(recording)
        return float(np.median(times)) * 1e6, self._is_right(levels * launches)

    def _time(self, recording: object) -> float:
        self._put(self._count, np.zeros(1, np.int32))
        self._put(self._data, self._begin)
        start = time.perf_counter()
        self.device.submit(recording)
        self.device.wait(recording)
        return time.perf_counter() - start

    def _put(self, buffer: GpuBuffer, values: Array) -> None:
        self.device.upload(buffer, 0, values.view(np.uint8))

    def _is_right(self, levels: int) -> bool:
        found = np.empty_like(self._begin)
        self.device.download(self._data, 0, found.view(np.uint8))
        half = self.groups * ITEMS
        begin = self._begin[:half].reshape(self.groups, ITEMS)
        want = np.roll(begin, -levels, axis=0) + levels
        return bool(np.array_equal(found[levels % 2 * half :][:half].reshape(want.shape), want))

    def close(self) -> None:
        """Free the memory."""
        for buffer in (self._count, self._data):
            self.device.free(buffer)


def measure(name: str, groups: int | None, levels: int) -> list[dict[str, object]]:
    """Return a row for each way to wait, and one for launches; microseconds a level."""
    choice = registry.choose(name)[0]
    if not isinstance(choice.creator, GpuCreator):
        raise SystemExit(f"{name} is no GPU")
    device = choice.creator.runtime(choice.index, NO_OPTIONS).device
    count = 1 if device.caps.software else groups or device.caps.likely_units
    bench, rows = Bench(device, choice.creator.id, count), []
    try:
        for poll in POLLS:
            none, _ = bench.chain(1, 1, poll)
            all_levels, right = bench.chain(levels, 1, poll)
            each = (all_levels - none) / (levels - 1)
            rows.append({"device": str(choice.device), "way": f"barrier, {poll}", "us": each, "right": right})
        one, _ = bench.chain(1, 1, POLLS[0])
        many, right = bench.chain(1, LAUNCHES, POLLS[0])
        each = (many - one) / (LAUNCHES - 1)
        rows.append({"device": str(choice.device), "way": "launches", "us": each, "right": right})
    finally:
        bench.close()
    return [{**row, "groups": count, "software": device.caps.software} for row in rows]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    apis = ("vulkan", "opencl")
    parser.add_argument("--devices", type=words(apis), default=list(apis))
    parser.add_argument("--groups", type=number, help="work-groups; by default one a unit")
    parser.add_argument("--levels", type=number, default=2000)
    parser.add_argument("--json", type=output, metavar="FILE")
    options = parser.parse_args(arguments)
    if options.levels < 2:
        parser.error("--levels: at least 2")
    rows: list[dict[str, object]] = []
    for name in options.devices:
        try:
            rows += measure(name, options.groups, options.levels)
        except WeftError as e:
            print(f"absent: {name}: {e.what}")
    for row in rows:
        wrong = "" if row["right"] else ", WRONG VALUES"
        remark = ", a software device: means nothing" if row["software"] else ""
        print(f"{row['device']}: {row['groups']} groups, {row['way']}: {row['us']:.2f} us a level{wrong}{remark}")
    if options.json:
        facts = {"date": str(date.today()), "command": command("benchmarks.barrier"), "rows": rows}
        options.json.write_text(json.dumps(facts, indent=1))


if __name__ == "__main__":
    main()
