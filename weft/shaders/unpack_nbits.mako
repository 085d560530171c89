## Weights of four bits in blocks as floats: an item makes eight, which are one word. `zeros`: `matmul_nbits.mako`.
${k.for_each("i", "TOTAL")} {
  const int n = i / (K / 8), word = i % (K / 8), block = word / WORDS_OF_BLOCK;
  const uint w = b[i];
  const f32 scale = ${scales.load("n * BLOCKS + block")};
% if zeros == "packed":
  const f32 zero = TO_F32(${k.args["middle"].load("n * ((BLOCKS + 1) / 2) + block / 2")} >> block % 2 * 4 & 15);
% elif zeros == "floats":
  const f32 zero = ${k.args["middle"].load("n * BLOCKS + block")};
% else:
  const f32 zero = 8.0;
% endif
% for half in range(2):
  const f32x4 v${half} = (F4(${", ".join(f"TO_F32(w >> {16 * half + 4 * e} & 15u)" for e in range(4))}) - zero) * scale;
  ${y.store_quad(f"i * 2 + {half}", f"v{half}")}
% endfor
}
