## Slices of INNER raw elements of x: each run of ${depth} indices names one along axes of sizes D. and steps S. PER
## slices, and STEP elements of x, belong to each batch. An index out of range reads the nearest slice, so that nothing
## outside is read.
${k.for_each("i", "TOTAL")} {
  const int run = i / INNER;
  int from = run / PER * STEP + i % INNER;
% for d in range(depth):
  from += ${places.nearest_place(f"run * {depth} + {d}", f"D{d}")} * S${d};
% endfor
  ${y.move("i", x, "from")}
}
