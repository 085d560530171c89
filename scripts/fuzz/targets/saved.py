"""Saved networks (.weft): bytes changed, or the content changed with every checksum right."""

from __future__ import annotations

import json
import random
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import weft
from scripts.fuzz.mutate import change_bytes, change_json
from scripts.fuzz.numbers import compare
from scripts.fuzz.onnx_cases import networks, single_ops
from scripts.fuzz.resealed import reseal
from scripts.fuzz.target import Finding, Target, target
from scripts.fuzz.targets.onnx import draw_feeds, large_shapes, nudged
from weft.core.graph.interpreter import outputs as expected
from weft.core.placement.optimized_network import OptimizedNetwork
from weft.core.saved.archive import MANIFEST, write_archive
from weft.errors import WeftError

EACH = 7
"""One of this many one-op models is saved; the number has no factor in common with the sizes of the op families."""


def open_drivers() -> None:
    """Open what a changed file may name on any target: a driver that opens late looks like growth."""
    first = networks()[0]
    shapes = {i.name: (1, 3, 8, 8) for i in first.graph.input}
    for device in ("opencl", "vulkan"):
        with suppress(WeftError), weft.load(first, device, shapes=shapes) as session:
            session.run(draw_feeds(session.optimized.graph))


class SavedTarget(Target):
    """Saves good networks of the device, changes the files and loads them."""

    file = "network.weft"

    def prepare(self) -> None:
        """Save networks of one part, of several, and at low precision; open what a file may name."""
        open_drivers()
        self.files: list[Path] = []
        for number, model in enumerate([*networks(), *single_ops()[::EACH]]):
            several = number < len(networks()) and self.device != "cpu"
            for precision in ("high", "low") if number < len(networks()) else ("high",):
                hints = {"*Pool*": "cpu", "*Gather*": "cpu"} if several and precision == "high" else {}
                shapes = {i.name: (1, 3, 8, 8) for i in model.graph.input if number < 4}
                path = self.scratch / f"{number}-{precision}.weft"
                devices = [self.device] if self.device == "cpu" else [self.device, "cpu"]
                try:
                    network = weft.optimize(model, devices, shapes=shapes, hints=hints, precision=precision)
                except WeftError:  # a model whose shapes depend on its input values
                    continue
                if network.tail is None:  # the target of later stages has the others
                    network.save(path)
                    self.files.append(path)

    def check(self, folder: Path) -> str:
        """Return whether the file was refused, or computed what it describes."""
        try:
            network = OptimizedNetwork.load(folder / self.file)
            if large_shapes(network.graph):
                return "skipped: too large to run"
            feeds = draw_feeds(network.graph)
            with weft.load(network) as session:
                mine = session.run(feeds)
                again = session.run(feeds)
        except WeftError as e:
            return "refused" if e.what else "refused without a word"
        if any(a.tobytes() != b.tobytes() for a, b in zip(mine, again, strict=True)):
            raise Finding("two runs differ", str(network))
        try:
            right, nearby = expected(network.graph, feeds), expected(network.graph, nudged(feeds))
        except IndexError:  # docs/guides/trouble.md: GPUs read the nearest and leave updates out
            return "skipped: it gathers out of range"
        except WeftError as e:
            raise Finding("it computes what the interpreter refuses", str(e)) from e
        return compare(mine, right, nearby)


@target
class SavedBytes(SavedTarget):
    """Changes bytes of the file; a checksum finds most of them."""

    name = "weft-bytes"
    about = "saved networks with bytes changed"

    def make(self, draw: random.Random, folder: Path) -> None:
        """Write the file."""
        (folder / self.file).write_bytes(change_bytes(draw.choice(self.files).read_bytes(), draw))


