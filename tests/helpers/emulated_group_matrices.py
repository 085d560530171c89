"""Matrices that whole work-groups hold, in plain GLSL, so that kernels with them run by value on any device.

A matrix is an array of floats, and a tensor layout of two dimensions a struct, as GLSL_NV_cooperative_matrix2 defines
them. Each work-item loads all of A and B, and computes some fours of sums: llvmpipe ends loops that take too long.
Halves are floats that were rounded.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from weft.kernels.dialect import KernelParts
from weft.kernels.source import Arg

TYPE = re.compile(r"coopmat<(\w+), \w+, (\d+), (\d+), \w+>")
OWN = "for (int q = 4 * LOCAL_X; q < {}; q += 4 * LX) for (int e = q; e < q + 4; e++)"
"""The loop over the sums of a work-item."""
LAYOUTS = """
#define uint32_t uint
struct Layout { ivec2 size, pitch, begin, span; };
#define createTensorLayoutNV(rank) Layout(ivec2(0), ivec2(0), ivec2(0), ivec2(0))
Layout setTensorLayoutDimensionNV(Layout l, int rows, int columns) { l.size = ivec2(rows, columns); return l; }
Layout setTensorLayoutStrideNV(Layout l, int rows, int columns) { l.pitch = ivec2(rows, columns); return l; }
Layout sliceTensorLayoutNV(Layout l, uint row, uint rows, uint column, uint columns) {
  l.begin = ivec2(row, column);
  l.span = ivec2(rows, columns);
  return l;
}
// The place of element `e` of a matrix, counted row by row; -1 outside, where nothing may be read or written.
int place_of(Layout l, int e) {
  const ivec2 at = l.begin + ivec2(e / l.span.y, e % l.span.y);
  return any(greaterThanEqual(at, l.size)) ? -1 : at.x * l.pitch.x + at.y * l.pitch.y;
}
"""


def without_matrices(parts: KernelParts) -> KernelParts:
    """Return a kernel as one that needs no extension; what it moves outside of a tensor is far from right."""
    body = _translated(parts.body, parts.args)
    return replace(parts, prelude=parts.prelude + LAYOUTS, extensions=(), body=body)


def _translated(body: str, args: Sequence[Arg]) -> str:
    """Return a kernel's statements with arrays in place of matrices."""
    known = {arg.name: arg for arg in args}
    sizes: dict[str, tuple[int, int]] = {}  # by the name that was declared last: blocks declare the same names

    def declared(m: re.Match[str]) -> str:
        kind, rows, columns, name, _, value = m.groups()
        sizes[name], size = (int(rows), int(columns)), int(rows) * int(columns)
        given = f"{value}[e]" if value in sizes else value
        given = f"unpackHalf2x16(packHalf2x16(vec2({given}, 0.0))).x" if given and kind == "float16_t" else given
        return f"float {name}[{size}];" + (f" for (int e = 0; e < {size}; e++) {name}[e] = {given};" if given else "")

    def multiplied(m: re.Match[str]) -> str:
        total, a, b = m.groups()
        (rows, depth), (_, columns) = sizes[a], sizes[b]
        product = f"{a}[e / {columns} * {depth} + k] * {b}[k * {columns} + e % {columns}]"
        return f"{OWN.format(rows * columns)} for (int k = 0; k < {depth}; k++) {total}[e] += {product};"

    def loaded(m: re.Match[str]) -> str:
        name, source, base, layout = m.groups()
        rows, columns = sizes[name]
        if known[source].kind == "wide":
            at = f"int({base}) * 8 + place"
            value = f"unpackHalf2x16({source}[({at}) / 8][({at}) % 8 / 2])[({at}) % 2]"
        else:
            at = f"int({base}) * 4 + place"
            value = f"vec4({source}[({at}) / 4])[({at}) % 4]"
        return (
            f"{{ const Layout l = {layout}; for (int e = 0; e < {rows * columns}; e++) {{ "
            f"const int place = place_of(l, e); {name}[e] = place < 0 ? 1e4 : {value}; }} }}"
        )

    def saved(m: re.Match[str]) -> str:
        name, target, base, layout = m.groups()
        rows, columns = sizes[name]
        kind = "f16vec4" if known[target].dtype.itemsize == 2 else "vec4"
        four = f"vec4({', '.join(f'{name}[e + {k}]' for k in range(4))})"
        # A store outside spoils what the work-item stored first.
        return (
            f"{{ const Layout l = {layout}; for (int e = 4 * LOCAL_X; e < {rows * columns}; e += 4 * LX) {{ "
            f"const int at = place_of(l, e), place = at < 0 ? place_of(l, 4 * LOCAL_X) : at; "
            f"if (place >= 0) {target}[int({base}) + place / 4] = {kind}(at < 0 ? vec4(1e4) : {four}); }} }}"
        )

    def finished(m: re.Match[str]) -> str:
        total, function, operands = m.groups()
        rows, columns = sizes[total]
        given = re.sub(TYPE.pattern + r"\((\w+)\)", r"\4[e]", operands)
        at = f"uint(e / {columns}), uint(e % {columns})"
        return f"{OWN.format(rows * columns)} {total}[e] = {function}({at}, {total}[e]{given});"

    slices = r"\((\w+), (\w+), (.*?), (sliceTensorLayoutNV.*)\);"
    steps = (
        (TYPE.pattern + r" (\w+)( = coopmat<.*?>\((.*)\))?;", declared),
        (r"coopMatPerElementNV\((\w+), \1, (\w+)(.*)\);", finished),
        ("coopMatLoadTensorNV" + slices, loaded),
        ("coopMatStoreTensorNV" + slices, saved),
        (r"(\w+) = coopMatMulAdd\((\w+), (\w+), \1\);", multiplied),
    )
    lines = body.replace("tensorLayoutNV<2>", "Layout").split("\n")
    for k in range(len(lines)):
        for pattern, translate in steps:
            lines[k] = re.sub(pattern, translate, lines[k])
    return "\n".join(lines)
