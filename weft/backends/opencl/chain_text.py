"""The text of a chain of launches in OpenCL C: the bodies of their kernels as functions, and a kernel that calls them.

A body keeps its text. What it takes for its constants, its place in the launch and the barrier of its group are macros,
which mean something else in each function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
from weft.kernels.source import LOCAL_SIZE, Arg, defined, undefined

Pointer = Callable[[Arg], str]
"""Returns the type by which a kernel reaches an argument."""
_WAITING = f"""\
#define MOST_ROUNDS {MOST_ROUNDS}u
""" """\
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


def chain_text(levels: Sequence[Level], args: Sequence[Arg], items: int, pointer: Pointer) -> str:
    """Return the kernel of a chain."""
    prelude = levels[0].step.source.code.prelude  # all compute in f32
    functions = dict.fromkeys(text for level in levels for text in level.step.source.code.functions)
    bodies = "".join(_function(i, level, items, pointer) for i, level in enumerate(levels))
    prefetches = _prefetches(levels, args)
    calls = "".join(_call(i, level, args, items, pointer, prefetches.get(i, ())) for i, level in enumerate(levels))
    params = ", ".join(f"{'volatile __global uint' if a is COUNTER else '__global uchar'}* {a.name}" for a in args)
    return (
        f"{prelude}{undefined(LOCAL_SIZE)}{_WAITING}{''.join(functions)}{bodies}"
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


def _function(number: int, level: Level, items: int, pointer: Pointer) -> str:
    """Return the body of a kernel as a function of the group's number and the item's, with all its macros."""
    step, code = level.step, level.step.source.code
    macros = {name: constant(number, name) for name in (*(name for name, _ in step.source.constants), *GRID)}
    macros |= {
        "LOCAL_X": "(_item % LX)", "LOCAL_Y": "(_item / LX % LY)", "LOCAL_Z": "(_item / (LX * LY))",
        "GROUP_X": "(_group % GRID_X)", "GROUP_Y": "(_group / GRID_X % GRID_Y)",
        "GROUP_Z": "(_group / (GRID_X * GRID_Y))", "GROUPS_X": "GRID_X", "BARRIER": _barrier(level, items),
    }
    params = "".join(f"{pointer(a)} restrict {a.name}, " for a in step.source.args)
    at, arrays = "0", []
    for array in code.arrays:
        kind, each = array.type, step.alignment
        arrays.append(f"  __local {kind}* {array.name} = (__local {kind}*)(_memory + {at});\n")
        at += f" + ((int)sizeof({kind}) * ({array.size}) + {each - 1}) / {each} * {each}"
    return (
        f"{defined(macros.items())}void level_{number}({params}__local uchar* _memory, const int _slot, "
        f"const int _item, const int _group) {{\n{''.join(arrays)}{code.body}\n}}\n"
        f"{undefined([*macros, *code.macros])}"
    )


def _barrier(level: Level, items: int, slot: str = "_slot") -> str:
    return "barrier(CLK_LOCAL_MEM_FENCE)" if level.width == items else f"PART_BARRIER({slot} + 1, {level.width})"


def _call(
    number: int, level: Level, args: Sequence[Arg], items: int, pointer: Pointer, prefetches: Sequence[str]
) -> str:
    """Return the loop over the groups of a level, with what must be done before it."""
    step = level.step
    slots, shift, taken = (constant(number, name) for name in SPREAD)
    groups = " * ".join(constant(number, name) for name in GRID)
    before = "  barrier(CLK_LOCAL_MEM_FENCE);\n" if number else ""
    if level.waits:
        fetched = "".join(f"prefetch_l2({each}); " for each in prefetches)
        before = f"  arrive({COUNTER.name}); {fetched}if (await({COUNTER.name}, &turn, MISSING_AT)) return;\n"
    named = [a.name for a in args if a is not COUNTER]
    given = ", ".join(f"({pointer(a)}){named[k]}" for a, k in zip(step.source.args, level.args, strict=True))
    alone = level.slots == 1 and level.width == items
    again = f"{_barrier(level, items, 'slot')}; " if step.meets else ""
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
