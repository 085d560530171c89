"""What a network is bound by on a device, from measured times: launches, bandwidth, arithmetic, transfers or the host.

The time of a run is divided among these. A node's time belongs to whichever would take longest at the rates that the
device reached in the simplest networks (`weft.cli.rates`): its bytes, its operations or its launches. Gaps between
launches belong to launches. Transfers are the copies that the device reports, and what a run with the session's own
arrays saves. What is left is the host's: Python, submitting, waiting.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from weft.cli.rates import Rates

KINDS = ("launches", "bandwidth", "arithmetic", "transfers", "host", "unknown")
"""What time may go to; unknown is what nodes take on a device that ran none of the networks that tell rates, and what a
device reports of no node, unless it is a copy by its name."""
TRANSFERS = ("upload ", "download ", "copy ")
"""How the names of copies begin: those of GPUs, and of the session between devices. Others' events may be any work."""
DEAREST = 3


@dataclass(frozen=True)
class Group:
    """A node's launches: their microseconds, what bounds them, and what they would take at the device's rates."""

    name: str
    us: float
    launches: int
    bound: str
    least_us: float


@dataclass(frozen=True)
class TimeVerdict:
    """Where a run's time goes, in microseconds by kind, and what could be saved."""

    us: Mapping[str, float]
    total_us: float
    """The median of runs without a profile; the kinds add up to more if profiled runs are slower."""
    dearest: Sequence[Group]
    saved_by_arrays_us: float
    """The time that the session's own arrays save a run, as measured; 0 where that is below the noise."""
    saved_a_launch_us: float | None
    launches: int
    remarks: Sequence[str] = field(default_factory=tuple)

    @property
    def bound(self) -> str:
        """Return the kind that takes most."""
        return max(KINDS, key=lambda kind: self.us[kind])

    def as_json(self) -> dict[str, Any]:
        """Return it as data."""
        return {"bound": self.bound, **asdict(self)}

    def lines(self) -> list[str]:
        """Return it as sentences."""
        spent = sum(self.us.values()) or 1.0
        spread = {kind: us / spent for kind, us in sorted(self.us.items(), key=lambda pair: -pair[1])}
        shares = {kind: share for kind, share in spread.items() if share or kind != "unknown"}
        first, *others = shares
        said = [
            f"bound by {first}: {shares[first]:.0%} of the run's {self.total_us:.1f} us; "
            + ", ".join(f"{kind} {shares[kind]:.0%}" for kind in others)
        ]
        for group in self.dearest:
            many = f" in {group.launches} launches" if group.launches > 1 else ""
            less = f", {group.least_us:.1f} us at the device's rates" if group.least_us else ""
            if 0 < group.us <= group.least_us:
                less = ", as fast as the device's rates allow"
            said.append(f"  {group.name}: {group.us:.1f} us{many}, {group.bound}{less}")
        arrays = f"{self.saved_by_arrays_us:.1f} us" if self.saved_by_arrays_us else "nothing measurable"
        saved = [f"{arrays} by arrays of the session"]
        if self.saved_a_launch_us is not None:
            saved.append(f"{self.saved_a_launch_us:.1f} us by each of {self.launches} launches less")
        better = sum(max(group.us - group.least_us, 0.0) for group in self.dearest if group.least_us)
        if better:
            saved.append(f"{better:.1f} us if the dearest ran at the device's rates")
        return [*said, f"  to be saved: {', '.join(saved)}", *(f"  {remark}" for remark in self.remarks)]


def judge(
    events: Sequence[Mapping[str, Any]], rates: Mapping[str, Rates], *, run_us: float, saved_us: float,
    spans_us: Mapping[str, float], software: Sequence[str] = (),
) -> TimeVerdict:
    """Return the verdict on the events of one run, as `weft.cli.roofline.analysed` lists them.

    `run_us` is the median of runs without a profile, `saved_us` what the session's own arrays save of it. `spans_us`
    are by device, from the first launch to the end of the last. `software` are the devices that are a CPU.
    """
    us = dict.fromkeys(KINDS, 0.0)
    launches = defaultdict[tuple[str, str], list[float]](list)
    works, busy = dict[tuple[str, str], Any](), dict[str, float]()
    for e in events:
        if "node" in e:
            key = (e["device"], e["node"])
            launches[key].append(e["us"])
            works[key] = e if "flops" in e else works.get(key)
            busy[e["device"]] = busy.get(e["device"], 0.0) + e["us"]
        else:
            us["transfers" if e["name"].startswith(TRANSFERS) else "unknown"] += e["us"]
    groups = [_group(node, times, works[device, node], rates.get(device)) for (device, node), times in launches.items()]
    for group in groups:
        us[group.bound] += group.us
    us["launches"] += sum(max(span - busy.get(device, 0.0), 0.0) for device, span in spans_us.items())
    us["transfers"] += saved_us
    us["host"] = max(run_us - sum(us.values()), 0.0)
    known = [r.launch for r in rates.values() if r.launch is not None]
    remarks = [f"{device} is a CPU: its times tell nothing about a GPU" for device in software]
    remarks += [
        f"{device} ran no {what}, so no node counts as bound by it"
        for device, each in rates.items()
        for what, rate in (("copy", each.bandwidth), ("product", each.flops), ("chain of launches", each.launch))
        if rate is None
    ]
    if sum(us.values()) > 1.1 * run_us:
        remarks.append("taking times made the run slower: the shares are those of the slower run")
    dearest = sorted(groups, key=lambda group: -group.us)[:DEAREST]
    count = sum(map(len, launches.values()))
    return TimeVerdict(us, run_us, dearest, saved_us, max(known) * 1e6 if known else None, count, remarks)


def _group(node: str, times: Sequence[float], work: Mapping[str, Any] | None, rates: Rates | None) -> Group:
    """Return a node's launches with the bound that would take longest."""
    least = dict.fromkeys(("launches", "bandwidth", "arithmetic"), 0.0)
    if rates is not None and rates.launch:
        least["launches"] = len(times) * rates.launch * 1e6
    if rates is not None and work is not None:
        least["bandwidth"] = work["bytes"] / rates.bandwidth * 1e6 if rates.bandwidth else 0.0
        least["arithmetic"] = work["flops"] / rates.flops * 1e6 if rates.flops else 0.0
    bound = max(least, key=lambda kind: least[kind])
    return Group(node, sum(times), len(times), bound if least[bound] else "unknown", least[bound])
