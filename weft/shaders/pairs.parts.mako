## Arithmetic on integers of 64 bits as two `uint` variables, the lower and the upper half. It wraps.
<%def name="add(low, high, l, h)">
    ${low} += ${l};
    ${high} += ${h} + (${low} < ${l} ? 1u : 0u);
</%def>
<%def name="multiply(low, high, l, h)">
    {
    const uint a0 = ${low} % 65536, a1 = ${low} / 65536, b0 = ${l} % 65536, b1 = ${l} / 65536;
    const uint middle = a0 * b0 / 65536 + a0 * b1 % 65536 + a1 * b0 % 65536;
    ${high} = ${high} * ${l} + ${low} * ${h} + a1 * b1 + a0 * b1 / 65536 + a1 * b0 / 65536 + middle / 65536;
    ${low} = a0 * b0 % 65536 + middle % 65536 * 65536;
    }
</%def>
<%def name="negate(low, high)">
  ${low} = ~${low} + 1;
  ${high} = ~${high} + (${low} == 0 ? 1 : 0);
</%def>
<%def name="less(low, high, l, h, wide)">(${high if wide else f"TO_I32({high})"} < ${h if wide else f"TO_I32({h})"} || ${high} == ${h} && ${low} < ${l})</%def>
