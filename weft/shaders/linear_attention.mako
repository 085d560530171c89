## A state of DEPTH x WIDTH for each of GROUPS heads of keys of an image, that each of ROWS rows decays, corrects, adds
## to, and is read from by EACH heads of queries. Columns of a state do not touch each other: an item has one, in
## `state`, which is the item's alone, so nothing waits.
${k.for_each("i", "TOTAL")} {
  const int m = i % WIDTH, h = i / WIDTH % GROUPS, b = i / WIDTH / GROUPS, head = b * GROUPS + h;
  const int base = head * DEPTH * WIDTH + m;
  for (int d = 0; d < DEPTH; d++) {
    const f32 begun = ${k.args["past"].load("base + d * WIDTH") if k.has("past") else "0.0"};
    ${state.store("base + d * WIDTH", "begun")}
  }
  for (int row = 0; row < ROWS; row++) {
    const int at = b * ROWS + row, key_at = (at * GROUPS + h) * DEPTH;
    f32 added = ${v.load("(at * GROUPS + h) * WIDTH + m")};
% if k.has("decay") or k.has("beta"):
    f32 held = 0.0;
    for (int d = 0; d < DEPTH; d++) {
      f32 s = ${state.load("base + d * WIDTH")};
% if k.has("decay"):
      s *= exp(${k.args["decay"].load("(at * GROUPS + h) * DEPTH + d" if each_element else "at * GROUPS + h")});
      ${state.store("base + d * WIDTH", "s")}
% endif
      held += s * ${key.load("key_at + d")};
    }
% endif
% if k.has("beta"):
    added = ${k.args["beta"].load("at * GROUPS + h" if each_head else "at")} * (added - held);
% endif
    for (int d = 0; d < DEPTH; d++) {
      const f32 s = ${state.load("base + d * WIDTH")} + ${key.load("key_at + d")} * added;
      ${state.store("base + d * WIDTH", "s")}
    }
    for (int e = 0; e < EACH; e++) {
      const int asker = at * GROUPS * EACH + h * EACH + e;
      f32 read = 0.0;
      for (int d = 0; d < DEPTH; d++) read += ${q.load("asker * DEPTH + d")} * ${state.load("base + d * WIDTH")};
      ${y.store("asker * WIDTH + m", "SCALE * read")}
    }
  }
% if k.has("present"):
  for (int d = 0; d < DEPTH; d++) {
    const f32 ended = ${state.load("base + d * WIDTH")};
    ${k.args["present"].store("base + d * WIDTH", "ended")}
  }
% endif
}
