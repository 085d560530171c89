## Convolution in fp32 as an implicit GEMM on cooperative matrices of halves: rows are output pixels, columns output
## channels, K runs over taps and blocks of four input channels; work is shared out as in `conv_matrix.glsl.mako`.
## A step stages ${kb} blocks of K, of each number two halves, hi and lo (`split.py`): those of weights lie ready,
## activations are split here. What a step adds up, hi lo + lo hi and then hi hi, is added to sums outside of the
## matrix units, whose own sums are rounded toward zero.
<%
rows, cols, items, depth = 16 * fm * sm, 16 * fn * sn, 32 * sm * sn, kb // 4
stride, fetched = kb + 2, rows * kb // items
w_stride, w_fetched = cols // 8 + 1, cols * kb // items
a_plane, b_plane = rows * stride, 4 * kb * w_stride
frags = [(i, j) for i in range(fm) for j in range(fn)]
meet = "WARP_BARRIER" if sm * sn == 1 else "BARRIER"
k.extension("GL_KHR_cooperative_matrix", "GL_KHR_memory_scope_semantics", "GL_KHR_shader_subgroup_basic",
            "GL_EXT_shader_explicit_arithmetic_types_float16")
k.shared("uvec2", "As", f"LZ * {2 * a_plane}")
k.shared("uvec4", "Bs", f"LZ * {2 * b_plane}")
if sliced:
    k.shared("float", "Sum", f"(LZ - 1) * {rows * cols}")
%>
<%include file="matrices.glsl.mako"/>
<%def name="fetch(step)">
% for u in range(fetched):
  {
    const int kk = (${step}) * ${kb} + ak${u};
% if pointwise:
    inside${u} = row${u} < PIXELS && kk < C4;
    va${u} = x[inside${u} ? ${x.place4(f"an{u}", "kk", f"ap{u}")} : 0];
% else:
    const int tap = kk / C4, ih = ah${u} + tap / KW * DH, iw = aw${u} + tap % KW * DW;
    inside${u} = row${u} < PIXELS && tap < KH * KW && ih >= 0 && ih < IH && iw >= 0 && iw < IW;
    va${u} = x[inside${u} ? ${x.place4(f"an{u}", "kk % C4", "(ih * IW + iw)")} : 0];
% endif
  }
% endfor
% for u in range(w_fetched):
  vb${u} = w[(GROUP_Y * STEPS + min(${step}, STEPS - 1)) * ${cols * kb} + item + ${u * items}];
% endfor
</%def>
<%def name="multiply(a, b)">
% for i, j in frags:
    MULTIPLY_ADD(acc${i}_${j}, ${a}${i}, ${b}${j});
