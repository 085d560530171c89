## Convolution as an implicit GEMM over NC4HW4: rows are output pixels, columns blocks of four output
## channels, K runs over taps and blocks of four input channels. A group of ${lx} x ${ly} items computes
## ${rp * lx} pixels x ${rc * ly} blocks; LZ slices of K work side by side and are summed at the end.
## Each step of K stages 4 blocks: items fetch the next step into registers while they compute this one.
## Shared, for each slice: 4 steps of K, 16 bytes x (rows + 4 x columns); and the sums of LZ - 1 slices.
<%
rows, cols, items = rp * lx, rc * ly, lx * ly
fetched_a, fetched_b = 4 * rows // items, 16 * cols // items
k.shared("f32x4", "As", f"LZ * {4 * rows}")
k.shared("f32x4", "Bs", f"LZ * {16 * cols}")
k.shared("f32x4", "Sum", f"LZ > 1 ? (LZ - 1) * {rows * cols} : 1")
acc = [(i, j) for i in range(rp) for j in range(rc)]
%>
<%def name="fetch(step)">
% for u in range(fetched_a):
  {
    const int kk = (${step}) * 4 + ak${u};
    va${u} = SPLAT(0.0);
% if pointwise:
    if (row${u} < PIXELS && kk < C4) va${u} = ${x.load4(f"an{u}", "kk", f"ap{u}")};
% else:
    const int tap = kk / C4, ih = ah${u} + tap / KW * DH, iw = aw${u} + tap % KW * DW;
    if (row${u} < PIXELS && tap < KH * KW && ih >= 0 && ih < IH && iw >= 0 && iw < IW)
      va${u} = ${x.load4(f"an{u}", "kk % C4", "ih * IW + iw")};
% endif
  }
% endfor
% for u in range(fetched_b):
  vb${u} = SPLAT(0.0);
  if (bfits${u} && (${step}) < STEPS) vb${u} = ${w.vector(f"({step}) * 16 * COUNT + bfrom{u}")};
% endfor
</%def>
const int item = LOCAL_Y * ${lx} + LOCAL_X;
const int a_base = LOCAL_Z * ${4 * rows}, b_base = LOCAL_Z * ${16 * cols};
const int column0 = GROUP_Y * ${cols};
% for u in range(fetched_b):
const int e${u} = item + ${u * items};
const int bcolumn${u} = e${u} / 4 % ${cols}, bk${u} = e${u} / ${4 * cols};
const bool bfits${u} = column0 + bcolumn${u} < COUNT;
const int bfrom${u} = (bk${u} * COUNT + column0 + bcolumn${u}) * 4 + e${u} % 4;
const int bto${u} = b_base + (bk${u} * 4 + e${u} % 4) * ${cols} + bcolumn${u};
f32x4 vb${u};
% endfor
for (int tile = GROUP_X; tile < TILES; tile += GROUPS_X) {
  const int first_row = tile * ${rows};
% for u in range(fetched_a):
  const int ak${u} = (item + ${u * items}) / ${rows}, row${u} = first_row + (item + ${u * items}) % ${rows};
  const int an${u} = row${u} / (OH * OW), ap${u} = row${u} % (OH * OW);
% if not pointwise:
  const int ah${u} = ap${u} / OW * SH - PH, aw${u} = ap${u} % OW * SW - PW;
% endif
  f32x4 va${u};
% endfor
% for i, j in acc:
  f32x4 acc${i}_${j} = SPLAT(0.0);
% endfor
  ${fetch("LOCAL_Z")}
  for (int round = 0; round < (STEPS + LZ - 1) / LZ; round++) {
% for u in range(fetched_a):
    As[a_base + item + ${u * items}] = va${u};
% endfor
% for u in range(fetched_b):
    Bs[bto${u}] = vb${u};
% endfor
    BARRIER;
    ${fetch("(round + 1) * LZ + LOCAL_Z")}
    for (int kk = 0; kk < 4; kk++) {
% for i in range(rp):
      const f32x4 a${i} = As[a_base + kk * ${rows} + ${i * lx} + LOCAL_X];
% endfor
% for j in range(rc):
% for lane, letter in enumerate("xyzw"):
      const f32x4 b${j}${letter} = Bs[b_base + (kk * 4 + ${lane}) * ${cols} + ${j * ly} + LOCAL_Y];
% endfor
% endfor
## One product a statement: each becomes one fused multiply-add, where a sum of four takes an addition more.
% for letter in "xyzw":
% for i, j in acc:
      acc${i}_${j} += a${i}.${letter} * b${j}${letter};
% endfor
% endfor
    }
    BARRIER;
  }
  if (LZ > 1) {
    if (LOCAL_Z > 0) {
      const int s0 = (LOCAL_Z - 1) * ${rows * cols};
% for i, j in acc:
      Sum[s0 + (${j * ly} + LOCAL_Y) * ${rows} + ${i * lx} + LOCAL_X] = acc${i}_${j};
% endfor
    }
    BARRIER;
    if (LOCAL_Z == 0) {
      for (int s = 0; s < LZ - 1; s++) {
% for i, j in acc:
        acc${i}_${j} += Sum[s * ${rows * cols} + (${j * ly} + LOCAL_Y) * ${rows} + ${i * lx} + LOCAL_X];
% endfor
      }
    }
    BARRIER;
  }
  if (LOCAL_Z == 0) {
% for j in range(rc):
    if (column0 + ${j * ly} + LOCAL_Y < COUNT) {
      const int block = FIRST + column0 + ${j * ly} + LOCAL_Y;
      const f32x4 bias = ${k.args["b"].load4("0", "block", "0") if k.has("b") else "SPLAT(0.0)"};
% for i in range(rp):
      if (first_row + ${i * lx} + LOCAL_X < PIXELS) {
        const int row = first_row + ${i * lx} + LOCAL_X;
        ${y.store4("row / (OH * OW)", "block", "row % (OH * OW)", f"acc{i}_{j} + bias")}
      }
% endfor
    }
% endfor
  }
}
