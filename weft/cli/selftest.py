"""`weft selftest`: whether the kernels of each GPU compute the right numbers, family by family."""

from __future__ import annotations

import time
from typing import Any

import typer

from weft import config
from weft.backends.gpu.runtime import GpuRuntime
from weft.backends.gpu.selftest import verdict_store
from weft.cli.command import FOUND_WRONG
from weft.cli.console import line, plain, table, working
from weft.cli.devices import gpus
from weft.cli.json_output import JsonOption, answer
from weft.cli.options import BackendOptionOption, BackendPathOption, GpusOption
from weft.errors import ConfigError
from weft.kernels.verdict import told


def selftest(
    device: GpusOption = "all",
    backend_path: BackendPathOption = None,
    backend_option: BackendOptionOption = None,
    as_json: JsonOption = None,
) -> None:
    """Test all kernels of GPU devices by value, even those tested before, and keep the verdicts.

    Weft tests each kind of kernel like this before its first use with a driver; on a software device only if
    WEFT_SELFTEST is child or process. A wrong family of kernels is replaced by its fallback, or its nodes go to the
    next device. The exit status is 1 if a family is wrong or could not be tested.
    """
    if config.selftest() == "off":
        raise ConfigError("WEFT_SELFTEST=off leaves nothing to test", fix="unset it, or set it to child or process")
    rows: list[dict[str, Any]] = []
    for choice, creator, options in gpus(device, backend_option):
        runtime = creator.runtime(choice.index, options)
        with working(f"testing {choice.device}"):
            rows += _rows(choice.device, runtime)
    answer(as_json, lambda: {"kernels": rows}, lambda: _print(rows))
    if any(row["why"] for row in rows):
        raise typer.Exit(FOUND_WRONG)


def _rows(device: str, runtime: GpuRuntime) -> list[dict[str, Any]]:
    """Return the verdicts on one device as facts, and at last the seconds that they took in all."""
    begun, info = time.perf_counter(), runtime.device.info
    of_device = {"device": device, "name": info.name, "driver": info.driver}
    rows = [
        {
            **of_device, "kernels": kind.name, "title": kind.title, "verdict": verdict.word, "why": verdict.why,
            "told": told(kind, verdict) if verdict.why else "", "seconds": round(verdict.seconds, 3),
        }
        for kind, verdict in verdict_store.examine(runtime, families=True, again=True)
    ]
    took = {"verdict": "", "why": None, "told": "", "seconds": round(time.perf_counter() - begun, 3)}
    return [*rows, {**of_device, "kernels": "all", "title": "all kernels", **took}]


def _print(rows: list[dict[str, Any]]) -> None:
    def verdict(row: dict[str, Any]) -> str:
        return f"{row['verdict'].upper()}: {row['why']}" if row["why"] else str(row["verdict"])

    table(("device", "kernels", "seconds", "verdict"),
          [(r["device"], r["kernels"], f"{r['seconds']:.3f}", verdict(r)) for r in rows])
    for row in rows:
        if row["why"]:
            line(plain(f"{row['device']}: {row['told']}"))
    for device, name, driver in dict.fromkeys((r["device"], r["name"], r["driver"]) for r in rows):
        each = [r["verdict"] for r in rows if r["device"] == device]
        counts = {word: each.count(word) for word in ("wrong", "untested")}
        told = ", ".join(f"{count} kinds of kernels are {word}" for word, count in counts.items() if count)
        found = told or "all kernels are right"
        line(plain(f"{device} {name}, {driver}: {found}"))
