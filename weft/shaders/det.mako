## Determinants of matrices of SIZE rows, by Gaussian elimination with the largest pivot: one item a matrix.
${k.for_each("i", "TOTAL")} {
  const int base = i * SIZE * SIZE;
  for (int e = 0; e < SIZE * SIZE; e++) {
    const real v = ${x.load("base + e")};
    ${work.store("base + e", "v")}
  }
  real found = 1.0;
  for (int c = 0; c < SIZE; c++) {
    int pivot = c;
    real best = fabs(${work.load("base + c * SIZE + c")});
    for (int r = c + 1; r < SIZE; r++) {
      const real v = fabs(${work.load("base + r * SIZE + c")});
      if (v > best || is_nan(v)) { best = v; pivot = r; }
    }
    const real first = ${work.load("base + pivot * SIZE + c")};
    found *= pivot == c ? first : -first;
    for (int r = c + 1; r < SIZE; r++) {
      // The pivot's row changes places with row c, of which nothing is read any more.
      const int from = r == pivot ? c : r;
      const real share = first == 0.0 ? 0.0 : ${work.load("base + from * SIZE + c")} / first;
      for (int e = c + 1; e < SIZE; e++) {
        const real v = ${work.load("base + from * SIZE + e")} - share * ${work.load("base + pivot * SIZE + e")};
        ${work.store("base + from * SIZE + e", "v")}
      }
    }
    for (int e = c; e < SIZE && pivot != c; e++) {
      const real v = ${work.load("base + c * SIZE + e")};
      ${work.store("base + pivot * SIZE + e", "v")}
    }
  }
  ${y.store("i", "found")}
}
