## The sum of what the items of a work-group have in `value`, by the array `part` in its memory, which has one for each.
<%def name="sum(value)" filter="trim">
part[LOCAL_X] = ${value};
  BARRIER;
  for (int width = LX / 2; width > 0; width /= 2) {
    if (LOCAL_X < width) part[LOCAL_X] += part[LOCAL_X + width];
    BARRIER;
  }
  ${value} = part[0];
  BARRIER;
</%def>
