## Slices of INNER raw elements of x, at the places that each run of ${depth} indices names along axes of sizes D. and
## steps S.; PER of these slices belong to a batch, which STEP elements of x do. Places outside are taken for the
## nearest inside, so that nothing else is read.
${k.for_each("i", "TOTAL")} {
  const int run = i / INNER;
  int from = run / PER * STEP + i % INNER;
% for d in range(depth):
  {
    int at = ${places.load(f"run * {depth} + {d}")};
    at = at < 0 ? at + D${d} : at;
    from += (at < 0 ? 0 : (at < D${d} ? at : D${d} - 1)) * S${d};
  }
% endfor
  ${y.move("i", x, "from")}
}
