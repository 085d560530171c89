## Convolution as an implicit GEMM by wgmma (PTX ISA 8.0, sm_90a): rows are output pixels, columns output channels, K
## runs over taps and channels. ${wm} x ${wz} warpgroups of 128 items hold 64 x ${cols} sums each; ${wz} sets take turns in K.
## Steps of 64 along K pass through ${slots} buffers of each set, which cp.async prefetches ${stages - 2} steps ahead. A row of a step is
## 128 bytes; its 16-byte pieces are swizzled as the descriptors say, and weights are packed so. Addresses are sums of
## parts for the tile, the step and a constant, because with few warps on a unit instructions take the time. The compiler
## does not know the instructions behind //@; `ptx.py` uncovers them. ${teams} teams of warpgroups each take tiles of their own,
## as that many groups would, on devices that put no second group beside one with so much memory. With `volume` the images are stacks of slices
## (`weft.ops.gpu.conv.volumes.stack`) that nobody wrote: x has the volumes, and a tap's pieces are SLICE_PIECES of each slice.
<%page args="parted=False"/>\
<%
volume = context.get("volume", False)
threads, rows, a_bytes, b_bytes = 128 * wm, 64 * wm, 8192 * wm, 128 * cols
assert teams == 1 or wz == 1
stage_bytes, every = a_bytes + b_bytes, threads // 8
a_pieces, sums = rows // every, range(cols // 2)
k.needs_warpgroup()
k.declare("covered", *(["numbered"] if wz * teams > 1 else []))
k.shared("uchar", "tiles", f"{teams * wz * slots * stage_bytes}", align=1024)
listed = ", ".join
stop = "stop" if parted else "STEPS"
begin, end = ("begin", "end") if parted else ("0", f"(STEPS + {wz - 1}) / {wz}")
early = "(begin + early)" if parted else "early"
own = "team" if teams > 1 else "part_z"
meet = "BARRIER" if wz * teams == 1 else f'asm volatile("bar.sync %0, {threads};" :: "r"({own} + 1) : "memory")'
all_meet = meet if teams > 1 else "BARRIER"
%>
<%namespace name="parts" file="conv_wgmma.parts.mako"/>
const int item = LOCAL_X, ${own} = item / ${threads}, one = item % ${threads}, lane = item % 32, part = one / 128, chunk = item % 8;
% if teams > 1:
const int part_z = 0;
% endif
const uint ring = (uint)(ulong)tiles + ${own} * ${slots * stage_bytes};
const uint a_to = one / 8 * 128 + ((chunk ^ (one / 8 & 7)) << 4);
const ulong layout = (1UL << 62) | (64UL << 32) | (1UL << 16);
% if parted:
## With split K (`sum_parts.py`), group z computes EACH rounds and stores to images of its own.
const int begin = GROUP_Z * EACH, end = min(begin + EACH, (STEPS + ${wz - 1}) / ${wz}), stop = min(end * ${wz}, STEPS);
% endif
% if teams > 1:
${k.for_groups("first", "TILES_M * TILES_N", str(teams))} {
  const int tile = first + team;
  if (tile >= TILES_M * TILES_N) break;
% else:
${k.for_groups("tile", "TILES_M * TILES_N")} {
% endif
  // Groups that run at a time share rows and columns: ${raster} tiles of rows go together through the columns.
  const int band = tile / (${raster} * TILES_N) * ${raster}, high = min(${raster}, TILES_M - band), in_band = tile % (${raster} * TILES_N);
  const int first_row = (band + in_band % high) * ${rows}, tile_n = in_band / high;
  const ulong from_w = (ulong)((__global const uint4*)w + tile_n * STEPS * ${cols * 8} + one);
% if pointwise:
  const ulong from_x = (ulong)((__global const uint2*)x + (${x.place4("0", "0", "0")}) + (first_row + one / 8) * X_ROW) + chunk * 16;
% endif
% for u in range(a_pieces):
  const int row${u} = first_row + one / 8 + ${u * every};
% if not pointwise:
  const int n${u} = row${u} / (OH * OW), p${u} = row${u} % (OH * OW);
  const int ah${u} = row${u} < PIXELS ? p${u} / OW * SH - PH : -IH - KH * DH, aw${u} = p${u} % OW * SW - PW;
% if volume:
  const int s${u} = n${u} + FIRST, ad${u} = s${u} % OD * SD - PD;
  const int a${u} = ${x.place4(f"s{u} / OD", "0", f"((ad{u} * IH + ah{u}) * IW + aw{u})")};
% else:
  const int a${u} = ${x.place4(f"n{u}", "0", f"(ah{u} * IW + aw{u})")};
% endif
% endif
% endfor
  float ${listed(f"acc{i} = 0.0" for i in sums)};
  for (int early = 0; early < ${stages - 2}; early++) {
    ${parts.fetch(f"{early} * {wz} + part_z" if wz > 1 else early, "early", stop)}
  }
  int slot = 0, ahead = ${stages - 2};
% if not pointwise:
## Unrolled the loop takes so many registers that fewer groups run side by side: 25 -> 32 us for 64 channels.
  #pragma unroll 1
% endif
  for (int round = ${begin}; round < ${end}; round++) {
    asm volatile("cp.async.wait_group ${stages - 3};" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    ${meet};
    const uint at = ring + slot * ${stage_bytes};
    const ulong a_desc = layout | ((at + part * 8192) >> 4), b_desc = layout | ((at + ${a_bytes}) >> 4);
    ${f"if (round * {wz} + part_z < {stop})" if wz > 1 else ""} {
    asm volatile("//@ wgmma.fence.sync.aligned;" ::: "memory");
% for q in range(4):
    asm volatile("//@ { .reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned.m64n${cols}k16.f32.f16.f16 {${listed(f"%{i}" for i in sums)}}, %${cols // 2}, %${cols // 2 + 1}, p, 1, 1, 0, 0; }"
      : ${listed(f'"+f"(acc{i})' for i in sums)} : "l"(a_desc + ${2 * q}), "l"(b_desc + ${2 * q}) : "memory");
% endfor
    asm volatile("//@ wgmma.commit_group.sync.aligned;" ::: "memory");
    }
    ${parts.fetch(f"(round + {stages - 2}) * {wz} + part_z" if wz > 1 else f"round + {stages - 2}", "ahead", stop)}
    asm volatile("//@ wgmma.wait_group.sync.aligned 1;" ::: "memory");
    slot = slot == ${stages - 1} ? 0 : slot + 1;
    ahead = ahead == ${stages - 1} ? 0 : ahead + 1;
  }
  asm volatile("//@ wgmma.wait_group.sync.aligned 0; // ${listed(f"%{i}" for i in sums)}" : ${listed(f'"+f"(acc{i})' for i in sums)} :: "memory");
  ${all_meet};
% if wz > 1:
  __local float* others = (__local float*)tiles;
  if (part_z > 0) {
% for i in sums:
    others[((part_z - 1) * ${cols // 2} + ${i}) * ${threads} + one] = acc${i};
% endfor
  }
  BARRIER;
  for (int z = 0; part_z == 0 && z < ${wz - 1}; z++) {
% for i in sums:
    acc${i} += others[(z * ${cols // 2} + ${i}) * ${threads} + one];
% endfor
  }
  BARRIER;
% endif
${parts.finish(parted)}}
