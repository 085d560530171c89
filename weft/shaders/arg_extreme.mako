<%namespace name="pairs" file="pairs.parts.mako"/>
## The index of the extreme along lines of LENGTH elements INNER apart; of equals the first or the last, and NaN beats
## all. Short lines: one work-item for each; long lines: one work-group for each, and a tree. Integers (not `floats`) are
## compared whole, as two halves.
<%
kind = "real" if floats else "uint"
halves = ("",) if floats else ("", "_high")
if not short:
    for half in halves:
        k.shared(kind, f"best{half}", "LX")
    k.shared("i32", "places", "LX")
first, step = ("0", "1") if short else ("LOCAL_X", "LX")
sign = ">" if greatest else "<"
wide = x.arg.dtype.value == "uint64"
%>
<%def name="better(at, than)">
% if floats:
(!is_nan(top) && (is_nan(v) || v ${sign} top)) || ((v == top || (is_nan(v) && is_nan(top))) && ${at} ${">" if last else "<"} ${than})\
% else:
${pairs.less("top", "top_high", "v", "v_high", wide) if greatest else pairs.less("v", "v_high", "top", "top_high", wide)} || (v == top && v_high == top_high && ${at} ${">" if last else "<"} ${than})\
% endif
</%def>
<%def name="fetch(name, at)">
  ${kind} ${name} = ${x.load(at)};
% if not floats:
  uint ${name}_high = ${x.load_high(at)};
% endif
</%def>
<%def name="take()">
% for half in halves:
      top${half} = v${half};
% endfor
</%def>
% if short:
${k.for_each("line", "LINES")} {
% else:
${k.for_groups("line", "LINES")} {
% endif
  const int base = line / INNER * LENGTH * INNER + line % INNER;
  int place = ${first} < LENGTH ? ${first} : 0;
  ${fetch("top", "base + place * INNER")}
  for (int e = ${first} + ${step}; e < LENGTH; e += ${step}) {
    ${fetch("v", "base + e * INNER")}
    if (${better("e", "place")}) {
      ${take()}
      place = e;
    }
  }
% if short:
  ${y.store_int("line", "place")}
% else:
% for half in halves:
  best${half}[LOCAL_X] = top${half};
% endfor
  places[LOCAL_X] = place;
  BARRIER;
  for (int width = LX / 2; width > 0; width /= 2) {
    if (LOCAL_X < width) {
% for half in halves:
      const ${kind} v${half} = best${half}[LOCAL_X + width];
% endfor
      const int at = places[LOCAL_X + width];
      if (${better("at", "place")}) {
        ${take()}
        place = at;
% for half in halves:
        best${half}[LOCAL_X] = top${half};
% endfor
        places[LOCAL_X] = at;
      }
    }
    BARRIER;
  }
  if (LOCAL_X == 0) {
    ${y.store_int("line", "place")}
  }
  BARRIER;
% endif
}
