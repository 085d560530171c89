## Products of two matrices in fp16 on cooperative matrices, summed in fp32, with any strides. A subgroup of 32
## holds ${fm} x ${fn} tiles of 16 x 16 sums; ${sm} x ${sn} subgroups make a group's tile; ${lz} slices take turns with steps of ${depth} along
## K and are summed at the end. Meanwhile the operands of the next step are fetched into registers. `batch` axes of
## products have steps of their own, as in `matmul.mako`. The order of sums in an item is NVIDIA's, as in
## `attention_matrix.glsl.mako`.
<%
rows, cols, items = 16 * fm * sm, 16 * fn * sn, 32 * sm * sn
frags = [(i, j) for i in range(fm) for j in range(fn)]
meet = "WARP_BARRIER" if sm * sn == 1 else "BARRIER"
element = lambda i, j, e: f"acc{i}_{j}[{e}]"
k.needs_subgroup()
k.extension("GL_KHR_cooperative_matrix", "GL_KHR_memory_scope_semantics", "GL_KHR_shader_subgroup_basic",
            "GL_KHR_shader_subgroup_shuffle", "GL_EXT_shader_explicit_arithmetic_types_float16")
for of, name, is_wide in (("a", "a_vectors", a_wide), ("b", "b_vectors", b_wide)):
    if is_wide:
        k.view(of, "uvec4", name)
%>
<%include file="matrices.glsl.mako"/>
<%include file="staged_matrices.glsl.mako"/>
<%namespace name="parts" file="matmul_matrix.parts.mako"/>\
<%!
class language:
    """The statements of GLSL by which the shared parts put eight or two halves into work-group memory.

    A lies there in vectors of eight halves, B of four.
    """

    VECTOR, ZEROS = "uvec4", "uvec4(0)"

    @staticmethod
    def put(array, at, piece, eight):
        if array == "As":
            return f"As[{at} + {piece}] = {eight};"
        place = f"({at} + {piece}) * 2"
        return f"Bs[{place}] = {eight}.xy; Bs[{place} + 1] = {eight}.zw;"

    @staticmethod
    def put_apart(array, at, piece, eight):
        """Return those that put each second pair into each half of sixteen columns."""
        place = f"({at}) * 2 + ({piece}) / 2 * 4 + ({piece}) % 2"
        return f"Bs[{place}] = {eight}.xz; Bs[{place} + 2] = {eight}.yw;"

    @staticmethod
    def put_pair(array, at, pair, first, second):
        halves = f"packFloat2x16(f16vec2({first}, {second}))"
        place = f"{at} + {pair} / 4][{pair} % 4" if array == "As" else f"({at}) * 2 + {pair} / 2][{pair} % 2"
        return f"{array}[{place}] = {halves};"
%>\
<%
staged_a = parts.module.Staged("a", rows, depth, a_along, a_wide, items)
staged_b = parts.module.Staged("b", cols, depth, b_along, b_wide, items)
k.shared("uvec4", "As", f"{lz * staged_a.vectors}")
# Matrices are loaded from multiples of 16 bytes: all arrays have as many bytes, so that this one begins there, too.
k.shared("uvec2", "Bs", f"{2 * lz * staged_b.vectors}")
if lz > 1:
    k.shared("float", "Sum", f"{(lz - 1) * rows * cols}")
if not fours:
    k.shared("float", "Out", f"{sm * sn * 16 * result_pitch}")
%>\
<%def name="fetch(k0)">${parts.fetch(staged_a, a, k0, "a_vectors")}${parts.fetch(staged_b, b, k0, "b_vectors")}</%def>
const int lane = LOCAL_X, warp = LOCAL_Y, item = warp * 32 + lane;
const int warp_m = warp % ${sm}, warp_n = warp / ${sm}, a_stage = LOCAL_Z * ${staged_a.vectors}, b_stage = LOCAL_Z * ${staged_b.vectors};
${k.for_groups("number", "TILES")} {
${parts.places(rows, cols, batch)}
${parts.variables(staged_a, "uvec4")}${parts.variables(staged_b, "uvec4")}\
% for i, j in frags:
  MATRIX_OF_ZEROS(acc${i}_${j});
% endfor
${fetch(f"LOCAL_Z * {depth}")}
  for (int round = 0; round < ROUNDS; round++) {
    const int k0 = (round * ${lz} + LOCAL_Z) * ${depth};
${parts.put(staged_a, "k0", language)}
${parts.put(staged_b, "k0", language)}
    ${meet};
    if (round + 1 < ROUNDS) {
${fetch(f"k0 + {lz * depth}")}
    }
% for q in range(depth // 16):
    {
% for j in range(fn):
      MATRIX_B columns${j};
% if b_along:
      LOAD_B_TURNED(columns${j}, Bs, (b_stage + (warp_n * ${16 * fn} + ${16 * j}) * ${staged_b.pitch} + ${2 * q}) * 2, ${2 * staged_b.pitch});
% else:
      LOAD_B_NARROW(columns${j}, Bs, (b_stage + ${16 * q * staged_b.pitch + 2 * j} + warp_n * ${2 * fn}) * 2, ${2 * staged_b.pitch});
% endif
% endfor
% for i in range(fm):
      MATRIX_A rows${i};
% if a_along:
      LOAD_A_WIDE(rows${i}, As, a_stage + (warp_m * ${16 * fm} + ${16 * i}) * ${staged_a.pitch} + ${2 * q}, ${staged_a.pitch});
% else:
      LOAD_A_TURNED(rows${i}, As, a_stage + ${16 * q * staged_a.pitch + 2 * i} + warp_m * ${2 * fm}, ${staged_a.pitch});
% endif
% for j in range(fn):
      MULTIPLY_ADD(acc${i}_${j}, rows${i}, columns${j});
% endfor
% endfor
    }
% endfor
    ${meet};
  }
${parts.finish(k, y, fm, fn, sm, sn, lz, fours, result_pitch, element)}
}
