## Elements of x at given indices along one axis of SIZE: INNER elements for each index, COUNT indices for each slice.
## Floats are loaded and stored one by one (linear) or in fours, so that steps can be fused; others are moved as bits.
## An index out of range reads the nearest element, so that nothing outside is read.
${k.for_each("i", "TOTAL")} {
  const int inner = i % INNER, number = i / INNER % COUNT, slice = i / INNER / COUNT;
  const int at = ${places.nearest_place("number", "SIZE")};
  const int from = (slice * SIZE + at) * INNER + inner;
% if kind == "linear":
  ${y.store("i", x.load("from"))}
% elif kind == "fours":
  ${y.store_vector("i", x.vector("from"))}
% else:
  ${y.move("i", x, "from")}
% endif
}
