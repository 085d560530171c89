## Winograd's transform of the input: a work-item transforms four channels of a patch, which overlaps its neighbours. The
## matrix of `rows` times the patch times the matrix's transpose gives v[point][block][patch].
<%namespace name="winograd" file="winograd.parts.mako"/>
<%
combine, size = winograd.module.combine, len(rows)
each = range(size)
%>
${k.for_each("e", "TOTAL")} {
${winograd.place(x)}\
  if (block < BLOCKS) {
    const int top = th * STEP - PH, left = tw * STEP - PW;
% for c in each:
    f32x4 ${", ".join(f"t{r}_{c}" for r in each)};
    {
      const int iw = left + ${c};
% for r in each:
      const int ih${r} = top + ${r};
      const bool inside${r} = ih${r} >= 0 && ih${r} < IH && iw >= 0 && iw < IW;
      const f32x4 v${r} = ${x.vector("inside%d ? %s : 0" % (r, x.place4("n", "block", f"ih{r} * IW + iw")))};
      const f32x4 d${r} = inside${r} ? v${r} : SPLAT(0.0);
% endfor
% for r in each:
      t${r}_${c} = ${combine(rows[r], [f"d{i}" for i in each])};
% endfor
    }
% endfor
% for r in each:
% for c in each:
<% sum = combine(rows[c], [f"t{r}_{i}" for i in each]) %>\
    ${v.store_vector(f"({r * size + c} * BLOCKS + block) * PATCHES + spot", sum)}
% endfor
% endfor
  }
}
