## Parts of both convolution kernels on matrix units: the fetch of a step of both operands, `blocks` of K from
## step * blocks on, into va.. and vb... `x_at` and `w_at` are the language's names of the arrays of whole pieces.
<%namespace name="im2col" file="im2col.parts.mako"/>
<%def name="fetch(step, blocks, fetched, w_fetched, each, pointwise, x_at, w_at)">
% for u in range(fetched):
  {
    ${im2col.locate(u, step, blocks, pointwise)}
    va${u} = ${x_at}[inside${u} ? at / ${each} : 0];
  }
% endfor
% for u in range(w_fetched):
  vb${u} = ${w_at}[min(${step}, STEPS - 1) * ${4 * blocks} * (WIDTH / ${each}) + from${u}];
% endfor
</%def>
