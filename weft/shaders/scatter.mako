## Raw updates written to y at places: slices of INNER elements, each named by ${depth} indices along axes of sizes D.
## and steps S. (scatter by slices), or with axis ${axis} of a tensor of sizes U. (scatter by elements). An update for a
## place outside is left out. One item an element of the updates.
${k.for_each("i", "TOTAL")} {
% if axis < 0:
  const int run = i / INNER;
  int to = i % INNER;
  bool inside = true;
% for d in range(depth):
  {
    const int at = ${places.place_inside(f"run * {depth} + {d}", f"D{d}")};
    inside = inside && at >= 0;
    to += at * S${d};
  }
% endfor
% else:
  int rest = i, to = 0;
  bool inside = true;
% for d in reversed(range(depth)):
% if d == axis:
  {
    const int at = ${places.place_inside("i", f"D{d}")};
    inside = at >= 0;
    to += at * S${d};
  }
% else:
  to += rest % U${d} * S${d};
% endif
  rest /= U${d};
% endfor
% endif
  if (inside) { ${y.move("to", updates, "i")} }
}
