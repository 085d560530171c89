## Weights (OUT, IN, TAPS) as the vectors [tap][block of IN][block of OUT][4 in][4 out], with zeros where there is no
## channel or tap: what the host makes of constant weights.
${k.for_each("i", "TOTAL")} {
  const int pair = i / 16 / BLOCKS, o = i / 16 % BLOCKS * 4 + i % 4, c = pair % BLOCKS_IN * 4 + i / 4 % 4, tap = pair / BLOCKS_IN;
  f32 v = 0.0;
  if (o < OUT && c < IN && tap < TAPS) v = ${x.load("(o * IN + c) * TAPS + tap")};
  ${y.store("i", "v")}
}
