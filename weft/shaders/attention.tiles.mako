## How the items of the portable attention kernel fill shared memory, and what those of a line tell each other.
## The vector of elements 4 * `column` on of row `row`; behind the `size` elements of a head there are zeros.
<%def name="fetch(arg, letter, row, column, size)" filter="trim">
% if quads:
${arg.load_quad(f"{letter}_at + {row} * ({letter}S / 4) + {column}")}
% else:
<% at = f"{letter}_at + {row} * {letter}S + {column} * 4 + " %>
F4(${", ".join(f"{column} * 4 + {e} < {size} ? " + arg.load(at + str(e)) + " : 0.0" for e in range(4))})
% endif
</%def>
## Where the head begins, in elements or, where these lie in vectors of four, in vectors.
<%def name="start_of(letter)">
<% by, first = " / 4" if quads else "", "" if letter == "Y" else f"{letter}0 + " %>
const int ${letter}_at = (${first}batch * ${letter}B + head * ${letter}H)${by};
</%def>
## Copies `count` rows of `vectors` vectors from row `first` on; behind the last row comes the last row once more, so
## that no load waits for a comparison. Up to eight loads of an item are under way together.
<%def name="stage(arg, letter, first, count, last, vectors, size, put)">
<% items, total = lx * ly, count * vectors
at_once = min(8, -(-total // items)) %>
for (int e = item; e < ${total}; e += ${items * at_once}) {
% for u in range(at_once):
  const int r${u} = (e + ${u * items}) / ${vectors}, c${u} = (e + ${u * items}) % ${vectors};
  const int row${u} = min(${first} + r${u}, ${last} - 1);
  const f32x4 v${u} = ${fetch(arg, letter, f"row{u}", f"c{u}", size)};
% endfor
% for u in range(at_once):
  ${f"if (r{u} < {count}) " if total % (items * at_once) else ""}${put(f"r{u}", f"c{u}", f"v{u}")};
% endfor
}
</%def>
## The items of a line make known what each has of its queries, four at a time; Part must not be in use.
<%def name="share(what)">
% for g in range(0, each, 4):
Part[${g // 4 * lx * ly} + line * ${lx} + column] = F4(${", ".join(f"{what}{i}" if i < each else "0.0" for i in range(g, g + 4))});
% endfor
BARRIER;
</%def>
## Takes what they made known together: `step` is given a query and the expression of an item's part of it.
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
