## Parts of the fp32 GEMMs with sums in registers: a group of lx x ly items computes rp * lx rows x rc * ly blocks of
## four columns; LZ slices of K work side by side and are summed at the end. Items fetch the next step of `depth` blocks
## of K into registers while they compute this one, all loads at once. With two `buffers` a step needs only one barrier.
## `transposed`: vectors of four rows of one column lie in work-group memory, not of four columns of one row. An item
## then holds the operands of one product at a time, not of four, so that it has registers for eight rows. `copied`:
## weights go to work-group memory by asynchronous copies (`async_copies.opencl.mako`), which take two buffers.
<%!
def sizes(rp, rc, lx, ly, depth):
    """Return the rows, columns and items of a group, and what an item fetches a step of either factor."""
    rows, cols, items = rp * lx, rc * ly, lx * ly
    return rows, cols, items, depth * rows // items, 4 * depth * cols // items


def pitch(cols):
    """Two vectors more than columns: four items that write one column of four rows touch other banks."""
    return cols + 2


def line(rows):
    """Return the vectors of a line of transposed rows; with one more, 16 rows of two blocks are written to other banks."""
    return rows // 4 + 1


def held(rows, transposed, depth):
    """Return the vectors of rows of a step."""
    return 4 * depth * line(rows) if transposed else depth * rows


def origin(u, rows, items, transposed, depth):
    """Return the block of K and the row that an item fetches as number u; 16 rows of two blocks are whole sectors."""
    if transposed:
        return f"item / 16 % {depth}", f"item / {16 * depth} * 16 + item % 16 + {u * items // depth}"
    return f"(item + {u * items}) / {rows}", f"(item + {u * items}) % {rows}"


def weight(u, cols, items, transposed):
    """Return where an item reads and writes the vector of weights that it fetches as number u."""
    if not transposed:
        return f"bfrom{u}", f"bto{u}"
    column, block = u % columns_each(cols, items), u * items // (4 * cols)
    return f"bfrom{column} + {4 * block} * COUNT", f"bto{column} + {4 * block * pitch(cols)}"


