## Convolution in fp32 as an implicit GEMM on Hopper's warpgroup matrix instructions (wgmma, PTX ISA 8.0, sm_90a): see
## `conv_wgmma.opencl.mako`. ${wm} x ${wz} warpgroups hold 64 x ${cols} sums each; ${wz} take turns in K, in steps of 64.
## An item loads four adjacent channels of two pixels for every 16 along K. They are its fragment of A, because the
## channels of the weights are permuted to match (`halves.LANES`). It splits them in registers (`halves.py`), while the
## halves of the weights pass through ${stages} buffers that cp.async prefetches. With two planes of weights the small
## products are summed first and then scaled; with three the third includes the scale. Sums leave the matrix units, which
## round toward zero, after each step.
<%
threads, rows = 128 * wm * wz, 64 * wm
plane = 128 * cols
turn_bytes = plane * planes
stage_bytes = turn_bytes * wz
sums = range(cols // 2)
k.needs_warpgroup()
k.declare("covered", "unwritten")
k.shared("uchar", "tiles", f"{stages * stage_bytes}", align=1024)
def listed(texts): return ", ".join(texts)
loads = [(q, r) for q in range(4) for r in range(2)]
every = listed(f'"+f"(acc{i})' for i in sums)
%>
<%include file="ptx.opencl.mako"/>
<%namespace name="parts" file="conv_split_wgmma.parts.mako"/>
<%def name="multiply(part, q, at, fresh)">
    asm volatile("//@ { .reg .pred p; setp.ne.b32 p, ${0 if fresh else 1}, 0; wgmma.mma_async.sync.aligned.m64n${cols}k16.f32.f16.f16 {${listed(f"%{i}" for i in sums)}}, {${listed(f"%{cols // 2 + i}" for i in range(4))}}, %${cols // 2 + 4}, p, 1, 1, 0; }"
      : ${every} : ${listed(f'"r"({part}{q}_{i})' for i in range(4))}, "l"(b_desc + ${at * plane // 16 + 2 * q}) : "memory");
</%def>
<%def name="commit()">
    asm volatile("//@ wgmma.commit_group.sync.aligned;" ::: "memory");
</%def>
<%def name="wait()">
    asm volatile("//@ wgmma.wait_group.sync.aligned 0; // ${listed(f"%{i}" for i in sums)}" : ${every} :: "memory");
</%def>
const int item = LOCAL_X, lane = item % 32, part_m = item / 128 % ${wm}, part_z = item / ${128 * wm};
const uint base = (uint)(ulong)tiles;
const ulong layout = (1UL << 62) | (64UL << 32) | (1UL << 16);
${k.for_groups("tile", "TILES_M * TILES_N")} {
  // Groups that run at a time share rows and columns: ${raster} tiles of rows go together through the columns.
  const int band = tile / (${raster} * TILES_N) * ${raster}, high = min(${raster}, TILES_M - band), in_band = tile % (${raster} * TILES_N);
  const int first_row = (band + in_band % high) * ${rows} + part_m * 64 + item / 32 % 4 * 16 + lane / 4, tile_n = in_band / high;
% for r in range(2):
  const int row${r} = first_row + ${8 * r}, n${r} = row${r} / (OH * OW), p${r} = row${r} % (OH * OW);
% if pointwise:
  const int a${r} = ${x.place4(f"n{r}", "0", f"p{r}")};
% else:
  const int ah${r} = row${r} < PIXELS ? p${r} / OW * SH - PH : -IH - KH * DH, aw${r} = p${r} % OW * SW - PW;
  const int a${r} = ${x.place4(f"n{r}", "0", f"(ah{r} * IW + aw{r})")};
% endif
% endfor
  f32 ${listed(f"acc{i} = 0.0" for i in sums)};
  f32 ${listed(f"sum{i} = 0.0" for i in sums)};
  f32 ${listed(f"x{q}_{r}_{c}" for q, r in loads for c in range(4))};
  for (int early = 0; early < ${stages - 1}; early++) {
    ${parts.fetch_weights("early", "early")}
  }
  ${parts.fetch_pixels("0")}
  int slot = 0;
  for (int round = 0; round < ROUNDS; round++) {
% for q in range(4):
    uint ${listed(f"h{q}_{i}, l{q}_{i}" for i in range(4))};
% for i, r, c in ((0, 0, 0), (1, 1, 0), (2, 0, 2), (3, 1, 2)):
    SPLIT_HALVES(h${q}_${i}, l${q}_${i}, x${q}_${r}_${c} * ${scale}, x${q}_${r}_${c + 1} * ${scale});
% endfor
% endfor
    ${parts.fetch_pixels("round + 1")}
    asm volatile("cp.async.wait_group ${stages - 2};" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    BARRIER;
    const ulong b_desc = layout | ((base + slot * ${stage_bytes} + part_z * ${turn_bytes}) >> 4);
    asm volatile("//@ wgmma.fence.sync.aligned;" ::: "memory");
% for q in range(4):
    ${multiply("l", q, planes - 1 if planes == 3 else 0, q == 0)}
% endfor
% for q in range(4):
    ${multiply("h", q, 1, False)}
% endfor
    ${commit()}
    ${parts.fetch_weights(f"round + {stages - 1}", f"slot == 0 ? {stages - 1} : slot - 1")}
% if planes == 2:
    ${wait()}
% for i in sums:
    acc${i} *= ${low};
% endfor
    asm volatile("//@ wgmma.fence.sync.aligned;" ::: "memory");
% endif
% for q in range(4):
    ${multiply("h", q, 0, False)}
% endfor
    ${commit()}
    ${wait()}
% for i in sums:
    sum${i} += acc${i};
% endfor
    slot = slot == ${stages - 1} ? 0 : slot + 1;
  }
  BARRIER;
% if wz > 1:
  __local f32* others = (__local f32*)tiles;
  if (part_z > 0) {
% for i in sums:
    others[((part_z - 1) * ${cols // 2} + ${i}) * ${128 * wm} + item % ${128 * wm}] = sum${i};
% endfor
  }
  BARRIER;
  for (int z = 0; part_z == 0 && z < ${wz - 1}; z++) {
% for i in sums:
    sum${i} += others[(z * ${cols // 2} + ${i}) * ${128 * wm} + item];
% endfor
  }
  BARRIER;
% endif
${parts.finish()}
}
