## Padding over ${rank} axes: y has size D. along an axis, of which x fills N. elements from B. on; S. is the step in x,
## X0 the offset of what is cut off. In modes reflect and wrap, M. is a multiple of the period and at least B., so that no
## remainder of a negative number is taken. Raw elements in NCHW, or (packed) pixels in NC4HW4; where y is `wider`, its
## channel blocks from HELD on are zeros.
${k.for_each("i", "TOTAL")} {
  int rest = i, from = X0;
% if mode == "constant":
  bool inside = true;
% endif
% for d in reversed(range(rank)):
  {
    int at = rest % D${d} - B${d};
    rest /= D${d};
% if mode == "constant":
    inside = inside && at >= 0 && at < N${d};
% elif mode == "edge":
    at = at < 0 ? 0 : (at < N${d} ? at : N${d} - 1);
% elif mode == "wrap":
    at = (at + M${d}) % N${d};
% else:
    if (N${d} > 1) {
      at = (at + M${d}) % (2 * N${d} - 2);
      at = at < N${d} ? at : 2 * N${d} - 2 - at;
    } else at = 0;
% endif
    from += at * S${d};
  }
% endfor
% if packed:
  const int n = rest / BLOCKS, c = rest % BLOCKS, p = i % HW;
  f32x4 v = SPLAT(${"0.0" if mode != "constant" else k.args["fill"].load("0") if k.has("fill") else "FILL"});
  ${f"if (inside{' && c < HELD' if wider else ''}) " if mode == "constant" else ""}v = ${x.load4("n", "c", "from")};
  ${y.store4("n", "c", "p", "v")}
% elif mode == "constant":
  if (inside) { ${y.move("i", x, "from")} } else { ${y.move("i", k.args["fill"], "0")} }
% else:
  ${y.move("i", x, "from")}
% endif
}
