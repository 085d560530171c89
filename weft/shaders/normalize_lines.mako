## Normalization in NCHW of lines of R0 x R1 x R2 elements at steps RS., over K0 x K1 x K2 lines at steps KS..:
## (x - mean) * factor * scale + shift, the last two with each element repeated INNER times. `term` is the summand of an
## element v, `factor` follows from the total. Short lines: one work-item for each; long lines: one work-group for each.
<%
if not short:
    k.shared("real", "part", "LX")
first, step = ("0", "1") if short else ("LOCAL_X", "LX")
where = "base + e / (R1 * R2) * RS0 + e / R2 % R1 * RS1 + e % R2 * RS2"
%>
<%def name="sum(value, expr)">
  real ${value} = 0.0;
  for (int e = ${first}; e < LENGTH; e += ${step}) {
    const real v = ${x.load(where)}${" - mean" if centred and value != "mean" else ""};
    ${value} += ${expr};
  }
% if not short:
  part[LOCAL_X] = ${value};
  BARRIER;
  for (int width = LX / 2; width > 0; width /= 2) {
    if (LOCAL_X < width) part[LOCAL_X] += part[LOCAL_X + width];
    BARRIER;
  }
  ${value} = part[0];
  BARRIER;
% endif
</%def>
% if short:
${k.for_each("line", "LINES")} {
% else:
${k.for_groups("line", "LINES")} {
% endif
  const int base = line / (K1 * K2) * KS0 + line / K2 % K1 * KS1 + line % K2 * KS2;
% if centred:
  ${sum("mean", "v")}
  mean /= TO_REAL(LENGTH);
% endif
  ${sum("total", term)}
  const real factor = ${factor};
  for (int e = ${first}; e < LENGTH; e += ${step}) {
    const int at = ${where};
    real v = ${x.load("at")};
% if centred:
    v -= mean;
% endif
    v *= factor;
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
  if (LOCAL_X == 0)
% endif
  ${k.args[name].store("line", value)}
% endif
% endfor
}
