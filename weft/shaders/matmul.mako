## Matrix product in NCHW with any strides: tiles of 8 x 8 work-items with `each` x `each` sums (4: 32 x 32), K in steps
## of 16. Work-group memory holds 2 x 16 rows of a tile, at most 4 KiB. FIRST and COUNT are the columns of y that b holds.
<%
tile = 8 * each
k.shared("real", "As", f"16 * {tile}")
k.shared("real", "Bs", f"16 * {tile}")
acc = [(i, j) for i in range(each) for j in range(each)]
%>
const int item = LOCAL_Y * 8 + LOCAL_X;
${k.for_groups("number", "TILES")} {
  const int m0 = number / TILES_N % TILES_M * ${tile}, n0 = number % TILES_N * ${tile};
  int rest = number / TILES_N / TILES_M, a_base = 0, b_base = 0;
  const int batch_index = rest;
% for d in reversed(range(batch)):
  a_base += rest % D${d} * AB${d};
  b_base += rest % D${d} * BB${d};
  rest /= D${d};
% endfor
% for i, j in acc:
  real acc${i}_${j} = 0.0;
% endfor
  for (int k0 = 0; k0 < K; k0 += 16) {
    for (int e = item; e < ${16 * tile}; e += 64) {
      const int am = AK == 1 ? e / 16 : e % ${tile}, ak = AK == 1 ? e % 16 : e / ${tile};
      const int bn = BN == 1 ? e % ${tile} : e / 16, bk = BN == 1 ? e / ${tile} : e % 16;
      As[ak * ${tile} + am] = 0.0;
      Bs[bk * ${tile} + bn] = 0.0;
      if (m0 + am < M && k0 + ak < K) As[ak * ${tile} + am] = ${a.load("a_base + (m0 + am) * AM + (k0 + ak) * AK")};
      if (n0 + bn < COUNT && k0 + bk < K) Bs[bk * ${tile} + bn] = ${b.load("b_base + (k0 + bk) * BK + (n0 + bn) * BN")};
    }
    BARRIER;
    for (int kk = 0; kk < 16; kk++) {
% for i in range(each):
      const real a${i} = As[kk * ${tile} + ${i} * 8 + LOCAL_Y];
      const real b${i} = Bs[kk * ${tile} + ${i} * 8 + LOCAL_X];
% endfor
% for i, j in acc:
      acc${i}_${j} += a${i} * b${j};
% endfor
    }
    BARRIER;
  }
% for i, j in acc:
  {
    const int m = m0 + ${i} * 8 + LOCAL_Y, n = n0 + ${j} * 8 + LOCAL_X;
    if (m < M && n < COUNT) {
% if k.has("c"):
      const real v = ALPHA * acc${i}_${j} + BETA * ${k.args["c"].load("m * CM + (FIRST + n) * CN")};
% else:
      const real v = ALPHA * acc${i}_${j};
% endif
      ${y.store("(batch_index * M + m) * N + FIRST + n", "v")}
    }
  }
% endfor
}
