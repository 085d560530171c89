"""The caches on disk: files changed, swapped, or replaced by something else, between two starts."""

from __future__ import annotations

import json
import logging
import os
import random
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import weft
from scripts.fuzz.target import Finding, Target, target
from weft.backends.gpu.tuning.tuner import tune_pipelines
from weft.core.graph.layout import Array
from weft.frontends.builder.slots import Layer
from weft.kernels.template import render

PLAN = "plan.json"
"""The changes of a case, by name: a finding can keep the name, but not a pipe or a link to a device."""
LASTING = {"folder", "linked folder"}
"""What the next start meets again: Weft must not change a folder."""


def flip(path: Path, other: Path, at: float) -> None:
    """Change one bit."""
    content = bytearray(path.read_bytes())
    content[int(at * len(content))] ^= 1 << int(at * 1e6) % 8
    path.write_bytes(content)


def swap(path: Path, other: Path, at: float) -> None:
    """Swap the names of two files."""
    content = path.read_bytes()
    path.write_bytes(other.read_bytes())
    other.write_bytes(content)


def truncate(path: Path, other: Path, at: float) -> None:
    """Cut off the end."""
    os.truncate(path, int(at * path.stat().st_size))


def append(path: Path, other: Path, at: float) -> None:
    """Append another file."""
    path.write_bytes(path.read_bytes() + other.read_bytes())


def noise(path: Path, other: Path, at: float) -> None:
    """Write as many random bytes."""
    path.write_bytes(random.Random(at).randbytes(path.stat().st_size))


def huge(path: Path, other: Path, at: float) -> None:
    """Make the file gigabytes long, mostly a hole."""
    os.truncate(path, 3 << 30)


def replaced(make: Callable[[Path, Path], None]) -> Callable[[Path, Path, float], None]:
    """Return the change that puts something else in a file's place."""

    def change(path: Path, other: Path, at: float) -> None:
        path.unlink()
        make(path, other)

    return change


def bind_socket(path: Path) -> None:
    """Make a socket; a socket's name may have 107 bytes, so it is relative to the folder."""
    here = Path.cwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


def full_folder(path: Path) -> None:
    """Make a folder that is not empty."""
    path.mkdir()
    (path / "file").touch()


def linked_folder(path: Path, other: Path, at: float) -> None:
    """Replace the file's folder by a link to one elsewhere."""
    elsewhere = path.parents[2] / f"{path.parents[1].name} elsewhere"
    if not path.parent.is_symlink():
        elsewhere.mkdir(exist_ok=True)
        path.parent.rename(elsewhere / path.parent.name)
        path.parent.symlink_to(elsewhere / path.parent.name)


CHANGES: dict[str, Callable[[Path, Path, float], None]] = {
    "flip": flip,
    "swap": swap,
    "truncate": truncate,
    "append": append,
    "huge": huge,
    "empty": lambda path, other, at: os.truncate(path, 0),
    "noise": noise,
    "gone": lambda path, other, at: path.unlink(),
    "pipe": replaced(lambda path, other: os.mkfifo(path)),
    "link": replaced(lambda path, other: path.symlink_to(other)),
    "link to a device": replaced(lambda path, other: path.symlink_to("/dev/zero")),
    "link to nothing": replaced(lambda path, other: path.symlink_to("/nowhere/at/all")),
    "socket": replaced(lambda path, other: bind_socket(path)),
    "empty folder": replaced(lambda path, other: path.mkdir()),
    "full folder": replaced(lambda path, other: full_folder(path)),
    "mode": lambda path, other, at: path.chmod(0o666),
    "folder": lambda path, other, at: path.parent.chmod(0o777),
    "linked folder": linked_folder,
}


