## The microbenchmark of matrix units (`weft.backends.gpu.tuning.probe`): every subgroup multiplies tiles of 16 x 16 halves that
## it holds, and adds them to four tiles of sums.
<%
k.needs_subgroup()
tiles = range(4)
sums = [f"sum{c}_{e}" for c in tiles for e in range(8)]
%>
<%include file="ptx.opencl.mako"/>
const int turns = ${rounds.load("0")};
uint half_ones;
PACK_HALVES(half_ones, ${x.load("LOCAL_X")}, ${x.load("LOCAL_X + 1")});
const uint a0 = half_ones, a1 = half_ones, a2 = half_ones, a3 = half_ones, b0 = half_ones, b1 = half_ones;
f32 ${", ".join(f"{name} = 0.0" for name in sums)};
for (int turn = 0; turn < turns; turn++) {
% for c, h in [(c, h) for c in tiles for h in (0, 4)]:
  MMA(${", ".join(f"sum{c}_{h + e}" for e in range(4))}, a0, a1, a2, a3, b0, b1);
% endfor
}
${y.store("GLOBAL_ID % SLOTS", " + ".join(sums))}
