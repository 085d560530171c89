## Resampling: outputs of size D. along ${rank} axes, from x at steps S.. For each index along a sampled axis, tables hold
## the indices of ${taps} elements of x and their weights; a negative index lies outside of the cropped region.
## Raw elements (nearest) or floats in NCHW, or (packed) pixels in NC4HW4. With `in_order`, the axes that it names are
## mixed one after the other, and each product and sum is rounded, so that the result is the reference's to the bit;
## `rounded` makes it a whole number.
<%
def load(at):
    return x.load4("n", "c", at) if packed else x.load(at)
inner = f"from{sampled[-1]}" if sampled else "from"
%>
${k.for_each("i", "TOTAL")} {
  int rest = i, from = 0;
% for d in reversed(range(rank)):
% if str(d) in sampled:
  const int at${d} = rest % D${d} * ${taps};
% else:
  from += rest % D${d} * S${d};
% endif
  rest /= D${d};
% endfor
% if packed:
  const int n = rest / BLOCKS, c = rest % BLOCKS, p = i % HW;
% endif
% if cropped:
  const bool outside = ${" || ".join(k.args[f"p{d}"].load(f"at{d}") + " < 0" for d in sampled)};
% endif
% if nearest:
% for d in sampled:
  from += ${k.args[f"p{d}"].load(f"at{d}")} * S${d};
% endfor
% if packed:
  f32x4 v = SPLAT(${"FILL" if cropped else "0.0"});
  ${"if (!outside) " if cropped else ""}v = ${load("from")};
  ${y.store4("n", "c", "p", "v")}
% elif cropped:
  if (outside) { ${y.move("i", k.args["fill"], "0")} } else { ${y.move("i", x, "from")} }
% else:
  ${y.move("i", x, "from")}
% endif
% elif in_order:
  f32 v${in_order[-1]} = 0.0;
% for outer, d in zip(("", *reversed(in_order)), reversed(in_order)):
% if outer:
    f32 v${d} = 0.0;
% endif
  for (int t${d} = at${d}; t${d} < at${d} + ${taps}; t${d}++) {
    const int from${d} = from${outer} + ${k.args[f"p{d}"].load(f"t{d}")} * S${d};
% endfor
<%
loaded = load(f"from{in_order[0]}")
%>
    ${f"const f32 element = outside ? 0.0 : {loaded};" if cropped else f"const f32 element = {loaded};"}
% for inner, d in zip(("", *in_order), in_order):
    v${d} = plus_product(v${d}, ${f"v{inner}" if inner else "element"}, ${k.args[f"w{d}"].load(f"t{d}")});
  }
% endfor
% if cropped:
  if (outside) v${in_order[-1]} = FILL;
% endif
  ${y.store("i", f"rint(v{in_order[-1]})" if rounded else f"v{in_order[-1]}")}
% else:
  ${"f32x4 v = SPLAT(0.0)" if packed else f"{k.number} v = 0.0"};
% for before, d in zip(("", *sampled), sampled):
  for (int t${d} = at${d}; t${d} < at${d} + ${taps}; t${d}++) {
    const int from${d} = from${before} + ${k.args[f"p{d}"].load(f"t{d}")} * S${d};
    const ${k.number} weight${d} = ${f"weight{before} * " if before else ""}${k.args[f"w{d}"].load(f"t{d}")};
% endfor
    ${"if (!outside) " if cropped else ""}v += weight${sampled[-1]} * ${load(inner)};
  ${"}" * len(sampled)}
% if cropped:
  if (outside) v = ${"SPLAT(FILL)" if packed else "FILL"};
% endif
  ${y.store4("n", "c", "p", "v") if packed else y.store("i", "v")}
% endif
}
