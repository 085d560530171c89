"""Targets that do what a target's subject may do: crash, hang, grow, raise; `--module` names this file."""

from __future__ import annotations

import os
import random
import signal
import threading
from pathlib import Path
from typing import ClassVar

from scripts.fuzz import Finding, Target, target


class Bad(Target):
    """Does something bad at case 3."""

    about = "for the tests of the fuzzer"
    devices = ("cpu",)
    seconds = 0.3
    megabytes = 100

    def make(self, draw: random.Random, folder: Path) -> None:
        self.number = getattr(self, "number", -1) + 1
        (folder / "case").write_text(str(draw.random()))

    def check(self, folder: Path) -> str:
        text = (folder / "case").read_text()
        if text == str(random.Random(f"{self.name} 5 3").random()):
            self.misbehave()
        return "right"

    def misbehave(self) -> None:
        raise NotImplementedError


@target
class Crashing(Bad):
    name = "bad-crash"

    def misbehave(self) -> None:
        os.kill(os.getpid(), signal.SIGSEGV)


@target
class Busy(Bad):
    name = "bad-busy"

    def misbehave(self) -> None:
        while True:
            pass


@target
class Stuck(Bad):
    name = "bad-stuck"

    def misbehave(self) -> None:
        threading.Event().wait()


@target
class Raising(Bad):
    name = "bad-raise"

    def misbehave(self) -> None:
        raise KeyError("lost")


@target
class Wrong(Bad):
    name = "bad-number"

    def misbehave(self) -> None:
        raise Finding("two and two", "are five")


@target
class Hungry(Bad):
    name = "bad-memory"
    seconds = 30.0

    def misbehave(self) -> None:
        self.held = [bytearray(b"\1" * 2**20) for _ in range(400)]
        threading.Event().wait()


class Growing(Bad):
    """Keeps memory for good at some cases."""

    seconds = 30.0
    megabytes = 1000
    grows: ClassVar[range]

    def check(self, folder: Path) -> str:
        self.held = getattr(self, "held", [])
        if self.number in self.grows:
            self.held.append(bytearray(b"\1" * 2**20))
        return "right"


@target
class Leaking(Growing):
    name = "bad-growth"
    grows = range(10_000)


@target
class Warming(Growing):
    """Grows at first only, as drivers do when they are opened."""

    name = "bad-start"
    grows = range(150)


@target
class Unready(Bad):
    name = "bad-unready"

    def prepare(self) -> None:
        raise OSError("no such thing")
