"""The command line; see the docstring of `scripts.soak`."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

from scripts.soak import grow, kill

DEVICES = ("cpu", "opencl", "vulkan")


def main(arguments: list[str] | None = None) -> int:
    """Run what the command line requests; return 1 if something is wrong."""
    asked = _parser().parse_args(arguments)
    if asked.what == "grow":
        os.nice(asked.nice)
        return _grow(asked)
    if asked.what == "kill":
        os.nice(asked.nice)
        bad = kill.rounds(asked.rounds, asked.device, asked.job, asked.seed, asked.after, _say)
        _say(f"{asked.rounds} processes killed, {bad} of them followed by a problem")
        return int(bool(bad))
    if asked.what == "check":
        print(json.dumps(kill.check(asked.device, asked.folder)))
        return 0
    if asked.after:
        kill.die_after(asked.after, asked.folder)
    kill.JOBS[asked.what](asked.device, asked.folder)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m scripts.soak", description="Long runs; see scripts/soak.")
    commands = parser.add_subparsers(dest="what", required=True)
    add = commands.add_parser("grow", help="many threads, sessions and shapes").add_argument
    add("--device", choices=DEVICES, default="cpu")
    add("--threads", type=int, default=32)
    add("--sessions", type=int, default=2000)
    add("--shapes", type=int, default=1000)
    add("--marks", type=int, default=10)
    add("--kernels-kept", type=int, default=64)
    add("--nice", type=int, default=10)
    add = commands.add_parser("kill", help="kill -9 at random moments").add_argument
    add("--device", type=lambda text: text.split(","), default=list(DEVICES))
    add("--job", type=lambda text: text.split(","), default=list(kill.JOBS))
    add("--rounds", type=int, default=20)
    add("--seed", type=int, default=0)
    add("--after", type=int, default=0)
    add("--nice", type=int, default=10)
    for name in (*kill.JOBS, "check"):
        add = commands.add_parser(name, help="what `kill` starts").add_argument
        add("--device", choices=DEVICES, required=True)
        add("--folder", type=Path, required=True)
        add("--after", type=int, default=0)
    return parser


def _grow(asked: argparse.Namespace) -> int:
    options = {}
    if asked.device != "cpu":
        options["backend_options"] = {asked.device: {"kernels_kept": asked.kernels_kept}}
    begun, problems = time.monotonic(), []

    def say(mark: grow.Mark) -> None:
        process = f"{mark.done:>6} {mark.rss_mb:>8.1f} {mark.files:>5} {mark.threads:>7}"
        device = f"{mark.device_bytes:>12,} {mark.buffers:>7} {mark.recordings:>10} {mark.kernels:>7}"
        _say(f"{process} {device} {time.monotonic() - begun:>6.0f}")

    head = "  done   RSS MB files threads device bytes buffers recordings kernels      s"
    if asked.sessions:
        _say(f"{asked.sessions} sessions on {asked.device} in {asked.threads} threads\n{head}")
        problems += grow.sessions(asked.device, asked.threads, asked.sessions, asked.marks, options, say)
    if asked.shapes:
        _say(f"{asked.shapes} shapes on {asked.device}\n{head}")
        problems += grow.shapes(asked.device, asked.shapes, asked.marks, options, say)
    _say("\n".join(problems) or "nothing grew, all results right")
    return int(bool(problems))


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
