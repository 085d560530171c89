"""The text of a chain of launches in OpenCL C: the bodies of their kernels as functions, and a kernel that calls them.

A body keeps its text. What it takes for its constants, its place in the grid and the barrier of its group are macros,
which mean something else in each function.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from weft.errors import BackendError
from weft.kernels.chain import (
    CHAIN,
    COUNTER,
    GRID,
    MOST_ROUNDS,
    SHARED_VECTORS,
    SPREAD,
    Level,
    constant,
    prefetched_bytes,
)
from weft.kernels.source import LOCAL_SIZE, Arg

LATE = "#ifndef LATE_CONSTANTS\n#define LATE_CONSTANTS\n#endif\n"
OWN = "// What follows is this kernel's own.\n"
KERNEL = "\n__attribute__((reqd_work_group_size(LX, LY, LZ)))\n__kernel void "
BODY = " LATE_CONSTANTS) {\n"
"""The lines that separate the parts of a kernel's text."""
_SHARED = re.compile(r"^  __local (\w+) (\w+)\[(.*)\](?: __attribute__\(\(aligned\(\d+\)\)\))?;$")
_FUNCTION = re.compile(r"^\w[\w ]* \*?(\w+)\([^;]*\{", re.MULTILINE)
_MACRO = re.compile(r"^\s*#define (\w+)", re.MULTILINE)
_REPLACED = (*LOCAL_SIZE, "LOCAL_X", "LOCAL_Y", "LOCAL_Z", "GROUP_X", "GROUP_Y", "GROUP_Z", "GROUPS_X", "BARRIER")
_WAITING = """\
#ifdef __NV_CL_C_VERSION
#define PART_BARRIER(number, items) asm volatile("bar.sync %0, %1;" :: "r"(number), "r"(items) : "memory")
// A load that acquires is cheaper than a fence after the loop.
#define ARRIVE(counter, n) asm volatile("red.release.gpu.global.add.u32 [%0], %1;" :: "l"(counter), "r"(n) : "memory")
#define COUNTED(now, counter) asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(counter) : "memory")
#define SEEN
#define MISSING_PLACE
#define MISSING_AT 0
// The barrier of the whole group, which tells each item whether `mine` of any was set. Item 0 may come from its loop
// apart from the rest of its subgroup, so it is not the form for subgroups that come together, `bar.red`.
#define AGREE(any, mine, at) asm volatile("{ .reg .pred p; setp.ne.u32 p, %1, 0; barrier.red.popc.u32 %0, 0, p; }" \
  : "=r"(any) : "r"(mine) : "memory")
// Fetch constants into the cache that all units share, while the first subgroup waits.
void prefetch_l2(__global const uchar* from, const int bytes) {
  const int items = (int)get_local_size(0) - 32, item = (int)get_local_id(0) - 32;
  if (item >= 0)
    for (int at = ((int)get_group_id(0) * items + item) * 128; at < bytes; at += (int)get_num_groups(0) * items * 128)
      asm volatile("prefetch.global.L2 [%0];" :: "l"(from + at));
}
#else
#define ARRIVE(counter, n) mem_fence(CLK_GLOBAL_MEM_FENCE); atomic_add(counter, n)
#define COUNTED(now, counter) now = *counter
#define SEEN mem_fence(CLK_GLOBAL_MEM_FENCE)
#define MISSING_PLACE __local uint missing[1];
#define MISSING_AT missing
#define AGREE(any, mine, at) if (get_local_id(0) == 0) *(at) = mine; \
  barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE); any = *(at)
#define prefetch_l2(from, bytes)
#endif
// Say that this work-group is here. Together they add 2^31 to the counter, which begins with 0: its highest bit
// turns over, and the others are 0 again, so that nobody need reset it.
void arrive(volatile __global uint* counter) {
  barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
  if (get_local_id(0) == 0) {
    const uint n = get_group_id(0) == 0 ? 0x80000001u - (uint)get_num_groups(0) : 1u;
    ARRIVE(counter, n);
  }
}
// Wait until all work-groups are here. `turn` is the highest bit of the counter before, where item 0 keeps it. Return
// whether some did not come in time: then the word behind the counter is set, and all groups that read it leave.
uint await(volatile __global uint* counter, uint* turn, __local uint* at) {
  uint late = 0u, any;
  if (get_local_id(0) == 0) {
    uint now, rounds = 0u;
    do {
      COUNTED(now, counter);
      if ((++rounds & 1023u) == 0u) late = rounds >= MOST_ROUNDS || counter[1] != 0u;
    } while (((now ^ *turn) & 0x80000000u) == 0u && late == 0u);
    SEEN;
    *turn ^= 0x80000000u;
    if (late != 0u) counter[1] = 1u;
  }
  AGREE(any, late, at);
  return any;
}
"""


