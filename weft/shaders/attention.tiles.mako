## How the work-items of the portable attention kernel fill work-group memory, and exchange values along a line.
## The vector of elements from 4 * `column` on of row `row`; zeros behind the `size` elements of a head.
<%def name="fetch(arg, letter, row, column, size)" filter="trim">
% if letter in context.get("apart", ""):
<% at = lambda e: f"{letter}_at + {row} * {letter}S + ({column} * 4 + {e}) * {letter}D" %>
F4(${", ".join(f"{column} * 4 + {e} < {size} ? " + arg.load(at(e)) + " : 0.0" for e in range(4))})
% elif quads:
${arg.load_quad(f"{letter}_at + {row} * ({letter}S / 4) + {column}")}
% else:
<% at = f"{letter}_at + {row} * {letter}S + {column} * 4 + " %>
F4(${", ".join(f"{column} * 4 + {e} < {size} ? " + arg.load(at + str(e)) + " : 0.0" for e in range(4))})
% endif
</%def>
## The offset of the head: in elements, or in vectors if heads are aligned to four and their elements not apart.
<%def name="start_of(letter)">
<% by, first = " / 4" if quads and letter not in context.get("apart", "") else "", "" if letter == "Y" else f"{letter}0 + "
its = "head / SHARED" if context.get("shared", False) and letter in "KV" else "head" %>
const int ${letter}_at = (${first}batch * ${letter}B + ${its} * ${letter}H)${by};
</%def>
## Copy `count` rows of `vectors` vectors from row `first` on. Behind the last row, repeat it, so that no load waits for
## a comparison. An item has up to `loads` loads in flight. Where elements are apart, rows are adjacent: so adjacent
## items have adjacent rows of one vector.
<%def name="stage(arg, letter, first, count, last, vectors, size, put)">
<% items, total = lx * ly, count * vectors
at_once = min(loads, -(-total // items))
by_rows = letter in context.get("apart", "")
row_of, vector_of = (("%", "/") if by_rows else ("/", "%"))
inner = count if by_rows else vectors
is_inside = (lambda u: f"c{u} < {vectors}") if by_rows else (lambda u: f"r{u} < {count}") %>
for (int e = item; e < ${total}; e += ${items * at_once}) {
% for u in range(at_once):
  const int r${u} = (e + ${u * items}) ${row_of} ${inner}, c${u} = (e + ${u * items}) ${vector_of} ${inner};
  const int row${u} = min(${first} + r${u}, ${last} - 1);
  const f32x4 v${u} = ${fetch(arg, letter, f"row{u}", f"c{u}", size)};
% endfor
% for u in range(at_once):
  ${f"if ({is_inside(u)}) " if total % (items * at_once) else ""}${put(f"r{u}", f"c{u}", f"v{u}")};
% endfor
}
</%def>
## The items of a line publish their values for its queries, four at a time; Part must be free.
<%def name="share(what)">
% for g in range(0, each, 4):
Part[${g // 4 * lx * ly} + line * ${lx} + column] = F4(${", ".join(f"{what}{i}" if i < each else "0.0" for i in range(g, g + 4))});
% endfor
BARRIER;
</%def>
## Join the published values: `step` gets a query, and the expression of one item's value for it.
<%def name="gather(step)">
for (int other = 0; other < ${lx}; other++) {
% for g in range(0, each, 4):
  const f32x4 part${g} = Part[${g // 4 * lx * ly} + line * ${lx} + other];
% endfor
% for i in range(each):
  ${step(i, f"part{i // 4 * 4}." + "xyzw"[i % 4])}
% endfor
}
</%def>
