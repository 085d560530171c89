## How a work-group adds up images of channels in NC4HW4, or groups of EACH channels; `groups` is the number of groups in
## its PARTS blocks, 0: each channel by itself. A group reads the `pixels` pixels from pixel `start` on.
<%namespace name="sums" file="sums.parts.mako"/>
<%namespace name="tree" file="tree.parts.mako"/>
<%!
LANES = "xyzw"
def of_group(name, lane, groups):
    """Return what vector `name` holds for the group of the channel in a lane, of which `place` has the number."""
    text = f"{name}.{LANES[groups - 1]}"
    for group in reversed(range(groups - 1)):
        text = f"q{lane} < {group + 1} * EACH ? {name}.{LANES[group]} : {text}"
    return text
%>
## The image and the blocks of set `set`.
<%def name="blocks(set)" filter="trim">
const int n = ${set} / (SETS / IMAGES), first = ${set} % (SETS / IMAGES) * PARTS, parts = min(PARTS, BLOCKS - first);
</%def>
## Neighbouring items take neighbouring vectors: where channels come last, blocks of one pixel.
<%def name="place()" filter="trim">
const int c = first + (x_PS != 1 ? e % parts : e / pixels), p = start + (x_PS != 1 ? e / parts : e % pixels);
% if groups > 1:
% for i, lane in enumerate(LANES):
    const int q${lane} = (c - first) * 4 + ${i};
% endfor
% endif
</%def>
<%def name="spread(name, of)" filter="trim">
const f32x4 ${name} = ${f"F4({', '.join(of_group(of, lane, groups) for lane in LANES)})" if groups > 1 else of};
</%def>
## The sums over groups of the elements or, with `mean`, of the squares of their differences from it.
<%def name="add(value, mean=None)" filter="trim">
<%sums:in_parts value="${value}" kind="f32x4" zero="SPLAT(0.0)" first="LOCAL_X" end="parts * pixels" step="LX">
      for (int e = near; e < near_end; e += LX) {
    ${place()}
    f32x4 v = ${x.load4("n", "c", "p")};
% if mean:
    ${spread("from", mean)}
    v = (v - from) * (v - from);
% endif
% if groups > 1:
% for lane in LANES:
    if (c * 4 + ${LANES.index(lane)} < CHANNELS) {
% for group in range(groups):
      few.${LANES[group]} += q${lane} >= ${group} * EACH && q${lane} < ${group + 1} * EACH ? v.${lane} : 0.0;
% endfor
    }
% endfor
% else:
    few += v;
% endif
      }
</%sums:in_parts>
  ${tree.sum(value)}
% if groups == 1:
  ${value} = SPLAT(${value}.x + ${value}.y + ${value}.z + ${value}.w);
% endif
</%def>
