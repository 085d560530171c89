## Parts of both attention kernels on matrix units; EXP2 is the language's power of 2. With `unscaled`, scores and what is
## the largest of them are without SCALE, which is positive, until a power is taken. With `capped` they are
## CAP * tanh(SCALE * Q K^T) before the mask.
<%namespace name="mask" file="mask.parts.mako"/>
<%!
def scaled(context, score):
    """Return a score as powers take it."""
    return f"{score} * SCALE" if context.get("unscaled", False) else score
%>
<%def name="names()">
<% k.defines("LARGER", "PLUS", "LOG2E", "INSIDE") %>\
#define LARGER(a, b) max((a), (b)) // a NaN may get lost here: it makes the total one all the same
#define PLUS(a, b) ((a) + (b))
#define LOG2E 1.44269504
#define INSIDE(key) (COUNT % ${keys * slices} == 0 || (key) < COUNT)
</%def>
## The four lanes of a quad have the same rows: join their maxima, or their sums.
<%def name="over_quad(by, a)">
{ f32 other; SHUFFLE_XOR(other, ${a}, 1); ${a} = ${by}(${a}, other); SHUFFLE_XOR(other, ${a}, 2); ${a} = ${by}(${a}, other); }
</%def>
## Take powers relative to a larger score from now on. If all scores so far are -inf there is nothing to scale, and the
## difference of two infinities must not be computed.
<%def name="move_top(r)">
const f32 shift${r} = next${r} == -INFINITY_F ? 0.0 : ${scaled(context, f"next{r}")}, fade${r} = EXP2(${scaled(context, f"top{r}")} - shift${r});
top${r} = next${r};
</%def>
## A score: scaled, capped, masked, and -inf behind the last key.
<%def name="finish_score(score, r)">
% if not context.get("unscaled", False):
${score} *= SCALE;
% endif
% if context.get("capped", False):
## tanh by a series near zero, where the difference that is exact elsewhere cancels. Infinities give 1 and -1.
{
  const f32 square = ${score} * ${score};
  const f32 series = ${score} * (1.0 + square * (-0.333333333 + square * (0.133333333 + square * -0.0539682540)));
  const f32 difference = 1.0 - 2.0 * RECIPROCAL(1.0 + EXP2(2.88539008 * ${score}));
  ${score} = CAP * (square < 0.0625 ? series : difference);
}
% endif
% if k.has("mask"):
<% given = k.args["mask"].load(f"batch * MB + head * MH + min(row{r}, QUERIES - 1) * MS + min(key, COUNT - 1) * MK") %>\
% if any(context.get(name, False) for name in ("zero_hidden", "lowest_hides", "replaces")):
{ const f32 given = ${given}, added = LOG2E * given; ${score} = ${mask.masked(score, "given", "added")}; }
% else:
${score} += LOG2E * ${given};
% endif
% endif
${score} = INSIDE(key) ? ${score} : -INFINITY_F;
next${r} = LARGER(next${r}, ${score});
</%def>
## The other slices pass their results to the first, which adds each like one more block; `sums` are (expression, r),
## `rows` how many r there are.
<%def name="join(sums, rows)">
<%
held = [f"top{r}" for r in range(rows)] + [f"total{r}" for r in range(rows)]
size = 32 * (len(sums) + len(held))
%>
if (slice > 0) {
  const int at = ((slice - 1) * ${warps} + part) * ${size} + lane;
% for i, name in enumerate(held + [name for name, r in sums]):
  Parts[at + ${32 * i}] = ${name};
% endfor
}
BARRIER;
for (int other = 0; slice == 0 && other < ${slices - 1}; other++) {
  const int at = (other * ${warps} + part) * ${size} + lane;
% for r in range(rows):
  const f32 theirs${r} = Parts[at + ${32 * r}], next${r} = LARGER(top${r}, theirs${r});
  ${move_top(r)}
  const f32 share${r} = EXP2(${scaled(context, f"theirs{r}")} - shift${r});
  total${r} = total${r} * fade${r} + share${r} * Parts[at + ${32 * (rows + r)}];
% endfor
% for i, (name, r) in enumerate(sums):
  ${name} = ${name} * fade${r} + share${r} * Parts[at + ${32 * (len(held) + i)}];
% endfor
}
BARRIER;
</%def>
