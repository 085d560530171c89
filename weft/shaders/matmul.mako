## Matrix product in NCHW with any strides: tiles of 8 x 8 work-items with `each` x `each` sums (4: 32 x 32), K in steps
## of 16. With several `slices`, as many groups of 8 x 8 items share a tile and take turns with the steps; then each
## adds some of their sums. With `ahead`, an item loads its part of the next step before it multiplies. What lies outside
## is loaded from the edge, so that no load waits for a branch. FIRST and COUNT are the columns of y that b holds; A0 and
## B0 are the places of the first elements.
<%
tile = 8 * each
step = 16 * slices
pitch = tile + 1  # so that neighbours along K lie in different banks
parts = range(tile // 4)
acc = [(i, j) for i in range(each) for j in range(each)]
room = max(32 * pitch, tile * tile if slices > 1 else 0)
k.shared("real", "Stage", f"{slices * room}")
%>\
<%def name="place(e)">
    const int am = AK == 1 ? (${e}) / 16 : (${e}) % ${tile}, ak = AK == 1 ? (${e}) % 16 : (${e}) / ${tile};
    const int bn = BN == 1 ? (${e}) % ${tile} : (${e}) / 16, bk = BN == 1 ? (${e}) / ${tile} : (${e}) % 16;
</%def>
<%def name="fetch(start)">
% for p in parts:
  {
${place(f"item + {64 * p}")}\
    next_a${p} = ${a.load(f"a_base + min(m0 + am, M - 1) * AM + min({start} + ak, K - 1) * AK")};
    next_b${p} = ${b.load(f"b_base + min({start} + bk, K - 1) * BK + min(n0 + bn, COUNT - 1) * BN")};
  }
% endfor
</%def>
<%def name="store(m, n, sum)">
    const int m = ${m}, n = ${n};
    if (m < M && n < COUNT) {
      const real v = ALPHA * ${sum}${' + BETA * ' + k.args["c"].load("m * CM + (FIRST + n) * CN") if k.has("c") else ""};
      ${y.store("(batch_index * M + m) * N + FIRST + n", "v")}
    }
</%def>\
% if slices > 1:
const int slice = LOCAL_Y / 8, row = LOCAL_Y % 8, item = row * 8 + LOCAL_X, a_at = slice * ${room}, b_at = a_at + ${16 * pitch};
% else:
const int slice = 0, row = LOCAL_Y, item = row * 8 + LOCAL_X, a_at = 0, b_at = ${16 * pitch};
% endif
${k.for_groups("number", "TILES")} {
  const int m0 = number / TILES_N % TILES_M * ${tile}, n0 = number % TILES_N * ${tile};
  int rest = number / TILES_N / TILES_M, a_base = A0, b_base = B0;
  const int batch_index = rest;
% for d in reversed(range(batch)):
  a_base += rest % D${d} * AB${d};
  b_base += rest % D${d} * BB${d};
  rest /= D${d};
% endfor
% for i, j in acc:
  real acc${i}_${j} = 0.0;
% endfor
% for p in parts:
  real next_a${p} = 0.0, next_b${p} = 0.0;
% endfor
% if ahead:
  if (K > 0) {
${fetch("slice * 16")}\
  }
% endif
  for (int k0 = slice * 16; k0 < K + slice * 16; k0 += ${step}) {
    BARRIER;
% if not ahead:
${fetch("k0")}\
% endif
% for p in parts:
    {
${place(f"item + {64 * p}")}\
      Stage[a_at + ak * ${pitch} + am] = k0 + ak < K ? next_a${p} : TO_REAL(0.0);
      Stage[b_at + bk * ${pitch} + bn] = k0 + bk < K ? next_b${p} : TO_REAL(0.0);
    }
% endfor
    BARRIER;
% if ahead:
    if (k0 + ${step} < K + slice * 16) {
${fetch(f"k0 + {step}")}\
    }
% endif
    for (int kk = 0; kk < 16; kk++) {
% for i in range(each):
      const real a${i} = Stage[a_at + kk * ${pitch} + ${i} * 8 + row];
      const real b${i} = Stage[b_at + kk * ${pitch} + ${i} * 8 + LOCAL_X];
% endfor
% for i, j in acc:
      acc${i}_${j} += a${i} * b${j};
% endfor
    }
  }
% if slices > 1:
  BARRIER;
% for i, j in acc:
  Stage[a_at + (${i} * 8 + row) * ${tile} + ${j} * 8 + LOCAL_X] = acc${i}_${j};
% endfor
  BARRIER;
  for (int o = slice * 64 + item; o < ${tile * tile}; o += ${64 * slices}) {
    real sum = Stage[o];
    for (int other = 1; other < ${slices}; other++) sum += Stage[other * ${room} + o];
${store(f"m0 + o / {tile}", f"n0 + o % {tile}", "sum")}\
  }
% else:
% for i, j in acc:
  {
${store(f"m0 + {i} * 8 + row", f"n0 + {j} * 8 + LOCAL_X", f"acc{i}_{j}")}\
  }
% endfor
% endif
}
