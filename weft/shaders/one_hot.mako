## Raw vectors of DEPTH elements INNER apart, values[1] at the place that places says and values[0] elsewhere.
${k.for_each("i", "TOTAL")} {
  const int inner = i % INNER, at = i / INNER % DEPTH;
  const int hot = ${places.place_inside("i / INNER / DEPTH * INNER + inner", "DEPTH")};
  if (at == hot) { ${y.move("i", values, "1")} } else { ${y.move("i", values, "0")} }
}
