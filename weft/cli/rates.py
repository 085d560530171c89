"""What a device reaches in the simplest networks: bytes and operations a second, and the time of a launch.

They are measured as nodes are, by the profile of a session, so any device has them, whatever its driver says of itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import weft
from weft.core.contract.backend import Precision
from weft.core.contract.profile import SPAN, Profile
from weft.errors import WeftError
from weft.loading import load

RUNS = 5
CHAIN = 16
"""Nodes that wait for each other, to time a launch."""


@dataclass(frozen=True)
class Sizes:
    """How large the networks are: enough for many compute units, or for the cores of a CPU."""

    elements: int
    """Elements that the network of the copy moves."""
    product: int
    """Rows and columns of the matrices."""


HARDWARE, SOFTWARE = Sizes(1 << 25, 4096), Sizes(1 << 20, 384)


@dataclass(frozen=True)
class Rates:
    """What a device reached: bytes and operations in a second, seconds of a launch; None for what it could not run."""

    bandwidth: float | None
    flops: float | None
    launch: float | None


def measured(device: str, precision: Precision, options: Mapping[str, Any], *, software: bool) -> Rates:
    """Return the rates of one device at a precision."""
    sizes = SOFTWARE if software else HARDWARE
    ask = {
        "bandwidth": (_copy(sizes.elements), lambda p: _rate(p, lambda work: work.nbytes)),
        "flops": (_product(sizes.product), lambda p: _rate(p, lambda work: work.flops)),
        "launch": (_chain(), _launch),
    }
    return Rates(**{name: _median(device, precision, options, net, read) for name, (net, read) in ask.items()})


def _median(
    device: str, precision: Precision, options: Mapping[str, Any], net: weft.Network,
    read: Callable[[Profile], float | None],
) -> float | None:
    """Return the median of what some runs' profiles tell; None if the device does not take the network."""
    found = list[float]()
    try:
        with load(net, device, precision=precision, profile=True, fallback="error", **options) as session:
            arrays = session.input_arrays()
            for _ in range(RUNS + 1):
                session.run(arrays)
                found.append(read(session.profile) or 0.0)
    except WeftError:
        return None
    told = [value for value in found[1:] if value > 0]
    return float(np.median(told)) if told else None


def _rate(profile: Profile, amount: Callable[[Any], int]) -> float | None:
    """Return the most that a node did in a second, over all of its launches."""
    seconds, works = dict[str, float](), {e.work.node: e.work for e in profile.events if e.work is not None}
    for e in profile.events:
        if e.work is not None:
            seconds[e.work.node] = seconds.get(e.work.node, 0.0) + e.seconds
    return max((amount(works[node]) / took for node, took in seconds.items() if took > 0), default=None)


def _launch(profile: Profile) -> float | None:
    """Return the seconds of one of the chain's launches, gaps included where the device tells them."""
    events = [e for e in profile.events if e.work is not None]
    spans = [value for (_, name), value in profile.counters.items() if name == SPAN]
    return (spans[0] if spans else sum(e.seconds for e in events)) / len(events) if events else None


def _copy(elements: int) -> weft.Network:
    net = weft.Network("copy")
    net.add_output("y", net.add_layer("Relu", net.add_input("x", (elements // 1024, 1024))))
    return net


def _product(size: int) -> weft.Network:
    net = weft.Network("product")
    weights = np.full((size, size), 0.01, np.float32)
    net.add_output("y", net.add_layer("MatMul", net.add_input("x", (size, size)), weights))
    return net


def _chain() -> weft.Network:
    net = weft.Network("chain")
    value: Any = net.add_input("x", (1, 16))
    for _ in range(CHAIN):
        value = net.add_layer("Softmax", value)
    net.add_output("y", value)
    return net
