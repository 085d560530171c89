"""Write a page of a measurement: every time and every ratio, from the JSON file that `benchmarks.gpu` wrote.

    python -m benchmarks.page results.json > page.md

A ratio is the fastest peer's time over Weft's, so above 1 Weft is faster. Rows with a wrong output count for nobody;
they and what was not measured are "-", with the reasons below. At batch 1 times are from host array to host array,
above it those of the device; a second table has them host to host with arrays that the caller keeps in pinned memory:
Weft's are the session's own, PyTorch's its pinned tensors.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.bars import wrong_rows
from benchmarks.measure import Row

APIS = ("vulkan", "opencl")
PEERS = ("torch graph", "torch compile", "onnxruntime webgpu", "ncnn vulkan")
PRECISIONS = ("fp32", "fp16")
Time = Callable[[Row], float | None]


def host(row: Row) -> float | None:
    """Return the time from host array to host array."""
    return row.host_ms


def device(row: Row) -> float | None:
    """Return the time on the device."""
    return row.device_ms


def kept(row: Row) -> float | None:
    """Return the time from and to arrays that the caller keeps in pinned memory."""
    found = row.more.get("arrays_ms", row.more.get("pinned_ms"))
    return None if found is None else float(found)


def page(found: dict[str, Any]) -> str:
    """Return the whole page as Markdown."""
    rows = [Row(**row) for row in found["rows"]]
    wrong = {id(row): why for row, why in wrong_rows(rows)}
    right = [row for row in rows if id(row) not in wrong]
    lines = [f"# {found['date']}: networks on one device", "", f"    {found['command']}", "", *found["devices"], ""]
    lines += [f"A trial with {found['trial']}.", ""] if "trial" in found else []
    lines.append(f"choices of kernels: {found['tuning']}; source {found['source']}")
    lines.append(", ".join(f"{name} {version}" for name, version in found["versions"].items()))
    for batch in sorted({row.batch for row in rows}):
        first = ("host to host", host) if batch == 1 else ("on the device", device)
        for title, time in (first, ("host to host, arrays kept", kept)):
            here = [r for r in right if r.batch == batch]
            lines += ["", f"## Batch {batch}, {title}, ms", "", *_table(here, time), *_untuned(here, time)]
    reasons = [f"- {what}: {why}" for what, why in found["absent"].items()]
    lines += ["", "## Not measured", "", *(reasons or ["Nothing."])]
    uncounted = [f"- {r.network} x{r.batch} {r.who} {r.precision}: {wrong[id(r)]}" for r in rows if id(r) in wrong]
    return "\n".join([*lines, "", "## Measured, but not counted", "", *(uncounted or ["Nothing."])]) + "\n"


def _table(rows: Sequence[Row], time: Time) -> Iterator[str]:
    """Yield a table with a row for each network and precision, and the means of the ratios."""
    ratios: dict[tuple[str, str], list[float]] = {}
    heads = ["network", "precision", *PEERS, *(f"Weft {api}" for api in APIS), *(f"best peer / {api}" for api in APIS)]
    yield f"| {' | '.join(heads)} |"
    yield "|" + "---|" * len(heads)
    for network in dict.fromkeys(row.network for row in rows):
        for precision in PRECISIONS:
            here = [r for r in rows if (r.network, r.precision) == (network, precision)]
            peers = [_best(here, who, time) for who in PEERS]
            own = [_best(here, f"weft {api}", time) for api in APIS]
            best = min(filter(None, peers), default=None)
            shown = []
            for api, ms in zip(APIS, own, strict=True):
                ratio = best / ms if best and ms else None
                shown.append(_number(ratio, 2))
                if ratio is not None:
                    ratios.setdefault((api, precision), []).append(ratio)
            yield f"| {' | '.join([network, precision, *(_number(ms, 3) for ms in (*peers, *own)), *shown])} |"
    for (api, precision), each in sorted(ratios.items()):
        mean = math.exp(sum(map(math.log, each)) / len(each))
        behind = sum(ratio < 1 for ratio in each)
        yield f"\nWeft {api}, {precision}: geometric mean {mean:.2f} of {len(each)} networks, behind in {behind}."


def _best(rows: Sequence[Row], who: str, time: Time) -> float | None:
    """Return the shortest time of a side; Weft's is the row of that name, a peer may have several."""
    of_side = [r for r in rows if (r.who == who if who.startswith("weft") else r.who.startswith(who))]
    return min((ms for ms in map(time, of_side) if ms is not None), default=None)


def _untuned(rows: Sequence[Row], time: Time) -> Iterator[str]:
    """Say what Weft takes without its tables, where both were measured."""
    for api in APIS:
        for precision in PRECISIONS:
            pairs = []
            for row in (r for r in rows if r.who == f"weft {api} untuned" and r.precision == precision):
                here = [r for r in rows if (r.network, r.precision) == (row.network, precision)]
                tuned, without = _best(here, f"weft {api}", time), time(row)
                if tuned and without:
                    pairs.append(without / tuned)
            if pairs:
                mean = math.exp(sum(map(math.log, pairs)) / len(pairs))
                counted = f"{mean:.2f} times as long ({len(pairs)} networks)"
                yield f"\nWithout the tables, Weft {api}, {precision}: {counted}."


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def main() -> None:
    """Print the page of the file that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.page", description="Write a page of a measurement.")
    parser.add_argument("results", type=Path, help="the JSON file that benchmarks.gpu wrote")
    print(page(json.loads(parser.parse_args().results.read_text())), end="")


if __name__ == "__main__":
    main()
