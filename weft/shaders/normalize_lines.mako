## Normalization in NCHW of lines of R0 x R1 x R2 elements at steps RS., over K0 x K1 x K2 lines at steps KS..:
## (x - mean) * factor * scale + shift, the last two with each element repeated INNER times. `term` is the summand of an
## element v, `factor` follows from the total; with `spread` each element becomes the factor. Short lines: one work-item
## for each; long lines: one work-group for each or, where there are `moments` (line_moments.mako), SPANS of them, with
## SPAN elements each.
<%namespace name="lines" file="lines.parts.mako"/>
<%namespace name="tree" file="tree.parts.mako"/>
<%
if not short:
    k.shared("real", "part", "LX")
first, step, end = ("0", "1", "LENGTH") if short else ("LOCAL_X", "LX", "LENGTH")
spans = k.has("moments")
if spans:
    first, end = "start + LOCAL_X", "end"
%>
% if short:
${k.for_each("line", "LINES")} {
% elif spans:
${k.for_groups("g", "LINES * SPANS")} {
  const int line = g / SPANS, start = g % SPANS * SPAN, end = min(start + SPAN, LENGTH), held = line * SPANS * 2;
% else:
${k.for_groups("line", "LINES")} {
% endif
  ${lines.base("line")}
% if spans:
% if centred:
  real mean = 0.0;
  for (int s = LOCAL_X; s < SPANS; s += LX) mean += TO_REAL(min(SPAN, LENGTH - s * SPAN)) * ${k.args["moments"].load("held + s * 2")};
  ${tree.sum("mean")}
  mean /= TO_REAL(LENGTH);
% endif
  real total = 0.0;
  for (int s = LOCAL_X; s < SPANS; s += LX) {
    total += ${k.args["moments"].load("held + s * 2 + 1")};
% if centred:
    const real apart = ${k.args["moments"].load("held + s * 2")} - mean;
    total += TO_REAL(min(SPAN, LENGTH - s * SPAN)) * apart * apart;
% endif
  }
  ${tree.sum("total")}
% else:
% if centred:
  ${lines.add("mean", "v", first, step, end, "", not short)}
  mean /= TO_REAL(LENGTH);
% endif
  ${lines.add("total", term, first, step, end, " - mean" if centred else "", not short)}
% endif
  const real factor = ${factor};
  for (int e = ${first}; e < ${end}; e += ${step}) {
    const int at = ${lines.place("e")};
% if spread:
    real v = factor;
% else:
    real v = ${x.load("at")};
% if centred:
    v -= mean;
% endif
    v *= factor;
% endif
% for name, sign in (("scale", "*"), ("shift", "+")):
% if k.has(name):
    v ${sign}= ${k.args[name].load(f"at / INNER % {name.upper()}_SIZE")};
% endif
% endfor
    ${y.store("at", "v")}
  }
% for name, value in (("mean_out", "mean"), ("factor_out", "factor")):
% if k.has(name):
% if not short:
  if (LOCAL_X == 0${" && start == 0" if spans else ""})
% endif
  ${k.args[name].store("line", value)}
% endif
% endfor
}
