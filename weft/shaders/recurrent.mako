## Steps of a recurrent layer: what the inputs bring to the gates lies in `brought`, and a work-group of UNITS x PARTS
## items adds what the state brings. PARTS items share the sum of one unit. With `whole` a group has all units of one row
## of the batch and makes up to STEPS steps with the state in its own memory; else it has UNITS of them and makes one.
## Launches hand on states in `h_in`, `c_in`, and how many steps were made in `done`; the first has none of the last.
## `phase`: "" for a layer whose gates need one product; else the GRU's reset gates, or what follows them, whose product
## is with the state that these scale. `room` is the elements that a state takes in a group's memory. R's steps are RK, RJ and RG for the state's element, the unit and the gate.
<%
lstm, gru, rnn = kind == "LSTM", kind == "GRU", kind == "RNN"
gates = {"LSTM": range(4), "GRU": range(3), "RNN": range(1)}[kind]
before = gru and not linear
## What each phase of a group computes: (gates, where the state that they are multiplied with lies).
phases = [([1], "h")] * (before and phase != "rest") + [([0, 2], "hr")] * (before and phase != "reset") or [(list(gates), "h")]
if whole:
    k.shared(k.number, "H", f"{2 * room}")
    if lstm:
        k.shared(k.number, "C", f"{room}")
    if before:
        k.shared(k.number, "RH", f"{room}")
if parts > 1:
    k.shared(k.number, "Sums", f"LX * {len(gates)}")
