## Images at the places of a grid: one item a place, for all CHANNELS. ${rank} axes of sizes L. and steps S.; PLACES a
## grid. Positions of pixels along an axis are SCALE. * (place + 1) + SHIFT; a place that is far, or no number, counts as
## one that is FAR away. The last axis comes first in the grid. What is no float is moved as bits, and `fill` where a
## place is outside.
<%
moved = x.arg.raw_bytes > 0
taps = {"nearest": 1, "linear": 2, "cubic": 4}[mode]
from itertools import product
near = "((1.25 * {0} - 2.25) * {0} * {0} + 1.0)"
far = "(((-0.75 * {0} + 3.75) * {0} - 6.0) * {0} + 3.0)"
%>
${k.for_each("i", "TOTAL")} {
  const int n = i / PLACES, p = i % PLACES;
% for d in range(rank):
  const real place${d} = ${grid.load(f"i * {rank} + {rank - 1 - d}")};
  real at${d} = SCALE${d} * (place${d} + 1.0) + SHIFT;
  at${d} = at${d} > -10000000.0 ? (at${d} < 10000000.0 ? at${d} : 10000000.0) : -10000000.0;
% if mode == "nearest":
  const real first${d} = rint(at${d});
% else:
  const real whole${d} = floor(at${d}), part${d} = at${d} - whole${d};
  const real first${d} = whole${d}${" - 1.0" if mode == "cubic" else ""};
% endif
% for t in range(taps):
  real u${d}_${t} = first${d} + ${t}.0;
% if padding == "reflection":
% if corners:
  if (L${d} == 1) u${d}_${t} = 0.0;
  else {
    const real turn = 2.0 * TO_REAL(L${d} - 1), from = u${d}_${t} - turn * floor(u${d}_${t} / turn);
    u${d}_${t} = from < turn - from ? from : turn - from;
  }
% else:
  {
    const real turn = 2.0 * TO_REAL(L${d}), from = u${d}_${t} + 0.5 - turn * floor((u${d}_${t} + 0.5) / turn);
    u${d}_${t} = (from < turn - from ? from : turn - from) - 0.5;
  }
% endif
% endif
% if padding == "zeros":
  const bool in${d}_${t} = u${d}_${t} >= 0.0 && u${d}_${t} < TO_REAL(L${d});
% endif
  u${d}_${t} = u${d}_${t} < 0.0 ? 0.0 : (u${d}_${t} < TO_REAL(L${d}) ? u${d}_${t} : TO_REAL(L${d} - 1));
  const int j${d}_${t} = TO_I32(u${d}_${t}) * S${d};
% if mode == "linear":
  const real w${d}_${t} = ${("1.0 - part%d" if t == 0 else "part%d") % d};
% elif mode == "cubic":
  const real w${d}_${t} = ${[far.format(f"(part{d} + 1.0)"), near.format(f"part{d}"), near.format(f"(1.0 - part{d})"), far.format(f"(2.0 - part{d})")][t]};
% endif
% endfor
% endfor
  for (int c = 0; c < CHANNELS; c++) {
    const int from = (n * CHANNELS + c) * PIXELS;
% if moved:
    const int to = (n * CHANNELS + c) * PLACES + p;
<%
index = " + ".join(["from", *(f"j{d}_0" for d in range(rank))])
inside = " && ".join(f"in{d}_0" for d in range(rank))
%>\
% if padding == "zeros":
    if (${inside}) { ${y.move("to", x, index)} } else { ${y.move("to", k.args["fill"], "0")} }
% else:
    ${y.move("to", x, index)}
% endif
% else:
    real v = 0.0;
% for ts in product(range(taps), repeat=rank):
<%
index = " + ".join(["from", *(f"j{d}_{t}" for d, t in enumerate(ts))])
weight = " * ".join([*(f"w{d}_{t}" for d, t in enumerate(ts) if mode != "nearest"), x.load(index)])
inside = " && ".join(f"in{d}_{t}" for d, t in enumerate(ts))
%>\
    ${f"if ({inside}) " if padding == "zeros" else ""}v += ${weight};
% endfor
    ${y.store("(n * CHANNELS + c) * PLACES + p", "v")}
% endif
  }
}
