## For each element of places (sizes D.) the raw element of x there, moved along axis ${axis} of SIZE; S. are the
## steps in x. Places outside are taken for the nearest inside, so that nothing else is read.
${k.for_each("i", "TOTAL")} {
  int at = ${places.load("i")};
  at = at < 0 ? at + SIZE : at;
  int rest = i, from = (at < 0 ? 0 : (at < SIZE ? at : SIZE - 1)) * S${axis};
% for d in reversed(range(rank)):
% if d != axis:
  from += rest % D${d} * S${d};
% endif
  rest /= D${d};
% endfor
  ${y.move("i", x, "from")}
}
