## What normalize_lines does, for LINES adjacent lines of LENGTH elements: a team of work-items for each line, as many
## lines in a group as it has teams. An item keeps its share of the line in registers, so memory is read once: `each`
## vectors of four (or elements), a team apart. UNITS are the vectors, or elements, of a line. With `ahead`, all is
## loaded before anything is used, since a load takes longer than all else; an item that has no more of its line then
## loads the last of it again.
<%namespace name="teams" file="team.parts.mako"/>
<%
kind, lanes, zero = ("f32x4", (".x", ".y", ".z", ".w"), "SPLAT(0.0)") if fours else ("f32", ("",), "0.0")
read = lambda a, at: a.vector(at) if fours else a.load(at)
write = y.store_vector if fours else y.store
held = [f"a{u}{lane}" for u in range(each) for lane in lanes]
fits = [f"if ({u * team} < left)" for u in range(each)]
steps = [(name, sign) for name, sign in (("scale", "*"), ("shift", "+")) if k.has(name)]
def parameter(name, place, at):
    return read(k.args[name], place if name in whole else f"({at}) % {name.upper()}_UNITS")
%>
const int place = LOCAL_X % ${team};
${k.for_groups("first", "LINES", f"(LX / {team})")} {
  const int line = first + LOCAL_X / ${team}, base = line * UNITS + place;
  const int left = line < LINES ? UNITS - place : 0;
% if ahead:
  const int start = (line < LINES ? line : LINES - 1) * UNITS;
% for u in range(each):
  const int p${u} = place + ${u * team} < UNITS ? place + ${u * team} : UNITS - 1;
  const ${kind} x${u} = ${read(x, f"start + p{u}")};
% endfor
% for u in range(each):
% for name, _ in steps:
  const ${kind} ${name}${u} = ${parameter(name, f"p{u}", f"start + p{u}")};
% endfor
% endfor
% for u in range(each):
  ${kind} a${u} = ${u * team} < left ? x${u} : ${zero};
% endfor
% else:
% for u in range(each):
  ${kind} a${u} = ${zero};
  ${fits[u]} a${u} = ${read(x, f"base + {u * team}")};
% endfor
% endif
% if centred:
  f32 mean = ${" + ".join(held)};
  ${teams.join_all("mean", "{0} + {1}", "means", team, shuffles)}
  mean /= TO_REAL(LENGTH);
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
    ${kind} v = a${u} * factor;
% for name, sign in steps:
    v ${sign}= ${f"{name}{u}" if ahead else parameter(name, f"place + {u * team}", f"base + {u * team}")};
% endfor
    ${write(f"base + {u * team}", "v")}
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
