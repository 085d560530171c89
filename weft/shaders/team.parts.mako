## Join one value of each work-item of a team, so that all of them have the result: by shuffles between the 32 items of a
## subgroup if the device can, else through the work-group memory `array`. A team of more than 32 (or 16) items joins in
## two steps. There are at most two barriers; the next call must name another array.
<%def name="join_all(value, join, array, team, shuffles)">
<%
near = min(team, 32 if shuffles else 16)
far = team // near
if near > 1 and not shuffles:
    k.shared("f32", array, "LX")
if far > 1:
    k.shared("f32", f"{array}_far", f"LX / {near}")
%>
% if shuffles:
% for bit in range(near.bit_length() - 1):
  {
    const f32 other = ${k.exchange(value, 1 << bit)};
    ${value} = ${join.format(value, "other")};
  }
% endfor
% elif near > 1:
  ${array}[LOCAL_X] = ${value};
  BARRIER;
  ${value} = ${array}[LOCAL_X / ${near} * ${near}];
  for (int j = 1; j < ${near}; j++) {
    const f32 other = ${array}[LOCAL_X / ${near} * ${near} + j];
    ${value} = ${join.format(value, "other")};
  }
% endif
% if far > 1:
  if (LOCAL_X % ${near} == 0) ${array}_far[LOCAL_X / ${near}] = ${value};
  BARRIER;
  ${value} = ${array}_far[LOCAL_X / ${team} * ${far}];
  for (int j = 1; j < ${far}; j++) {
    const f32 other = ${array}_far[LOCAL_X / ${team} * ${far} + j];
    ${value} = ${join.format(value, "other")};
  }
% endif
</%def>
