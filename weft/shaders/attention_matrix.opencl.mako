## softmax(SCALE * Q K^T + mask) V in fp16 on NVIDIA's matrix units, summed in fp32; for the arguments see
## `attention.mako`. A warp has `query_tiles` times 16 queries. LZ warps take turns in the blocks of `keys` keys and are joined at the end;
## LY such sets have other queries of the head. Each block updates the softmax in registers (T. Dao, "FlashAttention-2",
## 2023, arXiv 2307.08691), with powers of 2: SCALE includes log2(e).
##
## Nothing is staged, unless `staged`: then the warps of a set share two buffers of keys and values in work-group memory,
## of which one receives the next block while they compute with the other. Rows have pitches at which the items that load
## together touch all banks once. The order of a head's elements, and of V's columns, in a fragment is free, as long as both factors,
## or V and the result, agree. So an item loads 8 adjacent elements of Q or K (d = 32c + 8t, two steps of m16n8k16), 4 of
## V (e = 32c + 4g, one of each of 4 tiles), and stores 8 (e = 32c + 8t). The sums of Q K^T are already in the order that
## the products with V need. `depth` and `width` are D and E in units of 32, rounded up.
<%
query_tiles = context.get("query_tiles", 1)
rows, tiles, steps = range(2 * query_tiles), range(keys // 8), range(keys // 16)
staged = context.get("staged", False)
sums = [(n, e, n // (4 * width) * 2 + e // 2) for n in range(4 * width * query_tiles) for e in range(4)]  # and their rows
its = "head / SHARED" if context.get("shared", False) else "head"  # of keys and values
apart = "apart" in context.keys()  # the elements of a head of the result
k.needs_subgroup()
k.defines("EXP2", "RECIPROCAL", "LOW_HALVES", "HIGH_HALVES")
if slices > 1:
    k.shared("f32", "Parts", f"{(slices - 1) * warps * 32 * (len(sums) + 2 * len(rows))}")
key_pitch, value_pitch = 4 * depth + (4 if depth % 2 == 0 else 0), 4 * width + 1  # vectors of 16 bytes
if staged:
    k.shared("uint4", "Keys", str(2 * slices * keys * key_pitch))
    k.shared("uint4", "Values", str(2 * slices * keys * value_pitch))
%>
<%namespace name="parts" file="attention.parts.mako"/>
<%include file="ptx.opencl.mako"/>
% if staged:
<%include file="async_copies.opencl.mako"/>
% endif
#define EXP2(x) native_exp2(x)
% if context.get("capped", False):
#define RECIPROCAL(x) native_recip(x)
% endif
#define LOW_HALVES(a, b) (((a) & 0xffffu) | ((b) << 16))
#define HIGH_HALVES(a, b) (((a) >> 16) | ((b) & 0xffff0000u))
${parts.names()}
## Ask for the block of a round; of each row as many vectors as the head's elements take.
<%def name="copy_rows(array, pitch, source, step, count, elements)">
% for first in range(0, keys * count, 32 * warps):
  {
    const int piece = ${first} + member, row = piece / ${count}, at = piece % ${count};
    const bool inside = INSIDE(from + row) && at * 8 < ${elements};
    ${f"if (piece < {keys * count}) " if first + 32 * warps > keys * count else ""}COPY_16(${array} + (into * ${keys} + row) * ${pitch} + at, ${source} + (inside ? (from + row) * (${step} / 8) + at : 0), inside ? 16 : 0);
  }
% endfor
</%def>\
<%def name="copy_block(round)">
  {
    const int from = ((${round}) * ${slices} + slice) * ${keys}, into = (${round}) % 2 * ${slices} + slice, member = part * 32 + lane;
    ${copy_rows("Keys", key_pitch, "key_rows", "KS", 4 * depth, "D")}
    ${copy_rows("Values", value_pitch, "value_rows", "VS", 4 * width, "E")}
    END_OF_COPIES;
  }
</%def>\
<%def name="sum4(a)">${", ".join(f"{a}_{e}" for e in range(4))}</%def>
const int lane = LOCAL_X, part = LOCAL_Y, slice = LOCAL_Z, g = lane / 4, t = lane % 4;
${k.for_groups("group", "GROUPS")} {
  const int head = group / BLOCKS % HEADS, batch = group / BLOCKS / HEADS;
  const int row0 = group % BLOCKS * ${16 * query_tiles * warps} + part * ${16 * query_tiles} + g, ${", ".join(f"row{r} = row0 + {8 * r}" for r in rows[1:])};
  __global const uint4* queries = (__global const uint4*)(q_in + (Q0 + batch * QB + head * QH));
  __global const uint4* key_rows = (__global const uint4*)(k_in + (K0 + batch * KB + ${its} * KH));
  __global const uint2* values = (__global const uint2*)(v_in + (V0 + batch * VB + ${its} * VH));
% for c in range(depth):
% for r in rows:
  const uint4 q${c}_${r} = row${r} < QUERIES && ${32 * c} + t * 8 < D ? queries[row${r} * (QS / 8) + ${4 * c} + t] : (uint4)(0);
% endfor
% endfor
  f32 ${", ".join([f"top{r} = -INFINITY_F" for r in rows] + [f"total{r} = 0.0" for r in rows])};
% for n, e, r in sums:
  f32 acc${n}_${e} = 0.0;
% endfor
% if staged:
  __global const uint4* value_rows = (__global const uint4*)values;
  BARRIER; // of the last head's end
  ${copy_block("0")}
% endif
  for (int round = 0; round < (COUNT + ${keys * slices - 1}) / ${keys * slices}; round++) {
    const int start = (round * ${slices} + slice) * ${keys};
% if staged:
    const int buffer = round % 2 * ${slices} + slice;
    COPIES_ARRIVED;
    BARRIER; // all copies are there, and nobody reads the other buffer any more
    if ((round + 1) * ${keys * slices} < COUNT) ${copy_block("round + 1")}
% else:
% for j in tiles:
% for c in range(depth):
    const uint4 k${j}_${c} = INSIDE(start + ${8 * j} + g) && ${32 * c} + t * 8 < D
      ? key_rows[(start + ${8 * j} + g) * (KS / 8) + ${4 * c} + t] : (uint4)(0);
% endfor
% endfor
% for s in steps:
% for c in range(width):
% for r in range(4):
    const int vr${s}_${c}_${r} = start + ${16 * s + r % 2 + r // 2 * 8} + t * 2;
    const uint2 v${s}_${c}_${r} = INSIDE(vr${s}_${c}_${r}) && ${32 * c} + g * 4 < E
      ? values[vr${s}_${c}_${r} * (VS / 4) + ${8 * c} + g] : (uint2)(0);
% endfor
% endfor
% endfor
% endif
    f32 ${", ".join(f"next{r} = top{r}" for r in rows)};
% for j, b in [(j, b) for j in tiles for b in range(query_tiles)]:
% for c in range(depth if staged and b == 0 else 0):
    const uint4 k${j}_${c} = Keys[(buffer * ${keys} + ${8 * j} + g) * ${key_pitch} + ${4 * c} + t];
% endfor
<% s, q0, q1 = f"s{len(tiles) * b + j}", 2 * b, 2 * b + 1 %>\
    f32 ${", ".join(f"{s}_{e} = 0.0" for e in range(4))};
% for c in range(depth):
    MMA(${sum4(s)}, q${c}_${q0}.x, q${c}_${q1}.x, q${c}_${q0}.y, q${c}_${q1}.y, k${j}_${c}.x, k${j}_${c}.y);
    MMA(${sum4(s)}, q${c}_${q0}.z, q${c}_${q1}.z, q${c}_${q0}.w, q${c}_${q1}.w, k${j}_${c}.z, k${j}_${c}.w);
% endfor
% for e in range(4):
    {
      const int key = start + ${8 * j + e % 2} + t * 2;
      ${parts.finish_score(f"{s}_{e}", 2 * b + e // 2)}
    }
% endfor
% endfor
% for r in rows:
    ${parts.over_quad("LARGER", f"next{r}")}
    ${parts.move_top(r)}
    total${r} *= fade${r};
% endfor
% for n, e, r in sums:
    acc${n}_${e} *= fade${r};
% endfor
% for s, b in [(s, b) for s in steps for b in range(query_tiles)]:
% for c, r in [(c, r) for c in range(width) for r in range(4) if staged and b == 0]:
    const uint2 v${s}_${c}_${r} = ((__local const uint2*)Values)[(buffer * ${keys} + ${16 * s + r % 2 + r // 2 * 8} + t * 2) * ${2 * value_pitch} + ${8 * c} + g];
% endfor
    {
      uint p0, p1, p2, p3;
% for r in range(4):
<% score, row = f"s{len(tiles) * b + 2 * s + r // 2}", 2 * b + r % 2
first, second = (f"{score}_{r % 2 * 2 + e}" for e in range(2)) %>
      ${first} = EXP2(${parts.module.scaled(context, first)} - shift${row});
      ${second} = EXP2(${parts.module.scaled(context, second)} - shift${row});
      total${row} += ${first} + ${second};
      PACK_HALVES(p${r}, ${first}, ${second});
% endfor
% for c, j in [(c, j) for c in range(width) for j in range(4)]:
<% half, word = "LOW" if j % 2 == 0 else "HIGH", "xy"[j // 2] %>
      MMA(${sum4(f"acc{4 * (width * b + c) + j}")}, p0, p1, p2, p3,
          ${half}_HALVES(v${s}_${c}_0.${word}, v${s}_${c}_1.${word}), ${half}_HALVES(v${s}_${c}_2.${word}, v${s}_${c}_3.${word}));
% endfor
    }
% endfor
  }
% for r in rows:
  ${parts.over_quad("PLUS", f"total{r}")}
% endfor
% if slices > 1:
  ${parts.join([(f"acc{n}_{e}", r) for n, e, r in sums], len(rows))}
% endif
% for c, r in [(c, r) for c in range(width) for r in rows]:
  if (slice == 0 && row${r} < QUERIES && ${32 * c} + t * 8 < E) {
<% step, first = (" * YD", f"({32 * c} + t * 8) * YD") if apart else ("", f"{32 * c} + t * 8") %>\
    const int at = batch * YB + head * YH + row${r} * YS + ${first};
    const f32 share = ${"total%d == 0.0 ? 0.0 : " % r if context.get("zero_hidden", False) else ""}1.0 / total${r};
<% out = [f"share * acc{4 * (width * (r // 2) + c) + i % 4}_{r % 2 * 2 + i // 4}" for i in range(8)]
if context.get("zero_nan", False):  # the sums of a row of NaN are NaN: no factor makes them zeros
    out = [f"(total{r} > 0.0 ? {each} : 0.0)" for each in out] %>
% if k.request.steps or apart:
% for i in range(8):
    ${y.store(f"at + {i}{step}", out[i])}
% endfor
% else:
    uint4 out;
% for i, word in enumerate("xyzw"):
    { uint pair; PACK_HALVES(pair, ${out[2 * i]}, ${out[2 * i + 1]}); out.${word} = pair; }
% endfor
    ((__global uint4*)y)[at / 8] = out;
% endif
  }
% endfor
}
