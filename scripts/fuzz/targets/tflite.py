"""TensorFlow Lite files: bytes, and fields of their tables, changed; loaded and run on a device."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import weft
from scripts.fuzz.mutate import NUMBERS, REALS, change_bytes
from scripts.fuzz.target import Target, target
from scripts.fuzz.targets.onnx import draw_feeds, large
from tests.helpers.tflite_cases import CASES
from tests.helpers.tflite_files import Table, flatbuffer
from weft.core.graph.graph import bind
from weft.errors import ValueNeeded, WeftError
from weft.frontends.tflite import load
from weft.frontends.tflite.schema import OPS

FILE = "model.tflite"


class TfliteTarget(Target):
    """Loads a file, and runs what it holds."""

    def prepare(self) -> None:
        """Make a device ready."""
        weft.load(CASES["ADD"].file.bytes(), self.device).close()

    def check(self, folder: Path) -> str:
        """Return whether the file was refused, or ran."""
        path = folder / FILE
        try:
            graph = load(path)
            sizes = {i: tuple(2 if isinstance(d, str) else d for d in graph.specs[i].shape) for i in graph.inputs}
            bound = bind(graph, sizes)
            try:
                if large(bound):
                    return "skipped: too large to run"
            except ValueNeeded:
                return "skipped: only a run would tell how large it is"
            feeds = {name: value for name, value in draw_feeds(bound).items() if name not in graph.state}
            with weft.load(path, self.device, shapes={i: sizes[i] for i in feeds}) as session:
                session.run(feeds)
        except WeftError as e:
            return "refused" if e.what else "refused without a word"
        return "ran"


@target
class TfliteBytes(TfliteTarget):
    """Changes bytes of a file, inserts others, or cuts it off."""

    name = "tflite-bytes"
    about = "TensorFlow Lite files with bytes changed, loaded and run"

    def make(self, draw: random.Random, folder: Path) -> None:
        """Write the file."""
        file = CASES[draw.choice(sorted(CASES))].file
        (folder / FILE).write_bytes(change_bytes(file.bytes(), draw))


@target
class TfliteFields(TfliteTarget):
    """Changes fields of tables to other values of their type, takes them away, or puts others in their place."""

    name = "tflite-fields"
    about = "TensorFlow Lite files with fields of their tables changed, loaded and run"

    def make(self, draw: random.Random, folder: Path) -> None:
        """Write the file."""
        root = copied(CASES[draw.choice(sorted(CASES))].file.root)
        for _ in range(draw.choice((1, 1, 1, 2, 4))):
            change(root, draw)
        (folder / FILE).write_bytes(flatbuffer(root))


def copied(value: Any) -> Any:
    """Return a copy of a table and all that it holds."""
    if isinstance(value, dict):
        return {k: copied(v) for k, v in value.items()}
    if isinstance(value, list):
        return [copied(v) for v in value]
    return value.copy() if isinstance(value, np.ndarray) else value


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every holder of a value with its key."""
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], (dict, list)):
            yield from places(value[key])


def change(root: Table, draw: random.Random) -> None:
    """Change one place."""
    holder, key = draw.choice(list(places(root)))
    value, action = holder[key], draw.randrange(8)
    if action == 0:
        del holder[key]
    elif action == 1:
        other, there = draw.choice(list(places(root)))
        if type(other[there]) is type(value):
            holder[key] = copied(other[there])
    elif isinstance(value, tuple):
        holder[key] = number(value, draw)
    elif isinstance(value, np.ndarray) and value.size:
        place, action = draw.randrange(value.size), draw.randrange(4)
        if action == 0:
            holder[key] = value[:place]
        elif action == 1:
            holder[key] = np.append(value.reshape(-1), value.reshape(-1)[:1])
        elif value.dtype.kind == "f":
            value.reshape(-1)[place] = draw.choice(REALS)
        else:
            with np.errstate(over="ignore"):
                value.reshape(-1)[place] = np.array(draw.choice(NUMBERS) % 2**63).astype(value.dtype)
    elif isinstance(value, bytes):
        holder[key] = change_bytes(value, draw)
    elif isinstance(value, str):
        holder[key] = draw.choice(("", value + "x", value[:-1], "\0", *OPS[:8]))


def number(value: tuple[str, float], draw: random.Random) -> tuple[str, float]:
    """Return another number of a type."""
    code, given = value
    if code == "f":
        return code, draw.choice([r for r in REALS if abs(r) < 1e39])
    near = draw.choice((given + 1, given - 1, given * 2, -given, *NUMBERS))
    bits = 8 * struct.calcsize(code)
    whole = int(near) % 2**bits
    return code, whole - 2**bits if code.islower() and whole >= 2 ** (bits - 1) else whole
