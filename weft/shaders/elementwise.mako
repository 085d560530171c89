## An expression of broadcast operands in NCHW. With rank 0 all operands have the output's shape; else
## D0.. are the sizes and <operand>_S0.. the strides of the collapsed axes.
<%
operands = [f"v{i}" if f"x{i}" in names else f"K{i}" for i in range(count)]
%>
${k.for_each("i", "TOTAL")} {
% if rank:
  int rest = i;
% for d in reversed(range(rank)):
  const int i${d} = ${"rest" if d == 0 else f"rest % D{d}"};
% if d:
  rest /= D${d};
% endif
% endfor
% endif
% for name in names:
<%
at = "i" if not rank else " + ".join(f"i{d} * {name}_S{d}" for d in range(rank))
%>
  const f32 v${name[1:]} = ${k.args[name].load(at)};
% endfor
  ${y.store("i", k.expand(expr, *operands))}
}
