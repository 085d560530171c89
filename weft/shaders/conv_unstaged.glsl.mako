## Convolution in fp16 on cooperative matrices without work-group memory, for problems too small to fill a device: every
## subgroup of 32 holds ${fm} x ${fn} tiles of 16 x 16 sums of its own slice of K, and waits for memory once in ${ahead} chunks
## instead of once in each step. The layouts of matrices are NVIDIA's, as in `attention_matrix.glsl.mako`.
<%page args="parted=False, many=False"/>\
<%
k.needs_subgroup()
k.extension("GL_KHR_cooperative_matrix", "GL_KHR_memory_scope_semantics", "GL_KHR_shader_subgroup_basic",
            "GL_KHR_shader_subgroup_shuffle", "GL_EXT_shader_explicit_arithmetic_types_float16")
if sliced:
    k.shared("float", "Sum", f"(LZ - 1) * {fm * fn * 8 * 32}")
element = lambda i, j, e: f"acc{i}_{j}[{e}]"
%>
<%include file="matrices.glsl.mako"/>
<%namespace name="parts" file="conv_unstaged.parts.mako"/>
<%namespace name="pieces" file="pieces.glsl.mako"/>\
<%def name="fill(matrix, at, word)">{ const f16vec2 two = unpackFloat2x16(${word}); ${matrix}[${at}] = two.x; ${matrix}[${at + 1}] = two.y; }</%def>
<%def name="made(kind, name, vectors, step)">
      ${kind} ${name};
% for r, i in [(r, i) for r in range(2) for i in range(2)]:
      ${fill(name, 4 * r + 2 * i, f"{vectors}_{r}." + "xyzw"[2 * step + i])}
% endfor
</%def>
${parts.places(x, fm, fn, pointwise)}
% for i, j in [(i, j) for i in range(fm) for j in range(fn)]:
MATRIX_OF_ZEROS(acc${i}_${j});
% endfor
${parts.rounds(ahead, parted)}
  ${parts.fetch(x, fm, fn, ahead, pointwise, many, "x", "w", "uvec4", "uvec4(0)", pieces.module)}
% for u, step in [(u, step) for u in range(ahead) for step in range(2)]:
    {
% for j in range(fn):
      ${made("MATRIX_B", f"columns{j}", f"b{u}_{j}", step)}
% endfor
% for i in range(fm):
      ${made("MATRIX_A", f"rows{i}", f"v{u}_{i}", step)}
% for j in range(fn):
      MULTIPLY_ADD(acc${i}_${j}, rows${i}, columns${j});
% endfor
% endfor
    }
% endfor
}
% if sliced:
${parts.join(fm, fn, element)}
% endif
${parts.finish(k, y, fm, fn, element, parted)}
