## Convolution in fp32 as an implicit GEMM on cooperative matrices of halves: rows are output pixels, columns output
## channels, K runs over taps and blocks of four input channels; the work is divided as in `conv_matrix.glsl.mako`.
## A step stages ${kb} blocks of K, each number as two halves, hi and lo (`halves.py`): weights are packed so, activations
## are split here. The sums of a step, hi lo + lo hi and then hi hi, are added up outside of the matrix units, whose own
## sums are rounded toward zero.
<%
rows, cols, items, depth = 16 * fm * sm, 16 * fn * sn, 32 * sm * sn, kb // 4
stride, fetched = kb + 2, rows * kb // items
w_stride, w_fetched = cols // 8 + 1, cols * kb // items
a_plane, b_plane = rows * stride, 4 * kb * w_stride
frags = [(i, j) for i in range(fm) for j in range(fn)]
meet = "WARP_BARRIER" if sm * sn == 1 else "BARRIER"
k.needs_subgroup()
k.extension("GL_KHR_cooperative_matrix", "GL_KHR_memory_scope_semantics", "GL_KHR_shader_subgroup_basic",
            "GL_EXT_shader_explicit_arithmetic_types_float16")
k.shared("uvec2", "As", f"LZ * {2 * a_plane}")
k.shared("uvec4", "Bs", f"LZ * {2 * b_plane}")
if sliced:
    k.shared("float", "Sum", f"(LZ - 1) * {rows * cols}")
%>
<%include file="matrices.glsl.mako"/>
<%namespace name="parts" file="conv_split.parts.mako"/>
<%def name="multiply(a, b)">
% for i, j in frags:
    MULTIPLY_ADD(acc${i}_${j}, ${a}${i}, ${b}${j});
% endfor
</%def>
${parts.who("uvec4")}
const int a_at = a_base + part_m * ${16 * fm * stride}, b_at = b_base + part_n * ${2 * fn};
${k.for_groups("tile", "TILES")} {
  ${parts.pixels()}
% for i, j in frags:
  MATRIX_OF_ZEROS(sum${i}_${j});
% endfor
  ${parts.fetch("LOCAL_Z", "w")}
  for (int round = 0; round < (STEPS + LZ - 1) / LZ; round++) {
% for u in range(fetched):
    {
      const vec4 a = inside${u} ? va${u} * ${scale} : vec4(0.0);
      const uvec2 high = uvec2(packHalf2x16(a.xy), packHalf2x16(a.zw));
      // NVIDIA's compiler takes unpackHalf2x16(packHalf2x16(a)) for a, which it is not. It cannot tell that this is 0.
      const uint veil = floatBitsToUint(a.x) == 0x7fc5eed1u ? 1u : 0u; // 1 for one NaN among millions
      const vec4 rest = (a - vec4(unpackHalf2x16(high.x ^ veil), unpackHalf2x16(high.y ^ veil))) * 2048.0;
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
    ${parts.fetch("(round + 1) * LZ + LOCAL_Z", "w")}
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
${parts.finish(lambda i, j, e: f"sum{i}_{j}[{e}]")}
}
