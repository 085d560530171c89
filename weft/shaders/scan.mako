<%namespace name="pairs" file="pairs.parts.mako"/>
## Running sums or products along lines of LENGTH elements INNER apart, of floats, or (`whole`) of integers as pairs of
## 32-bit halves. A work-item has a line, or (`team`) a work-group has one: each item joins a run of its elements, the
## group the results of its items, and then each item goes through its run again. With a `rank` the kernel reads the axis
## of the lines, one of D0.., and has TOTAL elements.
<%
if team:
    k.shared("uint" if whole else "real", "part", "LX")
    if whole:
        k.shared("uint", "part_high", "LX")
share = k.for_groups if team else k.for_each
length, inner = ("length", "inner") if rank else ("LENGTH", "INNER")
place = f"(base + ({f'{length} - 1 - e' if reverse else 'e'}) * {inner})"
%>
<%def name="fresh(name)">
% if whole:
  uint ${name} = START, ${name}_high = 0u;
% else:
  real ${name} = ${start};
% endif
</%def>
<%def name="joined(name, other)">
% if not whole:
  ${name} = ${name} ${join} ${other};
% elif join == "+":
${pairs.add(name, f"{name}_high", other, f"{other}_high")}
% else:
${pairs.multiply(name, f"{name}_high", other, f"{other}_high")}
% endif
</%def>
<%def name="read(name)">
% if whole:
    const uint ${name} = ${x.load(place)};
    const uint ${name}_high = ${x.load_high(place)};
% else:
    const real ${name} = ${x.load(place)};
% endif
</%def>
<%def name="written(name)">
% if whole:
    ${y.store_pair(place, name, f"{name}_high")}
% else:
    ${y.store(place, name)}
% endif
</%def>
% if rank:
const int given = ${k.args["which"].load("0")}, axis = given < 0 ? given + ${rank} : given;
const int length = ${" : ".join(f"axis == {d} ? D{d}" for d in range(rank - 1))} : D${rank - 1};
const int inner = ${" : ".join(f"axis == {d} ? {' * '.join(f'D{e}' for e in range(d + 1, rank))}" for d in range(rank - 1))} : 1;
const int lines = TOTAL / length;
% endif
${share("line", "lines" if rank else "LINES")} {
  const int base = line / ${inner} * ${length} * ${inner} + line % ${inner};
  ${fresh("acc")}
% if team:
  const int run = (${length} + LX - 1) / LX, first = LOCAL_X * run, last = first + run < ${length} ? first + run : ${length};
  for (int e = first; e < last; e++) {
    ${read("v")}
    ${joined("acc", "v")}
  }
  part[LOCAL_X] = acc;
% if whole:
  part_high[LOCAL_X] = acc_high;
% endif
  BARRIER;
  for (int step = 1; step < LX; step *= 2) {
    ${fresh("before")}
    if (LOCAL_X >= step) {
      before = part[LOCAL_X - step];
% if whole:
      before_high = part_high[LOCAL_X - step];
% endif
    }
    BARRIER;
    ${joined("acc", "before")}
    part[LOCAL_X] = acc;
% if whole:
    part_high[LOCAL_X] = acc_high;
% endif
    BARRIER;
  }
  acc = LOCAL_X > 0 ? part[LOCAL_X - 1] : ${"START" if whole else start};
% if whole:
  acc_high = LOCAL_X > 0 ? part_high[LOCAL_X - 1] : 0u;
% endif
  BARRIER;
% else:
  const int first = 0, last = ${length};
% endif
  for (int e = first; e < last; e++) {
    ${read("v")}
% if exclusive:
    ${written("acc")}
    ${joined("acc", "v")}
% else:
    ${joined("acc", "v")}
    ${written("acc")}
% endif
  }
}
