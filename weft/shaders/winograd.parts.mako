## Parts of Winograd's transforms: sums with constant weights, and the division of images into patches.
<%!
def combine(weights, names):
    """Return the sum of variables with weights, which are numbers as text, parted by blanks."""
    signed = [(w, n) for w, n in zip(weights.split(), names, strict=True) if float(w)]
    terms = [n if w == "1.0" else f"-{n}" if w == "-1.0" else f"{w} * {n}" for w, n in signed]
    return " + ".join(terms).replace("+ -", "- ")
%>
## Patch and block of channels of a work-item. Adjacent items have adjacent patches, whose transforms are adjacent; but if
## the channels of a pixel are adjacent, every four items have four blocks of one patch.
<%def name="place(image)">\
  const bool last = ${image.name}_CS == 1 && ${image.name}_PS != 1;
  const int block = last ? e / (4 * PATCHES) * 4 + e % 4 : e / PATCHES, spot = last ? e / 4 % PATCHES : e % PATCHES;
  const int n = spot / (TH * TW), th = spot / TW % TH, tw = spot % TW;
</%def>
