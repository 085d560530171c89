## x joined with the updates for its elements, in their order: one item an element of x looks at all that may be for it.
## Slices of INNER elements named by ${depth} indices along axes of sizes D. (scatter by slices, of COUNT), or along
## axis ${axis} of a tensor (scatter by elements, of sizes U. and steps V.; x has sizes D.). An update for a place outside
## is left out. Integers (`whole`) are pairs of 32-bit halves, and sums and products wrap; `wide` says that they are
## unsigned and have 64 bits.
<%namespace name="pairs" file="pairs.parts.mako"/>
<%def name="joined(place)">
% if not whole:
      const real u = ${updates.load(place)};
      v = ${floats.format("v", "u")};
% else:
      const uint u = ${updates.load(place)}, u_high = ${updates.load_high(place)};
% if join == "add":
      ${pairs.add("v", "v_high", "u", "u_high")}
% elif join == "mul":
      ${pairs.multiply("v", "v_high", "u", "u_high")}
% else:
<%
ours, theirs = ("v", "v_high"), ("u", "u_high")
first, second = (ours, theirs) if join == "max" else (theirs, ours)
%>
      if (${pairs.less(*first, *second, wide)}) {
        v = u;
        v_high = u_high;
      }
% endif
% endif
</%def>
${k.for_each("i", "TOTAL")} {
% if whole:
  uint v = ${x.load("i")}, v_high = ${x.load_high("i")};
% else:
  real v = ${x.load("i")};
% endif
% if axis < 0:
  const int inner = i % INNER, slice = i / INNER;
  for (int e = 0; e < COUNT; e++) {
    int to = 0;
    bool there = true;
% for d in range(depth):
    {
      const int at = ${places.place_inside(f"e * {depth} + {d}", f"D{d}")};
      there = there && at >= 0;
      to = to * D${d} + at;
    }
% endfor
    if (there && to == slice) {
      ${joined("e * INNER + inner")}
    }
  }
% else:
  int rest = i, from = 0, mine = 0;
  bool inside = true;
% for d in reversed(range(depth)):
  {
    const int at = rest % D${d};
% if d == axis:
    mine = at;
% else:
    inside = inside && at < U${d};
    from += at * V${d};
% endif
    rest /= D${d};
  }
% endfor
  if (inside) {
    for (int e = 0; e < U${axis}; e++) {
      if (${places.place_inside(f"from + e * V{axis}", f"D{axis}")} == mine) {
        ${joined(f"from + e * V{axis}")}
      }
    }
  }
% endif
% if whole:
  ${y.store_pair("i", "v", "v_high")}
% else:
  ${y.store("i", "v")}
% endif
}
