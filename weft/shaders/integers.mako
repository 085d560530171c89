<%namespace name="pairs" file="pairs.parts.mako"/>
## Integer arithmetic on pairs of 32-bit halves (low, high), unsigned, so that nothing overflows: exact for integers of up
## to 64 bits, which wrap when they are stored. `names` are the operands that are read, of `count`; the others are the
## constants K<i> and K<i>_HIGH. D0.. are the sizes of the output's axes and <operand>_S0.. the steps. `operation` joins
## the operands from left to right, or `steps` names one for each operand from the second on; a relation gives 0 or 1.
## `bits` is how many the first operand's type has; `wide` says that this is unsigned and has 64.
<%
def at(name):
    return " + ".join(f"i{d} * {name}_S{d}" for d in range(rank))
upper, other_upper = ("high", "h") if wide else ("TO_I32(high)", "TO_I32(h)")
negative, other_negative = ("false", "false") if wide else ("TO_I32(high) < 0", "TO_I32(h) < 0")
relations = {
    "less": f"{upper} < {other_upper} || (high == h && low < l)",
    "less_equal": f"{upper} < {other_upper} || (high == h && low <= l)",
    "greater": f"{upper} > {other_upper} || (high == h && low > l)",
    "greater_equal": f"{upper} > {other_upper} || (high == h && low >= l)",
    "equal": "high == h && low == l",
}
bitwise = {"and": "&", "or": "|", "xor": "^"}
takes = {
    "max": relations["less"],
    "min": relations["greater"],
}
%>
<%def name="read(i, low, high)">
% if f"x{i}" in names:
<%
arg = k.args[f"x{i}"]
%>
  uint ${low} = ${arg.load(at(arg.name))};
  uint ${high} = ${arg.load_high(at(arg.name))};
% else:
  uint ${low} = K${i};
  uint ${high} = K${i}_HIGH;
% endif
</%def>
<%def name="multiply(low, high, l, h)">${pairs.multiply(low, high, l, h)}</%def>
<%def name="negate()">${pairs.negate("low", "high")}</%def>
${k.for_each("i", "TOTAL")} {
  int rest = i;
% for d in range(rank):
  const int i${d} = rest % D${d};
  rest /= D${d};
% endfor
  ${read(0, "low", "high")}
% for other in range(1, count):
<%
joined = steps[other - 1] if steps else operation
%>
  {
  ${read(other, "l", "h")}
% if joined == "add":
    low += l;
    high += h + (low < l ? 1 : 0);
% elif joined == "subtract":
    high -= h + (low < l ? 1 : 0);
    low -= l;
% elif joined == "multiply":
    ${multiply("low", "high", "l", "h")}
% elif joined in bitwise:
    low = low ${bitwise[joined]} l;
    high = high ${bitwise[joined]} h;
% elif joined in ("shift_left", "shift_right"):
    const uint sign = ${"low & 0u" if joined == "shift_left" or wide else "TO_I32(high) < 0 ? 0xffffffffu : 0u"};
    if (h != 0u || l >= ${bits}u) {
      low = sign;
      high = sign;
    } else if (l >= 32u) {
% if joined == "shift_left":
      high = low << (l - 32u);
      low = 0u;
% else:
      low = high >> (l - 32u) | (l > 32u ? sign << (64u - l) : 0u);
      high = sign;
% endif
    } else if (l > 0u) {
% if joined == "shift_left":
      high = high << l | low >> (32u - l);
      low = low << l;
% else:
      low = low >> l | high << (32u - l);
      high = high >> l | sign << (32u - l);
% endif
    }
% elif joined in ("divide", "modulo", "remainder"):
    const bool minus = ${negative}, by_minus = ${other_negative};
    if (minus) {
      ${negate()}
    }
    if (by_minus) {
      l = ~l + 1;
      h = ~h + (l == 0 ? 1 : 0);
    }
    // The quotient, and what is left; a quotient by zero is zero, and leaves nothing.
    uint q = 0u, q_high = 0u, r = 0u, r_high = 0u;
    if (high == 0u && h == 0u) {
      q = l != 0u ? low / l : 0u;
      r = l != 0u ? low % l : 0u;
    } else if (l != 0u || h != 0u) {
      for (int bit = 0; bit < 64; bit++) {
        const bool carry = r_high >> 31 != 0u;
        r_high = r_high << 1 | r >> 31;
        r = r << 1 | high >> 31;
        high = high << 1 | low >> 31;
        low = low << 1;
        q_high = q_high << 1 | q >> 31;
        q = q << 1;
        if (carry || r_high > h || r_high == h && r >= l) {
          r_high -= h + (r < l ? 1u : 0u);
          r -= l;
          q |= 1u;
        }
      }
    }
% if joined == "divide":
    low = q;
    high = q_high;
    if (minus != by_minus) {
      ${negate()}
    }
% else:
    low = r;
    high = r_high;
    if (minus) {
      ${negate()}
    }
% if joined == "modulo":
    if (minus != by_minus && (r != 0u || r_high != 0u)) {
      if (by_minus) {
        l = ~l + 1;
        h = ~h + (l == 0 ? 1 : 0);
      }
      low += l;
      high += h + (low < l ? 1 : 0);
    }
% endif
% endif
% elif joined == "power":
    uint base = low, base_high = high;
    const bool below_one = ${"false" if not signed_exponent else "TO_I32(h) < 0"};
    const bool unit = high == 0u && low == 1u, minus_unit = ${"false" if wide else "high == 0xffffffffu && low == 0xffffffffu"};
    if (below_one) {
      // 1 / base: whole for 1 and -1 alone.
      low = unit ? 1u : minus_unit ? (l % 2u == 1u ? 0xffffffffu : 1u) : 0u;
      high = low == 0xffffffffu ? 0xffffffffu : 0u;
    } else {
      low = 1u;
      high = 0u;
      while (l != 0u || h != 0u) {
        if (l % 2u == 1u) {
          ${multiply("low", "high", "base", "base_high")}
        }
        ${multiply("base", "base_high", "base", "base_high")}
        l = l >> 1 | h << 31;
        h = h >> 1;
      }
    }
% elif joined in takes:
    if (${takes[joined]}) {
      low = l;
      high = h;
    }
% else:
    low = ${relations[joined]} ? 1 : 0;
    high = 0;
% endif
  }
% endfor
% if operation == "negate":
  ${negate()}
% elif operation == "size":
  if (${negative}) {
    ${negate()}
  }
% elif operation == "invert":
  low = ~low;
  high = ~high;
% elif operation == "sign":
  {
    const bool below = ${negative};
    low = below ? 0xffffffffu : low != 0u || high != 0u ? 1u : 0u;
    high = below ? 0xffffffffu : 0u;
  }
% elif operation == "positive":
  if (${negative}) {
    low = 0u;
    high = 0u;
  }
% elif operation == "truth":
  low = low != 0 || high != 0 ? 1 : 0;
  high = 0;
% endif
  ${y.store_pair("i", "low", "high")}
}
