## The order of two slices of x: `sign` is -1 where that at `a` comes before that at `b`, 1 where it comes behind, else 0.
## NaN is behind all numbers; `odd` says that one of two elements is NaN at a place up to which the slices are equal.
<%namespace name="pairs" file="pairs.parts.mako"/>
<%def name="compare(x, a, b, floats, wide)">
  int sign = 0;
  bool odd = false;
  for (int m = 0; m < SLICE && sign == 0; m++) {
    const int v_at = (m / INNER * COUNT + ${a}) * INNER + m % INNER, w_at = v_at + (${b} - ${a}) * INNER;
% if floats:
    const ${k.number} v = ${x.load("v_at")}, w = ${x.load("w_at")};
    odd = odd || is_nan(v) || is_nan(w);
    sign = v < w || (is_nan(w) && !is_nan(v)) ? -1 : w < v || (is_nan(v) && !is_nan(w)) ? 1 : 0;
% else:
    const uint v = ${x.load("v_at")}, v_high = ${x.load_high("v_at")}, w = ${x.load("w_at")}, w_high = ${x.load_high("w_at")};
    sign = ${pairs.less("v", "v_high", "w", "w_high", wide)} ? -1 : v == w && v_high == w_high ? 0 : 1;
% endif
  }
</%def>
