## Winograd's products: for each point (GROUP_Z) a GEMM (`gemm.parts.mako`) of patches times blocks of four
## output channels, over blocks of four input channels: v[point][block][patch] by w, to m[point][block][patch].
<%namespace name="gemm" file="gemm.parts.mako"/>
<%
rows, _, _, fetched, _ = gemm.module.sizes(rp, rc, lx, ly, depth)
%>\
${gemm.memory()}
## Blocks behind the last one are multiplied by zero weights; patches behind the last one are not stored.
<%def name="fetch(step)">
% for u in range(fetched):
  va${u} = ${v.vector(f"vfrom{u} + min(({step}) * 4 + ak{u}, C4 - 1) * PATCHES")};
% endfor
${gemm.fetch_weights(step, "GROUP_Z * STEPS * 16 * COUNT + ")}\
</%def>\
${gemm.who()}\
${k.for_groups("tile", "TILES")} {
  const int first_row = tile * ${rows};
% for u in range(fetched):
  ${gemm.place(u)}
  const int vfrom${u} = GROUP_Z * C4 * PATCHES + min(row${u}, PATCHES - 1);
  f32x4 va${u};
% endfor
${gemm.multiply(fetch, lambda u: f"va{u}")}\
  if (LOCAL_Z == 0) {
% for j in range(rc):
    if (column0 + ${j * ly} + down < COUNT) {
      const int to = (GROUP_Z * COUNT + column0 + ${j * ly} + down) * PATCHES + first_row + across;
% for i in range(rp):
      if (first_row + ${i * lx} + across < PATCHES) ${m.store_vector(f"to + {i * lx}", f"acc{i}_{j}")}
% endfor
    }
% endfor
  }
}
