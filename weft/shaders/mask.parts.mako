## What a mask makes of a score, in all attention kernels: `given` is the mask's number, `added` the same in the unit of
## `score`. In place of a score comes -inf if rows without a key yield zeros, and the lowest fp16 if it stands for the
## lowest fp32: that makes all scores of a row the same, while -65504 and the sum of it in fp32 keep their differences.
## With `replaces` so does every number from that one down, as a choice puts it there.
<%def name="masked(score, given, added)" filter="trim">
<%
tests = [f"{given} == -INFINITY_F"] * context.get("zero_hidden", False)
tests += [f"{given} == -65504.0"] * context.get("lowest_hides", False)
if context.get("replaces", ""):
    tests = [f"{given} <= {context['replaces']}"]
%>
${f"{' || '.join(tests)} ? {added} : {score} + {added}" if tests else f"{score} + {added}"}
</%def>
