"""Measures devices, and compares the kernels that are chosen by their rates with those chosen without.

    python -m benchmarks.rates [--devices opencl,vulkan] [--networks squeezenet1_1] [--precision high,low] [--json FILE]

It prints what the probe measures (`weft probe`), then for each network how many launches differ, and if some do the
times of runs with the old and with the new choices: both sessions run in turn, and the median of the ratios of
neighbours counts, so that other work on the machine hits both alike. `--profile` has devices pretend to be others.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import date
from statistics import median
from typing import Any

import weft
from benchmarks.facts import command
from benchmarks.models import MODELS, feeds
from benchmarks.options import number, output, words
from weft.backends.gpu.creator import GpuCreator
from weft.backends.gpu.recording.launches import PlannedLaunch
from weft.backends.gpu.runtime import GpuRuntime
from weft.backends.gpu.tuning.probe import measure
from weft.core.contract.backend_options import Options
from weft.core.placement.optimized_network import OptimizedNetwork
from weft.core.registry.backend_registry import registry
from weft.errors import WeftError
from weft.kernels.rates import Rates

PRECISIONS = ("high", "normal", "low")
WARM = 3
"""Runs that do not count."""


@dataclass
class How:
    """What is measured, and how long."""

    batch: int
    width: float
    seconds: float


@contextmanager
def rates_of(runtime: GpuRuntime, rates: Rates | None) -> Iterator[None]:
    """Let kernels be chosen by some rates in a block, or by none."""
    caps = runtime.device.caps
    runtime.device.caps = replace(caps, rates=rates)
    try:
        yield
    finally:
        runtime.device.caps = caps


def launches(network: OptimizedNetwork) -> list[tuple[str, str]]:
    """Return the launches of a network: of which node, and which kernel in which sizes."""
    found = []
    for part in network.parts:
        for launch in part.lowered.launches if part.lowered is not None else ():
            assert isinstance(launch, PlannedLaunch)
            text = f"{launch.kernel} {'x'.join(map(str, launch.grid))} of {'x'.join(map(str, launch.local))}"
            found.append((launch.owner, f"{text} {launch.source.digest[:6]}"))
    return found


def differences(old: Sequence[tuple[str, str]], new: Sequence[tuple[str, str]]) -> list[tuple[str, str, str]]:
    """Return the nodes whose launches differ, with both."""
    def by_node(every: Sequence[tuple[str, str]]) -> dict[str, str]:
        held: dict[str, list[str]] = {}
        for owner, text in every:
            held.setdefault(owner, []).append(text)
        return {owner: " + ".join(texts) for owner, texts in held.items()}

    before, after = by_node(old), by_node(new)
    owners = dict.fromkeys([*before, *after])
    return [(o, before.get(o, "-"), after.get(o, "-")) for o in owners if before.get(o) != after.get(o)]


def compared(
    runtime: GpuRuntime, device: str, options: dict[str, Any], rates: Rates, network: str, precision: str, how: How
) -> dict[str, Any]:
    """Return the launches that differ and the times of runs, in milliseconds."""
    model = MODELS[network](how.batch, **({} if network == "minilm_l6" else {"width": how.width}))
    inputs = feeds(model)
    told: dict[str, Any] = {"precision": precision, "fallback": "error", "backend_options": options}
    planned = []
    for each in (None, rates):
        with rates_of(runtime, each):
            planned.append(launches(weft.optimize(model, device, **told)))
    row = {
        "device": device, "network": network, "precision": precision, "batch": how.batch, "launches": len(planned[0]),
        "differ": differences(*planned),
    }
    if not row["differ"]:
        return row
    sessions, loads = [], []
    try:
        for each in (None, rates):
            with rates_of(runtime, each):
                begun = time.perf_counter()
                sessions.append(weft.load(model, device, wait="all", **told))
                loads.append(time.perf_counter() - begun)
        times: tuple[list[float], list[float]] = [], []
        until = time.perf_counter() + how.seconds
        for k in range(10_000):
            order = (0, 1) if k % 2 else (1, 0)
            for which in order:
                begun = time.perf_counter()
                sessions[which].run(inputs)
                if k >= WARM:
                    times[which].append((time.perf_counter() - begun) * 1e3)
            if k > WARM + 4 and time.perf_counter() > until:
                break
    finally:
        for session in sessions:
            session.close()
    shares = [new / old for old, new in zip(*times, strict=True)]
    return {
        **row, "old ms": median(times[0]), "new ms": median(times[1]), "share": median(shares), "runs": len(shares),
        "load s": loads,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", default="opencl,vulkan", help="with commas; an index as in opencl:1")
    parser.add_argument("--networks", type=words(MODELS), default=["squeezenet1_1", "mobilenet_v2", "resnet50"])
    parser.add_argument("--precision", type=words(PRECISIONS), default=["high"])
    parser.add_argument("--batch", type=number, default=1)
    parser.add_argument("--width", type=float, default=1.0, help="of the networks: 0.25 has a quarter of the channels")
    parser.add_argument("--seconds", type=float, default=3.0, help="of runs, for each network and precision")
    parser.add_argument("--profile", default="", help="what the devices pretend to be")
    parser.add_argument("--probe-only", action="store_true", help="print what the probe measures, and stop")
    parser.add_argument("--show", action="store_true", help="print the launches that differ")
    parser.add_argument("--json", type=output, metavar="FILE")
    options = parser.parse_args(arguments)
    how, rows = How(options.batch, options.width, options.seconds), list[dict[str, Any]]()
    for name in options.devices.split(","):
        try:
            choice = registry.choose(name)[0]
        except WeftError as e:
            print(f"absent: {name}: {e.what}")
            continue
        if not isinstance(choice.creator, GpuCreator):
            raise SystemExit(f"{name} is no GPU")
        own = {"device_profile": options.profile} if options.profile else {}
        with choice.creator.held(choice.index, Options(own)) as runtime:
            choice.creator.onPrepare(choice.index)
            begun = time.perf_counter()
            rates = measure(runtime)
            assert rates is not None
            again = measure(runtime)
            info, units = runtime.device.info, runtime.device.caps.likely_units
            took = time.perf_counter() - begun
            print(f"{choice.device} {info.name}, {info.driver}, {units} units, measured twice in {took:.1f} s")
            print("  ", json.dumps(rates.as_dict()))
            print("  again", json.dumps(again.as_dict() if again else None), flush=True)
            rows.append({"device": choice.device, "name": info.name, "units": units, "rates": rates.as_dict()})
            if options.probe_only:
                continue
            for network in options.networks:
                for precision in options.precision:
                    given = {choice.creator.id: own} if own else {}
                    row = compared(runtime, choice.device, given, rates, network, precision, how)
                    rows.append(row)
                    for owner, old, new in row["differ"] if options.show else ():
                        print(f"      {owner}: {old} -> {new}")
                    said = f"  {network} {precision}: {len(row['differ'])} nodes of {row['launches']} launches differ"
                    if row["differ"]:
                        said += f"; {row['old ms']:.3f} -> {row['new ms']:.3f} ms, share {row['share']:.3f} in "
                        said += f"{row['runs']} pairs; loads {row['load s'][0]:.1f} and {row['load s'][1]:.1f} s"
                    print(said, flush=True)
    if options.json:
        facts = {"date": str(date.today()), "command": command("benchmarks.rates"), "rows": rows}
        options.json.write_text(json.dumps(facts, indent=1))


if __name__ == "__main__":
    main()
