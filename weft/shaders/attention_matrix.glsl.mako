## softmax(SCALE * Q K^T + mask) V in fp16 on cooperative matrices, summed in fp32. The OpenCL twin explains how the work
## is divided and why nothing is staged. Matrices of 16 x 16 are written and read element by element. An item has, in
## this order, elements 2t, 2t + 1, 2t + 8 and 2t + 9 of rows g and g + 8 (of B: of columns): that is NVIDIA's layout
## (probed on one GPU), and the self-test finds devices with another. So a matrix of products with V has columns
## e = 32c + 4g + j for two j, the sums have those of 2t and 2t + 1, and P is the sums of Q K^T without a shuffle.
<%
tiles, sums = range(keys // 16), [(m, e) for m in range(2 * width) for e in range(8)]
its = "head / SHARED" if context.get("shared", False) else "head"  # of keys and values
apart = "apart" in context.keys()  # the elements of a head of the result
k.needs_subgroup()
k.extension("GL_KHR_cooperative_matrix", "GL_KHR_memory_scope_semantics", "GL_KHR_shader_subgroup_basic",
            "GL_KHR_shader_subgroup_shuffle", "GL_EXT_shader_explicit_arithmetic_types_float16")
for name, type_, of in (("queries", "uvec4", "q_in"), ("key_rows", "uvec4", "k_in"), ("values", "uvec2", "v_in"), ("out4", "uvec4", "y")):
    k.view(of, type_, name)
if slices > 1:
    k.shared("float", "Parts", f"{(slices - 1) * warps * 32 * (len(sums) + 4)}")
%>
<%namespace name="parts" file="attention.parts.mako"/>
<%include file="matrices.glsl.mako"/>
<% k.defines("EXP2", "RECIPROCAL") %>\
#define EXP2(x) exp2(x)
% if context.get("capped", False):
#define RECIPROCAL(x) (1.0 / (x))
% endif
${parts.names()}
<%def name="fill(matrix, at, word)">{ const f16vec2 two = unpackFloat2x16(${word}); ${matrix}[${at}] = two.x; ${matrix}[${at + 1}] = two.y; }</%def>
const int lane = LOCAL_X, part = LOCAL_Y, slice = LOCAL_Z, g = lane / 4, t = lane % 4;
${k.for_groups("group", "GROUPS")} {
  const int head = group / BLOCKS % HEADS, batch = group / BLOCKS / HEADS;
  const int row0 = group % BLOCKS * ${16 * warps} + part * 16 + g, row1 = row0 + 8;
  const int first_q = (Q0 + batch * QB + head * QH) / 8 + t, first_k = (K0 + batch * KB + ${its} * KH) / 8 + t;
  const int first_v = (V0 + batch * VB + ${its} * VH) / 4 + g;
% for c, step in [(c, step) for c in range(depth) for step in range(2)]:
  MATRIX_A q${c}_${step};
% endfor
% for c, r in [(c, r) for c in range(depth) for r in range(2)]:
  {
    const uvec4 row = row${r} < QUERIES && ${32 * c} + t * 8 < D ? queries[first_q + row${r} * (QS / 8) + ${4 * c}] : uvec4(0);
% for i, word in enumerate("xyzw"):
    ${fill(f"q{c}_{i // 2}", 4 * r + i % 2 * 2, f"row.{word}")}
% endfor
  }
% endfor
  f32 top0 = -INFINITY_F, top1 = -INFINITY_F, total0 = 0.0, total1 = 0.0;
% for m in range(2 * width):
  MATRIX_OF_ZEROS(acc${m});
% endfor
  for (int turn = 0; turn < (COUNT + ${keys * slices - 1}) / ${keys * slices}; turn++) {
    const int start = (turn * ${slices} + slice) * ${keys};
% for j, r, c in [(j, r, c) for j in tiles for r in range(2) for c in range(depth)]:
    const uvec4 k${j}_${r}_${c} = INSIDE(start + ${16 * j + 8 * r} + g) && ${32 * c} + t * 8 < D
      ? key_rows[first_k + (start + ${16 * j + 8 * r} + g) * (KS / 8) + ${4 * c}] : uvec4(0);
% endfor
% for j, c, r in [(j, c, r) for j in tiles for c in range(width) for r in range(4)]:
    const int vr${j}_${c}_${r} = start + ${16 * j + r % 2 + r // 2 * 8} + t * 2;
    const uvec2 v${j}_${c}_${r} = INSIDE(vr${j}_${c}_${r}) && ${32 * c} + g * 4 < E
      ? values[first_v + vr${j}_${c}_${r} * (VS / 4) + ${8 * c}] : uvec2(0);
% endfor
    f32 next0 = top0, next1 = top1;
% for j in tiles:
    MATRIX_OF_ZEROS(s${j});
% for c, step in [(c, step) for c in range(depth) for step in range(2)]:
    {
      MATRIX_B b;
% for r, i in [(r, i) for r in range(2) for i in range(2)]:
      ${fill("b", 4 * r + 2 * i, f"k{j}_{r}_{c}." + "xyzw"[2 * step + i])}
% endfor
      MULTIPLY_ADD(s${j}, q${c}_${step}, b);
    }
% endfor
% for e in range(8):
    {
      const int key = start + ${16 * j + e % 2 + e % 4 // 2 * 8} + t * 2;
      f32 score = s${j}[${e}];
      ${parts.finish_score("score", e // 4)}
      s${j}[${e}] = score;
    }
% endfor
% endfor
% for r in range(2):
    ${parts.over_quad("LARGER", f"next{r}")}
    ${parts.move_top(r)}
    total${r} *= fade${r};
% endfor
% for m, e in sums:
    acc${m}[${e}] *= fade${e // 4};
% endfor
% for j in tiles:
    {
      MATRIX_A p;
% for e in range(8):
      { const f32 power = EXP2(s${j}[${e}] - shift${e // 4}); total${e // 4} += power; p[${e}] = float16_t(power); }
% endfor
% for c, h in [(c, h) for c in range(width) for h in range(2)]:
      {
        MATRIX_B b;
% for r in range(4):
        { const f16vec2 two = unpackFloat2x16(v${j}_${c}_${r}.${"xy"[h]}); b[${r}] = two.x; b[${r + 4}] = two.y; }
% endfor
        MULTIPLY_ADD(acc${2 * c + h}, p, b);
      }
% endfor
    }
% endfor
  }
% for r in range(2):
  ${parts.over_quad("PLUS", f"total{r}")}
% endfor
% if slices > 1:
  ${parts.join([(f"acc{m}[{e}]", e // 4) for m, e in sums], 2)}
% endif
% for c, r in [(c, r) for c in range(width) for r in range(2)]:
  if (slice == 0 && row${r} < QUERIES && ${32 * c} + t * 8 < E) {
<% step, first = (" * YD", f"({32 * c} + t * 8) * YD") if apart else ("", f"{32 * c} + t * 8") %>\
    const int at = batch * YB + head * YH + row${r} * YS + ${first};
    const f32 share = ${"total%d == 0.0 ? 0.0 : " % r if context.get("zero_hidden", False) else ""}1.0 / total${r};
<% out = [f"share * acc{2 * c + i % 4 // 2}[{4 * r + i % 2 * 2 + i // 4}]" for i in range(8)]
if context.get("zero_nan", False):  # the sums of a row of NaN are NaN: no factor makes them zeros
    out = [f"(total{r} > 0.0 ? {each} : 0.0)" for each in out] %>
% if k.request.steps or apart:
% for i in range(8):
    ${y.store(f"at + {i}{step}", out[i])}
% endfor
% else:
    out4[at / 8] = uvec4(${", ".join(f"packFloat2x16(f16vec2({out[i]}, {out[i + 1]}))" for i in range(0, 8, 2))});
% endif
  }
% endfor
}
