## Products of two matrices in fp16 on NVIDIA's matrix units (mma.sync, from sm_80 on), summed in fp32: see the
## GLSL twin. Fragments are those of m16n8k16 (PTX ISA, mma).
<%
rows, cols, items = 16 * fm * sm, 16 * fn * sn, 32 * sm * sn
frags = [(i, j) for i in range(fm) for j in range(fn)]
meet = "WARP_BARRIER" if sm * sn == 1 else "BARRIER"
element = lambda i, j, e: f"acc{i}_{j}_{e}"
k.needs_subgroup()
%>
<%include file="ptx.opencl.mako"/>
<%namespace name="parts" file="matmul_matrix.parts.mako"/>\
<%!
class language:
    """The statements of OpenCL C by which the shared parts put eight or two halves into work-group memory."""

    VECTOR, ZEROS = "uint4", "(uint4)(0)"

    @staticmethod
    def put(array, at, piece, eight):
        return f"{array}[{at} + {piece}] = {eight};"

    @staticmethod
    def put_apart(array, at, piece, eight):
        """Return those that put each second pair into each half of sixteen columns."""
        half = f"((__local uint2*)({array} + {at}))[({piece}) / 2 * 4 + ({piece}) % 2"
        return f"{half}] = {eight}.xz; {half} + 2] = {eight}.yw;"

    @staticmethod
    def put_pair(array, at, pair, first, second):
        return f"uint two; PACK_HALVES(two, {first}, {second}); ((__local uint*)({array} + {at}))[{pair}] = two;"
%>\
<%
staged_a = parts.module.Staged("a", rows, depth, a_along, a_wide, items)
staged_b = parts.module.Staged("b", cols, depth, b_along, b_wide, items)
k.shared("uint4", "As", f"{lz * staged_a.vectors}")
k.shared("uint4", "Bs", f"{lz * staged_b.vectors}")
if lz > 1:
    k.shared("f32", "Sum", f"{(lz - 1) * rows * cols}")
if not fours:
    k.shared("f32", "Out", f"{sm * sn * 16 * result_pitch}")
# The places for ldmatrix: the tiles of 8 x 8 of A, and of B turned, lie row after row.
straight, crossed = ("lane % 16", "lane / 16"), ("lane % 8 + lane / 16 * 8", "lane / 8 % 2")
%>\
<%def name="fetch(k0)">${parts.fetch(staged_a, a, k0, "((__global const uint4*)a)")}${parts.fetch(staged_b, b, k0, "((__global const uint4*)b)")}</%def>
const int lane = LOCAL_X, warp = LOCAL_Y, item = warp * 32 + lane;
const int warp_m = warp % ${sm}, warp_n = warp / ${sm}, a_stage = LOCAL_Z * ${staged_a.vectors}, b_stage = LOCAL_Z * ${staged_b.vectors};
% if a_along:
const shared_at a_at = SHARED_AT(As + a_stage + (warp_m * ${16 * fm} + ${straight[0]}) * ${staged_a.pitch} + ${straight[1]});
% else:
const shared_at a_at = SHARED_AT(As + a_stage + (${crossed[0]}) * ${staged_a.pitch} + warp_m * ${2 * fm} + ${crossed[1]});
% endif
% if b_along:
const shared_at b_at = SHARED_AT(Bs + b_stage + (warp_n * ${16 * fn} + ${crossed[0]}) * ${staged_b.pitch} + ${crossed[1]});
% else:
const shared_at b_at = SHARED_AT(Bs + b_stage + (${straight[0]}) * ${staged_b.pitch} + warp_n * ${2 * fn} + ${straight[1]});
% endif
${k.for_groups("number", "TILES")} {
${parts.places(rows, cols, batch)}
${parts.variables(staged_a, "uint4")}${parts.variables(staged_b, "uint4")}\
% for i, j in frags:
  f32 ${", ".join(f"acc{i}_{j}_{e} = 0.0" for e in range(8))};
% endfor
${fetch(f"LOCAL_Z * {depth}")}
  for (int round = 0; round < ROUNDS; round++) {
    const int k0 = (round * ${lz} + LOCAL_Z) * ${depth};
${parts.put(staged_a, "k0", language)}
${parts.put(staged_b, "k0", language)}
    ${meet};
    if (round + 1 < ROUNDS) {
${fetch(f"k0 + {lz * depth}")}
    }
% for q in range(depth // 16):
    {
% for j in range(fn):
      uint ${", ".join(f"b{j}_{r}_" for r in range(4))};
      LDMATRIX${"" if b_along else "_TRANS"}(${", ".join(f"b{j}_{r}_" for r in range(4))}, b_at + ${16 * (16 * j * staged_b.pitch + 2 * q if b_along else 16 * q * staged_b.pitch + 2 * j)});
% endfor
% for i in range(fm):
      uint ${", ".join(f"a{i}_{r}_" for r in range(4))};
      LDMATRIX${"" if a_along else "_TRANS"}(${", ".join(f"a{i}_{r}_" for r in range(4))}, a_at + ${16 * (16 * i * staged_a.pitch + 2 * q if a_along else 16 * q * staged_a.pitch + 2 * i)});
% for j, half in [(j, half) for j in range(fn) for half in range(2)]:
      MMA(${", ".join([element(i, j, 2 * half + e) for e in (0, 1, 4, 5)] + [f"a{i}_{r}_" for r in range(4)])}, b${j}_${2 * half}_, b${j}_${2 * half + 1}_);
% endfor
% endfor
    }
% endfor
    ${meet};
  }
${parts.finish(k, y, fm, fn, sm, sn, lz, fours, result_pitch, element)}
}
