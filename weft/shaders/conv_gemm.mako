## Convolution as an implicit GEMM (`gemm.parts.mako`): rows are output pixels, columns blocks of four output channels,
## K runs over taps and blocks of four input channels. Pixels outside of the images are set to zero after the load.
## `parted`: `sum_parts.py`. `planar`: the image has up to four channels (CI) in NCHW, which are the one block. `pooled`:
## there is one tap, and a pixel is the largest of so many that a window sees (`fused/pooled.py`).
<%page args="parted=False, planar=0, pooled=0"/>\
<%namespace name="gemm" file="gemm.parts.mako"/>
<%
rows, cols, _, fetched_a, _ = gemm.module.sizes(rp, rc, lx, ly, depth)
rounds = "GROUP_Z * EACH", "min((GROUP_Z + 1) * EACH, (STEPS + LZ - 1) / LZ)"
image = " + GROUP_Z * (PIXELS / (OH * OW))" if parted else ""

def four(u, block, pixel):
    """Return what an item fetches: four channels of one pixel of image an."""
    if not planar:
        return x.vector(f"inside{u} ? {x.place4(f'an{u}', block, pixel)} : 0")
    planes = [x.load(f"inside{u} ? (an{u} * CI + {c}) * (IH * IW) + {pixel} : 0") for c in range(4)]
    return "F4(" + ", ".join(p if c == 0 else f"CI > {c} ? {p} : 0.0" for c, p in enumerate(planes)) + ")"

def fetched(u, block, pixel):
    """Return the statements that fetch it."""
    if planar:
        return f"va{u} = {four(u, block, pixel)};"
    return x.fetch4(f"va{u}", f"inside{u}", f"an{u}", block, pixel)

blocks = "C4" if pointwise or pooled else "KH * KW * C4"  # of the sum

def block_of_sum(u, step):
    """Return the block that an item fetches at a step; the last step's stands for those of later ones."""
    return f"{f'min({step}, STEPS - 1)' if transposed else f'({step})'} * {depth} + ak{u}"

def is_summed(u, step):
    """Return the condition that this block, of row u, is part of the sum."""
    if transposed:
        return f"(STEPS * {depth} == {blocks} && STEPS % LZ == 0 || ({step}) * {depth} + ak{u} < {blocks})"
    return f"row{u} < PIXELS && " + ("kk < C4" if pointwise or pooled else "tap < KH * KW")

def tap_of(step):
    """Return the tap of block kk: where steps end with taps, all items of a group have the same."""
    if not transposed:
        return "kk / C4"
    return f"C4 % {depth} == 0 ? min({step}, STEPS - 1) / max(C4 / {depth}, 1) : kk / C4"  # never divides by zero

def inner(u, seen):
    """Return the pixel at a place of the window, or the nearest inside of the image: the window sees that, too."""
    ih, iw = f"min(max(ah{u} + {seen} / KW, 0), IH - 1)", f"min(max(aw{u} + {seen} % KW, 0), IW - 1)"
    return f"{ih} * IW + {iw}"
%>\
% if copied:
<%include file="async_copies.opencl.mako"/>
% endif
${gemm.memory()}
<%def name="fetch(step)">
% for u in range(fetched_a):
  {
    const int kk = ${block_of_sum(u, step)};
% if pooled:
    inside${u} = ${is_summed(u, step)};
% for seen in range(pooled):
    const f32x4 v${seen} = ${four(u, "kk", inner(u, seen))};
% endfor
    va${u} = v0;
% for seen in range(1, pooled):
    va${u} = F4(${", ".join(f"fmax(va{u}.{lane}, v{seen}.{lane})" for lane in "xyzw")});
% endfor
% elif pointwise:
    inside${u} = ${is_summed(u, step)};
    ${fetched(u, "kk", f"ap{u}")}
% else:
    const int tap = ${tap_of(step)}, ih = ah${u} + tap / KW * DH, iw = aw${u} + tap % KW * DW;
    inside${u} = ${is_summed(u, step)} && ih >= 0 && ih < IH && iw >= 0 && iw < IW;
    ${fetched(u, "kk - tap * C4" if transposed else "kk % C4", "ih * IW + iw")}
% endif
  }
% endfor
${gemm.fetch_weights(step)}\
</%def>\
<%def name="finish(where)">\
% for j in range(rc):
    ${where(f"column0 + {j * ly} + down < COUNT")}{
      const int block = FIRST + column0 + ${j * ly} + down;
      const f32x4 bias = ${k.args["b"].load4("0", "block", "0") if k.has("b") else "SPLAT(0.0)"};
% for i in range(rp):
      ${where(f"first_row + {gemm.module.row(i, lx, transposed)} < PIXELS")}{
        const int row = first_row + ${gemm.module.row(i, lx, transposed)};
        ${y.store4("row / (OH * OW)" + image, "block", "row % (OH * OW)", f"acc{i}_{j} + bias")}
      }
% endfor
    }
% endfor
</%def>\
${gemm.who()}\
${k.for_groups("tile", "TILES")} {
  const int first_row = tile * ${rows};
% for u in range(fetched_a):
  ${gemm.place(u)}
  const int an${u} = row${u} / (OH * OW), ap${u} = row${u} % (OH * OW);
% if not pointwise:
  const int ah${u} = ap${u} / OW * SH - PH, aw${u} = ap${u} % OW * SW - PW;
% endif
  f32x4 va${u};
  bool inside${u};
% endfor
${gemm.multiply(fetch, lambda u: f"inside{u} ? va{u} : SPLAT(0.0)", rounds if parted else None)}\
% if transposed:
## Without conditions the compiler loads what all stores of the epilogue read before it stores: an item has many, and
## few others beside it to wait with.
  if (LOCAL_Z == 0 && (PIXELS % ${rows} == 0 || first_row + ${rows} <= PIXELS) && (COUNT % ${cols} == 0 || column0 + ${cols} <= COUNT)) {
${finish(lambda condition: "")}\
  } else if (LOCAL_Z == 0) {
% else:
  if (LOCAL_Z == 0) {
% endif
${finish("if ({}) ".format)}\
  }
}
