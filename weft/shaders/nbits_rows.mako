## Rows as f32, and the sum of each 32 of a row, which `matmul_nbits` takes off: an item makes 32 of a row.
${k.for_each("i", "TOTAL")} {
% for q in range(8):
  const f32x4 v${q} = ${a.load_quad(f"i * 8 + {q}")};
  ${floats.store_quad(f"i * 8 + {q}", f"v{q}")}
% endfor
% for q in range(8):
  const f32 s${q} = v${q}.x + v${q}.y + (v${q}.z + v${q}.w);
% endfor
  ${totals.store("i", "s0 + s1 + (s2 + s3) + (s4 + s5 + (s6 + s7))")}
}
