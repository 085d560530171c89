## Parts of both kernels of products of two matrices on matrix units. An operand is staged as it lies in memory: rows of
## its side (m or n), if elements along K are adjacent (`along`), else rows of K. An item fetches 16 bytes at a time if
## all rows are at multiples of 16 bytes (`wide`), else two elements.
##
## An item of a matrix of sums has columns 2t, 2t + 1, 2t + 8 and 2t + 9 of rows g and g + 8. So that it can store four
## adjacent numbers, column 4t + e of each 16 of B is staged as the one of these that is its number e.
<%!
from dataclasses import dataclass

@dataclass(frozen=True)
class Staged:
    """How a group stages steps of `depth` along K of an operand, of which a tile has `side` rows or columns."""

    name: str
    side: int
    depth: int
    along: bool
    wide: bool
    items: int

    @property
    def step(self):
        """Return the step of the operand from row to row, or from column to column."""
        return {"a": "AM", "b": "BN"}[self.name]

    @property
    def count(self):
        """Return how many rows or columns it has."""
        return {"a": "M", "b": "N"}[self.name]

    @property
    def first(self):
        """Return the tile's first one."""
        return {"a": "m0", "b": "n0"}[self.name]

    @property
    def array(self):
        """Return the array in work-group memory."""
        return {"a": "As", "b": "Bs"}[self.name]

    @property
    def rows(self):
        """Return the rows in work-group memory."""
        return self.side if self.along else self.depth

    @property
    def length(self):
        """Return the elements of such a row."""
        return self.depth if self.along else self.side

    @property
    def pitch(self):
        """Return the vectors of 16 bytes from row to row: one more than a row has, so that matrices touch all banks."""
        return self.length // 8 + 1

    @property
    def vectors(self):
        """Return the vectors of 16 bytes that a slice of K takes."""
        return self.rows * self.pitch

    @property
    def each(self):
        """Return the elements of a piece, which an item fetches at once."""
        return 8 if self.wide else 2

    @property
    def pieces(self):
        """Return the numbers of an item's pieces."""
        return range(self.side * self.depth // self.each // self.items)

    def row(self, u):
        """Return the row that piece `u` of an item is in."""
        return f"(item + {u * self.items}) / {self.length // self.each}"

    def piece(self, u):
        """Return the number in that row of piece `u` of an item."""
        return f"(item + {u * self.items}) % {self.length // self.each}"

def column_place(c):
    """Return where a column of B is staged."""
    return f"(({c}) / 16 * 16 + ({c}) / 2 % 2 * 8 + ({c}) % 16 / 4 * 2 + ({c}) % 2)"

def pair_place(pair):
    """Return where a pair of columns of B is staged, counted in pairs."""
    return f"({pair}) / 8 * 8 + ({pair}) % 2 * 4 + ({pair}) % 8 / 2"
%>
## Fetch a step from k0 on; `vectors` is the language's name of the operand as an array of vectors of 16 bytes.
<%def name="fetch(of, arg, k0, vectors)">
% for u in of.pieces:
  {
% if of.along:
    const int s = min(${of.first} + ${of.row(u)}, ${of.count} - 1), k = ${k0} + ${of.piece(u)} * ${of.each};
% else:
    const int s = ${of.first} + ${of.piece(u)} * ${of.each}, k = ${k0} + ${of.row(u)};
% endif
% if of.wide and of.along:
    ${of.name}${u} = ${vectors}[(${of.name}_base + s * ${of.step} + min(k, K - 8)) / 8];
% elif of.wide:
    ${of.name}${u} = ${vectors}[(${of.name}_base + min(k, K - 1) * ${of.name.upper()}K + min(s, ${of.count} - 8)) / 8];
% else:
% for e in range(2):
<% s_at, k_at = ("s", f"min(k + {e}, K - 1)") if of.along else (f"min(s + {e}, {of.count} - 1)", "min(k, K - 1)") %>\
    ${of.name}${u}_${e} = ${arg.load(f"{of.name}_base + {s_at} * {of.step} + {k_at} * {of.name.upper()}K")};
% endfor
% endif
  }
% endfor
</%def>
## Put what was fetched into work-group memory, and zeros where K has ended.
<%def name="put(of, k0, language)">
<% is_b = of.name == "b" %>\
% for u in of.pieces:
<%
row, piece, apart = of.row(u), of.piece(u), is_b and not of.along
k = f"({k0}) + {piece} * {of.each}" if of.along else f"({k0}) + {row}"
at = f"{of.name}_stage + {column_place(row) if is_b and of.along else row} * {of.pitch}"
%>\
  {
% if of.wide:
    const ${language.VECTOR} eight = ${k} < K ? ${of.name}${u} : ${language.ZEROS};
    ${language.put_apart(of.array, at, piece, "eight") if apart else language.put(of.array, at, piece, "eight")}
% else:
    const bool inside0 = ${k} < K, inside1 = ${k}${" + 1" if of.along else ""} < K;
    const int pair = ${pair_place(piece) if apart else piece};
    ${language.put_pair(of.array, at, "pair", *(f"inside{e} ? {of.name}{u}_{e} : 0.0f" for e in range(2)))}
% endif
  }
% endfor
</%def>
## What an item fetches of an operand.
<%def name="variables(of, vector)">\
% for u in of.pieces:
% if of.wide:
  ${vector} ${of.name}${u};
% else:
  real ${of.name}${u}_0, ${of.name}${u}_1;
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
<%def name="finish(k, y, fm, fn, sm, sn, lz, fours, result_pitch, element)">
<%
every = [(i, j, e) for i in range(fm) for j in range(fn) for e in range(8)]
first = "LOCAL_Z == 0 && " if lz > 1 else ""
def added(n):
    return " + BETA * " + k.args["c"].load(f"m * CM + ({n}) * CN") if k.has("c") else ""
%>\
% if lz > 1:
  if (LOCAL_Z > 0) {
% for n, each in enumerate(every):
    Sum[(((LOCAL_Z - 1) * ${sm * sn} + warp) * ${len(every)} + ${n}) * 32 + lane] = ${element(*each)};
% endfor
  }
  BARRIER;
  for (int z = 0; LOCAL_Z == 0 && z < ${lz - 1}; z++) {
% for n, each in enumerate(every):
    ${element(*each)} += Sum[((z * ${sm * sn} + warp) * ${len(every)} + ${n}) * 32 + lane];
% endfor
  }
  BARRIER; // nobody writes the next tile's sums before these are read
% endif
% if fours:
% for i, j, r in [(i, j, r) for i in range(fm) for j in range(fn) for r in range(2)]:
  {
    const int m = m0 + warp_m * ${16 * fm} + ${16 * i + 8 * r} + lane / 4;
    const int n = n0 + warp_n * ${16 * fn} + ${16 * j} + lane % 4 * 4;
<% four = ", ".join(f"ALPHA * {element(i, j, 4 * r + e)}{added(f'n + {e}')}" for e in range(4)) %>\
    if (${first}m < M && n < N) ${y.store_vector("((batch_index * M + m) * N + n) / 4", f"F4({four})")}
  }
% endfor
% else:
## Sums go through work-group memory, so that adjacent items store adjacent numbers.
% for i, j in [(i, j) for i in range(fm) for j in range(0, fn, 2)]:
<% across = 16 * min(2, fn - j) %>\
  WARP_BARRIER; // the last sums are read
% for jj, e in [(jj, e) for jj in range(j, j + across // 16) for e in range(8)]:
  ${"if (LOCAL_Z == 0) " if lz > 1 else ""}Out[(warp * 16 + ${e // 4 * 8} + lane / 4) * ${result_pitch} + ${16 * (jj - j) + e % 4} + lane % 4 * 4] = ${element(i, jj, e)};
% endfor
  WARP_BARRIER;
  for (int o = lane; o < ${16 * across}; o += 32) {
    const int m = m0 + warp_m * ${16 * fm} + ${16 * i} + o / ${across}, n = n0 + warp_n * ${16 * fn} + ${16 * j} + o % ${across};
    if (${first}m < M && n < N) ${y.store("(batch_index * M + m) * N + n", f"ALPHA * Out[(warp * 16 + o / {across}) * {result_pitch} + o % {across}]{added('n')}")}
  }
% endfor
% endif
</%def>
