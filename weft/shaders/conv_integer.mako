## A convolution of integers of eight bits, minus their zero points, summed in 32 bits; places outside add nothing.
## Axes: sizes I of the input, O of the output, K of the window, its strides S, padding P and dilations L, steps X.
${k.for_each("i", "TOTAL")} {
  const int o2 = i % O2, o1 = i / O2 % O1, o0 = i / O2 / O1 % O0;
  const int m = i / O2 / O1 / O0 % OUT, n = i / O2 / O1 / O0 / OUT;
  const int x_moved = ${k.args["x_zero"].load("0") if k.has("x_zero") else "0"};
  const int w_moved = ${k.args["w_zero"].load("m" if by_channel else "0") if k.has("w_zero") else "0"};
  int sum = 0;
  for (int c = 0; c < PER_GROUP; c++) {
    const int plane = (n * CHANNELS + m / OUT_PER_GROUP * PER_GROUP + c) * I0 * I1 * I2;
    const int taps = (m * PER_GROUP + c) * K0 * K1 * K2;
    for (int t = 0; t < K0 * K1 * K2; t++) {
      const int a0 = o0 * S0 - P0 + t / (K1 * K2) * L0;
      const int a1 = o1 * S1 - P1 + t / K2 % K1 * L1;
      const int a2 = o2 * S2 - P2 + t % K2 * L2;
      if (a0 >= 0 && a0 < I0 && a1 >= 0 && a1 < I1 && a2 >= 0 && a2 < I2) {
        const int at = plane + a0 * X0 + a1 * X1 + a2 * X2;
        sum += (${x.load("at")} - x_moved) * (${w.load("taps + t")} - w_moved);
      }
    }
  }
  ${y.store_int("i", "sum")}
}
