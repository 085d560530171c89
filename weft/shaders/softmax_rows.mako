## Softmax or its logarithm along LINES adjacent lines of LENGTH elements: a team of work-items for each line, ROWS lines
## in a group. An item keeps its share of the line in registers, so memory is read once: `each` vectors of four (or
## elements), a team apart. UNITS are the vectors, or elements, of a line.
<%namespace name="teams" file="team.parts.mako"/>
<%
kind, lanes = ("f32x4", (".x", ".y", ".z", ".w")) if fours else ("f32", ("",))
read = x.vector if fours else x.load
write = y.store_vector if fours else y.store
names = [[f"a{u}{lane}" for lane in lanes] for u in range(each)]
fits = [f"if ({u * team} < left)" for u in range(each)]
%>
const int place = LOCAL_X % ${team};
for (int first = GROUP_X * ROWS; first < LINES; first += GROUPS_X * ROWS) {
  const int line = first + LOCAL_X / ${team}, base = line * UNITS + place;
  const int left = line < LINES ? UNITS - place : 0;
  f32 top = -INFINITY_F, sum = 0.0;
% for u in range(each):
  ${kind} a${u} = ${"SPLAT(0.0)" if fours else "0.0"};
  ${fits[u]} {
    a${u} = ${read(f"base + {u * team}")};
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
