## Convolution in fp32 as an implicit GEMM on NVIDIA's matrix units, with the tiles, packing and order of work of the
## GLSL twin, and the fragments of `conv_matrix.opencl.mako`.
<%
rows, cols, items, depth = 16 * fm * sm, 16 * fn * sn, 32 * sm * sn, kb // 4
stride, fetched = kb + 2, rows * kb // items
w_stride, w_fetched = cols // 8 + 1, cols * kb // items
a_plane, b_plane = rows * stride, 4 * kb * w_stride
frags = [(i, j) for i in range(fm) for j in range(fn)]
each = [(i, j, e) for i, j in frags for e in range(8)]
meet = "WARP_BARRIER" if sm * sn == 1 else "BARRIER"
k.needs_subgroup()
k.shared("uint4", "As4", f"LZ * {a_plane}")
k.shared("uint4", "Bs4", f"LZ * {2 * b_plane}")
if sliced:
    k.shared("f32", "Sum", f"(LZ - 1) * {rows * cols}")
%>
<%include file="ptx.opencl.mako"/>
<%namespace name="parts" file="conv_split.parts.mako"/>
<%def name="multiply(a, b)">
% for i, j in frags:
% for half in range(2):
      MMA(${", ".join([f"acc{i}_{j}_{2 * half + e}" for e in (0, 1, 4, 5)] + [f"{a}{i}_{r}" for r in range(4)])},
          ${b}${j}_${2 * half}, ${b}${j}_${2 * half + 1});
% endfor
% endfor
</%def>
__local uint2* As = (__local uint2*)As4;
__local uint4* Bs = Bs4;
${parts.who("uint4")}
## The address for ldmatrix: row lane % 16; the upper half of the warp has the second half of the columns.
const shared_at a_at = SHARED_AT(As + a_base + (part_m * ${16 * fm} + lane % 16) * ${stride} + lane / 16 * 2);
const shared_at b_at = SHARED_AT(Bs + b_base + lane % 16 * ${w_stride} + part_n * ${2 * fn} + lane / 16);
${k.for_groups("tile", "TILES")} {
  ${parts.pixels()}
  f32 ${", ".join(f"sum{i}_{j}_{e} = 0.0" for i, j, e in each)};
  ${parts.fetch("LOCAL_Z", "((__global const uint4*)w)")}
  for (int round = 0; round < (STEPS + LZ - 1) / LZ; round++) {
% for u in range(fetched):
    {
      const f32x4 a = inside${u} ? va${u} * ${scale} : SPLAT(0.0);
      uint high0, high1, low0, low1;
      SPLIT_HALVES(high0, low0, a.x, a.y);
      SPLIT_HALVES(high1, low1, a.z, a.w);
      As[a_base + am${u} * ${stride} + ak${u}] = (uint2)(high0, high1);
      As[a_base + ${a_plane} + am${u} * ${stride} + ak${u}] = (uint2)(low0, low1);
    }
% endfor
% for u in range(w_fetched):
    Bs[to${u}] = vb${u};
% endfor
    ${meet};
    ${parts.fetch("(round + 1) * LZ + LOCAL_Z", "((__global const uint4*)w)")}
    f32 ${", ".join(f"acc{i}_{j}_{e} = 0.0" for i, j, e in each)};
% for q in range(depth):
% for j, name, plane in [(j, name, plane) for j in range(fn) for plane, name in enumerate(("bh", "bl"))]:
    uint ${", ".join(f"{name}{q}_{j}_{r}" for r in range(4))};
    LDMATRIX_TRANS(${", ".join(f"{name}{q}_{j}_{r}" for r in range(4))}, b_at + ${(plane * b_plane + 16 * q * w_stride + 2 * j) * 16});
% endfor
% for i, name, plane in [(i, name, plane) for i in range(fm) for plane, name in enumerate(("ah", "al"))]:
    uint ${", ".join(f"{name}{q}_{i}_{r}" for r in range(4))};
    LDMATRIX(${", ".join(f"{name}{q}_{i}_{r}" for r in range(4))}, a_at + ${(plane * a_plane + 16 * i * stride + 4 * q) * 8});
% endfor
    ${multiply(f"ah{q}_", f"bl{q}_")}
    ${multiply(f"al{q}_", f"bh{q}_")}
% endfor
% for i, j, e in each:
    acc${i}_${j}_${e} *= ${low};
% endfor
% for q in range(depth):
    ${multiply(f"ah{q}_", f"bh{q}_")}
% endfor
% for i, j, e in each:
    sum${i}_${j}_${e} += acc${i}_${j}_${e};
% endfor
    ${meet};
  }
% if sliced:
  if (LOCAL_Z > 0) {
% for n, (i, j, e) in enumerate(each):
    Sum[(LOCAL_Z - 1) * ${rows * cols} + sum_base + ${32 * n} + lane] = sum${i}_${j}_${e};
% endfor
  }
  BARRIER;
  for (int z = 0; LOCAL_Z == 0 && z < LZ - 1; z++) {
% for n, (i, j, e) in enumerate(each):
    sum${i}_${j}_${e} += Sum[z * ${rows * cols} + sum_base + ${32 * n} + lane];
% endfor
  }
  BARRIER;
% endif
${parts.finish(lambda i, j, e: f"sum{i}_{j}_{e}")}
}