@dataclass(frozen=True)
class _Parts:
    """The parts of a kernel's text."""

    prelude: str
    functions: str
    params: str
    shared: tuple[tuple[str, str, str], ...]
    """Type, name and size."""
    body: str

    @classmethod
    def of(cls, text: str) -> _Parts:
        """Return the parts that `OpenCLDialect.assemble` joined; BackendError if a mark between them is missing."""
        missing = [mark.strip() for mark in (OWN, KERNEL, BODY) if mark not in text]
        if missing:
            raise BackendError(
                "a kernel cannot be part of a chain",
                why=f"its text lacks {missing[0]!r}",
                fix="turn off the option chains, and report this",
            )
        prelude, _, own = text.removeprefix(LATE).partition(OWN)
        functions, _, kernel = own.partition(KERNEL)
        head, _, rest = kernel.partition(BODY)
        lines, shared = rest.rpartition("}")[0].split("\n"), []
        while lines and (found := _SHARED.match(lines[0])):
            shared.append((found[1], found[2], found[3]))
            lines = lines[1:]
        return cls(prelude, functions, head.partition("(")[2], tuple(shared), "\n".join(lines))


def chain_text(levels: Sequence[Level], args: Sequence[Arg], items: int) -> str:
    """Return the kernel of a chain."""
    parts = [_Parts.of(level.step.source.text) for level in levels]
    prelude = parts[0].prelude
    known = set(_MACRO.findall(prelude))
    given = "".join(f"#undef {name}\n" for name in _REPLACED)
    pairs = list(enumerate(zip(levels, parts, strict=True)))
    functions = "".join(_function(i, level, own, known, items) for i, (level, own) in pairs)
    prefetches = _prefetches(levels, args)
    calls = "".join(_call(i, level, own, args, items, prefetches.get(i, ())) for i, (level, own) in pairs)
    params = ", ".join(f"{'volatile __global uint' if a is COUNTER else '__global uchar'}* {a.name}" for a in args)
    return (
        f"{prelude}{given}{_WAITING.replace('MOST_ROUNDS', f'{MOST_ROUNDS}u')}{functions}"
        f"__kernel __attribute__((reqd_work_group_size({items}, 1, 1)))\nvoid {CHAIN}({params}) {{\n"
        f"  __local uint4 group_memory[{SHARED_VECTORS}] __attribute__((aligned(1024)));\n"
        f"  MISSING_PLACE\n"
        f"  const int item = (int)get_local_id(0), all = (int)get_num_groups(0);\n"
        f"  uint turn = item == 0 ? *{COUNTER.name} & 0x80000000u : 0u;\n{calls}}}\n"
    )


def _prefetches(levels: Sequence[Level], args: Sequence[Arg]) -> dict[int, list[str]]:
    """Return for levels that wait what to prefetch meanwhile: what is read after the next wait.

    So it has the time of a level to arrive. The first wait also prefetches what is read after itself.
    """
    named = [a.name for a in args if a is not COUNTER]
    waiting = [i for i, level in enumerate(levels) if level.waits]
    found, fetched = dict[int, list[str]](), set[int]()
    for i, end in zip(waiting, [*waiting[2:], len(levels), len(levels)], strict=False):
        fresh = {n for level in levels[i:end] for n in level.prefetched} - fetched
        fetched |= fresh
        found[i] = [f"{name}, {prefetched_bytes(name)}" for name in (named[n] for n in sorted(fresh))]
    return found


