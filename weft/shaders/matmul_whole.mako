## Products of matrices of integers, plus c: an item computes one number, of 32 bits or as a pair of them (`wide`). They
## wrap. Places are as in matmul.mako: from A0 and B0 on, in steps of AM, AK, BK and BN within matrices, and of AB. and
## BB. along the axes D. of the batch.
<%namespace name="pairs" file="pairs.parts.mako"/>\
${k.for_each("i", "TOTAL")} {
  const int column = i % N, row = i / N % M;
  int rest = i / N / M, from_a = A0 + row * AM, from_b = B0 + column * BN;
% for d in reversed(range(rank)):
  {
    const int at = rest % D${d};
    rest /= D${d};
    from_a += at * AB${d};
    from_b += at * BB${d};
  }
% endfor
% if k.has("c"):
  uint low = ${k.args["c"].load("row * CM + column * CN")}, high = ${k.args["c"].load_high("row * CM + column * CN")};
% else:
  uint low = 0u, high = 0u;
% endif
  for (int t = 0; t < K; t++) {
    uint p = ${a.load("from_a + t * AK")};
    const uint q = ${b.load("from_b + t * BK")};
% if wide:
    uint p_high = ${a.load_high("from_a + t * AK")};
    const uint q_high = ${b.load_high("from_b + t * BK")};
    ${pairs.multiply("p", "p_high", "q", "q_high")}
    ${pairs.add("low", "high", "p", "p_high")}
% else:
    low += p * q;
% endif
  }
  ${y.store_pair("i", "low", "high")}
}
