## Products of matrices of integers of eight bits, minus their zero points, summed in 32 bits. An item computes `columns`
## neighbours of a row. D0.. are the axes of matrices, A0.. and B0.. the steps along them; a zero point is "one" number,
## one for each "line" (a row of a, a column of b), or those of each matrix ("batch", with steps of its own).
${k.for_each("i", "TOTAL")} {
  const int column = i % GROUPS * ${columns}, row = i / GROUPS % ROWS;
  int rest = i / GROUPS / ROWS, from_a = row * INNER, from_b = column;
% if a_spread:
  int a_at = ${"0" if a_spread == "one" else "row"};
% endif
% if b_spread:
  int b_at = ${"0" if b_spread == "one" else "column"};
% endif
  const int matrix = rest;
% for d in reversed(range(rank)):
  {
    const int at = ${"rest" if d == 0 else f"rest % D{d}"};
    rest /= D${d};
    from_a += at * A${d};
    from_b += at * B${d};
% if a_spread == "batch":
    a_at += at * A_ZERO${d};
% endif
% if b_spread == "batch":
    b_at += at * B_ZERO${d};
% endif
  }
% endfor
% for c in range(columns):
<%
place = "b_at" if b_spread == "one" else f"b_at + (column + {c} < N ? {c} : 0)"
%>
  const int zero${c} = ${k.args["b_zero"].load(place) if b_spread else "0"};
  int sum${c} = 0;
% endfor
  const int a_moved = ${k.args["a_zero"].load("a_at") if a_spread else "0"};
  for (int t = 0; t < INNER; t++) {
    const int left = ${a.load("from_a + t")} - a_moved;
    const int line = from_b + t * N;
% for c in range(columns):
    sum${c} += left * (${b.load(f"line + (column + {c} < N ? {c} : 0)")} - zero${c});
% endfor
  }
% for c in range(columns):
  if (column + ${c} < N) { ${y.store_int(f"(matrix * ROWS + row) * N + column + {c}", f"sum{c}")} }
% endfor
}
