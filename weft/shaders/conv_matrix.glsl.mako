## Convolution as an implicit GEMM on cooperative matrices: rows are output pixels, columns output channels,
## K runs over taps and blocks of four input channels. A subgroup of 32 holds ${fm} x ${fn} tiles of 16 x 16;
## ${sm} x ${sn} subgroups make a group's tile; LZ slices of K work side by side and are summed at the end.
## A step stages ${kb} blocks of K as fp16. Meanwhile the operands of the next step are fetched into registers,
## unconditionally, so that all loads are in flight together; pixels outside are set to zero later. If the channels of
## a pixel are adjacent and a multiple of eight (`wide`), 16 bytes are fetched at a time.
<%page args="parted=False, many=False"/>\
<%
rows, cols, items, depth = 16 * fm * sm, 16 * fn * sn, 32 * sm * sn, kb // 4
each = 2 if wide else 1
stride, fetched = (kb + 2) // each, rows * kb // each // items
w_stride, w_fetched = (cols // 4 + 2) // each, cols * kb // each // items
begin, end = ("begin", "end") if parted else ("0", "(STEPS + LZ - 1) / LZ")
image = " + GROUP_Z * (PIXELS / (OH * OW))" if parted else ""
frags = [(i, j) for i in range(fm) for j in range(fn)]
meet = "subgroupBarrier()" if sm * sn == 1 else "BARRIER"
k.needs_subgroup()
k.extension("GL_KHR_cooperative_matrix", "GL_KHR_memory_scope_semantics", "GL_KHR_shader_subgroup_basic",
            "GL_EXT_shader_explicit_arithmetic_types_float16")
piece = "uvec4" if wide else "f16vec4"
k.shared(piece, "As", f"LZ * {rows * stride}")
k.shared(piece, "Bs", f"LZ * {4 * kb * w_stride}")
if sliced:
    k.shared("float", "Sum", f"(LZ - 1) * {rows * cols}")
pixels = "coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA>"
weights = "coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseB>"
sums = "coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>"
by_rows = "gl_CooperativeMatrixLayoutRowMajor"
%>
<%namespace name="parts" file="conv_matrix.parts.mako"/>\
<%namespace name="im2col" file="im2col.parts.mako"/>\
<%namespace name="pieces" file="pieces.glsl.mako"/>\
<%def name="fetch(step)">${parts.fetch(x, step, kb, fetched, w_fetched, each, pointwise, many, "x", "w")}</%def>
const int lane = LOCAL_X, part = LOCAL_Y, item = part * 32 + lane;
const int part_m = part % ${sm}, part_n = part / ${sm};
const int a_base = LOCAL_Z * ${rows * stride}, b_base = LOCAL_Z * ${4 * kb * w_stride};
const int sum_base = part * ${256 * fm * fn}, column16 = GROUP_Y * ${cols // 16} + part_n * ${fn};
% for u in range(w_fetched):
const int bc${u} = (item + ${u * items}) % ${cols // 4 // each}, bk${u} = (item + ${u * items}) / ${cols // 4 // each};
const int from${u} = bk${u} * (WIDTH / ${each}) + GROUP_Y * ${cols // 4 // each} + bc${u}, to${u} = b_base + bk${u} * ${w_stride} + bc${u};
${piece} vb${u};
% endfor
${k.for_groups("tile", "TILES")} {
  const int first_row = tile * ${rows};
% for u in range(fetched):
  const int e${u} = item + ${u * items};
% if wide:
  const int ak${u} = e${u} % ${kb // 2} * 2, am${u} = e${u} / ${kb // 2}, row${u} = first_row + am${u};
% else:
  const int ak${u} = e${u} / ${rows}, am${u} = e${u} % ${rows}, row${u} = first_row + am${u};
% endif
  ${im2col.pixel(x, u, pointwise)}
  ${piece} va${u};
  bool inside${u};
${parts.variables(x, u, each)}\
% endfor
% for i, j in frags:
  ${sums} acc${i}_${j} = ${sums}(0.0);
% endfor
% if parted:
## With split K (`sum_parts.py`), group z computes EACH rounds and stores to images of its own.
  const int begin = GROUP_Z * EACH, end = min(begin + EACH, (STEPS + LZ - 1) / LZ);
% endif
  ${fetch("begin * LZ + LOCAL_Z" if parted else "LOCAL_Z")}
  for (int round = ${begin}; round < ${end}; round++) {
% for u in range(fetched):
${parts.apply(x, u, each, pieces.module)}\
    As[a_base + am${u} * ${stride} + ak${u} / ${each}] = inside${u} ? va${u} : ${piece}(0);
% endfor
% for u in range(w_fetched):
    Bs[to${u}] = vb${u};
% endfor
    ${meet};
    ${fetch("(round + 1) * LZ + LOCAL_Z")}
% for q in range(depth):
% for j in range(fn):
    ${weights} b${q}_${j};
    coopMatLoad(b${q}_${j}, Bs, b_base + ${16 * q * w_stride} + (part_n * ${4 * fn} + ${4 * j}) / ${each}, ${w_stride}, ${by_rows});
% endfor
% for i in range(fm):
    ${pixels} a${q}_${i};
    coopMatLoad(a${q}_${i}, As, a_base + (part_m * ${16 * fm} + ${16 * i}) * ${stride} + ${4 * q // each}, ${stride}, ${by_rows});
% for j in range(fn):
    acc${i}_${j} = coopMatMulAdd(a${q}_${i}, b${q}_${j}, acc${i}_${j});
% endfor
% endfor
% endfor
    ${meet};
  }
% if sliced:
  if (LOCAL_Z > 0) {
% for i, j in frags:
    coopMatStore(acc${i}_${j}, Sum, (LOCAL_Z - 1) * ${rows * cols} + sum_base + ${256 * (i * fn + j)}, 16, ${by_rows});
% endfor
  }
  BARRIER;
  for (int s = 0; LOCAL_Z == 0 && s < LZ - 1; s++) {
    ${sums} other;
% for i, j in frags:
    coopMatLoad(other, Sum, s * ${rows * cols} + sum_base + ${256 * (i * fn + j)}, 16, ${by_rows});
    acc${i}_${j} = acc${i}_${j} + other;
% endfor
  }
  BARRIER;
% endif
## An item has four channels of two pixels of a tile, thanks to the order of columns in `pack_weights`.
% for j in range(fn):
  if (LOCAL_Z == 0 && column16 * 4 + ${4 * j} + lane % 4 < COUNT) {
    const int block = column16 * 4 + ${4 * j} + lane % 4;
    const f32x4 bias = ${k.args["b"].load4("0", "block", "0") if k.has("b") else "SPLAT(0.0)"};
% for i, half in [(i, half) for i in range(fm) for half in range(2)]:
    {
      const int m = first_row + part_m * ${16 * fm} + ${16 * i + 8 * half} + lane / 4;
      const f32x4 sum = F4(${", ".join(f"acc{i}_{j}[{e + 4 * half}]" for e in range(4))}) + bias;
      if (m < PIXELS) ${y.store4("m / (OH * OW)" + image, "block", "m % (OH * OW)", "sum")}
    }
% endfor
  }
% endfor
}
