## Slices of INNER raw elements along two axes, of D0 and D1: those of each sequence turned round up to its length.
## A length that leaves the axis of TIME reads the nearest slice inside.
${k.for_each("i", "TOTAL")} {
  const int inner = i % INNER, second = i / INNER % D1, first = i / INNER / D1;
  const int time = ${"first" if time_first else "second"};
  const int size = ${lengths.load_index("second" if time_first else "first")};
  int from = time < size ? size - 1 - time : time;
  from = from < TIME ? from : TIME - 1;
% if time_first:
  ${y.move("i", x, "(from * D1 + second) * INNER + inner")}
% else:
  ${y.move("i", x, "(first * D1 + from) * INNER + inner")}
% endif
}
