## What normalize_lines does, for LINES adjacent lines of LENGTH elements: a team of work-items for each line, ROWS lines
## in a group. An item keeps its share of the line in registers, so memory is read once: `each` vectors of four (or
## elements), a team apart. UNITS are the vectors, or elements, of a line.
<%namespace name="teams" file="team.parts.mako"/>
<%
kind, lanes = ("f32x4", (".x", ".y", ".z", ".w")) if fours else ("f32", ("",))
read = lambda a, at: a.vector(at) if fours else a.load(at)
write = y.store_vector if fours else y.store
held = [f"a{u}{lane}" for u in range(each) for lane in lanes]
fits = [f"if ({u * team} < left)" for u in range(each)]
%>
const int place = LOCAL_X % ${team};
for (int first = GROUP_X * ROWS; first < LINES; first += GROUPS_X * ROWS) {
  const int line = first + LOCAL_X / ${team}, base = line * UNITS + place;
  const int left = line < LINES ? UNITS - place : 0;
% for u in range(each):
  ${kind} a${u} = ${"SPLAT(0.0)" if fours else "0.0"};
  ${fits[u]} a${u} = ${read(x, f"base + {u * team}")};
% endfor
% if centred:
  f32 mean = ${" + ".join(held)};
  ${teams.join_all("mean", "{0} + {1}", "means", team, shuffles)}
  mean /= TO_F32(LENGTH);
% for u in range(each):
  ${fits[u]} a${u} -= mean;
% endfor
% endif
  f32 total = 0.0;
% for name in held:
  { const f32 v = ${name}; total += ${term}; }
% endfor
  ${teams.join_all("total", "{0} + {1}", "totals", team, shuffles)}
  const f32 factor = ${factor};
% for u in range(each):
  ${fits[u]} {
    const int at = base + ${u * team};
    ${kind} v = a${u} * factor;
% for name, sign in (("scale", "*"), ("shift", "+")):
% if k.has(name):
    v ${sign}= ${read(k.args[name], f"place + {u * team}" if name in whole else f"at % {name.upper()}_UNITS")};
% endif
% endfor
    ${write("at", "v")}
  }
% endfor
% for name, value in (("mean_out", "mean"), ("factor_out", "factor")):
% if k.has(name):
  if (place == 0 && left > 0) ${k.args[name].store("line", value)}
% endif
% endfor
% if not shuffles or team > 32:
  BARRIER;
% endif
}
