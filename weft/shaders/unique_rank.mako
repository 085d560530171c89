## The slices that differ, at `places` in the order in which they come, -1 behind the last: to `order` in the order that
## is wanted, by counting which come before one if `ordered`; to `ranks`, at the place of each, where it is in that order;
## and how often each comes, zeros behind the last. COUNT slices, as in unique_first.
<%namespace name="parts" file="unique.parts.mako"/>
${k.for_each("i", "COUNT")} {
  const int at = ${places.load("i")};
  int rank = i, often = 0, index = 0;
  if (at >= 0) {
    index = at;
% if ordered:
    rank = 0;
    for (int other = 0; other < COUNT; other++) {
      const int place = ${places.load("other")};
      if (place < 0) {
        break;
      }
      ${parts.compare(k.args["x"], "place", "at", floats, wide)}
      rank += sign < 0 || (sign == 0 && other < i) ? 1 : 0;
    }
% endif
    ${ranks.store_int("at", "rank")}
% if k.has("counts"):
    for (int e = at; e < COUNT; e++) {
      often += ${k.args["first"].load("e")} == at ? 1 : 0;
    }
% endif
  }
  ${order.store_int("rank", "at")}
% if k.has("indices"):
  ${k.args["indices"].store_int("rank", "index")}
% endif
% if k.has("counts"):
  ${k.args["counts"].store_int("rank", "often")}
% endif
}
