## Raw elements of x at given places along one axis of SIZE: INNER elements for each place, COUNT places a slice.
## Places outside are taken for the nearest inside, so that nothing else is read.
${k.for_each("i", "TOTAL")} {
  const int inner = i % INNER, number = i / INNER % COUNT, slice = i / INNER / COUNT;
  int at = ${places.load("number")};
  at = at < 0 ? at + SIZE : at;
  at = at < 0 ? 0 : (at < SIZE ? at : SIZE - 1);
  const int from = (slice * SIZE + at) * INNER + inner;
  ${y.move("i", x, "from")}
}
