## The coordinates of the COUNT places, one column each, zeros where a place is -1; D. are the sizes of the axes. The
## sizes of the outcome, where they are wanted: the rank, and how many columns there are.
${k.for_each("i", "COUNT")} {
  const int at = ${places.load("i")};
  int rest = at < 0 ? 0 : at;
% for d in reversed(range(rank)):
  {
    const int coordinate = rest % D${d};
    rest /= D${d};
    ${y.store_int(f"{d} * COUNT + i", "coordinate")}
  }
% endfor
% if k.has("sizes"):
  if (i == 0) {
    const int axes = ${rank}, columns = ${count.load("0")};
    ${k.args["sizes"].store_int("0", "axes")}
    ${k.args["sizes"].store_int("1", "columns")}
  }
% endif
}
