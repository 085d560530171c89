"""What share of a device's roofline each event of a profile reaches: S. Williams et al., 2009, CACM 52(4).

A node cannot take less time than its operations at the device's peak, nor than its bytes at the bandwidth of the
memory; the share is the longer of these two times over the time that it took.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from weft.core.contract.backend import Precision
from weft.core.contract.profile import Event, Work
from weft.kernels.device_model import Peaks


def least_seconds(peaks: Peaks, flops: float, nbytes: float, precision: Precision) -> float:
    """Return the least time that this work takes; fp32 split over matrix units (NORMAL) may take less."""
    return max(flops / (peaks.fp16 if precision is Precision.LOW else peaks.fp32), nbytes / peaks.bandwidth)


def analysed(events: Sequence[Event], peaks: dict[str, Peaks], precision: Precision) -> list[dict[str, Any]]:
    """Return each event, with the work of its node, the rates, and the share where the device's peaks are known.

    Of several launches of a node, the longest gets the node's work, and the rates over the time of all of them. A chain
    of several nodes is an event of its own: what it adds for a node that is not in it as a whole is time of the chain.
    """
    nodes: dict[tuple[str, str], list[Event]] = defaultdict(list)
    for e in events:
        if e.work is not None:
            nodes[e.device, e.work.node].append(e)
    found = []
    for e in events:
        row: dict[str, Any] = {"device": e.device, "name": e.name, "us": e.seconds * 1e6}
        if e.work is not None:
            row["node"] = e.work.node
            launches = nodes[e.device, e.work.node]
            if e is max(launches, key=lambda each: each.seconds):
                took = sum(each.seconds for each in launches)
                row |= {"launches": len(launches), **_rates(e.work, took, peaks.get(e.device), precision)}
        found.append(row)
    return found


def _rates(work: Work, took: float, peaks: Peaks | None, precision: Precision) -> dict[str, Any]:
    rates: dict[str, Any] = {"flops": work.flops, "bytes": work.nbytes}
    if took > 0:
        rates |= {"node_us": took * 1e6, "flops_per_s": work.flops / took, "bytes_per_s": work.nbytes / took}
        rates["share"] = least_seconds(peaks, work.flops, work.nbytes, precision) / took if peaks else None
    return rates


def whole(rows: Sequence[dict[str, Any]]) -> float | None:
    """Return the share of all nodes together; None where one of them has none."""
    nodes = [row for row in rows if "node_us" in row]
    if not nodes or any(row["share"] is None for row in nodes):
        return None
    return float(sum(row["share"] * row["node_us"] for row in nodes) / sum(row["node_us"] for row in nodes))
