## Rows of a cache x written anew. It has lines of SIZE rows, of INNER raw elements each; of each line the update has LENGTH
## rows, which go to row first[line / PARTS] and behind. In place, an item writes an element of the update; else one writes
## an element of the result. A row outside is left out; of a `circular` cache the row behind the last is the first.
<% rows = "LENGTH" if in_place else "SIZE" %>
${k.for_each("i", "TOTAL")} {
  const int inner = i % INNER, row = i / INNER % ${rows}, line = i / INNER / ${rows};
% if not circular:
  const int found = ${first.load_index("line / PARTS")};
  const int begin = found < -LENGTH ? -LENGTH : found > SIZE ? SIZE : found;
% else:
  const int low = ${first.load("line / PARTS")}, high = ${first.load_high("line / PARTS")};
  int begin = low % SIZE;
  if (high != (low < 0 ? -1 : 0)) {
    const int over = high % SIZE;
    uint rest = over < 0 ? over + SIZE : over;
    for (int bit = 31; bit >= 0; bit--) {
      rest = (rest * 2 + (low >> bit & 1)) % SIZE;
    }
    begin = TO_I32(rest);
  }
  begin = begin < 0 ? begin + SIZE : begin;
% endif
% if in_place:
  int to = begin + row;
% if circular:
  to = to < SIZE ? to : to - SIZE;
% endif
  if (to >= 0 && to < SIZE) { ${y.move("(line * SIZE + to) * INNER + inner", update, "i")} }
% else:
  int from = row - begin;
% if circular:
  from = from < 0 ? from + SIZE : from;
% endif
  if (from >= 0 && from < LENGTH) {
    ${y.move("i", update, "(line * LENGTH + from) * INNER + inner")}
  } else {
    ${y.move("i", k.args["x"], "i")}
  }
% endif
}
