## ${rows} rows of a times weights of four bits in blocks: a work-group computes ${columns} columns, its items divide K in
## chunks of 32 weights, which are 16 bytes, and add up in a tree. A weight becomes the float 16 + q, by its bits; what
## that is too much, and the zero point, is taken off once for a chunk. The order of sums is the same for any rows.
## `zeros`: "" (8), "packed" (four bits each) or "floats". If `ragged`, there are M rows: others are the last one.
<%
row = lambda m: f"min({m}, M - 1)" if ragged and m else str(m)
k.shared("f32", "part", f"{rows * columns} * LX")
places = [(m, c) for m in range(rows) for c in range(columns)]
def bits(i):
    """Return the text that moves four bits to those of the fraction that stand for 8, 4, 2 and 1."""
    by = 19 - 4 * i
    return f"<< {by}" if by > 0 else f">> {-by}"
%>\
${k.for_groups("g", "GROUPS")} {
  const int column = g * ${columns};
% for m, c in places:
  f32 acc${m}_${c} = 0.0;
% endfor
  for (int v = LOCAL_X; v < CHUNKS; v += LX) {
    const int block = v / CHUNKS_OF_BLOCK;
% for c in range(columns):
    const int n${c} = min(column + ${c}, N - 1);
    const u32x4 w${c} = b[n${c} * CHUNKS + v];
    const f32 scale${c} = ${scales.load(f"n{c} * BLOCKS + block")};
% if zeros == "packed":
    const f32 zero${c} = TO_F32((${k.args["middle"].load(f"n{c} * ((BLOCKS + 1) / 2) + block / 2")} >> block % 2 * 4 & 15) + 16);
% elif zeros == "floats":
    const f32 zero${c} = ${k.args["middle"].load(f"n{c} * BLOCKS + block")} + 16.0;
% endif
% endfor
% for m in range(rows):
    f32 total${m} = 0.0;
% endfor
% for m, c in places:
    f32 sum${m}_${c} = 0.0;
% endfor
    for (int word = 0; word < 4; word++) {
% for c in range(columns):
      const uint u${c} = word == 0 ? w${c}.x : word == 1 ? w${c}.y : word == 2 ? w${c}.z : w${c}.w;
% for i in range(8):
      const f32 q${c}_${i} = FLOAT_OF(u${c} ${bits(i)} & 0x780000u | 0x41800000u);
% endfor
% endfor
% for m in range(rows):
      {
% for half in range(2):
        const f32x4 a${half} = ${a.load_quad(f"{row(m)} * (K / 4) + v * 8 + word * 2 + {half}")};
% endfor
        total${m} += a0.x + a0.y + (a0.z + a0.w) + (a1.x + a1.y + (a1.z + a1.w));
% for c in range(columns):
% for i in range(8):
        sum${m}_${c} += a${i // 4}.${"xyzw"[i % 4]} * q${c}_${i};
% endfor
% endfor
      }
% endfor
    }
% for m, c in places:
    acc${m}_${c} += scale${c} * (sum${m}_${c} - ${f"zero{c}" if zeros else "24.0"} * total${m});
% endfor
  }
% for n, (m, c) in enumerate(places):
  part[${n} * LX + LOCAL_X] = acc${m}_${c};
% endfor
  BARRIER;
  for (int width = LX / 2; width > 0; width /= 2) {
    if (LOCAL_X < width) {
% for n in range(len(places)):
      part[${n} * LX + LOCAL_X] += part[${n} * LX + LOCAL_X + width];
% endfor
    }
    BARRIER;
  }
  for (int i = LOCAL_X; i < ${len(places)}; i += LX) {
    const int m = i / ${columns}, n = column + i % ${columns};
    if (n < N${" && m < M" if ragged else ""}) {
      ${y.store("m * N + n", "part[i * LX]" + (f" + {k.args['bias'].load('n')}" if k.has("bias") else ""))}
    }
  }
  BARRIER;
}
