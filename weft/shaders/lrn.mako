## Local response normalization over NC4HW4: each element divided by a power of the sum of squares at its pixel, over the
## channels from LOW before to HIGH behind it. A work-item computes one pixel of one block.
${k.for_each("i", "TOTAL")} {
  const int p = i % HW, b = i / HW % BLOCKS, n = i / HW / BLOCKS;
  f32x4 v = ${x.load4("n", "b", "p")};
% for lane, letter in enumerate("xyzw"):
  {
    const int last = b * 4 + ${lane} + HIGH;
    f32 sum = 0.0;
    for (int c = b * 4 + ${lane} < LOW ? 0 : b * 4 + ${lane} - LOW; c <= last && c < CHANNELS; c++) {
      const f32 w = ${x.load1("n", "c", "p")};
      sum += w * w;
    }
    v.${letter} *= pow(BIAS + SHARE * sum, POWER);
  }
% endfor
  ${y.store4("n", "b", "p", "v")}
}
