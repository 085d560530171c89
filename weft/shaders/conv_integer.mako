## A convolution of integers of eight bits, minus their zero points, summed in 32 bits; places outside add nothing.
## The window: `conv.problem.window_constants`.
${k.for_each("i", "TOTAL")} {
  const int o2 = i % OW, o1 = i / OW % OH, o0 = i / OW / OH % OD;
  const int m = i / OW / OH / OD % OUT, n = i / OW / OH / OD / OUT;
  const int x_moved = ${k.args["x_zero"].load("0") if k.has("x_zero") else "0"};
  const int w_moved = ${k.args["w_zero"].load("m" if by_channel else "0") if k.has("w_zero") else "0"};
  int sum = 0;
  for (int c = 0; c < PER_GROUP; c++) {
    const int plane = (n * CHANNELS + m / OUT_PER_GROUP * PER_GROUP + c) * ID * IH * IW;
    const int taps = (m * PER_GROUP + c) * KD * KH * KW;
    for (int t = 0; t < KD * KH * KW; t++) {
      const int a0 = o0 * SD - PD + t / (KH * KW) * DD;
      const int a1 = o1 * SH - PH + t / KW % KH * DH;
      const int a2 = o2 * SW - PW + t % KW * DW;
      if (a0 >= 0 && a0 < ID && a1 >= 0 && a1 < IH && a2 >= 0 && a2 < IW) {
        const int at = plane + (a0 * IH + a1) * IW + a2;
        sum += (${x.load("at")} - x_moved) * (${w.load("taps + t")} - w_moved);
      }
    }
  }
  ${y.store_int("i", "sum")}
}
