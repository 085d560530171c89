## An expression of operands in NC4HW4. A mode is name:batch:channel:pixel, where batch is n or 0 (repeated),
## channel is c or s (one channel, repeated), pixel is p or 1 (repeated).
<%
parts = [m.split(":") for m in modes]
names = [p[0] for p in parts]
operands = [f"v{i}" if f"x{i}" in names else f"K{i}!" for i in range(count)]
%>
${k.for_each("i", "TOTAL")} {
  ${k.split(y, "i", "HW", "BLOCKS")}
% for name, batch, channel, pixel in parts:
<%
value = k.args[name].load4(batch, "c" if channel == "c" else "0", "p" if pixel == "p" else "0")
%>
% if channel == "s":
  const f32x4 v${name[1:]} = SPLAT((${value}).x);
% else:
  const f32x4 v${name[1:]} = ${value};
% endif
% endfor
  ${y.store4("n", "c", "p", k.expand4(expr, *operands))}
}
