## x / scale as an integer, rounded to nearest even, plus a zero point, in its type's limits; or as a float.
<%namespace name="parts" file="quantize.parts.mako"/>
${k.for_each("i", "TOTAL")} {
  ${parts.place()}
  const f32 number = ${x.load("i")}, step = ${scale.load("at")};
  ${parts.divide("v", "number", "step")}
% if rounded:
  v = rint(v);
% endif
% if k.has("zero"):
  v += ${k.args["zero"].load("at")};
% endif
% if rounded:
  v = v > ${least} ? (v < ${most} ? v : ${most}) : ${least}; // NaN is the least
% elif float(most):
  v = fmin(fmax(v, ${least}), ${most});
% endif
  ${y.store("i", "v")}
}