state = (lambda at: f"H[now * {room} + {at}]") if whole else (lambda at: k.args["h_in"].load(f"h_at + {at}"))
scaled = (lambda at: f"RH[{at}]") if whole else (lambda at: k.args["reset"].load(f"r_at + {at}"))
has_state = whole or k.has("h_in")
bias = lambda gate, side: k.args["b"].load(f"(d * {2 * len(gates)} + {gate + side * len(gates)}) * HIDDEN + j") if k.has("b") else "0.0"
clip = lambda v: f"fmin(fmax({v}, -CLIP), CLIP)" if clipped else v
def act(number, v):
    each = [part.replace("$", v) for part in acts[number::len(acts) // directions]]
    return each[0] if len(set(each)) == 1 else f"(d == 0 ? {each[0]} : {each[1]})"
peep = lambda gate: k.args["p"].load(f"(d * 3 + {gate}) * HIDDEN + j")
%>
<%def name="products(some, letter)">
% for g in some:
      ${k.number} s${g} = 0.0;
% endfor
% if has_state or letter == "hr":
      if (j < HIDDEN) {
        for (int e = part; e < HIDDEN; e += ${parts}) {
% for where, mine in (("h", [g for g in some if letter == "h" or g != 2]), ("hr", [g for g in some if letter == "hr" and g == 2])):
% if mine and (where == "hr" or has_state):
          const ${k.number} ${where} = ${state("e") if where == "h" else scaled("e")};
% for g in mine:
          s${g} += ${where} * ${r.load(f"d * RD + e * RK + {g} * RG + j * RJ")};
% endfor
% endif
% endfor
        }
      }
% if parts > 1:
% for n, g in enumerate(some):
      Sums[(${n} * ${parts} + part) * UNITS + unit] = s${g};
% endfor
      BARRIER;
      if (part == 0) {
        for (int o = 1; o < ${parts}; o++) {
% for n, g in enumerate(some):
          s${g} += Sums[(${n} * ${parts} + o) * UNITS + unit];
% endfor
        }
      }
% endif
% endif
</%def>
<% k.defines("UNITS") %>\
#define UNITS (LX / ${parts})
const int unit = LOCAL_X % UNITS, part = LOCAL_X / UNITS;
${k.for_groups("group", "GROUPS")} {
  const int first = ${"0" if whole else "group % SLICES * UNITS"}, row = ${"group" if whole else "group / SLICES"};
  const int n = row % BATCH, d = row / BATCH;
  const int last = ${k.args["lens"].load("n") if k.has("lens") else "TOTAL"};
  const int own_steps = min(max(last, 0), TOTAL);
  const bool backward = ${"true" if reverse else "d == 1"};
% if k.has("h_in"):
  const int h_at = d * HD + n * HB;
% endif
% if before and not whole:
  const int r_at = row * HIDDEN;
% endif
  const int start = ${k.args["done"].load("0") if k.has("done") else "0"};
% if whole:
  int now = 0;
  for (int j = LOCAL_X; j < HIDDEN; j += LX) {
    H[j] = ${k.args["h_in"].load("h_at + j") if k.has("h_in") else "0.0"};
% if lstm:
    C[j] = ${k.args["c_in"].load("d * HD + n * HB + j") if k.has("c_in") else "0.0"};
% endif
  }
  BARRIER;
  for (int step = start; step < min(start + STEPS, TOTAL); step++) {
% else:
  const int step = start;
  {
% endif
    const bool runs = step < own_steps;
    const int t = backward && runs ? own_steps - 1 - step : step;
    const int from = t * GT + n * GB + d * ${len(gates)} * HIDDEN;
% for p_number, (some, letter) in enumerate(phases):
<% resets = some == [1] %>
    for (int base = first; base < ${"HIDDEN" if whole else "first + 1"}; base += UNITS) {
      const int j = base + unit;
      ${products(some, letter)}
      if (part == 0 && j < HIDDEN) {
% for g in some:
% if gru and g == 2 and not before:
        const ${k.number} own_state = s2 + ${bias(2, 1)};
        s2 = ${brought.load("from + 2 * HIDDEN + j")} + ${bias(2, 0)};
% else:
        s${g} += ${brought.load(f"from + {g} * HIDDEN + j")} + (${bias(g, 0)} + ${bias(g, 1)});
% endif
% endfor
        const ${k.number} h_old = ${state("j") if has_state else "0.0"};
% if resets:
        const ${k.number} gate = ${clip("s1")};
        const ${k.number} reset_h = ${act(0, "gate")} * h_old;
% if whole:
        RH[j] = reset_h;
% else:
        ${k.args["reset_out"].store("r_at + j", "reset_h")}
% endif
% else:
% if lstm:
        const ${k.number} c_old = ${"C[j]" if whole else k.args["c_in"].load("d * HD + n * HB + j") if k.has("c_in") else "0.0"};
% if k.has("p"):
        s0 += ${peep(0)} * c_old;
        s2 += ${peep(2)} * c_old;
% endif
        const ${k.number} v0 = ${clip("s0")}, v2 = ${clip("s2")}, v3 = ${clip("s3")};
        const ${k.number} take = ${act(0, "v0")};
        const ${k.number} keep = ${"1.0 - take" if coupled else act(0, "v2")};
        const ${k.number} c_new = keep * c_old + take * ${act(1, "v3")};
% if k.has("p"):
        s1 += ${peep(1)} * c_new;
% endif
        const ${k.number} v1 = ${clip("s1")};
        const ${k.number} h_new = ${act(0, "v1")} * ${act(2, "c_new")};
% elif gru:
        const ${k.number} v0 = ${clip("s0")};
        const ${k.number} keep = ${act(0, "v0")};
% if not before:
        const ${k.number} v1 = ${clip("s1")};
        s2 += ${act(0, "v1")} * own_state;
% endif
        const ${k.number} v2 = ${clip("s2")};
        const ${k.number} h_new = (1.0 - keep) * ${act(1, "v2")} + keep * h_old;
% else:
        const ${k.number} v0 = ${clip("s0")};
        const ${k.number} h_new = ${act(0, "v0")};
% endif
        const ${k.number} h_kept = runs ? h_new : h_old;
        ${k.args["y"].store("t * YT + d * YD + n * YB + j", "runs ? h_new : 0.0")}
% if k.has("y_h"):
        if (step == TOTAL - 1) ${k.args["y_h"].store("d * SD + n * SB + j", "own_steps > 0 ? h_kept : 0.0")}
% endif
% if lstm:
        const ${k.number} c_kept = runs ? c_new : c_old;
% if k.has("y_c"):
        if (step == TOTAL - 1) ${k.args["y_c"].store("d * SD + n * SB + j", "own_steps > 0 ? c_kept : 0.0")}
% endif
% endif
% if whole:
        H[(1 - now) * ${room} + j] = h_kept;
% if lstm:
        C[j] = c_kept;
% endif
% elif k.has("h_out"):
        ${k.args["h_out"].store("row * HIDDEN + j", "h_kept")}
% if lstm:
        ${k.args["c_out"].store("row * HIDDEN + j", "c_kept")}
% endif
% endif
% endif
      }
% if parts > 1 and (has_state or letter == "hr"):
      BARRIER;
% endif
    }
% if whole:
    BARRIER;
% endif
% endfor
% if whole:
    now = 1 - now;
% endif
  }
% if whole and k.has("h_out"):
  for (int j = LOCAL_X; j < HIDDEN; j += LX) {
    ${k.args["h_out"].store("row * HIDDEN + j", f"H[now * {room} + j]")}
% if lstm:
    ${k.args["c_out"].store("row * HIDDEN + j", "C[j]")}
% endif
  }
% endif
% if whole:
  BARRIER;
% endif
}
% if k.has("done_out"):
if (GLOBAL_ID == 0) {
  const int made = ${k.args["done"].load("0") if k.has("done") else "0"} + STEPS;
  ${k.args["done_out"].store_int("0", "made")}
}
% endif
