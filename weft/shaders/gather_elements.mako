## For each of the indices `places` (sizes D.) the raw element of x at its position, moved to that index along axis
## ${axis} of SIZE; S. are the steps in x. An index out of range reads the nearest element, so nothing outside is read.
${k.for_each("i", "TOTAL")} {
  int rest = i, from = ${places.nearest_place("i", "SIZE")} * S${axis};
% for d in reversed(range(rank)):
% if d != axis:
  from += rest % D${d} * S${d};
% endif
  rest /= D${d};
% endfor
  ${y.move("i", x, "from")}
}
