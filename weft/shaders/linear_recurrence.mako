## Linear recurrences along lines of LENGTH elements INNER apart, a work-item each: a state times a factor, plus a term.
${k.for_each("line", "LINES")} {
  const int base = line / INNER * LENGTH * INNER + line % INNER;
  real state = ${start.load("line")};
  for (int e = 0; e < LENGTH; e++) {
    const int at = base + e * INNER;
    state = ${factors.load("at")} * state + ${terms.load("at")};
    ${y.store("at", "state")}
  }
}
