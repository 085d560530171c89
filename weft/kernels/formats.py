"""Element types that no kernel language has, as functions between their bits and f32.

bfloat16 and the floats of eight bits and fewer lie in memory as unsigned integers, integers of two and four bits in a
byte each, float64 as two words where a kernel does not compute with it. A kernel that loads or stores one of them gets
its functions, in the part of C that all languages share; a dialect adds `BITS_OF(f32) -> uint` and
`FLOAT_OF(uint) -> f32`.

Numbers are rounded to nearest even. A number that is too large becomes an infinity; NaN if the type has no infinity;
the largest number if it has neither. To saturate the other types, clamp before the store.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from weft.core.graph.dtypes import DType


@dataclass(frozen=True, slots=True)
class SmallFloat:
    """How a small float is laid out: a sign, `exponent` bits with a bias, `fraction` bits.

    Codes leave out the sign: `most` is the code of the largest finite number, `beyond` that of larger numbers, `nan`
    that of NaN. Without `negative_zero` a zero has no sign, and `nan` alone stands for NaN, sign included.
    """

    exponent: int
    fraction: int
    bias: int
    most: int
    beyond: int
    nan: int
    negative_zero: bool = True

    @property
    def sign_bit(self) -> int:
        """Return the code's sign bit."""
        return 1 << self.exponent + self.fraction

    @property
    def largest(self) -> float:
        """Return the largest finite number."""
        exponent, fraction = divmod(self.most, 1 << self.fraction)
        return (1 + fraction / (1 << self.fraction)) * 2.0 ** (exponent - self.bias)


SMALL_FLOATS = {
    DType.FLOAT8E4M3FN: SmallFloat(4, 3, 7, most=0x7E, beyond=0x7F, nan=0x7F),
    DType.FLOAT8E4M3FNUZ: SmallFloat(4, 3, 8, most=0x7F, beyond=0x80, nan=0x80, negative_zero=False),
    DType.FLOAT8E5M2: SmallFloat(5, 2, 15, most=0x7B, beyond=0x7C, nan=0x7E),
    DType.FLOAT8E5M2FNUZ: SmallFloat(5, 2, 16, most=0x7F, beyond=0x80, nan=0x80, negative_zero=False),
    # For NaN, which these have not, they get a zero.
    DType.FLOAT6E2M3: SmallFloat(2, 3, 1, most=0x1F, beyond=0x1F, nan=0x20),
    DType.FLOAT6E3M2: SmallFloat(3, 2, 3, most=0x1F, beyond=0x1F, nan=0x20),
    DType.FLOAT4E2M1: SmallFloat(2, 1, 1, most=0x7, beyond=0x7, nan=0x8),
}

INDICES = """\
int index_of_words(int low, int high) {
  return high == (low < 0 ? -1 : 0) ? low : high < 0 ? -2147483647 - 1 : 2147483647;
}
int index_of_float(real v) {
  return v >= 2147483648.0 ? 2147483647 : v > -2147483648.0 ? TO_I32(v) : -2147483647 - 1;
}
int place_inside(int at, int size) {
  at = at < 0 ? at + size : at;
  return at >= 0 && at < size ? at : -1;
}
int nearest_place(int at, int size) {
  at = at < 0 ? at + size : at;
  return at < 0 ? 0 : at < size ? at : size - 1;
}
"""
"""What `ArgWriter.load_index`, `place_inside` and `nearest_place` call. A NaN lies before all numbers."""

ODD_FLOAT = """\
f32 odd_float(real v) {
  const f32 f = TO_F32(v);
  const uint u = BITS_OF(f), m = u & 0x7fffffffu;
  if (f == v || m > 0x7f800000u || (u & 1u) == 1u) return f;
  return FLOAT_OF(m == 0u || fabs(v) > fabs(f) ? u + 1u : u - 1u);
}
"""
"""The f32 beside a double whose last bit is set, if it is not that double: rounding it further then rounds once.

S. Boldo and G. Melquiond, "Emulation of a FMA and correctly rounded sums: proved algorithms using rounding to odd",
IEEE Transactions on Computers 57 (2008). It holds for types that are two bits narrower, however the device rounds.
"""

