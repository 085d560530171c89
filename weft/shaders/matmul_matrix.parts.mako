## Parts of both kernels of products of two matrices on matrix units. An operand is staged as it lies in memory: rows of
## its side (m or n), if elements along K are adjacent (`along`), else rows of K. An item fetches 16 bytes at a time if
## all rows are at multiples of 16 bytes (`wide`), else two elements.
##
## An item of a matrix of sums has columns 2t, 2t + 1, 2t + 8 and 2t + 9 of rows g and g + 8. So that it can store four
## adjacent numbers, column 4t + e of each 16 of B is staged as the one of these that is its number e.
<%!
def rows_of(side, depth, along):
    """Return the rows of a staged operand."""
    return side if along else depth

OUT_PITCH = 33
"""Numbers from row to row of 32 sums, so that rows begin in different banks."""

def pitch_of(side, depth, along):
    """Return the vectors of 16 bytes from row to row: one more than a row has, so that matrices touch all banks."""
    return (depth if along else side) // 8 + 1

def fetched_by(side, depth, wide, items):
    """Return how many vectors, or pairs of elements, an item fetches."""
    return side * depth // (8 if wide else 2) // items

def row_and_piece(u, side, depth, along, wide, items):
    """Return the row that piece `u` of an item is in, and its number there."""
    pieces = (depth if along else side) // (8 if wide else 2)
    return f"(item + {u * items}) / {pieces}", f"(item + {u * items}) % {pieces}"

def column_place(c):
    """Return where a column of B is staged."""
    return f"(({c}) / 16 * 16 + ({c}) / 2 % 2 * 8 + ({c}) % 16 / 4 * 2 + ({c}) % 2)"

def pair_place(pair):
    """Return where a pair of columns of B is staged, counted in pairs."""
    return f"({pair}) / 8 * 8 + ({pair}) % 2 * 4 + ({pair}) % 8 / 2"
%>
## Fetch a step from k0 on. `upper` names the operand's steps and base, `count` is M or N, `first` where the tile begins.
<%def name="fetch(arg, letter, upper, side_name, count, first, side, depth, along, wide, items, k0, vectors)">
% for u in range(fetched_by(side, depth, wide, items)):
<% row, piece = row_and_piece(u, side, depth, along, wide, items)
each = 8 if wide else 2 %>\
  {
% if along:
    const int s = min(${first} + ${row}, ${count} - 1), k = ${k0} + ${piece} * ${each};
% else:
    const int s = ${first} + ${piece} * ${each}, k = ${k0} + ${row};
% endif
% if wide and along:
    ${letter}${u} = ${vectors}[(${letter}_base + s * ${upper}${side_name} + min(k, K - 8)) / 8];
% elif wide:
    ${letter}${u} = ${vectors}[(${letter}_base + min(k, K - 1) * ${upper}K + min(s, ${count} - 8)) / 8];
% else:
% for e in range(2):
<% s_at, k_at = ("s", f"min(k + {e}, K - 1)") if along else (f"min(s + {e}, {count} - 1)", "min(k, K - 1)") %>\
    ${letter}${u}_${e} = ${arg.load(f"{letter}_base + {s_at} * {upper}{side_name} + {k_at} * {upper}K")};
% endfor
% endif
  }
% endfor
</%def>
## Put what was fetched into work-group memory, and zeros where K has ended.
<%def name="put(letter, side, depth, along, wide, items, k0, language)">
<% pitch, columns = pitch_of(side, depth, along), letter == "b" %>\
% for u in range(fetched_by(side, depth, wide, items)):
<% row, piece = row_and_piece(u, side, depth, along, wide, items)
array, k = letter.upper() + "s", f"({k0}) + {piece} * {8 if wide else 2}" if along else f"({k0}) + {row}"
at = f"{letter}_stage + {column_place(row) if columns and along else row} * {pitch}"
apart = columns and not along %>\
  {
% if wide:
    const ${language.VECTOR} eight = ${k} < K ? ${letter}${u} : ${language.ZEROS};
    ${language.put_apart(array, at, piece, "eight") if apart else language.put(array, at, piece, "eight")}
% else:
    const bool inside0 = ${k} < K, inside1 = ${k}${" + 1" if along else ""} < K;
    const int pair = ${pair_place(piece) if apart else piece};
    ${language.put_pair(array, at, "pair", f"inside0 ? {letter}{u}_0 : 0.0f", f"inside1 ? {letter}{u}_1 : 0.0f")}
% endif
  }
