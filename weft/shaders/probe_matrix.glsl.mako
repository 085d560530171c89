## The microbenchmark of matrix units (`weft.backends.gpu.tuning.probe`): every subgroup multiplies tiles of 16 x 16 halves that
## it holds, and adds them to four tiles of sums.
<%
k.needs_subgroup()
k.extension("GL_KHR_cooperative_matrix", "GL_KHR_memory_scope_semantics", "GL_KHR_shader_subgroup_basic",
            "GL_KHR_shader_subgroup_shuffle", "GL_EXT_shader_explicit_arithmetic_types_float16")
tiles = range(4)
%>
<%include file="matrices.glsl.mako"/>
const int turns = ${rounds.load("0")};
const float16_t half_of = float16_t(${x.load("LOCAL_X")});
MATRIX_A rows;
MATRIX_B columns;
% for e in range(8):
rows[${e}] = half_of; columns[${e}] = half_of;
% endfor
% for c in tiles:
MATRIX_OF_ZEROS(sum${c});
% endfor
for (int turn = 0; turn < turns; turn++) {
% for c in tiles:
  MULTIPLY_ADD(sum${c}, rows, columns);
% endfor
}
${y.store("GLOBAL_ID % SLOTS", " + ".join(f"sum{c}[0]" for c in tiles))}