ROUNDED = {
    DType.FLOAT16: """\
real narrow_float16(real a) {
  const f32 v = TO_F32(a);
  const uint u = BITS_OF(v), m = u & 0x7fffffffu, negative = u & 0x80000000u;
  if (m > 0x7f800000u) return a;
  if (m >= 0x477ff000u) return TO_REAL(FLOAT_OF(negative | 0x7f800000u));
  if (m >= 0x38800000u) return TO_REAL(FLOAT_OF(negative | (m + 0xfffu + (m >> 13 & 1u) & 0xffffe000u)));
  return TO_REAL(FLOAT_OF(negative | BITS_OF(TO_F32(rint(fabs(v) * 16777216.0)) * 5.9604644775390625e-08)));
}
""",
    DType.BFLOAT16: "real narrow_bfloat16(real a) { return TO_REAL(from_bfloat16(to_bfloat16(TO_F32(a)))); }\n",
}
"""Functions `narrow_float16` and so on, which return the number of a type that is nearest to a float32 one."""

ON_GRID = """\
uint step_of(f32 v, f32 inverse, f32 least, f32 most) {
  f32 t = v * inverse;
  t = t > least ? t : least;
  t = t < most ? t : most;
  return BITS_OF(t + 12582912.0);
}
"""
"""A number divided by a scale, within limits and rounded to an integer, in the lowest byte; of NaN the least.

Numbers near 1.5 * 2^23 have no fraction: GPUs add faster than they round and convert.
"""
WORDS = """\
f32x4 four_of(uint w) {
  const uint u = w ^ 0x80808080u;
  return F4(
    FLOAT_OF(u & 255u | 0x4b000000u), FLOAT_OF(u >> 8 & 255u | 0x4b000000u), FLOAT_OF(u >> 16 & 255u | 0x4b000000u),
    FLOAT_OF(u >> 24 | 0x4b000000u)
  );
}
uint word_of(uint a, uint b, uint c, uint d) { return a & 255u | (b & 255u) << 8 | (c & 255u) << 16 | d << 24; }
"""
"""The four int8 in a word as f32, each 2^23 + 128 more than it is; and the lowest bytes of four words in one."""

_BFLOAT16 = """\
f32 from_bfloat16(uint b) { return FLOAT_OF(b << 16); }
uint to_bfloat16(f32 v) {
  const uint u = BITS_OF(v);
  return (u & 0x7fffffffu) > 0x7f800000u ? (u >> 16 | 0x40u) : u + 0x7fffu + (u >> 16 & 1u) >> 16;
}
"""
_FLOAT8E8M0 = """\
f32 from_float8e8m0(uint b) { return FLOAT_OF(b == 255u ? 0x7fc00000u : b == 0u ? 0x400000u : b << 23); }
uint to_float8e8m0(f32 v) { return BITS_OF(v) >> 23 & 255u; }
"""
_FLOAT64 = """\
f32 from_float64(uint low, uint high) {
  const uint top = high << 1 >> 21, negative = high & 0x80000000u;
  if (top == 2047u) return FLOAT_OF(negative | ((high << 12 | low) != 0u ? 0x7fc00000u : 0x7f800000u));
  const int e = TO_I32(top) - 1023;
  if (e > 127) return FLOAT_OF(negative | 0x7f800000u);
  if (e < -150) return FLOAT_OF(negative);
  // 26 bits of the number, the last of which tells whether any behind it was set, and what of them a float has.
  const uint m = 1u << 25 | (high & 0xfffffu) << 5 | low >> 27 | ((low & 0x7ffffffu) != 0u ? 1u : 0u);
  const int gone = e < -126 ? 2 - 126 - e : 2;
  const uint rest = m & (1u << gone) - 1u, tie = 1u << gone - 1;
  uint code = m >> gone;
  code += rest > tie || rest == tie && (code & 1u) == 1u ? 1u : 0u;
  return FLOAT_OF(negative | code + (e < -126 ? 0u : TO_U32(e + 126) << 23));
}
uint high_of_float64(f32 v) {
  const uint u = BITS_OF(v), m = u & 0x7fffffffu, negative = u & 0x80000000u;
  if (m >= 0x7f800000u) return negative | 0x7ff00000u | (m > 0x7f800000u ? 0x80000u : 0u);
  if (m == 0u) return negative;
  if (m >= 0x800000u) return negative | (m >> 3) + (896u << 20);
  uint f = m, e = 897u;
  while (f < 0x800000u) { f <<= 1; e -= 1u; }
  return negative | e << 20 | (f & 0x7fffffu) >> 3;
}
uint low_of_float64(f32 v) {
  uint f = BITS_OF(v) & 0x7fffffffu;
  if (f == 0u || f >= 0x7f800000u) return 0u;
  while (f < 0x800000u) f <<= 1;
  return f << 29;
}
"""


