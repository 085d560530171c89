## For each of COUNT slices of SLICE elements along an axis, INNER of them side by side, the place of the first that
## equals it; and whether that is the slice itself. NaN equals NaN if `merges_nan`.
<%namespace name="parts" file="unique.parts.mako"/>
${k.for_each("i", "COUNT")} {
  int at = 0;
  for (bool found = false; !found && at < i; at += found ? 0 : 1) {
    ${parts.compare(x, "at", "i", floats, wide)}
    found = sign == 0${"" if merges_nan else " && !odd"};
  }
  ${first.store_int("i", "at")}
  const int own = at == i ? 1 : 0;
  ${fresh.store_int("i", "own")}
}
