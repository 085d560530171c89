## Long sums. An item that adds a million numbers to one total loses digits: each is rounded as the total is. So it adds
## up FEW at a time, then FEW of these sums, and only those to the total. That costs an addition for FEW elements.
<%!
FEW = 64
%>
## `value`, the sum over places from `first` to before `end`, `step` apart. The body adds the elements from `near` to before
## `near_end` to `few`.
<%def name="in_parts(value, kind, zero, first, end, step)" filter="trim">
${kind} ${value} = ${zero};
  for (int far = ${first}; far < ${end}; ) {
    const int far_end = far + min((${end}) - far, ${FEW * FEW} * ${step});
    ${kind} more = ${zero};
    for (int near = far; near < far_end; ) {
      const int near_end = near + min(far_end - near, ${FEW} * ${step});
      ${kind} few = ${zero};
      ${capture(caller.body).strip()}
      more += few;
      near = near_end;
    }
    ${value} += more;
    far = far_end;
  }
</%def>
