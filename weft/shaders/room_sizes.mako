## The sizes of results without elements: one item writes the RANK sizes S., of which `counted`, unless it is -1, is what
## another kernel counted.
if (GLOBAL_ID == 0) {
% for d in range(rank):
  const int n${d} = ${k.args["count"].load("0") if d == counted else f"S{d}"};
  ${sizes.store_int(str(d), f"n{d}")}
% endfor
}
