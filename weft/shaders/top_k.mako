## Of each BLOCK elements of a line the KEEP best, in order, by counting how many are better: one item an element. A
## line has COUNT elements: in x, which has LENGTH a line and INNER lines side by side, those at the places `origin` if
## `narrowed`. Their places go to `places`, KEPT a line, where there is one, and if `last` the values to y. Of equals the
## first is better.
<%
sign = ">" if largest else "<"
if floats:
    nan, number = ("v", "w") if largest else ("w", "v")
    beats = f"(is_nan({nan}) && !is_nan({number})) || v {sign} w"
    equal = "v == w || (is_nan(v) && is_nan(w))"
else:
    upper = "{}" if x.arg.dtype.value == "uint64" else "TO_I32({})"
    beats = f"{upper.format('v_high')} {sign} {upper.format('w_high')} || (v_high == w_high && v {sign} w)"
    equal = "v_high == w_high && v == w"
%>
<%def name="fetch(name, e)">
% if narrowed:
  const int ${name}_place = ${k.args["origin"].load(f"line * COUNT + {e}")};
% else:
  const int ${name}_place = ${e};
% endif
  const int ${name}_at = base + ${name}_place * INNER;
% if floats:
  const real ${name} = ${x.load(f"{name}_at")};
% else:
  const uint ${name} = ${x.load(f"{name}_at")};
  const uint ${name}_high = ${x.load_high(f"{name}_at")};
% endif
</%def>
${k.for_each("i", "TOTAL")} {
  const int line = i / COUNT, e = i % COUNT;
  const int base = line / INNER * LENGTH * INNER + line % INNER;
  const int first = e / BLOCK * BLOCK, end = first + BLOCK < COUNT ? first + BLOCK : COUNT;
  ${fetch("w", "e")}
  int rank = 0;
  for (int other = first; other < end && rank < KEEP; other++) {
    ${fetch("v", "other")}
    rank += (${beats}) || ((${equal}) && other < e) ? 1 : 0;
  }
  if (rank < KEEP) {
% if last:
    const int to = (line / INNER * KEPT + rank) * INNER + line % INNER;
% if floats:
    ${k.args["y"].store("to", "w")}
% else:
    ${k.args["y"].store_pair("to", "w", "w_high")}
% endif
% else:
    const int to = line * KEPT + e / BLOCK * KEEP + rank;
% endif
% if k.has("places"):
    ${k.args["places"].store_int("to", "w_place")}
% endif
  }
}
