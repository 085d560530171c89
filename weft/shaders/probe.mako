## The microbenchmarks by which a device's rates are measured (`weft.backends.gpu.tuning.probe`): `what` is the one that
## this kernel is. `rounds` says how long it takes; it is an argument, so that one kernel serves all lengths. What is
## computed is stored, or compilers would leave it out.
<% chains = range(4) %>\
const int turns = ${rounds.load("0")};
f32x4 sum = SPLAT(0.0);
% if what == "launch":
sum.x = TO_F32(turns);
% elif what == "products":
const f32x4 by = ${k.args["x"].vector("LOCAL_X")}, more = ${k.args["x"].vector("LOCAL_X + 1")};
% for c in chains:
f32x4 sum${c} = ${k.args["x"].vector(f"LOCAL_X + {c}")};
% endfor
for (int turn = 0; turn < turns; turn++) {
% for _ in range(4):
% for c in chains:
  sum${c} = sum${c} * by + more;
% endfor
% endfor
}
sum = ${" + ".join(f"sum{c}" for c in chains)};
% elif what == "shared":
<% k.shared("f32x4", "Stage", "LX + 16") %>\
Stage[LOCAL_X] = ${k.args["x"].vector("LOCAL_X")};
if (LOCAL_X < 16) Stage[LOCAL_X + LX] = ${k.args["x"].vector("LOCAL_X + 1")};
BARRIER;
% for c in chains:
f32x4 sum${c} = SPLAT(0.0);
% endfor
for (int turn = 0; turn < turns; turn++) {
  const int at = LOCAL_X + turn % 8;
% for n in range(8):
  sum${n % 4} += Stage[at + ${n}];
% endfor
}
sum = ${" + ".join(f"sum{c}" for c in chains)};
% elif what == "barriers":
<% k.shared("f32x4", "Stage", "LX") %>\
sum = ${k.args["x"].vector("LOCAL_X")};
for (int turn = 0; turn < turns; turn++) {
  Stage[LOCAL_X] = sum;
  BARRIER;
  sum += Stage[LX - 1 - LOCAL_X];
  BARRIER;
}
% elif what == "read":
## Each turn reads other places, which no compiler can load once and for all; adjacent items read adjacent vectors.
int at = GLOBAL_ID % COUNT;
for (int turn = 0; turn < turns; turn++) {
% for c in chains:
  sum += ${k.args["x"].vector(f"at + COUNT * {c}")};
% endfor
  at += STEP;
  at -= at >= COUNT ? COUNT : 0;
}
% elif what == "waits":
int at = LOCAL_X;
for (int turn = 0; turn < turns; turn++) at = ${k.args["places"].load("at")};
sum.x = TO_F32(at);
% endif
${y.store_vector("GLOBAL_ID % SLOTS", "sum")}
