## The places of the elements that are not 0, in their order, and behind the last of them -1; their number is `count`.
## One group: each item counts and then writes the elements of a run of its own, RUN long.
<%
k.shared("i32", "sums", "LX")
%>
<%def name="is_set(at)">(${x.load(at)} != 0${f" || {x.load_high(at)} != 0" if wide else ""})</%def>
{
  const int begin = LOCAL_X * RUN, end = begin + RUN < TOTAL ? begin + RUN : TOTAL;
  int mine = 0;
  for (int e = begin; e < end; e++) {
    mine += ${is_set("e")} ? 1 : 0;
  }
  sums[LOCAL_X] = mine;
  BARRIER;
  for (int width = 1; width < LX; width *= 2) {
    const int before = LOCAL_X >= width ? sums[LOCAL_X - width] : 0;
    BARRIER;
    sums[LOCAL_X] += before;
    BARRIER;
  }
  const int all = sums[LX - 1];
  int next = sums[LOCAL_X] - mine;
  for (int e = begin; e < end; e++) {
    if (${is_set("e")}) {
      if (next < ROOM) {
        ${places.store_int("next", "e")}
      }
      next += 1;
    }
  }
  for (int e = all + LOCAL_X; e < ROOM; e += LX) {
    const int none = -1;
    ${places.store_int("e", "none")}
  }
  if (LOCAL_X == 0) {
    const int found = all < ROOM ? all : ROOM;
    ${count.store_int("0", "found")}
  }
}
