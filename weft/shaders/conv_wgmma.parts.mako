## The loads and stores of `conv_wgmma.opencl.mako`.
<%!
listed = ", ".join
%>
## Copy steps of 64 along K before `stop` into a buffer; commit a group of copies even if there is nothing to copy.
<%def name="fetch(into, slot, stop)">
<%
volume = context.get("volume", False)
threads, rows, a_bytes = 128 * wm, 64 * wm, 8192 * wm
stage_bytes, every = a_bytes + 128 * cols, threads // 8
a_pieces, b_pieces = rows // every, -(-cols // every)
halves, piece = (0,) if wide else (0, 1), 16 if wide else 8
in_step = 128 // piece
%>\
  if (${into} < ${stop}) {
    const uint to = ring + (${slot}) * ${stage_bytes};
% for h in halves:
    {
      const int at = (${into}) * ${in_step} + ${f"chunk * 2 + {h}" if not wide else "chunk"};
% if pointwise:
      const bool inside = PIECES % ${in_step} == 0 || at < PIECES;
      const ulong from = from_x + (uint)((${into}) * 128 + ${8 * h});
% else:
## If taps begin with a step, all items fetch from one tap.
      const int tap = (PIECES % ${in_step} == 0 ? (${into}) * ${in_step} : at) / PIECES, kh = tap / KW * DH, kw = tap % KW * DW;
      const bool inside = PIECES * KH * KW % ${in_step} == 0 || tap < KH * KW;
% if volume:
      const int in_tap = at - tap * PIECES, kd = in_tap / SLICE_PIECES * DD;
      const int from = ((kd * IH + kh) * IW + kw) * x_PS + in_tap % SLICE_PIECES * ${piece // 8};
% else:
      const int from = (kh * IW + kw) * x_PS + (at - tap * PIECES) * ${piece // 8};
% endif
% endif
% for u in range(a_pieces):
      {
% if pointwise:
        const bool taken = inside && (PIXELS % ${rows} == 0 || row${u} < PIXELS);
        const ulong source = from + ${u * every * 8} * X_ROW;
% else:
        const bool taken = inside && (uint)(ah${u} + kh) < IH && (uint)(aw${u} + kw) < IW${f" && (uint)(ad{u} + kd) < ID" if volume else ""};
        const ulong source = (ulong)((__global const uint2*)x + (taken ? a${u} + from : 0));
% endif
        asm volatile("cp.async.${"cg" if wide else "ca"}.shared.global [%0], [%1], ${piece}, %2;"
          :: "r"(to + a_to + ${u * every * 128 + 8 * h}), "l"(source), "r"(taken ? ${piece} : 0) : "memory");
      }
% endfor
    }
% endfor
    const ulong weights = from_w + (uint)((${into}) * ${cols * 128});
% for v in range(b_pieces):
% if (v + 1) * every > cols:
    if (one < ${cols * 8 - v * threads})
% endif
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
      :: "r"(to + ${a_bytes + v * threads * 16} + one * 16), "l"(weights + ${v * threads * 16}) : "memory");
% endfor
  }
  asm volatile("cp.async.commit_group;" ::: "memory");
</%def>
## `pack_weights` orders columns so that an item has so many adjacent channels of two pixels.
<%def name="finish(parted)">\
<% image = " + GROUP_Z * (PIXELS / (OH * OW))" if parted else "" %>\
% for j in range(cols // (4 * each)):
  {
    const int block = tile_n * ${cols // 4} + ${each * j} + lane % 4 * ${each // 4};
    if (${"part_z == 0 && " if wz > 1 else ""}block < COUNT) {
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
        if (m < PIXELS) ${y.store8("m / (OH * OW)" + image, "block", "m % (OH * OW)", "sum0", "sum1")}
% else:
        if (m < PIXELS) ${y.store4("m / (OH * OW)" + image, "block", "m % (OH * OW)", "sum0")}
% endif
      }
% endfor
    }
  }
% endfor
</%def>
