## Convolution in fp32 as an implicit GEMM on NVIDIA's matrix units: see the GLSL twin, whose tiles, packing and order
## of work these are, and `conv_matrix.opencl.mako` for the layouts of fragments.
<%
rows, cols, items, depth = 16 * fm * sm, 16 * fn * sn, 32 * sm * sn, kb // 4
stride, fetched = kb + 2, rows * kb // items
w_stride, w_fetched = cols // 8 + 1, cols * kb // items
a_plane, b_plane = rows * stride, 4 * kb * w_stride
frags = [(i, j) for i in range(fm) for j in range(fn)]
each = [(i, j, e) for i, j in frags for e in range(8)]
meet = "WARP_BARRIER" if sm * sn == 1 else "BARRIER"
k.shared("uint4", "As4", f"LZ * {a_plane}")
k.shared("uint4", "Bs4", f"LZ * {2 * b_plane}")
if sliced:
    k.shared("f32", "Sum", f"(LZ - 1) * {rows * cols}")
%>
<%include file="ptx.opencl.mako"/>
<%def name="fetch(step)">
% for u in range(fetched):
  {
    const int kk = (${step}) * ${kb} + ak${u};
% if pointwise:
    inside${u} = row${u} < PIXELS && kk < C4;
    va${u} = x[inside${u} ? ${x.place4(f"an{u}", "kk", f"ap{u}")} : 0];
% else:
    const int tap = kk / C4, ih = ah${u} + tap / KW * DH, iw = aw${u} + tap % KW * DW;
    inside${u} = row${u} < PIXELS && tap < KH * KW && ih >= 0 && ih < IH && iw >= 0 && iw < IW;
    va${u} = x[inside${u} ? ${x.place4(f"an{u}", "kk % C4", "(ih * IW + iw)")} : 0];
% endif
  }
% endfor
% for u in range(w_fetched):
  vb${u} = ((__global const uint4*)w)[(GROUP_Y * STEPS + min(${step}, STEPS - 1)) * ${cols * kb} + item + ${u * items}];
% endfor
</%def>
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
const int lane = LOCAL_X, part = LOCAL_Y, item = part * 32 + lane;
const int part_m = part % ${sm}, part_n = part / ${sm};
const int a_base = LOCAL_Z * ${2 * a_plane}, b_base = LOCAL_Z * ${2 * b_plane};
const int sum_base = part * ${256 * fm * fn}, column16 = GROUP_Y * ${cols // 16} + part_n * ${fn};
## What ldmatrix reads: row lane % 16, and the second half of the columns in the upper half of the warp.
const shared_at a_at = SHARED_AT(As + a_base + (part_m * ${16 * fm} + lane % 16) * ${stride} + lane / 16 * 2);
const shared_at b_at = SHARED_AT(Bs + b_base + lane % 16 * ${w_stride} + part_n * ${2 * fn} + lane / 16);
% for u in range(w_fetched):
const int e${u} = item + ${u * items};
const int to${u} = b_base + e${u} / ${cols // 8} * ${w_stride} + e${u} % ${cols // 8};
uint4 vb${u};
% endfor
for (int tile = GROUP_X; tile < TILES; tile += GROUPS_X) {
  const int first_row = tile * ${rows};
% for u in range(fetched):
% if last:
  const int ak${u} = (item + ${u * items}) % ${kb}, am${u} = (item + ${u * items}) / ${kb}, row${u} = first_row + am${u};
% else:
  const int ak${u} = (item + ${u * items}) / ${rows}, am${u} = (item + ${u * items}) % ${rows}, row${u} = first_row + am${u};
% endif
  const int an${u} = row${u} / (OH * OW), ap${u} = row${u} % (OH * OW);
% if not pointwise:
  const int ah${u} = ap${u} / OW * SH - PH, aw${u} = ap${u} % OW * SW - PW;
% endif
  f32x4 va${u};
  bool inside${u};
% endfor
  f32 ${", ".join(f"sum{i}_{j}_{e} = 0.0" for i, j, e in each)};
  ${fetch("LOCAL_Z")}
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
    ${fetch("(round + 1) * LZ + LOCAL_Z")}
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
% for j in range(fn):
  if (LOCAL_Z == 0 && column16 * 4 + ${4 * j} + lane % 4 < COUNT) {
    const int block = column16 * 4 + ${4 * j} + lane % 4;
    const f32x4 back = ${s.load4("0", "block", "0")};
    const f32x4 bias = ${k.args["b"].load4("0", "block", "0") if k.has("b") else "SPLAT(0.0)"};
% for i, half in [(i, half) for i in range(fm) for half in range(2)]:
    {
      const int m = first_row + part_m * ${16 * fm} + ${16 * i + 8 * half} + lane / 4;
      const f32x4 sum = F4(${", ".join(f"sum{i}_{j}_{e + 4 * half}" for e in range(4))}) * back + bias;
      if (m < PIXELS) ${y.store4("m / (OH * OW)", "block", "m % (OH * OW)", "sum")}
    }
% endfor
  }
% endfor
}
