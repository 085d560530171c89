## Product of rows (pixels with adjacent channels) and constant weights, by matrices that a whole work-group holds:
## ${rows} x ${columns} sums, K in steps of ${depth} and one of ${tail} at the end. The driver stages them in work-group memory. Loads
## and stores with bounds checks take twice the time, so there are none: the last tiles of rows and columns begin early
## enough to end inside, and compute some sums again. Fused steps see the sums one by one, and their operands as further
## matrices.
<%
sums = f"coopmat<float, gl_ScopeWorkgroup, {rows}, {columns}, gl_MatrixUseAccumulator>"
read = [("b", "0")] if k.has("b") else []
read += [(o.name, k.args[o.name].row_pitch("PLACES") if o.kind == "same" else "0") for o in y.operands()]
k.needs_subgroup()
k.extension("GL_KHR_cooperative_matrix", "GL_NV_cooperative_matrix2", "GL_KHR_memory_scope_semantics",
            "GL_EXT_shader_explicit_arithmetic_types_float16", "GL_EXT_shader_explicit_arithmetic_types_int32")
taken = "".join(f", const in float e_{name}" for name, _ in read)
loaded = {name: f"e_{name}" for name, _ in read}
k.function(f"float finish(const in uint32_t row, const in uint32_t column, const in float sum{taken}) {{ "
           + y.finish1("sum + e_b" if k.has("b") else "sum", loaded) + " }")
def stored(name):
    kind = "float16_t" if k.args[name].arg.dtype.itemsize == 2 else "float"
    return sums.replace("<float,", f"<{kind},")
%>
<%def name="layout(name, height, width, pitch)">
tensorLayoutNV<2> ${name} = createTensorLayoutNV(2);
${name} = setTensorLayoutDimensionNV(${name}, ${height}, ${width});
${name} = setTensorLayoutStrideNV(${name}, ${pitch}, 1);
</%def>
<%def name="multiply(at, count)">
  {
    coopmat<float16_t, gl_ScopeWorkgroup, ${rows}, ${count}, gl_MatrixUseA> of_rows;
    coopmat<float16_t, gl_ScopeWorkgroup, ${count}, ${columns}, gl_MatrixUseB> of_weights;
    coopMatLoadTensorNV(of_rows, x, x_O / 2, sliceTensorLayoutNV(as_x, row, ${rows}, ${at}, ${count}));
    coopMatLoadTensorNV(of_weights, w, 0, sliceTensorLayoutNV(as_w, ${at}, ${count}, column, ${columns}));
    total = coopMatMulAdd(of_rows, of_weights, total);
  }
</%def>
const uint row = min(uint(GROUP_Y) * ${rows}, ROWS - ${rows});
const uint column = COLUMNS % ${columns} == 0 ? uint(GROUP_X) * ${columns} : min(uint(GROUP_X) * ${columns}, COLUMNS - ${columns}) / 8 * 8;
${layout("as_x", "ROWS", "DEPTH", x.row_pitch("PLACES"))}
${layout("as_w", "DEPTH", "COLUMNS", "COLUMNS")}
${layout("as_y", "ROWS", "COLUMNS", y.row_pitch("PLACES"))}
${sums} total = ${sums}(0.0);
for (uint at = 0; at + ${depth} <= DEPTH; at += ${depth}) {
  ${multiply("at", depth)}
}
% if tail:
${multiply(f"DEPTH - {tail}", tail)}
% endif
% for name, pitch in read:
${layout(f"as_{name}", "ROWS", "COLUMNS", pitch)}
${stored(name)} at_${name};
coopMatLoadTensorNV(at_${name}, ${name}, ${name}_O, sliceTensorLayoutNV(as_${name}, row, ${rows}, column, ${columns}));
% endfor
% if read or y.has_steps():
coopMatPerElementNV(total, total, finish${"".join(f", {sums}(at_{name})" for name, _ in read)});
% endif
${stored("y")} result = ${stored("y")}(total);
coopMatStoreTensorNV(result, y, y_O, sliceTensorLayoutNV(as_y, row, ${rows}, column, ${columns}));