@target
class SavedFields(SavedTarget):
    """Changes the content, in an archive that is whole."""

    name = "weft-fields"
    about = "saved networks that say something else, packed anew"

    def make(self, draw: random.Random, folder: Path) -> None:
        """Write the file."""
        with zipfile.ZipFile(draw.choice(self.files)) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
        manifest = json.loads(members[MANIFEST])
        for _ in range(draw.choice((1, 1, 1, 2, 3))):
            # An earlier change may have left another form than a later one expects.
            with suppress(TypeError, KeyError, IndexError, AttributeError, ValueError):
                change_json(manifest, draw) if draw.random() < 0.3 else change_network(manifest, draw)
        members[MANIFEST] = json.dumps(manifest).encode("ascii", "surrogatepass")
        others = [name for name in members if name != MANIFEST]
        if others and draw.random() < 0.05:
            name = draw.choice(others)
            members[name] = change_bytes(members[name], draw)
        reseal(members)
        write_archive(folder / self.file, members.items())


def change_network(manifest: dict[str, Any], draw: random.Random) -> None:
    """Change nodes' inputs, outputs and ops, and values' specs, alike in the network and in its parts."""
    nodes: list[dict[str, Any]] = manifest["nodes"]
    graphs = [manifest["graph"], *(p["graph"] for p in manifest["parts"])]
    action = draw.randrange(6)
    if action < 2:  # the shape or type of a value, everywhere or in one graph
        name = draw.choice(sorted({v for g in graphs for v in g["specs"]}))
        chosen = graphs if draw.random() < 0.7 else [draw.choice(graphs)]
        seed = draw.random()
        for spec in (g["specs"][name] for g in chosen if name in g["specs"]):
            change_spec(spec, random.Random(seed))
    elif action == 2 and nodes:  # what a node reads or writes
        node = draw.choice(nodes)
        names: list[str] = node[draw.choice(("inputs", "outputs"))]
        values = sorted({v for g in graphs for v in g["specs"]} | {""})
        kind = draw.randrange(4)
        if kind == 0 and names:
            del names[draw.randrange(len(names))]
        elif kind == 1:
            names.insert(draw.randrange(len(names) + 1), draw.choice(values))
        elif names:
            names[draw.randrange(len(names))] = draw.choice(values)
    elif action == 3 and nodes:  # an attribute, or the whole op
        node = draw.choice(nodes)
        if draw.random() < 0.2:
            node["op"] = json.loads(json.dumps(draw.choice(nodes)["op"]))
        else:
            change_json(node["op"], draw)
    elif action == 4:  # a layout
        graph = draw.choice(graphs)
        name = draw.choice(sorted(graph["specs"]) or [""])
        graph["layouts"][name] = draw.choice(("NCHW", "NHWC", "NC4HW4", "NHWC4"))
    else:  # the parts: order, devices, slots
        parts: list[dict[str, Any]] = manifest["parts"]
        kind = draw.randrange(4)
        if kind == 0:
            draw.shuffle(parts)
        elif kind == 1 and parts:
            draw.choice(parts)["device"] = draw.choice(("cpu:0", "opencl:0", "vulkan:0", "cpu:1", "cpu"))
        elif kind == 2:
            graph = draw.choice(graphs)
            change_json([graph["inputs"], graph["outputs"]], draw)
        else:
            change_json(draw.choice(graphs)["constants"], draw) if graphs[0]["constants"] else None


def change_spec(spec: dict[str, Any], draw: random.Random) -> None:
    """Change the shape or the type of a spec."""
    shape: list[int] = spec["shape"]
    action = draw.randrange(5)
    if action == 0:
        spec["dtype"] = draw.choice(("FLOAT32", "FLOAT16", "INT64", "INT32", "UINT8", "BOOL", "FLOAT64"))
    elif action == 1:
        shape.insert(draw.randrange(len(shape) + 1), draw.choice((1, 2, 0)))
    elif action == 2 and shape:
        del shape[draw.randrange(len(shape))]
    elif shape:
        place = draw.randrange(len(shape))
        shape[place] = draw.choice((shape[place] + 1, max(shape[place] - 1, 0), 2 * shape[place], 1, 0))
