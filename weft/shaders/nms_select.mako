## Greedy suppression: one group a line goes through its boxes, best first. A box that is not dead is kept, and the items
## mark those behind it that overlap it by more than the threshold: BITS bits of WORDS words (`words`, as a number). Boxes are corners, or centres
## with sizes if `center`; `y` gets the kept boxes, MOST a line, and `kept` their numbers.
<%
k.shared("i32", "dead", str(words))
def box_at(i):
    at = order.load(f"line * BOXES + {i}")
    return f"({at}) < 0 ? 0 : (({at}) < BOXES ? ({at}) : BOXES - 1)"  # whatever the order holds, nothing outside is read
%>
<%def name="box(name, at)">
  const f32 ${name}0 = ${boxes.load(f"({at}) * 4")}, ${name}1 = ${boxes.load(f"({at}) * 4 + 1")};
  const f32 ${name}2 = ${boxes.load(f"({at}) * 4 + 2")}, ${name}3 = ${boxes.load(f"({at}) * 4 + 3")};
% if center:
  const f32 ${name}_y0 = ${name}0 - ${name}2 / 2.0, ${name}_y1 = ${name}0 + ${name}2 / 2.0;
  const f32 ${name}_x0 = ${name}1 - ${name}3 / 2.0, ${name}_x1 = ${name}1 + ${name}3 / 2.0;
% else:
  const f32 ${name}_y0 = fmin(${name}0, ${name}2), ${name}_y1 = fmax(${name}0, ${name}2);
  const f32 ${name}_x0 = fmin(${name}1, ${name}3), ${name}_x1 = fmax(${name}1, ${name}3);
% endif
  const f32 ${name}_area = (${name}_y1 - ${name}_y0) * (${name}_x1 - ${name}_x0);
</%def>
${k.for_groups("line", "LINES")} {
  for (int w = LOCAL_X; w < WORDS; w += LX) {
    dead[w] = 0;
  }
  BARRIER;
  const int start = line / CLASSES * BOXES, many = ${number.load("line")};
% if k.has("limit"):
  const int wanted = ${k.args["limit"].load_index("0")};
  const int most = wanted < MOST ? wanted : MOST;
% else:
  const int most = MOST;
% endif
% if k.has("overlap"):
  const f32 shares = ${k.args["overlap"].load("0")};
% else:
  const f32 shares = 0.0;
% endif
  int found = 0;
  for (int i = 0; i < many && found < most; i++) {
    if ((dead[i / BITS] >> (i % BITS)) % 2 == 0) {
      const int index = ${box_at("i")};
      if (LOCAL_X == 0) {
        ${y.store_int("line * MOST + found", "index")}
      }
      found += 1;
      ${box("a", "start + index")}
      BARRIER;
      for (int w = i / BITS + LOCAL_X; w * BITS < many; w += LX) {
        int bits = dead[w];
        for (int b = 0; b < BITS; b++) {
          const int j = w * BITS + b;
          if (j > i && j < many && (bits >> b) % 2 == 0) {
            const int other = ${box_at("j")};
            ${box("c", "start + other")}
            const f32 height = fmin(a_y1, c_y1) - fmax(a_y0, c_y0), width = fmin(a_x1, c_x1) - fmax(a_x0, c_x0);
            if (height > 0.0 && width > 0.0 && a_area > 0.0 && c_area > 0.0) {
              const f32 both = height * width;
              if (both / (a_area + c_area - both) > shares) {
                bits |= 1 << b;
              }
            }
          }
        }
        dead[w] = bits;
      }
      BARRIER;
    }
  }
  if (LOCAL_X == 0) {
    ${kept.store_int("line", "found")}
  }
  BARRIER;
}
