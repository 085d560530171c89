## How work-items walk a line of R0 x R1 x R2 elements at steps RS., one of K0 x K1 x K2 lines at steps KS...
<%namespace name="sums" file="sums.parts.mako"/>
<%namespace name="tree" file="tree.parts.mako"/>
<%def name="base(line)" filter="trim">
const int base = ${line} / (K1 * K2) * KS0 + ${line} / K2 % K1 * KS1 + ${line} % K2 * KS2;
</%def>
<%def name="place(e)" filter="trim">
base + ${e} / (R1 * R2) * RS0 + ${e} / R2 % R1 * RS1 + ${e} % R2 * RS2
</%def>
## The sum of `expr`, of an element v less what `minus` says, over elements from `first` on, `step` apart; `joined` by all
## items of the group.
<%def name="add(value, expr, first, step, end, minus, joined)" filter="trim">
<%sums:in_parts value="${value}" kind="real" zero="0.0" first="${first}" end="${end}" step="${step}">
      for (int e = near; e < near_end; e += ${step}) {
        const real v = ${x.load(capture(place, "e"))}${minus};
        few += ${expr};
      }
</%sums:in_parts>
% if joined:
  ${tree.sum(value)}
% endif
</%def>