% endfor
</%def>
const int lane = LOCAL_X, part = LOCAL_Y, item = part * 32 + lane;
const int part_m = part % ${sm}, part_n = part / ${sm};
const int a_base = LOCAL_Z * ${2 * a_plane}, b_base = LOCAL_Z * ${2 * b_plane};
const int a_at = a_base + part_m * ${16 * fm * stride}, b_at = b_base + part_n * ${2 * fn};
const int sum_base = part * ${256 * fm * fn}, column16 = GROUP_Y * ${cols // 16} + part_n * ${fn};
% for u in range(w_fetched):
const int e${u} = item + ${u * items};
const int to${u} = b_base + e${u} / ${cols // 8} * ${w_stride} + e${u} % ${cols // 8};
uvec4 vb${u};
% endfor
for (int tile = GROUP_X; tile < TILES; tile += GROUPS_X) {
  const int first_row = tile * ${rows};
% for u in range(fetched):
% if last:
  const int ak${u} = (item + ${u * items}) % ${kb}, am${u} = (item + ${u * items}) / ${kb}, row${u} = first_row + am${u};
% else:
  const int ak${u} = (item + ${u * items}) / ${rows}, am${u} = (item + ${u * items}) % ${rows}, row${u} = first_row + am${u};
% endif
  const int an${u} = row${u} / (OH * OW), ap${u} = row${u} % (OH * OW);
% if not pointwise:
  const int ah${u} = ap${u} / OW * SH - PH, aw${u} = ap${u} % OW * SW - PW;
% endif
  vec4 va${u};
  bool inside${u};
% endfor
% for i, j in frags:
  MATRIX_OF_ZEROS(sum${i}_${j});
% endfor
  ${fetch("LOCAL_Z")}
  for (int round = 0; round < (STEPS + LZ - 1) / LZ; round++) {
% for u in range(fetched):
    {
      const vec4 a = inside${u} ? va${u} * ${scale} : vec4(0.0);
      const uvec2 high = uvec2(packHalf2x16(a.xy), packHalf2x16(a.zw));
      const vec4 rest = (a - vec4(unpackHalf2x16(high.x), unpackHalf2x16(high.y))) * 2048.0;
      // Nothing is left of what is not finite in fp16.
      const bvec4 finite = lessThan(abs(a), vec4(65520.0));
      As[a_base + am${u} * ${stride} + ak${u}] = high;
      As[a_base + ${a_plane} + am${u} * ${stride} + ak${u}] =
        all(finite) ? uvec2(packHalf2x16(rest.xy), packHalf2x16(rest.zw)) : uvec2(0);
    }
% endfor
% for u in range(w_fetched):
    Bs[to${u}] = vb${u};
% endfor
    ${meet};
    ${fetch("(round + 1) * LZ + LOCAL_Z")}
% for i, j in frags:
    MATRIX_OF_ZEROS(acc${i}_${j});
% endfor
% for q in range(depth):
% for j, name, plane in [(j, name, plane) for j in range(fn) for plane, name in enumerate(("bh", "bl"))]:
    MATRIX_B ${name}${q}_${j};
    LOAD_B(${name}${q}_${j}, Bs, b_at + ${plane * b_plane + 16 * q * w_stride + 2 * j}, ${w_stride});
% endfor
% for i, name, plane in [(i, name, plane) for i in range(fm) for plane, name in enumerate(("ah", "al"))]:
    MATRIX_A ${name}${q}_${i};
    LOAD_A(${name}${q}_${i}, As, a_at + ${plane * a_plane + 16 * i * stride + 4 * q}, ${stride});
% endfor
    ${multiply(f"ah{q}_", f"bl{q}_")}
    ${multiply(f"al{q}_", f"bh{q}_")}
% endfor
% for i, j in frags:
    SCALE_SUMS(acc${i}_${j}, ${low});
% endfor
% for q in range(depth):
    ${multiply(f"ah{q}_", f"bh{q}_")}
% endfor
% for i, j in frags:
    ADD_SUMS(sum${i}_${j}, acc${i}_${j});
% endfor
    ${meet};
  }
% if sliced:
  if (LOCAL_Z > 0) {
% for n, (i, j, e) in enumerate((i, j, e) for i, j in frags for e in range(8)):
    Sum[(LOCAL_Z - 1) * ${rows * cols} + sum_base + ${32 * n} + lane] = sum${i}_${j}[${e}];
% endfor
  }
  BARRIER;
  for (int z = 0; LOCAL_Z == 0 && z < LZ - 1; z++) {
% for n, (i, j, e) in enumerate((i, j, e) for i, j in frags for e in range(8)):
    sum${i}_${j}[${e}] += Sum[z * ${rows * cols} + sum_base + ${32 * n} + lane];
% endfor
  }
  BARRIER;
% endif
## An item has four channels of two pixels of a tile: `split.LANES` puts the columns in the order for that.
% for j in range(fn):
  if (LOCAL_Z == 0 && column16 * 4 + ${4 * j} + lane % 4 < COUNT) {
    const int block = column16 * 4 + ${4 * j} + lane % 4;
    const f32x4 back = ${s.load4("0", "block", "0")};
    const f32x4 bias = ${k.args["b"].load4("0", "block", "0") if k.has("b") else "SPLAT(0.0)"};
% for i, half in [(i, half) for i in range(fm) for half in range(2)]:
    {
      const int m = first_row + part_m * ${16 * fm} + ${16 * i + 8 * half} + lane / 4;
      const f32x4 sum = F4(${", ".join(f"sum{i}_{j}[{e + 4 * half}]" for e in range(4))}) * back + bias;
      if (m < PIXELS) ${y.store4("m / (OH * OW)", "block", "m % (OH * OW)", "sum")}
    }
% endfor
  }
% endfor
}
