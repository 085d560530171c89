"""What share of a device's roofline each event of a profile reaches: S. Williams et al., 2009, CACM 52(4).

A node cannot take less time than its operations at the device's peak, nor than its bytes at the bandwidth of the
memory; the share is the longer of these two times over the time that it took.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from weft.core.contract.backend import Precision
from weft.core.contract.profile import Event, Work


@dataclass(frozen=True)
class Peaks:
    """What a device can do in a second, as its datasheet says."""

    fp32: float
    fp16: float
    """Products of fp16 on matrix units, summed in fp32, without sparsity."""
    bandwidth: float

    def flops(self, precision: Precision) -> float:
        """Return the operations; what reaches the accuracy of fp32 on matrix units may do more than fp32's."""
        return self.fp16 if precision is Precision.LOW else self.fp32

    def seconds(self, flops: float, nbytes: float, precision: Precision) -> float:
        """Return the least time that so much work takes."""
        return max(flops / self.flops(precision), nbytes / self.bandwidth)


DATASHEET = {
    "H200": Peaks(67e12, 989e12, 4.8e12),
    "H100 PCIe": Peaks(51e12, 756e12, 2.0e12),
    "H100 80GB HBM3": Peaks(67e12, 989e12, 3.35e12),
    "A100.*40GB": Peaks(19.5e12, 312e12, 1.555e12),
    "A100": Peaks(19.5e12, 312e12, 2.0e12),
    "RTX 4090(?! Laptop)": Peaks(82.6e12, 165e12, 1.008e12),
}
"""By what stands in the device's name, as whole words; the first that fits counts. Not measured: clocks may differ."""


def peaks_of(name: str) -> Peaks | None:
    """Return the peaks of a device by its name, or None if it is not in the table."""
    return next((p for words, p in DATASHEET.items() if re.search(rf"\b{words}\b", name)), None)


def analysed(events: Sequence[Event], peaks: dict[str, Peaks], precision: Precision) -> list[dict[str, Any]]:
    """Return each event, with the work of its node, the rates, and the share where the device's peaks are known.

    A node may be several launches: the longest has its work, and the rates that follow from the time of all of them.
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
        rates["share"] = peaks.seconds(work.flops, work.nbytes, precision) / took if peaks else None
    return rates


def whole(rows: Sequence[dict[str, Any]]) -> float | None:
    """Return the share of all nodes together; None where one of them has none."""
    nodes = [row for row in rows if "node_us" in row]
    if not nodes or any(row["share"] is None for row in nodes):
        return None
    return float(sum(row["share"] * row["node_us"] for row in nodes) / sum(row["node_us"] for row in nodes))
