## softmax(SCALE * Q K^T + mask) V for `rows` queries of one head a group, 8 items to a query. Keys come in blocks
## of `keys`; the softmax is kept up to date (top: the largest score so far, total: the sum of powers), so scores
## never leave the group. The elements of a head lie side by side; steps are QB, QH, QS and so on for batch, head
## and row. `depth` and `width` are eighths, rounded up, of the elements of a key, D, and of a value, E.
## Shared: rows * depth * 8 + keys * (max(depth, width) * 8 + 1) + rows * keys floats.
<%
each, per = range(width), range(keys // 8)
pitch = max(depth, width) * 8 + 1
k.shared("f32", "queries", f"{rows * depth * 8}")
k.shared("f32", "block", f"{keys * pitch}")
k.shared("f32", "scores", f"{rows * keys}")
%>
const int column = LOCAL_X, row = LOCAL_Y, item = LOCAL_Y * 8 + LOCAL_X;
for (int group = GROUP_X; group < GROUPS; group += GROUPS_X) {
  const int first = group % BLOCKS * ${rows}, head = group / BLOCKS % HEADS, batch = group / BLOCKS / HEADS;
  const int query = first + row;
  for (int e = item; e < ${rows} * D; e += ${rows * 8}) {
    const int r = first + e / D;
    queries[e] = 0.0;
    if (r < QUERIES) queries[e] = SCALE * ${q_in.load("Q0 + batch * QB + head * QH + r * QS + e % D")};
  }
  f32 top = -INFINITY_F, total = 0.0;
% for i in each:
  f32 acc${i} = 0.0;
% endfor
  for (int start = 0; start < COUNT; start += ${keys}) {
    for (int e = item; e < ${keys} * D; e += ${rows * 8}) {
      const int r = start + e / D, at = e / D * ${pitch} + e % D;
      block[at] = 0.0;
      if (r < COUNT) block[at] = ${k_in.load("K0 + batch * KB + head * KH + r * KS + e % D")};
    }
    BARRIER;
% for j in per:
    f32 s${j} = 0.0;
% endfor
    for (int e = 0; e < D; e++) {
      const f32 a = queries[row * D + e];
% for j in per:
      s${j} += a * block[(${j} * 8 + column) * ${pitch} + e];
% endfor
    }
% for j in per:
    {
      const int key = start + ${j} * 8 + column;
% if k.has("mask"):
      if (key < COUNT && query < QUERIES) s${j} += ${k.args["mask"].load("batch * MB + head * MH + query * MS + key * MK")};
% endif
      scores[row * ${keys} + ${j} * 8 + column] = key < COUNT ? s${j} : -INFINITY_F;
    }
% endfor
    BARRIER;
    f32 next = top;
    for (int j = 0; j < ${keys}; j++) next = fmax(next, scores[row * ${keys} + j]);
    // Where all scores so far are -inf there is nothing to scale down: no difference of infinities is taken.
    const f32 shift = next == -INFINITY_F ? 0.0 : next;
    const f32 fade = exp(top - shift);
    top = next;
    BARRIER;
% for j in per:
    scores[row * ${keys} + ${j} * 8 + column] = exp(scores[row * ${keys} + ${j} * 8 + column] - shift);
% endfor
    for (int e = item; e < ${keys} * E; e += ${rows * 8}) {
      const int r = start + e / E, at = e / E * ${pitch} + e % E;
      block[at] = 0.0;
      if (r < COUNT) block[at] = ${v_in.load("V0 + batch * VB + head * VH + r * VS + e % E")};
    }
    BARRIER;
    total *= fade;
% for i in each:
    acc${i} *= fade;
% endfor
    for (int j = 0; j < ${keys}; j++) {
      const f32 p = scores[row * ${keys} + j];
      total += p;
% for i in each:
      acc${i} += p * block[j * ${pitch} + ${i} * 8 + column];
% endfor
    }
    BARRIER;
  }
  if (query < QUERIES) {
% for i in each:
    if (${i} * 8 + column < E) {
      ${y.store(f"batch * YB + head * YH + query * YS + {i} * 8 + column", f"acc{i} / total")}
    }
% endfor
  }
}
