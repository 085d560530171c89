## The boxes of each line (an image and a class) by their scores, best first, and how many there are: one item a box,
## which counts those before it; NaN comes last. With `least` only boxes above that score count.
<%def name="counts(score)">${f"{score} > least" if k.has("threshold") else "true"}</%def>
${k.for_each("i", "TOTAL")} {
  const int line = i / BOXES, e = i % BOXES;
% if k.has("threshold"):
  const f32 least = ${k.args["threshold"].load("0")};
% endif
  const f32 w = ${scores.load("i")};
  const bool mine = ${counts("w")};
  if (mine || e == 0) {
    int rank = 0, all = 0;
    for (int other = 0; other < BOXES; other++) {
      const f32 v = ${scores.load("line * BOXES + other")};
      const bool its = ${counts("v")};
      all += its ? 1 : 0;
      rank += its && (v > w || (!is_nan(v) && is_nan(w)) || ((v == w || (is_nan(v) && is_nan(w))) && other < e)) ? 1 : 0;
    }
    if (mine) {
      ${order.store_int("line * BOXES + rank", "e")}
    }
    if (e == 0) {
      ${number.store_int("line", "all")}
    }
  }
}
