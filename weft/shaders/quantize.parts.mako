## Where the scale of element i is: `Spread` of weft.ops.quantize says what the constants are.
<%def name="place()">
  const int at = i / (SIZE * INNER) * OUTER_STEP + i / INNER % SIZE / BLOCK * BLOCK_STEP + i % INNER * INNER_STEP;
</%def>
## The f32 `name` = a - v b, exactly where v is within an ulp of a / b: numbers are cut into halves of 12 bits, whose
## products are exact (Dekker 1971, "A floating-point technique for extending the available precision"), so it does not
## matter which of them a compiler contracts. Vulkan does not promise that fma rounds once, and llvmpipe's rounds twice.
<%def name="residual(name, a, v, b)">
  f32 ${name};
  {
    const f32 v_high = FLOAT_OF(BITS_OF(${v}) & 0xfffff000u), v_low = ${v} - v_high;
    const f32 b_high = FLOAT_OF(BITS_OF(${b}) & 0xfffff000u), b_low = ${b} - b_high;
    ${name} = ${a} - v_high * b_high;
    ${name} -= v_high * b_low;
    ${name} -= v_low * b_high;
    ${name} -= v_low * b_low;
  }
</%def>
## The correctly rounded quotient of floats as `v`; devices may be wrong by 2.5 ulp, and a tie is not a tie then.
## A step with the residual (Markstein 1990, "Computation of elementary functions on the IBM RISC System/6000 processor")
## brings v within an ulp; of it and the next float the one with the smaller residual is nearest. The next float is
## v + phi |v| (Rump, Zimmermann, Boldo, Melquiond 2009, "Computing predecessor and successor in rounding to nearest").
## Where residuals might underflow, and for NaN and infinity, the division stays as the device makes it.
<%def name="divide(v, a, b)">
  f32 ${v} = ${a} / ${b};
  if (fabs(${v}) > 1.0e-18 && fabs(${v}) < 1.0e18 && fabs(${a}) > 1.0e-18 && fabs(${a}) < 1.0e30) {
    ${residual("first", a, v, b)}
    ${v} += first / ${b};
    ${residual("left", a, v, b)}
    const f32 next = ${v} + ((left < 0.0) != (${b} < 0.0) ? -5.9604652e-08 : 5.9604652e-08) * fabs(${v});
    ${residual("beyond", a, "next", b)}
    ${v} = fabs(beyond) < fabs(left) ? next : ${v};
  }
</%def>