% endfor
</%def>
## What an item fetches of an operand.
<%def name="variables(letter, side, depth, wide, items, vector)">\
% for u in range(fetched_by(side, depth, wide, items)):
% if wide:
  ${vector} ${letter}${u};
% else:
  real ${letter}${u}_0, ${letter}${u}_1;
% endif
% endfor
</%def>
## The tile's first row and column, and where the matrices of its product begin.
<%def name="places(rows, cols, batch)">
  const int m0 = number / TILES_N % TILES_M * ${rows}, n0 = number % TILES_N * ${cols};
  int rest = number / TILES_N / TILES_M, a_base = A0, b_base = B0;
  const int batch_index = rest;
% for d in reversed(range(batch)):
  a_base += rest % D${d} * AB${d};
  b_base += rest % D${d} * BB${d};
  rest /= D${d};
% endfor
</%def>
## Add the sums of all slices, and store them: four at a time (`fours`), or one.
<%def name="finish(k, y, fm, fn, sm, sn, lz, fours, element)">
<% every = [(i, j, e) for i in range(fm) for j in range(fn) for e in range(8)]
parts = sm * sn %>\
% if lz > 1:
  if (LOCAL_Z > 0) {
% for n, each in enumerate(every):
    Sum[(((LOCAL_Z - 1) * ${parts} + part) * ${len(every)} + ${n}) * 32 + lane] = ${element(*each)};
% endfor
  }
  BARRIER;
  for (int z = 0; LOCAL_Z == 0 && z < ${lz - 1}; z++) {
% for n, each in enumerate(every):
    ${element(*each)} += Sum[((z * ${parts} + part) * ${len(every)} + ${n}) * 32 + lane];
% endfor
  }
  BARRIER; // nobody writes the next tile's sums before these are read
% endif
<% added = ' + BETA * ' + k.args["c"].load("m * CM + n * CN") if k.has("c") else ""
first = "LOCAL_Z == 0 && " if lz > 1 else "" %>\
% if fours:
% for i, j, r in [(i, j, r) for i in range(fm) for j in range(fn) for r in range(2)]:
  {
    const int m = m0 + part_m * ${16 * fm} + ${16 * i + 8 * r} + lane / 4;
    const int n = n0 + part_n * ${16 * fn} + ${16 * j} + lane % 4 * 4;
<% values = [f"ALPHA * {element(i, j, 4 * r + e)}" + added.replace("n * CN", f"(n + {e}) * CN") for e in range(4)] %>\
    if (${first}m < M && n < N) ${y.store_vector("((batch_index * M + m) * N + n) / 4", f"F4({', '.join(values)})")}
  }
% endfor
% else:
## Sums go through work-group memory, so that adjacent items store adjacent numbers.
% for i, j in [(i, j) for i in range(fm) for j in range(0, fn, 2)]:
<% across = 16 * min(2, fn - j) %>\
  WARP_BARRIER; // the last sums are read
% for jj, e in [(jj, e) for jj in range(j, j + across // 16) for e in range(8)]:
  ${f"if (LOCAL_Z == 0) " if lz > 1 else ""}Out[part * ${16 * OUT_PITCH} + (${e // 4 * 8} + lane / 4) * ${OUT_PITCH} + ${16 * (jj - j) + e % 4} + lane % 4 * 4] = ${element(i, jj, e)};
% endfor
  WARP_BARRIER;
  for (int o = lane; o < ${16 * across}; o += 32) {
    const int m = m0 + part_m * ${16 * fm} + ${16 * i} + o / ${across}, n = n0 + part_n * ${16 * fn} + ${16 * j} + o % ${across};
    if (${first}m < M && n < N) ${y.store("(batch_index * M + m) * N + n", f"ALPHA * Out[part * {16 * OUT_PITCH} + o / {across} * {OUT_PITCH} + o % {across}]{added}")}
  }
% endfor
% endif
</%def>
