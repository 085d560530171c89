## Parts of both convolution kernels on matrix units: the fetch of a step of both operands, `blocks` of K from
## step * blocks on, into va.. and vb... `x_at` and `w_at` are the language's names of the arrays of whole pieces. What a
## prologue reads is fetched along; of several images (`many`), each pixel has its own.
<%namespace name="im2col" file="im2col.parts.mako"/>
<%def name="fetch(x, step, blocks, fetched, w_fetched, each, pointwise, many, x_at, w_at)">
% for u in range(fetched):
  {
    ${im2col.locate(u, step, blocks, pointwise)}
    va${u} = ${x_at}[inside${u} ? at / ${each} : 0];
% if x.has_prologue():
    block${u} = kk;
% for h in range(each):
    ${x.prologue_operands(f"{u}_{h}", f"inside{u}", f"an{u}" if many else "0", f"kk + {h}", declared=True)}
% endfor
% endif
  }
% endfor
% for u in range(w_fetched):
  vb${u} = ${w_at}[min(${step}, STEPS - 1) * ${4 * blocks} * (WIDTH / ${each}) + from${u}];
% endfor
</%def>
## The variables for what a prologue reads, and the block of channels that it is for.
<%def name="variables(x, u, each)">\
% if x.has_prologue():
  int block${u};
% for h in range(each):
  ${x.prologue_variables(f"{u}_{h}")}
% endfor
% endif
</%def>
## Apply the prologue to what was fetched; `pieces` is the language's module of that name.
<%def name="apply(x, u, each, pieces)">\
% if x.has_prologue():
<% vectors = ("low", "high")[:each] %>\
    {
      ${pieces.unpacked(f"va{u}", vectors, each == 2)}
% for h, vector in enumerate(vectors):
      ${x.applied(vector, f"{u}_{h}", f"block{u} + {h}")}
% endfor
      ${pieces.packed(f"va{u}", vectors, each == 2)}
    }
% endif
</%def>
