## The addresses at which an implicit GEMM reads pixels: row u is an output pixel, K runs over taps and blocks of four
## input channels. An address is the sum of a part for the row, computed once for each tile, and one for the tap and
## channels, computed once for each step.
<%def name="pixel(x, u, pointwise)">
  const int an${u} = row${u} / (OH * OW), ap${u} = row${u} % (OH * OW);
% if pointwise:
  const int a${u} = ${x.place4(f"an{u}", "0", f"ap{u}")};
% else:
  const int ah${u} = row${u} < PIXELS ? ap${u} / OW * SH - PH : -IH - KH * DH, aw${u} = ap${u} % OW * SW - PW;
  const int a${u} = ${x.place4(f"an{u}", "0", f"(ah{u} * IW + aw{u})")};
% endif
</%def>
## Declare `at`, the address of block ak.. of a step of so many `blocks`, and set inside...
<%def name="locate(u, step, blocks, pointwise)">
    const int kk = (${step}) * ${blocks} + ak${u};
% if pointwise:
    inside${u} = row${u} < PIXELS && kk < C4;
    const int at = a${u} + kk * x_CS;
% else:
## If taps begin with a step, all items fetch from one tap.
    const int tap = (C4 % ${blocks} == 0 ? (${step}) * ${blocks} : kk) / C4, kh = tap / KW * DH, kw = tap % KW * DW;
    inside${u} = tap < KH * KW && ah${u} + kh >= 0 && ah${u} + kh < IH && aw${u} + kw >= 0 && aw${u} + kw < IW;
    const int at = a${u} + (kh * IW + kw) * x_PS + (kk - tap * C4) * x_CS;
% endif
</%def>
