## The slices of x at the COUNT places along an axis of SIZE, moved as bits, zeros where a place is -1.
${k.for_each("i", "TOTAL")} {
  const int inner = i % INNER, number = i / INNER % COUNT, outer = i / INNER / COUNT;
  const int at = ${places.load("number")};
  if (at < 0) {
    ${y.move("i", zero, "0")}
  } else {
    const int from = (outer * SIZE + at) * INNER + inner;
    ${y.move("i", x, "from")}
  }
% if k.has("sizes"):
  if (i == 0) {
% for d in range(rank):
% if d == axis:
    const int n${d} = ${count.load("0")};
% else:
    const int n${d} = D${d};
% endif
    ${k.args["sizes"].store_int(str(d), f"n{d}")}
% endfor
  }
% endif
}
