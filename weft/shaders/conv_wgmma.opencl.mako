## Convolution as an implicit GEMM by wgmma (PTX ISA 8.0, sm_90a): rows are output pixels, columns output channels, K
## runs over taps and channels. ${wm} warpgroups of 128 items hold 64 x ${cols} sums each. Steps of 64 along K pass through
## ${slots} buffers that cp.async fills ${stages - 2} ahead; a row of a step is 128 bytes, its 16-byte pieces swizzled as the
## descriptors say, as weights lie already. What stands behind //@ the compiler does not know: `ptx.py` uncovers it.
<%
threads, rows, a_bytes, b_bytes = 128 * wm, 64 * wm, 8192 * wm, 128 * cols
stage_bytes, every = a_bytes + b_bytes, threads // 8
a_pieces, b_pieces = rows // every, -(-cols // every)
sums = range(cols // 2)
k.shared("uchar", "tiles", f"{slots * stage_bytes}", align=1024)
listed, halves = ", ".join, (0,) if wide else (0, 1)
%>
<%def name="fetch(step, slot)">
  if (${step} < STEPS) {
    const uint to = base + (${slot}) * ${stage_bytes};
% for h in halves:
    {
% if wide:
      const int at = (${step}) * 8 + chunk;
% else:
      const int at = (${step}) * 16 + chunk * 2 + ${h};
% endif
% if pointwise:
      const bool inside = at < PIECES;
      const int from = at * ${3 - len(halves)};
% else:
      const int tap = at / PIECES, kh = tap / KW * DH, kw = tap % KW * DW;
      const bool inside = tap < KH * KW;
      const int from = (kh * IW + kw) * x_PS + at % PIECES * ${3 - len(halves)};
% endif
% for u in range(a_pieces):
      {
% if pointwise:
        const bool taken = inside && row${u} < PIXELS;
% else:
        const bool taken = inside && (uint)(ah${u} + kh) < IH && (uint)(aw${u} + kw) < IW;
% endif
        asm volatile("cp.async.${"cg" if wide else "ca"}.shared.global [%0], [%1], ${16 if wide else 8}, %2;"
          :: "r"(to + a_to + ${u * every * 128 + 8 * h}), "l"((ulong)((__global const uint2*)x + (taken ? a${u} + from : 0))), "r"(taken ? ${16 if wide else 8} : 0) : "memory");
      }
% endfor
    }
% endfor
    const ulong weights = (ulong)((__global const uint4*)w + (tile_n * STEPS + (${step})) * ${cols * 8} + item);
% for v in range(b_pieces):
% if (v + 1) * every > cols:
    if (item < ${cols * 8 - v * threads})
% endif
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
      :: "r"(to + ${a_bytes + v * threads * 16} + item * 16), "l"(weights + ${v * threads * 16}) : "memory");
% endfor
  }
  asm volatile("cp.async.commit_group;" ::: "memory");
</%def>
const int item = LOCAL_X, lane = item % 32, part = item / 128, chunk = item % 8;
const uint base = (uint)(ulong)tiles;
const uint a_to = item / 8 * 128 + ((chunk ^ (item / 8 & 7)) << 4);
const ulong layout = (1UL << 62) | (64UL << 32) | (1UL << 16);
for (int tile = GROUP_X; tile < TILES_M * TILES_N; tile += GROUPS_X) {
  // Groups that run at a time share rows and columns: ${raster} tiles of rows go together through the columns.
  const int band = tile / (${raster} * TILES_N) * ${raster}, high = min(${raster}, TILES_M - band), in_band = tile % (${raster} * TILES_N);
  const int first_row = (band + in_band % high) * ${rows}, tile_n = in_band / high;
% for u in range(a_pieces):
  const int row${u} = first_row + item / 8 + ${u * every}, n${u} = row${u} / (OH * OW), p${u} = row${u} % (OH * OW);
% if pointwise:
  const int a${u} = ${x.place4(f"n{u}", "0", f"p{u}")};
% else:
  const int ah${u} = row${u} < PIXELS ? p${u} / OW * SH - PH : -IH - KH * DH, aw${u} = p${u} % OW * SW - PW;
  const int a${u} = ${x.place4(f"n{u}", "0", f"(ah{u} * IW + aw{u})")};
% endif
% endfor
  float ${listed(f"acc{i} = 0.0" for i in sums)};
  for (int early = 0; early < ${stages - 2}; early++) {
    ${fetch("early", "early")}
  }
  int slot = 0, ahead = ${stages - 2};
  for (int step = 0; step < STEPS; step++) {
    asm volatile("cp.async.wait_group ${stages - 3};" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    BARRIER;
    const uint at = base + slot * ${stage_bytes};
    const ulong a_desc = layout | ((at + part * 8192) >> 4), b_desc = layout | ((at + ${a_bytes}) >> 4);
    asm volatile("//@ wgmma.fence.sync.aligned;" ::: "memory");
% for q in range(4):
    asm volatile("//@ { .reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned.m64n${cols}k16.f32.f16.f16 {${listed(f"%{i}" for i in sums)}}, %${cols // 2}, %${cols // 2 + 1}, p, 1, 1, 0, 0; }"
      : ${listed(f'"+f"(acc{i})' for i in sums)} : "l"(a_desc + ${2 * q}), "l"(b_desc + ${2 * q}) : "memory");
% endfor
    asm volatile("//@ wgmma.commit_group.sync.aligned;" ::: "memory");
    ${fetch(f"step + {stages - 2}", "ahead")}
    asm volatile("//@ wgmma.wait_group.sync.aligned 1;" ::: "memory");
    slot = slot == ${stages - 1} ? 0 : slot + 1;
    ahead = ahead == ${stages - 1} ? 0 : ahead + 1;
  }
  asm volatile("//@ wgmma.wait_group.sync.aligned 0; // ${listed(f"%{i}" for i in sums)}" : ${listed(f'"+f"(acc{i})' for i in sums)} :: "memory");
  BARRIER;
## `pack_weights` orders columns so that an item has ${each} channels in a row of two pixels.
% for j in range(cols // (4 * each)):
  {
    const int block = tile_n * ${cols // 4} + ${each * j} + lane % 4 * ${each // 4};
    if (block < COUNT) {
% for q in range(each // 4):
      const f32x4 bias${q} = ${k.args["b"].load4("0", f"block + {q}", "0") if k.has("b") else "SPLAT(0.0)"};
% endfor
% for half in range(2):
      {
        const int m = first_row + part * 64 + item / 32 % 4 * 16 + ${8 * half} + lane / 4;
% for q in range(each // 4):
        const f32x4 sum${q} = F4(${listed(f"acc{2 * each * j + 8 * q + 4 * n + 2 * half + e}" for n in range(2) for e in range(2))}) + bias${q};
% endfor
% if each == 8:
        if (m < PIXELS) ${y.store8("m / (OH * OW)", "block", "m % (OH * OW)", "sum0", "sum1")}
% else:
        if (m < PIXELS) ${y.store4("m / (OH * OW)", "block", "m % (OH * OW)", "sum0")}
% endif
      }
% endfor
    }
  }
% endfor
}
