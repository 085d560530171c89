## Convolution as an implicit GEMM on cooperative matrices: rows are output pixels, columns output channels,
## K runs over taps and blocks of four input channels. A subgroup of 32 holds ${fm} x ${fn} tiles of 16 x 16;
## ${sm} x ${sn} subgroups make a group's tile, LZ slices of K work side by side and are summed at the end.
## Each step stages ${kb} blocks of K as fp16: items fetch the next step into registers meanwhile.
<%
rows, cols, items = 16 * fm * sm, 16 * fn * sn, 32 * sm * sn
a_stride, b_stride = kb + 2, cols // 4 + 2
fetched_a, fetched_b = rows * kb // items, kb * cols // items
frags = [(i, j) for i in range(fm) for j in range(fn)]
k.extension("GL_KHR_cooperative_matrix", "GL_KHR_memory_scope_semantics", "GL_KHR_shader_subgroup_basic",
            "GL_EXT_shader_explicit_arithmetic_types_float16")
k.shared("f16vec4", "As", f"LZ * {rows * a_stride}")
k.shared("f16vec4", "Bs", f"LZ * {4 * kb * b_stride}")
k.shared("float", "Cs", f"{sm * sn * 320}")
if sliced:
    k.shared("float", "Sum", f"(LZ - 1) * {rows * cols}")
%>
<%def name="fetch(step)">
% for u in range(fetched_a):
  {
    const int kk = (${step}) * ${kb} + ak${u};
    va${u} = f16vec4(0.0);
% if pointwise:
    if (row${u} < PIXELS && kk < C4) va${u} = ${x.raw4(f"an{u}", "kk", f"ap{u}")};
% else:
    const int tap = kk / C4, ih = ah${u} + tap / KW * DH, iw = aw${u} + tap % KW * DW;
    if (row${u} < PIXELS && tap < KH * KW && ih >= 0 && ih < IH && iw >= 0 && iw < IW)
      va${u} = ${x.raw4(f"an{u}", "kk % C4", "ih * IW + iw")};
% endif
  }
% endfor
% for u in range(fetched_b):
  vb${u} = (${step}) < STEPS ? w[(${step}) * ${4 * kb} * WIDTH + bfrom${u}] : f16vec4(0.0);
% endfor
</%def>
const int lane = LOCAL_X, part = LOCAL_Y, item = part * 32 + lane;
const int part_m = part % ${sm}, part_n = part / ${sm};
const int a_base = LOCAL_Z * ${rows * a_stride}, b_base = LOCAL_Z * ${4 * kb * b_stride};
const int column0 = GROUP_Y * ${cols // 4};
% for u in range(fetched_b):
const int bcolumn${u} = (item + ${u * items}) % ${cols // 4}, brow${u} = (item + ${u * items}) / ${cols // 4};
const int bfrom${u} = brow${u} * WIDTH + column0 + bcolumn${u}, bto${u} = b_base + brow${u} * ${b_stride} + bcolumn${u};
f16vec4 vb${u};
% endfor
for (int tile = GROUP_X; tile < TILES; tile += GROUPS_X) {
  const int first_row = tile * ${rows};
% for u in range(fetched_a):
  const int ak${u} = (item + ${u * items}) / ${rows}, am${u} = (item + ${u * items}) % ${rows}, row${u} = first_row + am${u};
  const int an${u} = row${u} / (OH * OW), ap${u} = row${u} % (OH * OW);
% if not pointwise:
  const int ah${u} = ap${u} / OW * SH - PH, aw${u} = ap${u} % OW * SW - PW;
% endif
  f16vec4 va${u};
% endfor
% for i, j in frags:
  coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator> acc${i}_${j} =
    coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>(0.0);
% endfor
  ${fetch("LOCAL_Z")}
  for (int round = 0; round < (STEPS + LZ - 1) / LZ; round++) {
% for u in range(fetched_a):
    As[a_base + am${u} * ${a_stride} + ak${u}] = va${u};
% endfor
% for u in range(fetched_b):
    Bs[bto${u}] = vb${u};
% endfor
    BARRIER;
    ${fetch("(round + 1) * LZ + LOCAL_Z")}
% for kk in range(kb // 4):
    {
% for i in range(fm):
      coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA> a${i};
      coopMatLoad(a${i}, As, a_base + (part_m * ${16 * fm} + ${16 * i}) * ${a_stride} + ${4 * kk}, ${a_stride}, gl_CooperativeMatrixLayoutRowMajor);
% endfor
% for j in range(fn):
      coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseB> b${j};
      coopMatLoad(b${j}, Bs, b_base + ${16 * kk * b_stride} + (part_n * ${16 * fn} + ${16 * j}) / 4, ${b_stride}, gl_CooperativeMatrixLayoutRowMajor);
% endfor
% for i, j in frags:
      acc${i}_${j} = coopMatMulAdd(a${i}, b${j}, acc${i}_${j});
% endfor
    }
% endfor
    BARRIER;
  }
% if sliced:
    if (LOCAL_Z > 0) {
% for i, j in frags:
      coopMatStore(acc${i}_${j}, Sum, ((LOCAL_Z - 1) * ${sm * sn} + part) * ${256 * fm * fn} + ${256 * (i * fn + j)}, 16, gl_CooperativeMatrixLayoutRowMajor);
% endfor
    }
    BARRIER;
    if (LOCAL_Z == 0) {
      for (int s = 0; s < LZ - 1; s++) {
% for i, j in frags:
        {
          coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator> other;
          coopMatLoad(other, Sum, (s * ${sm * sn} + part) * ${256 * fm * fn} + ${256 * (i * fn + j)}, 16, gl_CooperativeMatrixLayoutRowMajor);
          acc${i}_${j} = acc${i}_${j} + other;
        }
% endfor
      }
    }
% endif
  if (LOCAL_Z == 0) {
    const int c_base = part * 320;
% for i, j in frags:
    coopMatStore(acc${i}_${j}, Cs, c_base, 20, gl_CooperativeMatrixLayoutRowMajor);
    subgroupBarrier();
    for (int u = 0; u < 2; u++) {
      const int m = first_row + part_m * ${16 * fm} + ${16 * i} + lane % 16;
      const int v = lane / 16 + u * 2, column = column0 + (part_n * ${16 * fn} + ${16 * j}) / 4 + v;
      if (m < PIXELS && column < COUNT) {
        const int at = c_base + lane % 16 * 20 + v * 4, block = column;
        const f32x4 sum = F4(Cs[at], Cs[at + 1], Cs[at + 2], Cs[at + 3])${' + ' + k.args["b"].load4("0", "block", "0") if k.has("b") else ""};
        ${y.store4("m / (OH * OW)", "block", "m % (OH * OW)", "sum")}
      }
    }
    subgroupBarrier();
% endfor
  }
  BARRIER;
}
