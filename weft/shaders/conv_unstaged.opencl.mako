## Convolution in fp16 on NVIDIA's matrix units without work-group memory: see the GLSL twin. A warp of 32 holds
## ${fm} x ${fn} tiles of 16 x 16 sums; fragments are those of mma.m16n8k16 (PTX ISA).
<%page args="parted=False, many=False"/>\
<%
k.needs_subgroup()
if sliced:
    k.shared("f32", "Sum", f"(LZ - 1) * {fm * fn * 8 * 32}")
element = lambda i, j, e: f"acc{i}_{j}_{e}"
%>
<%include file="ptx.opencl.mako"/>
<%namespace name="parts" file="conv_unstaged.parts.mako"/>
<%namespace name="pieces" file="pieces.opencl.mako"/>\
${parts.places(x, fm, fn, pointwise)}
% for i, j in [(i, j) for i in range(fm) for j in range(fn)]:
f32 ${", ".join(f"acc{i}_{j}_{e} = 0.0" for e in range(8))};
% endfor
${parts.rounds(ahead, parted)}
  ${parts.fetch(x, fm, fn, ahead, pointwise, many, "((__global const uint4*)x)", "((__global const uint4*)w)", "uint4", "(uint4)(0)", pieces.module)}
% for u, step, i, j, h in [(u, s, i, j, h) for u in range(ahead) for s in range(2) for i in range(fm) for j in range(fn) for h in range(2)]:
<% low, high = "xz"[step], "yw"[step] %>
    MMA(${", ".join(element(i, j, 2 * h + e) for e in (0, 1, 4, 5))},
        v${u}_${i}_0.${low}, v${u}_${i}_1.${low}, v${u}_${i}_0.${high}, v${u}_${i}_1.${high}, b${u}_${j}_${h}.${low}, b${u}_${j}_${h}.${high});
% endfor
}
% if sliced:
${parts.join(fm, fn, element)}
% endif
${parts.finish(k, y, fm, fn, element, parted)}
