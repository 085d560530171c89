## A strided copy of raw elements over ${rank} axes of sizes D0.., steps XS0.. and YS0.. from the last one on, offsets X0 and Y0.
${k.for_each("i", "TOTAL")} {
  int rest = i, from = X0, to = Y0;
% for d in range(rank):
  {
    const int at = ${"rest" if d == rank - 1 else f"rest % D{d}"};
    from += at * XS${d};
    to += at * YS${d};
    rest /= D${d};
  }
% endfor
  ${y.move("to", x, "from")}
}
