## The loads and stores of `conv_split_wgmma.opencl.mako`.
## Copy a round of the weights into a buffer; commit a group of copies even if there is nothing to copy.
<%def name="fetch_weights(round, slot)">
<% threads, stage_bytes = 128 * wm * wz, 128 * cols * planes * wz %>
<% pieces = stage_bytes // 16 %>
  if (${round} < ROUNDS) {
    const uint to = base + (${slot}) * ${stage_bytes} + item * 16;
    const ulong from = (ulong)((__global const uint4*)w + (tile_n * ROUNDS + (${round})) * ${pieces} + item);
% for v in range(-(-pieces // threads)):
% if (v + 1) * threads > pieces:
    if (item < ${pieces - v * threads})
% endif
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(to + ${v * threads * 16}), "l"(from + ${v * threads * 16}) : "memory");
% endfor
  }
  asm volatile("cp.async.commit_group;" ::: "memory");
</%def>
## Load four channels of two pixels for every 16 along K of a step; zeros outside.
<%def name="fetch_pixels(round)">
% for q in range(4):
  {
    const int at = ((${round}) * ${wz} + part_z) * 16 + ${4 * q} + lane % 4;
% if pointwise:
    const bool inside = at < C4;
    const int from = at * x_CS;
% else:
    const int tap = (C4 % 16 == 0 ? at - lane % 4 : at) / C4, kh = tap / KW * DH, kw = tap % KW * DW;
    const bool inside = tap < KH * KW;
    const int from = (kh * IW + kw) * x_PS + (at - tap * C4) * x_CS;
% endif
% for r in range(2):
    {
% if pointwise:
      const bool taken = inside && row${r} < PIXELS;
% else:
      const bool taken = inside && (uint)(ah${r} + kh) < IH && (uint)(aw${r} + kw) < IW;
% endif
      // Zeros where nothing is taken, without a branch.
      asm volatile("{ .reg .pred p; setp.ne.s32 p, %5, 0; mov.f32 %0, 0f00000000; mov.f32 %1, 0f00000000; mov.f32 %2, 0f00000000; mov.f32 %3, 0f00000000; @p ld.global.nc.v4.f32 {%0, %1, %2, %3}, [%4]; }"
        : ${", ".join(f'"=&f"(x{q}_{r}_{c})' for c in range(4))} : "l"((ulong)(x + (taken ? a${r} + from : 0))), "r"(taken ? 1 : 0));
    }
% endfor
  }
% endfor
</%def>
## An item has four adjacent channels of two pixels for every 16 columns.
<%def name="finish()">
% for j in range(cols // 16):
  {
    const int block = tile_n * ${cols // 4} + ${4 * j} + lane % 4;
    if (${"part_z == 0 && " if wz > 1 else ""}block < COUNT) {
      const f32x4 back = ${s.load4("0", "block", "0")};
      const f32x4 bias = ${k.args["b"].load4("0", "block", "0") if k.has("b") else "SPLAT(0.0)"};
% for half in range(2):
      {
        const int m = first_row + ${8 * half};
        const f32x4 sum = F4(${", ".join(f"sum{8 * j + 4 * n + 2 * half + e}" for n in range(2) for e in range(2))}) * back + bias;
        if (m < PIXELS) ${y.store4("m / (OH * OW)", "block", "m % (OH * OW)", "sum")}
      }
% endfor
    }
  }
% endfor
</%def>
