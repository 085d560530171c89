## Winograd's transform of the products: a work-item computes four channels of a patch of pixels: the matrix of `rows`
## times m[point][block][patch] times the matrix's transpose.
<%namespace name="winograd" file="winograd.parts.mako"/>
<%
combine, size, made = winograd.module.combine, len(rows[0].split()), range(len(rows))
each = range(size)
%>
${k.for_each("e", "TOTAL")} {
${winograd.place(y)}\
  if (block < BLOCKS) {
    const f32x4 bias = ${k.args["b"].load4("0", "block", "0") if k.has("b") else "SPLAT(0.0)"};
% for c in each:
    f32x4 ${", ".join(f"t{r}_{c}" for r in made)};
    {
% for r in each:
      const f32x4 d${r} = ${m.vector(f"({r * size + c} * BLOCKS + block) * PATCHES + spot")};
% endfor
% for r in made:
      t${r}_${c} = ${combine(rows[r], [f"d{i}" for i in each])};
% endfor
    }
% endfor
% for r in made:
% for c in made:
    if (th * ${len(made)} + ${r} < OH && tw * ${len(made)} + ${c} < OW) {
      const f32x4 sum = ${combine(rows[c], [f"t{r}_{i}" for i in each])} + bias;
      ${y.store4("n", "block", f"(th * {len(made)} + {r}) * OW + tw * {len(made)} + {c}", "sum")}
    }
% endfor
% endfor
  }
}
