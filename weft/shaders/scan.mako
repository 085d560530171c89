## Running sums or products along lines of LENGTH elements INNER apart: one item a line.
${k.for_each("line", "LINES")} {
  const int base = line / INNER * LENGTH * INNER + line % INNER;
  f32 acc = ${start};
  for (int e = 0; e < LENGTH; e++) {
    const int at = base + ${"(LENGTH - 1 - e)" if reverse else "e"} * INNER;
    const f32 v = ${x.load("at")};
% if exclusive:
    ${y.store("at", "acc")}
    acc = acc ${join} v;
% else:
    acc = acc ${join} v;
    ${y.store("at", "acc")}
% endif
  }
}
