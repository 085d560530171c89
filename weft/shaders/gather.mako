## Elements of x at given places along one axis of SIZE: INNER elements for each place, COUNT places a slice. Floats
## are loaded and stored, for what is fused behind it, one by one (linear) or in fours; others are moved as bits.
## Places outside are taken for the nearest inside, so that nothing else is read.
${k.for_each("i", "TOTAL")} {
  const int inner = i % INNER, number = i / INNER % COUNT, slice = i / INNER / COUNT;
  int at = ${places.load("number")};
  at = at < 0 ? at + SIZE : at;
  at = at < 0 ? 0 : (at < SIZE ? at : SIZE - 1);
  const int from = (slice * SIZE + at) * INNER + inner;
% if kind == "linear":
  ${y.store("i", x.load("from"))}
% elif kind == "fours":
  ${y.store_vector("i", x.vector("from"))}
% else:
  ${y.move("i", x, "from")}
% endif
}
