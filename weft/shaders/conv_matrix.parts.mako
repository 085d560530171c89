## What both kernels of convolution on matrix units share: the fetch of a step of both operands, `blocks` of K from
## step * blocks on, into va.. and vb... `x_at` and `w_at` are how the language names the arrays of whole pieces.
<%def name="fetch(x, step, blocks, fetched, w_fetched, each, pointwise, x_at, w_at)">
% for u in range(fetched):
  {
    const int kk = (${step}) * ${blocks} + ak${u};
% if pointwise:
    inside${u} = row${u} < PIXELS && kk < C4;
    va${u} = ${x_at}[inside${u} ? (${x.place4(f"an{u}", "kk", f"ap{u}")}) / ${each} : 0];
% else:
    const int tap = kk / C4, ih = ah${u} + tap / KW * DH, iw = aw${u} + tap % KW * DW;
    inside${u} = row${u} < PIXELS && tap < KH * KW && ih >= 0 && ih < IH && iw >= 0 && iw < IW;
    va${u} = ${x_at}[inside${u} ? (${x.place4(f"an{u}", "kk % C4", "(ih * IW + iw)")}) / ${each} : 0];
% endif
  }
% endfor
% for u in range(w_fetched):
  vb${u} = ${w_at}[min(${step}, STEPS - 1) * ${4 * blocks} * (WIDTH / ${each}) + from${u}];
% endfor
</%def>