def _function(number: int, level: Level, parts: _Parts, known: set[str], items: int) -> str:
    """Return the body of a kernel as a function of the group's number and the item's, with all its macros."""
    step = level.step
    macros = {name: constant(number, name) for name, _ in step.source.constants}
    macros |= {name: f"{name}_{number}" for name in _FUNCTION.findall(parts.functions)}
    macros |= {
        "LOCAL_X": "(_item % LX)", "LOCAL_Y": "(_item / LX % LY)", "LOCAL_Z": "(_item / (LX * LY))",
        "GROUP_X": "(_group % GRID_X)", "GROUP_Y": "(_group / GRID_X % GRID_Y)",
        "GROUP_Z": "(_group / (GRID_X * GRID_Y))", "GROUPS_X": "GRID_X", "BARRIER": _barrier(level, items),
    }
    macros |= {name: constant(number, name) for name in GRID}
    own = (set(_MACRO.findall(parts.functions)) | set(_MACRO.findall(parts.body))) - known
    at, arrays = "0", []
    for kind, name, size in parts.shared:
        arrays.append(f"  __local {kind}* {name} = (__local {kind}*)(_memory + {at});\n")
        at += f" + ((int)sizeof({kind}) * ({size}) + {step.alignment - 1}) / {step.alignment} * {step.alignment}"
    return (
        "".join(f"#define {name} {text}\n" for name, text in macros.items())
        + f"{parts.functions}\nvoid level_{number}({parts.params}, __local uchar* _memory, const int _slot, "
        f"const int _item, const int _group) {{\n{''.join(arrays)}{parts.body}\n}}\n"
        + "".join(f"#undef {name}\n" for name in sorted({*macros, *own}))
    )


def _barrier(level: Level, items: int) -> str:
    if level.width == items:
        return "barrier(CLK_LOCAL_MEM_FENCE)"
    return f"PART_BARRIER(_slot + 1, {level.width})"


def _call(
    number: int, level: Level, parts: _Parts, args: Sequence[Arg], items: int, prefetches: Sequence[str]
) -> str:
    """Return the loop over the groups of a level, with what must be done before it."""
    step = level.step
    slots, shift, taken = (constant(number, name) for name in SPREAD)
    groups = " * ".join(constant(number, name) for name in GRID)
    before = "  barrier(CLK_LOCAL_MEM_FENCE);\n" if number else ""
    if level.waits:
        fetched = "".join(f"prefetch_l2({each}); " for each in prefetches)
        before = f"  arrive({COUNTER.name}); {fetched}if (await({COUNTER.name}, &turn, MISSING_AT)) return;\n"
    types = [p.rpartition("* ")[0].strip() for p in parts.params.split(", ")]
    named = [a.name for a in args if a is not COUNTER]
    given = ", ".join(f"({t.replace(' restrict', '')}*){named[a]}" for t, a in zip(types, level.args, strict=True))
    alone = level.slots == 1 and level.width == items
    again = "" if not step.meets else _barrier(level, items).replace("_slot", "slot") + "; "
    own = "item" if alone else f"item % {level.width}"
    if level.width != step.items:
        own = f"min({own}, {step.items - 1})"
    head = (
        f"const int slot = {'0' if alone else f'item / {level.width}'}, "
        f"first = slot * all + ((int)get_group_id(0) + all - {shift}) % all;"
    )
    inside = "" if alone else f"slot < {slots} && "
    return (
        f"{before}  {{ // {step.source.entry}\n    {head}\n"
        f"    for (int group = first; {inside}group < {groups}; group += all * {slots}) {{\n"
        f"      level_{number}({given}, (__local uchar*)group_memory + slot * {taken}, slot, {own}, group);\n"
        f"      {again}\n    }}\n  }}\n"
    )