@target
class Caches(Target):
    """Changes cache files before a start, and starts once more after it."""

    name = "caches"
    about = "files of the kernel cache and tuning tables, changed and replaced"
    devices = ("opencl", "vulkan")
    seconds = 60.0

    def prepare(self) -> None:
        """Fill a cache, tune, and compute the right numbers."""
        self.warned: list[str] = []
        heard = logging.Handler(logging.WARNING)
        heard.emit = lambda record: self.warned.append(record.getMessage())  # type: ignore[method-assign]
        logging.getLogger("weft").addHandler(heard)
        self.x = np.random.default_rng(0).standard_normal((1, 8, 12, 12)).astype(np.float32)
        self.whole = self.scratch / "whole"
        with self.start(self.whole) as session:
            self.right = session.run(self.x)[0].copy()
            tune_pipelines(session.pipelines, budget=1.0)
        with weft.load(self.network(), "cpu") as session:
            np.testing.assert_allclose(self.right, session.run(self.x)[0], rtol=1e-4, atol=1e-5)

    def network(self) -> weft.Network:
        """Return a network with several kinds of kernels, two of them from one template."""
        net, rng = weft.Network("caches"), np.random.default_rng(1)
        y: Layer = net.add_input("x", (1, 8, 12, 12))
        for channels in (8, 12):
            weights = rng.standard_normal((channels, 8, 3, 3)).astype(np.float32) / 8
            y = net.add_layer("Relu", net.add_layer("Conv", y, net.add_constant(weights), pads=(1, 1, 1, 1)))
            if channels == 8:
                y = net.add_layer("MaxPool", y, kernel_shape=(2, 2), strides=(2, 2))
        net.add_output("y", net.add_layer("Softmax", y, axis=1))
        return net

    @contextmanager
    def start(self, cache: Path) -> Iterator[weft.Session]:
        """Yield a session on a newly opened device, with the caches in a folder."""
        os.environ["WEFT_CACHE_DIR"] = str(cache)
        os.environ.pop("WEFT_CACHE", None)
        render.cache_clear()
        try:
            with weft.load(self.network(), self.device, fallback="error") as session:
                yield session
        finally:
            creator: Any = weft.registry.find(self.device)
            creator.close()

    def make(self, draw: random.Random, folder: Path) -> None:
        """Write which files to change, and how."""
        changes = [
            {"change": draw.choice(list(CHANGES)), "file": draw.random(), "other": draw.random(), "at": draw.random()}
            for _ in range(draw.choice((1, 1, 2, 4, 12)))
        ]
        (folder / PLAN).write_text(json.dumps(changes))

    def check(self, folder: Path) -> str:
        """Return what was changed, after two starts with the right numbers; the second must not warn."""
        first, second = self.scratch / "first", self.scratch / "second"
        for left in self.scratch.glob("*"):
            if left != self.whole:
                shutil.rmtree(left)
        shutil.copytree(self.whole, first)
        changes = json.loads((folder / PLAN).read_text())
        done = {each["change"] for each in changes if self.change(first, **each)}
        self.compare(first, "the first start")
        first.rename(second)  # a new name, so that warnings about its files are given again
        said = self.compare(second, "the next start")
        expected = done & {*LASTING, "full folder"}
        in_tables = [text for text in said if "tuning" in text]
        if said and not expected and len(in_tables) < len(said):
            raise Finding("the next start warns", f"after {sorted(done)}: {said}")
        return f"right after {'several' if len(done) > 1 else min(done, default='nothing')}"

    def change(self, cache: Path, change: str, file: float, other: float, at: float) -> bool:
        """Change a file of the cache; False if an earlier change replaced it."""
        names = sorted(path.relative_to(self.whole) for path in self.whole.rglob("*") if path.is_file())
        path, another = (cache / names[int(share * len(names))] for share in (file, other))
        if not (path.is_file() and another.is_file()) or path.is_symlink() or another.is_symlink():
            return False
        if max(path.stat().st_size, another.stat().st_size, 1) > 1 << 30 or not path.stat().st_size:
            return False
        CHANGES[change](path, another, at)
        return True

    def compare(self, cache: Path, which: str) -> list[str]:
        """Run once and return the warnings; raise Finding if the numbers are wrong."""
        self.warned.clear()
        with self.start(cache) as session:
            result: Array = session.run(self.x)[0]
        if not np.allclose(result, self.right, rtol=1e-4, atol=1e-6):
            raise Finding(f"{which} computes other numbers", f"off by {np.abs(result - self.right).max()}")
        return list(self.warned)
