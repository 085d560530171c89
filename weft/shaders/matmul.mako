## Matrix product in NCHW with any strides: tiles of 32 x 32 by 8 x 8 items of 4 x 4, K in steps of 16.
## Shared: 2 x 2 KiB. FIRST and COUNT are the columns of y that b holds.
<%
k.shared("f32", "As", "16 * 32")
k.shared("f32", "Bs", "16 * 32")
acc = [(i, j) for i in range(4) for j in range(4)]
%>
const int item = LOCAL_Y * 8 + LOCAL_X;
for (int tile = GROUP_X; tile < TILES; tile += GROUPS_X) {
  const int m0 = tile / TILES_N % TILES_M * 32, n0 = tile % TILES_N * 32;
  int rest = tile / TILES_N / TILES_M, a_base = 0, b_base = 0;
  const int batch_index = rest;
% for d in reversed(range(batch)):
  a_base += rest % D${d} * AB${d};
  b_base += rest % D${d} * BB${d};
  rest /= D${d};
% endfor
% for i, j in acc:
  f32 acc${i}_${j} = 0.0;
% endfor
  for (int k0 = 0; k0 < K; k0 += 16) {
    for (int e = item; e < 512; e += 64) {
      const int am = AK == 1 ? e / 16 : e % 32, ak = AK == 1 ? e % 16 : e / 32;
      const int bn = BN == 1 ? e % 32 : e / 16, bk = BN == 1 ? e / 32 : e % 16;
      As[ak * 32 + am] = 0.0;
      Bs[bk * 32 + bn] = 0.0;
      if (m0 + am < M && k0 + ak < K) As[ak * 32 + am] = ${a.load("a_base + (m0 + am) * AM + (k0 + ak) * AK")};
      if (n0 + bn < COUNT && k0 + bk < K) Bs[bk * 32 + bn] = ${b.load("b_base + (k0 + bk) * BK + (n0 + bn) * BN")};
    }
    BARRIER;
    for (int kk = 0; kk < 16; kk++) {
% for i in range(4):
      const f32 a${i} = As[kk * 32 + ${i} * 8 + LOCAL_Y];
      const f32 b${i} = Bs[kk * 32 + ${i} * 8 + LOCAL_X];
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
      const f32 v = ALPHA * acc${i}_${j} + BETA * ${k.args["c"].load("m * CM + (FIRST + n) * CN")};
% else:
      const f32 v = ALPHA * acc${i}_${j};
% endif
      ${y.store("(batch_index * M + m) * N + FIRST + n", "v")}
    }
  }
% endfor
}
