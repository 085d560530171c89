## x joined with the updates for its elements, in their order: one item an element of x looks at all that may be for it.
## Slices of INNER elements named by ${depth} indices along axes of sizes D. (scatter by slices, of COUNT), or along
## axis ${axis} of a tensor (scatter by elements, of sizes U. and steps V.; x has sizes D.). An update for a place outside
## is left out.
${k.for_each("i", "TOTAL")} {
  f32 v = ${x.load("i")};
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
      const f32 u = ${updates.load("e * INNER + inner")};
      v = ${join.format("v", "u")};
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
        const f32 u = ${updates.load(f"from + e * V{axis}")};
        v = ${join.format("v", "u")};
      }
    }
  }
% endif
  ${y.store("i", "v")}
}
