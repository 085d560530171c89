## The kept boxes of all lines, one after the other, as rows (image, class, box); zeros behind them. One item a row.
${k.for_each("i", "ROOM")} {
  int line = 0, before = 0, image = 0, group = 0, box = 0;
  for (line = 0; line < LINES; line++) {
    const int here = ${kept.load("line")};
    if (i >= before && i < before + here) {
      image = line / CLASSES;
      group = line % CLASSES;
      box = ${chosen.load("line * MOST + i - before")};
    }
    before += here;
  }
  ${y.store_int("i * 3", "image")}
  ${y.store_int("i * 3 + 1", "group")}
  ${y.store_int("i * 3 + 2", "box")}
% if k.has("sizes"):
  if (i == 0) {
    const int three = 3;
    ${k.args["sizes"].store_int("0", "before")}
    ${k.args["sizes"].store_int("1", "three")}
  }
% endif
}