def functions(dtypes: Iterable[DType]) -> tuple[str, ...]:
    """Return the functions that any of the types need, each once."""
    texts = []
    for dtype in sorted(set(dtypes), key=lambda d: d.value):
        if dtype is DType.BFLOAT16:
            texts.append(_BFLOAT16)
        elif dtype is DType.FLOAT8E8M0:
            texts.append(_FLOAT8E8M0)
        elif dtype is DType.FLOAT64:
            texts.append(_FLOAT64)
        elif dtype in SMALL_FLOATS:
            texts.append(_small_float(dtype.name.lower(), SMALL_FLOATS[dtype]))
    return tuple(texts)


def from_bits(dtype: DType, bits: str) -> str:
    """Return the f32 expression of a `uint` one, the bits of an element of a type that has functions of one word."""
    return f"from_{dtype.name.lower()}({bits})"


def to_bits(dtype: DType, value: str) -> str:
    """Return the `uint` expression of an f32 one, as the bits of an element of such a type."""
    return f"to_{dtype.name.lower()}({value})"


def is_coded(dtype: DType) -> bool:
    """Tell whether elements of a type lie in memory as unsigned integers that stand for floats."""
    return dtype is DType.BFLOAT16 or dtype.is_small_float


def _small_float(name: str, form: SmallFloat) -> str:
    least = 1 - form.bias  # the exponent of the smallest normal number
    codes = form.sign_bit - 1
    kept = 23 - form.fraction
    beyond_sign = "0u" if form.beyond & form.sign_bit else "negative"
    nan_sign = "0u" if form.nan & form.sign_bit else "negative"
    special = ""
    if form.beyond != form.most:
        infinite = form.beyond == form.most + 1 and form.beyond != form.nan
        if not form.negative_zero:
            special = f"  if (b == {form.nan}u) return FLOAT_OF(0x7fc00000u);\n"
        elif infinite:
            special = f"  if (m == {form.beyond}u) return FLOAT_OF(negative | 0x7f800000u);\n"
            special += f"  if (m > {form.beyond}u) return FLOAT_OF(negative | 0x7fc00000u);\n"
        else:
            special = f"  if (m == {form.nan}u) return FLOAT_OF(negative | 0x7fc00000u);\n"
    zero = "" if form.negative_zero else "  if (code == 0u) return 0u;\n"
    smallest = 2.0 ** (least - form.fraction)
    return f"""\
f32 from_{name}(uint b) {{
  const uint m = b & {codes}u, negative = (b & {form.sign_bit}u) != 0u ? 0x80000000u : 0u;
{special}  if (m < {1 << form.fraction}u) return FLOAT_OF(negative | BITS_OF(TO_F32(m) * {smallest!r}));
  return FLOAT_OF(negative | (m << {kept}) + ({127 - form.bias}u << 23));
}}
uint to_{name}(f32 v) {{
  const uint u = BITS_OF(v), m = u & 0x7fffffffu, negative = u > 0x7fffffffu ? {form.sign_bit}u : 0u;
  if (m > 0x7f800000u) return {nan_sign} | {form.nan}u;
  const int e = TO_I32(m >> 23) - 127, gone = {kept} + (e < {least} ? {least} - e : 0);
  if (gone > 25) return {"negative" if form.negative_zero else "0u"};
  const uint f = m & 0x7fffffu | 0x800000u, rest = f & (1u << gone) - 1u, tie = 1u << gone - 1;
  uint code = (f >> gone) + (e < {least} ? 0u : TO_U32(e - ({least})) << {form.fraction});
  code += rest > tie || rest == tie && (code & 1u) == 1u ? 1u : 0u;
  if (code > {form.most}u) return {beyond_sign} | {form.beyond}u;
{zero}  return negative | code;
}}
"""
