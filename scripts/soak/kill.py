"""Kills processes while they load, tune or save, and checks that the next process works."""

from __future__ import annotations

import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIMIT = 300.0
"""Seconds after which a process that was not killed counts as hanging."""
SIDE = 16
SAVED = "net.weft"
WRITES = ("open", "os.mkdir", "os.rename", "os.remove", "tempfile.mkstemp")
"""The audit events that change folders and files; `open` counts if it is for writing."""


# -- what the children do ------------------------------------------------------------------------------------


def die_after(events: int, folder: Path) -> None:
    """Kill this process before its N-th change of something below a folder."""
    left = events

    def hear(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal left
        if event not in WRITES or not str(arguments[0]).startswith(str(folder)):
            return
        if event == "open" and not (isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)):
            return
        left -= 1
        if left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hear)


def load(device: str, folder: Path) -> None:
    """Load and run a network."""
    import weft
    from scripts.soak.networks import image, network

    with weft.load(network(0, SIDE, SIDE), device, fallback="error") as session:
        session.run(image(0, SIDE, SIDE))


def tune(device: str, folder: Path) -> None:
    """Tune a network for as long as it takes to write its table several times."""
    from weft.cli import main
    from weft.models import path

    try:
        main(["tune", str(path("shapes")), "--device", device, "--budget", "2", "--again"])
    except SystemExit as e:
        if e.code:
            raise


def save(device: str, folder: Path) -> None:
    """Save an optimised network over the existing one."""
    import weft
    from scripts.soak.networks import network

    weft.optimize(network(0, SIDE, SIDE), device, fallback="error").save(folder / SAVED)


JOBS: dict[str, Callable[[str, Path], None]] = {"load": load, "tune": tune, "save": save}


def check(device: str, folder: Path) -> list[str]:
    """Return what is wrong in a start that follows a killed process."""
    import weft
    from scripts.soak.networks import image, is_right, network
    from weft.backends.gpu.tuning_tables.tuning_table import read_tables

    problems: list[str] = []
    heard = logging.Handler(logging.WARNING)
    heard.emit = lambda record: problems.append(f"warned: {record.getMessage()}")  # type: ignore[method-assign]
    logging.getLogger("weft").addHandler(heard)
    x = image(0, SIDE, SIDE)
    with weft.load(network(0, SIDE, SIDE), device, fallback="error") as session:
        if not is_right(network(0), x, session.run(x)[0]):
            problems.append("the network computes other numbers than on the CPU")
    if (folder / SAVED).exists():
        with weft.load(folder / SAVED) as session:
            if not is_right(network(0), x, session.run(x)[0]):
                problems.append("the saved network computes other numbers than on the CPU")
    for table in (folder / "cache" / "tuning").glob("*.json"):
        read_tables(table)
    return problems


# -- the parent ----------------------------------------------------------------------------------------------


def start(*arguments: object, folder: Path) -> subprocess.Popen[str]:
    """Start a child with caches in the folder."""
    environment = {**os.environ, "WEFT_CACHE_DIR": str(folder / "cache"), "PYTHONPATH": str(ROOT)}
    environment.pop("WEFT_CACHE", None)
    command = [sys.executable, "-m", "scripts.soak", *map(str, arguments), "--folder", str(folder)]
    return subprocess.Popen(
        command, env=environment, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True,
    )


def finish(child: subprocess.Popen[str], seconds: float | None = None) -> str:
    """Kill a child, and the processes it started, after some seconds; return why it failed by itself, or ""."""
    try:
        _, said = child.communicate(timeout=LIMIT if seconds is None else seconds)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
        return "" if seconds is not None else f"it did not end within {LIMIT:g} s"
    if child.returncode in (0, -signal.SIGKILL):
        return ""
    return f"it ended with status {child.returncode}: {said.strip()[-2000:]}"


def checked(device: str, folder: Path) -> list[str]:
    """Return what a start that is not killed finds wrong."""
    child = start("check", "--device", device, folder=folder)
    try:
        said, errors = child.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
        return [f"the next start did not end within {LIMIT:g} s"]
    if child.returncode:
        return [f"the next start ended with status {child.returncode}: {errors.strip()[-2000:]}"]
    problems: list[str] = json.loads(said.splitlines()[-1])
    return problems


def rounds(number: int, devices: list[str], jobs: list[str], seed: int, after: int, say: Callable[[str], None]) -> int:
    """Kill `number` processes, and check another one after each; return how many checks found a problem."""
    draw, bad = random.Random(seed), 0
    with tempfile.TemporaryDirectory(prefix="weft-kill-") as name:
        folder = Path(name)
        lasts: dict[tuple[str, str], float] = {}
        for at in range(number):
            device = draw.choice(devices)
            job = draw.choice([j for j in jobs if device != "cpu" or j != "tune"])
            if draw.random() < 0.5:
                shutil.rmtree(folder / "cache", ignore_errors=True)
            moment = draw.random()
            if (device, job) not in lasts and not after:
                begun = time.monotonic()
                failed = finish(start(job, "--device", device, folder=folder))
                lasts[device, job] = time.monotonic() - begun
                say(f"{job} on {device} takes {lasts[device, job]:.1f} s{failed and ': '}{failed}")
                bad += bool(failed)
                shutil.rmtree(folder / "cache", ignore_errors=True)
            if after:
                failed = finish(start(job, "--device", device, "--after", after, folder=folder))
                when = f"before write {after}"
            else:
                seconds = moment * lasts[device, job]
                failed = finish(start(job, "--device", device, folder=folder), seconds)
                when = f"after {seconds:.2f} s"
            problems = [*([failed] if failed else []), *checked(device, folder)]
            left = f"{len(list(folder.rglob('*.part')))} unfinished files"
            say(f"round {at}: {job} on {device} killed {when}, {left}; {'; '.join(problems) or 'right'}")
            bad += bool(problems)
    return bad
