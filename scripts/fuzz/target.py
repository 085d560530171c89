"""The targets of the fuzzer: their base class and their table."""

from __future__ import annotations

import importlib
import pkgutil
import random
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar, TypeVar

DEVICES = ("cpu", "opencl", "vulkan")


class Finding(Exception):
    """A fault; `key` is the same for all cases that show the same one."""

    def __init__(self, key: str, text: str) -> None:
        self.key, self.text = key, text
        super().__init__(f"{key}: {text}")


class Target(ABC):
    """Makes and checks the cases of one kind on one device; see the docstring of `scripts.fuzz`."""

    name: ClassVar[str]
    about: ClassVar[str]
    devices: ClassVar[tuple[str, ...]] = DEVICES
    seconds: ClassVar[float] = 30.0
    """The processor seconds that one case may take; its wall-clock time may be several times that."""
    megabytes: ClassVar[int] = 2000
    """The megabytes by which one process may grow, however many cases it runs."""

    def __init__(self, device: str, scratch: Path) -> None:
        self.device, self.scratch = device, scratch

    def prepare(self) -> None:
        """Prepare what all cases share; called once, before the first case."""
        return

    @abstractmethod
    def make(self, draw: random.Random, folder: Path) -> None:
        """Write the files of one case into an empty folder."""

    @abstractmethod
    def check(self, folder: Path) -> str:
        """Check a case and return the word under which to count it; raise what is a finding."""

    def close(self) -> None:
        """Free what `prepare` made."""
        return


TARGETS: dict[str, type[Target]] = {}
TargetT = TypeVar("TargetT", bound=type[Target])


def target(cls: TargetT) -> TargetT:
    """Register a target under its name."""
    if cls.name in TARGETS:
        raise ValueError(f"two targets are called {cls.name!r}: {TARGETS[cls.name]} and {cls}")
    TARGETS[cls.name] = cls
    return cls


def find_targets(modules: Iterable[str] = ()) -> dict[str, type[Target]]:
    """Return the targets of all modules in `scripts/fuzz/targets`, and of others by their names."""
    package = importlib.import_module("scripts.fuzz.targets")
    own = [f"{package.__name__}.{module.name}" for module in pkgutil.iter_modules(package.__path__)]
    for module in (*own, *modules):
        importlib.import_module(module)
    return dict(sorted(TARGETS.items()))


def case_stream(name: str, seed: int, number: int) -> random.Random:
    """Return the random stream of a case."""
    return random.Random(f"{name} {seed} {number}")
