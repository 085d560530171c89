## Slices of volumes one after the other in the channels of images: of image n, block c of four channels belongs to tap
## c / C4 of a convolution along the depth, and is block c % C4 of the slice that the tap sees, or zeros in the padding.
## The first image is slice FIRST of all OD that the volumes' results have; ID, SD, PD and DD are the window's numbers.
${k.for_each("i", "TOTAL")} {
  ${k.split(y, "i", "AREA", "(TAPS * C4)")}
  const int slice = n + FIRST, at = slice % OD * SD - PD + c / C4 * DD;
  const bool inside = at >= 0 && at < ID;
  const f32x4 four = ${x.vector("inside ? " + x.place4("slice / OD", "c % C4", "at * AREA + p") + " : 0")};
  ${y.store4("n", "c", "p", "inside ? four : SPLAT(0.0)")}
}
