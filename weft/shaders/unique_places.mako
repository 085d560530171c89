## Where each of COUNT slices is among those that differ. The sizes of all outcomes, where they are wanted: those of the
## values, of sizes D. but along `axis`, then of the indices, of the places and of the counts.
${k.for_each("i", "COUNT")} {
  const int rank = ${ranks.load(first.load("i"))};
  ${inverse.store_int("i", "rank")}
% if k.has("sizes"):
  if (i == 0) {
    const int different = ${k.args["number"].load("0")};
% for d in range(rank_of_x):
    const int n${d} = ${"different" if d == axis else f"D{d}"};
    ${k.args["sizes"].store_int(str(d), f"n{d}")}
% endfor
    const int all = COUNT;
    ${k.args["sizes"].store_int(str(rank_of_x), "different")}
    ${k.args["sizes"].store_int(str(rank_of_x + 1), "all")}
    ${k.args["sizes"].store_int(str(rank_of_x + 2), "different")}
  }
% endif
}
