## Where: raw elements of a where the condition holds, else of b, all three broadcast to the output's axes D, from the last one on.
<%
def at(name):
    return " + ".join(f"i{d} * {name}_S{d}" for d in range(rank))
%>
${k.for_each("i", "TOTAL")} {
  int rest = i;
% for d in range(rank):
  const int i${d} = rest % D${d};
  rest /= D${d};
% endfor
  if (${condition.load(at("condition"))} != 0) { ${y.move("i", a, at("a"))} } else { ${y.move("i", b, at("b"))} }
}
