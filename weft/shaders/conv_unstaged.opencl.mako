## Convolution in fp16 on NVIDIA's matrix units without work-group memory: see the GLSL twin. A warp of 32 holds
## ${fm} x ${fn} tiles of 16 x 16 sums; fragments are those of mma.m16n8k16 (PTX ISA).
<%page args="parted=False, many=False"/>\
<%
k.needs_subgroup()
if sliced:
    k.shared("f32", "Sum", f"(LZ - 1) * {fm * fn * 8 * 32}")
element = lambda i, j, e: f"acc{i}_{j}_{e}"

def unpacked(piece, low, high):
    """Return the statements that make a piece two vectors."""
    halves = "".join(f"UNPACK_HALVES(e{2 * w}, e{2 * w + 1}, {piece}.{word}); " for w, word in enumerate("xyzw"))
    names = [", ".join(f"e{e}" for e in range(first, first + 4)) for first in (0, 4)]
    return f"f32 {names[0]}, {names[1]}; {halves}f32x4 {low} = F4({names[0]}), {high} = F4({names[1]});"

def packed(piece, low, high):
    """Return the statements that make two vectors a piece."""
    pairs = [(v, *lanes) for v in (low, high) for lanes in ("xy", "zw")]
    words = " ".join(f"PACK_HALVES(word{w}, {v}.{a}, {v}.{b});" for w, (v, a, b) in enumerate(pairs))
    return f"uint word0, word1, word2, word3; {words} {piece} = (uint4)(word0, word1, word2, word3);"
%>
<%include file="ptx.opencl.mako"/>
<%namespace name="parts" file="conv_unstaged.parts.mako"/>
${parts.places(x, fm, fn, pointwise)}
% for i, j in [(i, j) for i in range(fm) for j in range(fn)]:
f32 ${", ".join(f"acc{i}_{j}_{e} = 0.0" for e in range(8))};
% endfor
${parts.rounds(ahead, parted)}
  ${parts.fetch(x, fm, fn, ahead, pointwise, many, "((__global const uint4*)x)", "((__global const uint4*)w)", "uint4", "(uint4)(0)", unpacked, packed)}
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
