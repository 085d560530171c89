## An expression of broadcast operands in NCHW. With rank 0 all operands have the output's shape; otherwise D0.. are the
## sizes and <operand>_S0.. the strides of the collapsed axes, from the last one on. With `wide` a work-item computes four elements: sizes and
## strides count vectors, and operands that are not among `fours` are repeated along the last axis.
<%
operands = [f"v{i}" if f"x{i}" in names else f"K{i}" for i in range(count)]
single = [o for o in operands if o[0] == "K" or "x" + o[1:] not in fours]
result = k.expand4(expr, *(o + "!" if o in single else o for o in operands)) if wide else k.expand(expr, *operands)
%>
${k.for_each("i", "TOTAL")} {
% if rank:
  int rest = i;
% for d in range(rank):
  const int i${d} = ${"rest" if d == rank - 1 else f"rest % D{d}"};
% if d < rank - 1:
  rest /= D${d};
% endif
% endfor
% endif
% for name in names:
<%
at = "i" if not rank else " + ".join(f"i{d} * {name}_S{d}" for d in range(rank))
%>
% if name in fours:
  const f32x4 v${name[1:]} = ${k.args[name].vector(at)};
% else:
  const real v${name[1:]} = ${k.args[name].load(at)};
% endif
% endfor
  ${y.store_vector("i", result) if wide else y.store("i", result)}
}
