## Softmax or its logarithm along LINES adjacent lines of LENGTH elements: a team of work-items for each line, as many
## lines in a group as it has teams. An item keeps its share of the line in registers, so memory is read once: `each`
## vectors of four (or elements), a team apart. UNITS are the vectors, or elements, of a line. With `ahead`, all of it
## is loaded before anything is used, since a load takes longer than all else; an item that has no more of its line
## loads the last of it again.
<%namespace name="teams" file="team.parts.mako"/>
<%
kind, lanes = ("f32x4", (".x", ".y", ".z", ".w")) if fours else ("f32", ("",))
read = x.vector if fours else x.load
write = y.store_vector if fours else y.store
names = [[f"a{u}{lane}" for lane in lanes] for u in range(each)]
fits = [f"if ({u * team} < left)" for u in range(each)]
%>
const int place = LOCAL_X % ${team};
${k.for_groups("first", "LINES", f"(LX / {team})")} {
  const int line = first + LOCAL_X / ${team}, base = line * UNITS + place;
  const int left = line < LINES ? UNITS - place : 0;
  f32 top = -INFINITY_F, sum = 0.0;
% if ahead:
  const int start = (line < LINES ? line : LINES - 1) * UNITS;
% for u in range(each):
  ${kind} a${u} = ${read(f"start + (place + {u * team} < UNITS ? place + {u * team} : UNITS - 1)")};
% endfor
% endif
% for u in range(each):
% if not ahead:
  ${kind} a${u} = ${"SPLAT(0.0)" if fours else "0.0"};
% endif
  ${fits[u]} {
% if not ahead:
    a${u} = ${read(f"base + {u * team}")};
% endif
% for name in names[u]:
    top = fmax(top, ${name});
% endfor
  }
% endfor
  ${teams.join_all("top", "fmax({0}, {1})", "tops", team, shuffles)}
% for u in range(each):
  ${fits[u]} {
% for name in names[u]:
% if log:
    ${name} -= top;
    sum += exp(${name});
% else:
    ${name} = exp(${name} - top);
    sum += ${name};
% endif
% endfor
  }
% endfor
  ${teams.join_all("sum", "{0} + {1}", "sums", team, shuffles)}
  const f32 scale = ${"log(sum)" if log else "1.0 / sum"};
% for u in range(each):
  ${fits[u]} ${write(f"base + {u * team}", f"a{u} {'-' if log else '*'} scale")}
% endfor
% if not shuffles or team > 32:
  BARRIER;
% endif
}
