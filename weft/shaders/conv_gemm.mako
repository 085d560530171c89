## Convolution as an implicit GEMM over NC4HW4: rows are output pixels, columns blocks of four output
## channels, K runs over taps and blocks of four input channels. A group of LX x LY items computes
## ${rp}*LX pixels x ${rc}*LY blocks; LZ slices of K work side by side and are summed at the end.
## Shared: for each slice 4 steps of K, 16 bytes x (rows + 4 x columns).
<%
ROWS, COLS = f"({rp} * LX)", f"({rc} * LY)"
k.shared("f32x4", "As", f"LZ * 4 * {ROWS}")
k.shared("f32x4", "Bs", f"LZ * 16 * {COLS}")
k.shared("f32x4", "Sum", f"LZ > 1 ? (LZ - 1) * {ROWS} * {COLS} : 1")
acc = [(i, j) for i in range(rp) for j in range(rc)]
%>
const int item = LOCAL_Y * LX + LOCAL_X;
const int ITEMS = LX * LY;
const int a_base = LOCAL_Z * 4 * ${ROWS}, b_base = LOCAL_Z * 16 * ${COLS};
const int column0 = GROUP_Y * ${COLS};
for (int tile = GROUP_X; tile < TILES; tile += GROUPS_X) {
  const int row0 = tile * ${ROWS};
% for i, j in acc:
  f32x4 acc${i}_${j} = SPLAT(0.0);
% endfor
  for (int round = 0; round < (STEPS + LZ - 1) / LZ; round++) {
    const int step = round * LZ + LOCAL_Z;
    for (int e = item; e < 4 * ${ROWS}; e += ITEMS) {
      const int row = row0 + e % ${ROWS}, kk = step * 4 + e / ${ROWS};
      f32x4 v = SPLAT(0.0);
% if pointwise:
      if (row < PIXELS && kk < C4) v = ${x.load4("row / (OH * OW)", "kk", "row % (OH * OW)")};
% else:
      const int c = kk % C4, tap = kk / C4;
      const int n = row / (OH * OW), p = row % (OH * OW);
      const int ih = p / OW * SH + tap / KW * DH - PH, iw = p % OW * SW + tap % KW * DW - PW;
      if (row < PIXELS && tap < KH * KW && ih >= 0 && ih < IH && iw >= 0 && iw < IW)
        v = ${x.load4("n", "c", "ih * IW + iw")};
% endif
      As[a_base + e] = v;
    }
    for (int e = item; e < 16 * ${COLS}; e += ITEMS) {
      const int lane = e % 4, column = e / 4 % ${COLS}, kk = step * 4 + e / 4 / ${COLS};
      f32x4 v = SPLAT(0.0);
      if (column0 + column < COUNT && step < STEPS) v = ${w.vector("(kk * COUNT + column0 + column) * 4 + lane")};
      Bs[b_base + (e / 4 / ${COLS} * 4 + lane) * ${COLS} + column] = v;
    }
    BARRIER;
    for (int kk = 0; kk < 4; kk++) {
% for i in range(rp):
      const f32x4 a${i} = As[a_base + kk * ${ROWS} + ${i} * LX + LOCAL_X];
% endfor
% for j in range(rc):
% for lane, letter in enumerate("xyzw"):
      const f32x4 b${j}${letter} = Bs[b_base + (kk * 4 + ${lane}) * ${COLS} + ${j} * LY + LOCAL_Y];
% endfor
% endfor
% for i, j in acc:
      acc${i}_${j} += a${i}.x * b${j}x + a${i}.y * b${j}y + a${i}.z * b${j}z + a${i}.w * b${j}w;
% endfor
    }
    BARRIER;
  }
  if (LZ > 1) {
    if (LOCAL_Z > 0) {
      const int s0 = (LOCAL_Z - 1) * ${ROWS} * ${COLS};
% for i, j in acc:
      Sum[s0 + (${j} * LY + LOCAL_Y) * ${ROWS} + ${i} * LX + LOCAL_X] = acc${i}_${j};
% endfor
    }
    BARRIER;
    if (LOCAL_Z == 0) {
      for (int s = 0; s < LZ - 1; s++) {
% for i, j in acc:
        acc${i}_${j} += Sum[s * ${ROWS} * ${COLS} + (${j} * LY + LOCAL_Y) * ${ROWS} + ${i} * LX + LOCAL_X];
% endfor
      }
    }
    BARRIER;
  }
  if (LOCAL_Z == 0) {
% for j in range(rc):
    if (column0 + ${j} * LY + LOCAL_Y < COUNT) {
      const int block = FIRST + column0 + ${j} * LY + LOCAL_Y;
% if k.has("b"):
      const f32x4 bias = ${k.args["b"].load4("0", "block", "0")};
% else:
      const f32x4 bias = SPLAT(0.0);
% endif
% for i in range(rp):
      if (row0 + ${i} * LX + LOCAL_X < PIXELS) {
        const int row = row0 + ${i} * LX + LOCAL_X;
        ${y.store4("row / (OH * OW)", "block", "row % (OH * OW)", f"acc{i}_{j} + bias")}
      }
% endfor
    }
% endfor
  }
}
