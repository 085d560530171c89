## Add the sums of PARTS groups of a convolution, each over a part of K (`sum_parts.py`): part z of image n is image
## n + z * IMAGES. A work-item computes one pixel of one block of channels.
${k.for_each("i", "TOTAL")} {
  ${k.split(y, "i", "PLACES", "BLOCKS")}
  f32x4 sum = ${sums.load4("n", "c", "p")};
  for (int z = 1; z < PARTS; z++) sum += ${sums.load4("n + z * IMAGES", "c", "p")};
% if k.has("b"):
  sum += ${k.args["b"].load4("0", "c", "0")};
% endif
  ${y.store4("n", "c", "p", "sum")}
}
