## Parts of both convolution kernels without staging. An item of a subgroup of 32 has g = lane / 4 and t = lane % 4.
## A chunk is four pieces of eight elements along K: item t has piece t of output pixels g and g + 8 and of columns
## g and g + 8 of every tile of 16 x 16. The order of elements in a fragment is free as long as both factors agree, so
## pieces are loaded straight from memory, 16 bytes at a time; each chunk is two steps of 16 along K.
<%namespace name="im2col" file="im2col.parts.mako"/>
<%def name="places(x, fm, fn, pointwise)">
const int lane = LOCAL_X, g = lane / 4, t = lane % 4;
const int first_row = GROUP_X * ${16 * fm}, column16 = GROUP_Y * ${fn};
% for i, r in [(i, r) for i in range(fm) for r in range(2)]:
  const int row${i}_${r} = first_row + ${16 * i + 8 * r} + g;
  ${im2col.pixel(x, f"{i}_{r}", pointwise)}
% endfor
</%def>
## Prefetch the next `ahead` chunks of a slice, all loads at once; zeros outside of the image and behind the last chunk.
## What a prologue reads is fetched with the rest; of several images (`many`), each row has its own. `pieces` is the
## language's module of that name.
<%def name="fetch(x, fm, fn, ahead, pointwise, many, x_at, w_at, vector, zero, pieces)">
<% halves = [(h, f" + {h}" if h else "") for h in range(2)] %>\
% for u in range(ahead):
    const int chunk${u} = (round * LZ + LOCAL_Z) * ${ahead} + ${u}, piece${u} = chunk${u} * 4 + t;
% if not pointwise:
    const int tap${u} = piece${u} / PIECES, kh${u} = tap${u} / KW * DH, kw${u} = tap${u} % KW * DW;
    const int from${u} = (kh${u} * IW + kw${u}) * x_PS, in_tap${u} = piece${u} - tap${u} * PIECES;
% endif
% for i, r in [(i, r) for i in range(fm) for r in range(2)]:
% if pointwise:
    const bool inside${u}_${i}_${r} = row${i}_${r} < PIXELS && piece${u} < PIECES;
    const ${vector} a${u}_${i}_${r} = ${x_at}[inside${u}_${i}_${r} ? a${i}_${r} / 2 + piece${u} : 0];
% else:
    const int ih${u}_${i}_${r} = ah${i}_${r} + kh${u}, iw${u}_${i}_${r} = aw${i}_${r} + kw${u};
    const bool inside${u}_${i}_${r} = tap${u} < KH * KW && ih${u}_${i}_${r} >= 0 && ih${u}_${i}_${r} < IH && iw${u}_${i}_${r} >= 0 && iw${u}_${i}_${r} < IW;
    const ${vector} a${u}_${i}_${r} = ${x_at}[inside${u}_${i}_${r} ? (a${i}_${r} + from${u}) / 2 + in_tap${u} : 0];
% endif
% endfor
% for j, h in [(j, h) for j in range(fn) for h in range(2)]:
    const ${vector} b${u}_${j}_${h} = ${w_at}[(((column16 + ${j}) * 2 + ${h}) * CHUNKS + min(chunk${u}, CHUNKS - 1)) * 32 + lane];
% endfor
% if x.has_prologue():
% for h, more in halves:
    ${x.prologue_operands(f"{u}_{h}", f"piece{u} < PIECES", "0", f"piece{u} * 2{more}", kinds=("channel",) if many else ("channel", "pixel"))}
% endfor
% for i, r, h, more in [(i, r, *half) for i in range(fm) for r in range(2) for half in halves if many]:
    ${x.prologue_operands(f"{u}_{i}_{r}_{h}", f"inside{u}_{i}_{r}", f"an{i}_{r}", f"piece{u} * 2{more}", kinds=("pixel",))}
% endfor
% endif
% endfor
% for u, i, r in [(u, i, r) for u in range(ahead) for i in range(fm) for r in range(2)]:
% if x.has_prologue():
    ${vector} v${u}_${i}_${r} = a${u}_${i}_${r};
    {
      ${pieces.unpacked(f"v{u}_{i}_{r}", ("low", "high"))}
% for h, more in halves:
      ${x.applied(("low", "high")[h], f"{u}_{h}", f"piece{u} * 2{more}", f"{u}_{i}_{r}_{h}" if many else "")}
% endfor
      ${pieces.packed(f"v{u}_{i}_{r}", ("low", "high"))}
    }
    v${u}_${i}_${r} = inside${u}_${i}_${r} ? v${u}_${i}_${r} : ${zero};
% else:
    const ${vector} v${u}_${i}_${r} = inside${u}_${i}_${r} ? a${u}_${i}_${r} : ${zero};
% endif
% endfor
</%def>
## The loop over K; with split K (`sum_parts.py`), group z computes EACH rounds.
<%def name="rounds(ahead, parted)">\
<% total = f"(CHUNKS + LZ * {ahead} - 1) / (LZ * {ahead})" %>\
% if parted:
for (int round = GROUP_Z * EACH; round < min((GROUP_Z + 1) * EACH, ${total}); round++) {\
% else:
for (int round = 0; round < ${total}; round++) {\
% endif
</%def>
## Add the sums of all slices to the first; `element` is sum e of a tile: four columns of row g, then of g + 8.
<%def name="join(fm, fn, element)">
<% every = [(i, j, e) for i in range(fm) for j in range(fn) for e in range(8)] %>
  if (LOCAL_Z > 0) {
% for n, each in enumerate(every):
    Sum[((LOCAL_Z - 1) * ${len(every)} + ${n}) * 32 + lane] = ${element(*each)};
% endfor
  }
  BARRIER;
  for (int z = 0; LOCAL_Z == 0 && z < LZ - 1; z++) {
% for n, each in enumerate(every):
    ${element(*each)} += Sum[(z * ${len(every)} + ${n}) * 32 + lane];
% endfor
  }
</%def>
## `pack_weights` orders columns so that an item has four adjacent channels of both pixels. Parts of K have own images.
<%def name="finish(k, y, fm, fn, element, parted)">
<% image = " + GROUP_Z * (PIXELS / (OH * OW))" if parted else "" %>\
% for j in range(fn):
  if (LOCAL_Z == 0 && (column16 + ${j}) * 4 + t < COUNT) {
    const int block = (column16 + ${j}) * 4 + t;
    const f32x4 bias = ${k.args["b"].load4("0", "block", "0") if k.has("b") else "SPLAT(0.0)"};
% for i, r in [(i, r) for i in range(fm) for r in range(2)]:
    if (row${i}_${r} < PIXELS) {
      const f32x4 sum = F4(${", ".join(element(i, j, e + 4 * r) for e in range(4))}) + bias;
      ${y.store4(f"an{i}_{r}{image}", "block", f"ap{i}_{r}", "sum")}
    }
% endfor
  }
% endfor
</%def>
