## (x - zero point) * scale. Integers are subtracted as such; a difference of int32 has its size in all 32 bits.
<%namespace name="parts" file="quantize.parts.mako"/>
<%
zero = k.args["zero"].load("at") if k.has("zero") else ""
number = f"({x.load('i')} - {zero})" if zero else x.load("i")
%>
${k.for_each("i", "TOTAL")} {
  ${parts.place()}
% if zero and x.arg.dtype.value == "int32":
  const int q = ${x.load("i")}, z = ${zero};
  const f32 v = q < z ? -TO_F32(TO_U32(z) - TO_U32(q)) : TO_F32(TO_U32(q) - TO_U32(z));
% else:
  const f32 v = ${number};
% endif
  ${y.store("i", f"v * {scale.load('at')}")}
}
