## softmax(SCALE * Q K^T + mask) V: a work-group computes `rows` queries of one head. With `capped`, what the mask is
## added to is CAP * tanh(SCALE * Q K^T). Keys come in blocks of `keys`, and each block updates the softmax (top: the
## largest score so far, total: an item's part of the sum of powers), so scores never leave the group. Each of the lx x
## ly items has `each` queries, keys / lx scores of each, and `columns` vectors of the result. `depth` and `width` are
## the vectors of four of a key and of a value. The elements of a head are adjacent (`quads`: and aligned to four) but
## those of the letters in `apart`; the steps are QB, QH, QS and so on for batch, head and row. If work-group memory is
## small (`joint`), values overwrite keys. If a mask has one row for all queries, and queries without a key yield zeros, the
## keys behind the last that it shows are left out (`end`): a cache has room for more keys than it holds.
<%
rows, columns, letters = each * ly, -(-width // lx), "xyzw"
queries, scores, sums = range(each), range(keys // lx), [(i, j) for i in range(each) for j in range(columns)]
## Rows are an odd number of vectors apart, so that eight items that read one column of eight rows use all banks once.
pitch, p_pitch, v_pitch = depth | 1, keys // 4 + 1, columns * lx
values = "Ks" if joint else "Vs"
k.shared("f32x4", "Qs", f"{rows * pitch}")
k.shared("f32x4", "Ks", f"{keys * max(pitch, v_pitch if joint else 0)}")
if not joint:
    k.shared("f32x4", "Vs", f"{keys * v_pitch}")
k.shared("f32x4", "Ps", f"{rows * p_pitch}")
k.shared("f32x4", "Part", f"{lx * ly * -(-each // 4)}")
## An item has keys in adjacent fours, but adjacent items must read adjacent rows: so rows are stored in reading order.
put_query = lambda r, c, v: f"Qs[{r} * {pitch} + {c}] = SCALE * {v}"
put_key = lambda r, c, v: f"Ks[({r} / {4 * lx} * {4 * lx} + {r} % 4 * {lx} + {r} % {4 * lx} / 4) * {pitch} + {c}] = {v}"
ends = k.has("mask") and context.get("zero_hidden", False)
is_there = (lambda r: f"start + {r} < end") if ends else lambda r: f"COUNT % {keys} == 0 || start + {r} < COUNT"
put_value = lambda r, c, v: f"{values}[{r} * {v_pitch} + {c}] = {is_there(r)} ? {v} : SPLAT(0.0)"
def zeros(i):
    """Return what gives zeros for query i, if anything does. A NaN is greater than nothing."""
    if context.get("zero_nan", False):
        return f"!(total{i} > 0.0) ? SPLAT(0.0) : "
    return f"total{i} == 0.0 ? SPLAT(0.0) : " if context.get("zero_hidden", False) else ""
%>
<%namespace name="mask" file="mask.parts.mako"/>
<%namespace name="tiles" file="attention.tiles.mako"/>
<% k.defines("LARGER") %>\
#define LARGER(a, b) ((a) > (b) ? (a) : (b)) // a NaN may get lost here: it makes the total one all the same
## Two adjacent items share a line and the next two a column, because two items at a time share a load of 16 bytes.
const int item = LOCAL_X, column = item / 2 % ${lx}, line = item % 2 + item / ${2 * lx} * 2;
${k.for_groups("group", "GROUPS")} {
  const int first = group % BLOCKS * ${rows}, head = group / BLOCKS % HEADS, batch = group / BLOCKS / HEADS;
% for letter in "QKVY":
  ${tiles.start_of(letter)}
% endfor
  ${tiles.stage(q_in, "Q", "first", rows, "QUERIES", depth, "D", put_query)}
% for i in queries:
  f32 top${i} = -INFINITY_F, total${i} = 0.0;
% endfor
% for i, j in sums:
  f32x4 acc${i}_${j} = SPLAT(0.0);
% endfor
% if ends:
  int end = COUNT;
  if (MS == 0) {
    int shown = 0;
    for (int key = item; key < COUNT; key += ${lx * ly}) {
      if (${k.args["mask"].load("batch * MB + head * MH + key * MK")} != -INFINITY_F) shown = key + 1;
    }
    BARRIER;
    Part[item].x = TO_F32(shown);
    BARRIER;
    end = 0;
    for (int n = 0; n < ${lx * ly}; n++) end = max(end, TO_I32(Part[n].x));
  }
% endif
  for (int start = 0; start < ${"end" if ends else "COUNT"}; start += ${keys}) {
    ${tiles.stage(k_in, "K", "start", keys, "COUNT", depth, "D", put_key)}
% if not joint:
    ${tiles.stage(v_in, "V", "start", keys, "COUNT", width, "E", put_value)}
% endif
    BARRIER;
    f32 ${", ".join(f"s{i}_{j} = 0.0" for i in queries for j in scores)};
    for (int d = 0; d < ${depth}; d++) {
% for i in queries:
      const f32x4 q${i} = Qs[(${i * ly} + line) * ${pitch} + d];
% endfor
% for j in scores:
      const f32x4 k${j} = Ks[(${j * lx} + column) * ${pitch} + d];
% endfor
% for letter, i, j in [(letter, i, j) for letter in letters for i in queries for j in scores]:
      s${i}_${j} += q${i}.${letter} * k${j}.${letter};
% endfor
    }
% for i in queries:
    f32 next${i} = -INFINITY_F;
% for j in scores:
    {
      const int key = start + ${j // 4 * 4 * lx + j % 4} + column * 4;
% if context.get("capped", False):
      s${i}_${j} = CAP * tanh(s${i}_${j});
% endif
% if k.has("mask"):
      const f32 added = ${k.args["mask"].load(f"batch * MB + head * MH + min(first + {i * ly} + line, QUERIES - 1) * MS + min(key, COUNT - 1) * MK")};
      s${i}_${j} = ${mask.masked(f"s{i}_{j}", "added", "added")};
% endif
      if (COUNT % ${keys} != 0 && key >= COUNT) s${i}_${j} = -INFINITY_F;
      next${i} = LARGER(next${i}, s${i}_${j});
    }
% endfor
% endfor
    ${tiles.share("next")}
% if joint:
    ${tiles.stage(v_in, "V", "start", keys, "COUNT", width, "E", put_value)}
% endif
    ${"".join(f"next{i} = top{i}; " for i in queries)}
    ${tiles.gather(lambda i, theirs: f"next{i} = LARGER(next{i}, {theirs});")}
% for i in queries:
    // Where all scores so far are -inf there is nothing to scale down: no difference of infinities is taken.
    const f32 shift${i} = next${i} == -INFINITY_F ? 0.0 : next${i}, fade${i} = exp(top${i} - shift${i});
    top${i} = next${i};
    ${" ".join(f"s{i}_{j} = exp(s{i}_{j} - shift{i});" for j in scores)}
    total${i} = total${i} * fade${i} + (${" + ".join(f"s{i}_{j}" for j in scores)});
% for j in scores[::4]:
    Ps[(${i * ly} + line) * ${p_pitch} + ${j // 4 * lx} + column] = F4(${", ".join(f"s{i}_{j + e}" for e in range(4))});
% endfor
% endfor
    ${" ".join(f"acc{i}_{j} *= fade{i};" for i, j in sums)}
    BARRIER;
    for (int n = 0; n < ${keys // 4}; n++) {
% for i in queries:
      const f32x4 p${i} = Ps[(${i * ly} + line) * ${p_pitch} + n];
% endfor
% for e, letter in enumerate(letters):
% for j in range(columns):
      const f32x4 v${j}${letter} = ${values}[(n * 4 + ${e}) * ${v_pitch} + ${j * lx} + column];
% endfor
      ${" ".join(f"acc{i}_{j} += p{i}.{letter} * v{j}{letter};" for i, j in sums)}
% endfor
    }
    BARRIER;
  }
  ${tiles.share("total")}
  ${"".join(f"total{i} = 0.0; " for i in queries)}
  ${tiles.gather(lambda i, theirs: f"total{i} += {theirs};")}
% for i, j in sums:
  if (first + ${i * ly} + line < QUERIES && ${j * lx} + column < ${width}) {
    const int query = first + ${i * ly} + line, vector = ${j * lx} + column;
    const f32x4 result = ${zeros(i)}acc${i}_${j} / total${i};
% if "Y" in context.get("apart", ""):
% for e, letter in enumerate(letters):
    if (vector * 4 + ${e} < E) ${y.store(f"Y_at + query * YS + (vector * 4 + {e}) * YD", f"result.{letter}")}
% endfor
% elif quads and not y.has_steps():
    ${y.store_quad("Y_at + query * (YS / 4) + vector", "result")}
% else:
% for e, letter in enumerate(letters):
    if (vector * 4 + ${e} < E) ${y.store(f"Y_at{' * 4' if quads else ''} + query * YS + vector * 4 + {e}", f"result.{letter}")}
% endfor
% endif
  }
% endfor
}