def columns_each(cols, items):
    """Return of how many columns an item fetches weights in transposed tiles."""
    return max(4 * cols // items, 1)


def row(i, lx, transposed):
    """Return the row of an item's results number i, within its group's: four items of a store have adjacent rows."""
    return f"{(i // 4 * lx + i % 4) * 4} + across / 4 * 16 + across % 4" if transposed else f"{i * lx} + across"
%>
## The block of K, ak., and the row, row., that an item fetches as number u; at. is the row within the group.
<%def name="place(u)">\
<%
rows, _, items, *_ = sizes(rp, rc, lx, ly, depth)
block, of_group = origin(u, rows, items, transposed, depth)
%>\
% if transposed:
## Rows behind the last one are not stored: any will do.
const int ak${u} = ${block}, at${u} = ${of_group}, row${u} = min(first_row + at${u}, PIXELS - 1);\
% else:
const int ak${u} = ${block}, row${u} = first_row + ${of_group};\
% endif
</%def>
<%def name="memory()">\
<%
rows, cols, *_ = sizes(rp, rc, lx, ly, depth)
k.shared("f32x4", "As", f"LZ * {held(rows, transposed, depth) * buffers}")
k.shared("f32x4", "Bs", f"LZ * {4 * depth * pitch(cols) * buffers}")
k.shared("f32x4", "Sum", f"LZ > 1 ? (LZ - 1) * {rows * cols} : 1")
%>\
</%def>
## The indices of a work-item, and the weights that it moves. Two adjacent items share a block and the next two a pixel,
## because two items at a time share a load of 16 bytes. Transposed, 32 share 8 blocks and 4 vectors of rows.
<%def name="who()">\
<% rows, cols, items, _, fetched = sizes(rp, rc, lx, ly, depth) %>\
% if transposed:
const int item = LOCAL_Y * ${lx} + LOCAL_X, across = item / 32 % ${lx // 4} * 4 + item / 16 % 2 * 2 + item % 2, down = item / ${8 * lx} * 8 + item / 2 % 8;
% else:
const int item = LOCAL_Y * ${lx} + LOCAL_X, across = item / 2 % ${lx}, down = item % 2 + item / ${2 * lx} * 2;
% endif
const int column0 = GROUP_Y * ${cols};
% if transposed:
% for v in range(columns_each(cols, items)):
const int bcolumn${v} = item / 4 % ${cols} + ${v * items // 4};
const int bfrom${v} = (item / ${4 * cols} * COUNT + min(column0 + bcolumn${v}, COUNT - 1)) * 4 + item % 4;
const int bto${v} = (item / ${4 * cols} * 4 + item % 4) * ${pitch(cols)} + bcolumn${v};
% endfor
% endif
% for u in range(fetched):
% if not transposed:
const int e${u} = item + ${u * items}, bcolumn${u} = e${u} / 4 % ${cols}, bk${u} = e${u} / ${4 * cols};
const int bfrom${u} = (bk${u} * COUNT + min(column0 + bcolumn${u}, COUNT - 1)) * 4 + e${u} % 4;
const int bto${u} = (bk${u} * 4 + e${u} % 4) * ${pitch(cols)} + bcolumn${u};
% endif
% if not copied:
f32x4 vb${u};
% endif
% endfor
</%def>
## The weights of a step: vectors [block of K][COUNT blocks of columns][4 along K], from vector `first` on.
<%def name="fetch_weights(step, first='')">\
<%
_, cols, items, _, fetched = sizes(rp, rc, lx, ly, depth)
places = [weight(u, cols, items, transposed) for u in range(fetched)]
%>\
% for u, (source, target) in enumerate(places):
<% vector = w.vector(f"{first}min({step}, STEPS - 1) * {4 * depth} * COUNT + {source}") %>\
% if copied:
  COPY_16_CACHED((__local uint4*)(Bs + copied_to + ${target}), (__global const uint4*)&${vector});
% else:
  vb${u} = ${vector};
% endif
% endfor
% if copied:
  END_OF_COPIES;
% endif
</%def>
## The sums of a tile: `fetch(step)` loads va. and vb.; `staged(u)` is the operand in va. that is multiplied. With split K,
## `rounds` are the group's first step and the one behind its last.
<%def name="multiply(fetch, staged, rounds=None)">\
<%
first, (begin, end) = f"{rounds[0]} * LZ + LOCAL_Z" if rounds else "LOCAL_Z", rounds or ("0", "(STEPS + LZ - 1) / LZ")
rows, cols, items, fetched_a, fetched_b = sizes(rp, rc, lx, ly, depth)
acc = [(i, j) for i in range(rp) for j in range(rc)]

def buffer(number):
    """Return the first vector of the buffer of weights of a round."""
    return f"(LOCAL_Z * {buffers} + ({number}) % {buffers}) * {4 * depth * pitch(cols)}"
%>\
% for i, j in acc:
  f32x4 acc${i}_${j} = SPLAT(0.0);
% endfor
% if copied:
  int copied_to = ${buffer(begin)};
% endif
  ${fetch(first)}
  for (int round = ${begin}; round < ${end}; round++) {
    const int staged = LOCAL_Z${f" * {buffers} + round % {buffers}" if buffers > 1 else ""};
    const int a_base = staged * ${held(rows, transposed, depth)}, b_base = staged * ${4 * depth * pitch(cols)};
% for u in range(fetched_a):
% if transposed:
    {
      const f32x4 four = ${staged(u)};
## A vector has each fourth of 16 rows (`row`).
      const int to = (a_base + ak${u} * ${4 * line(rows)}) * 4 + at${u} / 16 * 16 + at${u} % 4 * 4 + at${u} % 16 / 4;
% for lane, letter in enumerate("xyzw"):
      ${k.shared_number("As", f"to + {4 * line(rows) * lane}")} = four.${letter};
% endfor
    }
% else:
    As[a_base + item + ${u * items}] = ${staged(u)};
% endif
% endfor
% if copied:
    COPIES_ARRIVED;
    copied_to = ${buffer("round + 1")};
% else:
% for u in range(fetched_b):
    Bs[b_base + ${weight(u, cols, items, transposed)[1]}] = vb${u};
% endfor
% endif
    BARRIER;
    ${fetch("(round + 1) * LZ + LOCAL_Z")}
% if copied:
## It has the registers to load the next operands while it multiplies.
#pragma unroll
% endif
    for (int kk = 0; kk < ${depth}; kk++) {
% for i in range(0 if transposed else rp):
      const f32x4 a${i} = As[a_base + kk * ${rows} + ${i * lx} + across];
% endfor
## One product in each statement compiles to one fused multiply-add; a sum of four products would take an addition more.
% for lane, letter in enumerate("xyzw"):
% for h in range(rp // 4 if transposed else 0):
      const f32x4 a${h}${letter} = As[a_base + (kk * 4 + ${lane}) * ${line(rows)} + ${h * lx} + across];
% endfor
% for j in range(rc):
      const f32x4 b${j}${letter} = Bs[b_base + (kk * 4 + ${lane}) * ${pitch(cols)} + ${j * ly} + down];
% endfor
% for i, j in acc:
      acc${i}_${j} += ${f"a{i // 4}{letter}.{'xyzw'[i % 4]}" if transposed else f"a{i}.{letter}"} * b${j}${letter};
% endfor
% endfor
    }
% if buffers == 1:
    BARRIER;
% endif
  }
% if copied:
  COPIES_ARRIVED;  // of a step that nobody needs
% endif
% if buffers > 1:
  BARRIER;
% endif
  if (LZ > 1) {
    if (LOCAL_Z > 0) {
      const int s0 = (LOCAL_Z - 1) * ${rows * cols};
% for i, j in acc:
      Sum[s0 + (${j * ly} + down) * ${rows} + ${i * lx} + across] = acc${i}_${j};
% endfor
    }
    BARRIER;
    if (LOCAL_Z == 0) {
      for (int s = 0; s < LZ - 1; s++) {
% for i, j in acc:
        acc${i}_${j} += Sum[s * ${rows * cols} + (${j * ly} + down) * ${rows} + ${i * lx} + across];
% endfor
      }
    }
    BARRIER;
  }
</%def>
