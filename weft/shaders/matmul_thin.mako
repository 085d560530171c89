## A product of few rows in NCHW with any strides, `rows` of them: a work-item computes a column of one matrix of the
## batch, and no item waits for another. If `ragged`, there are M rows, up to `rows`: others are computed from the last one.
<%
row = lambda m: f"min({m}, M - 1)" if ragged and m else str(m)
%>
${k.for_each("i", "COLUMNS")} {
  const int n = i % N, batch_index = i / N;
  int rest = batch_index, a_base = A0, b_base = B0;
% for d in reversed(range(batch)):
  a_base += rest % D${d} * AB${d};
  b_base += rest % D${d} * BB${d};
  rest /= D${d};
% endfor
% for m in range(rows):
  real acc${m} = 0.0;
% endfor
  for (int j = 0; j < K; j++) {
    const real factor = ${b.load("b_base + j * BK + n * BN")};
% for m in range(rows):
    acc${m} += ${a.load(f"a_base + {row(m)} * AM + j * AK")} * factor;
% endfor
  }
% for m in range(rows):
  ${f"if ({m} < M) " if ragged and m else ""}{
% if k.has("c"):
    const real v = ALPHA * acc${m} + BETA * ${k.args["c"].load(f"{m} * CM + n * CN")};
% else:
    const real v = ALPHA * acc${m};
% endif
    ${y.store(f"(batch_index * {'M' if ragged else rows} + {m}) * N + n", "v")}
  }
% endfor
}
