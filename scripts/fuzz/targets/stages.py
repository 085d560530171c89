"""Saved networks (.weft) with later stages: what waits, what was planned and what joins both, packed anew.

A changed plan of a stage computes what its file says, and that is no more what the nodes that wait say. So a case whose
plans were changed and sealed again is held against nothing: it may not fail, and two runs agree.
"""

from __future__ import annotations

import json
import random
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

import weft
from scripts.fuzz.mutate import change_json, copied, json_places
from scripts.fuzz.numbers import compare
from scripts.fuzz.resealed import reseal
from scripts.fuzz.staged_cases import staged
from scripts.fuzz.target import Finding, Target, target
from scripts.fuzz.targets.onnx import large_shapes, nudged
from scripts.fuzz.targets.saved import change_network, change_spec, open_drivers
from weft.core.contract.backend import Precision
from weft.core.graph.control_op import Value, step
from weft.core.graph.graph import Graph
from weft.core.graph.interpreter import values
from weft.core.graph.layout import Array
from weft.core.graph.tensor import SequenceSpec
from weft.core.placement.optimized_network import OptimizedNetwork
from weft.core.placement.stage_split import alive
from weft.core.saved.archive import MANIFEST, write_archive
from weft.errors import WeftError

INTEGERS = (0, 1, -1, 2, 3, 4, 5, 7, 13, 255, 2**62, 2**63 - 1, -(2**63))
"""What a constant becomes: no number for which a run computes for minutes, as it would for a model that says so."""
LONG = 1000
"""A network with a loop and a constant beyond this is loaded and not run; so is one whose loop has no number."""
MOST_DIMS = 1 << 22
SEALED_AGAIN = 0.8
"""The share of cases whose seals are right; the others show that a seal notices a change."""


@target
class WeftStages(Target):
    """Saves good networks with later stages, changes the files, and compares runs with the interpreter.

    What is accepted is printed, and what its session planned is saved and loaded again: it gives the same numbers.
    """

    name = "weft-stages"
    about = "saved networks with later stages that say something else, packed anew"
    file = "network.weft"
    mark = "other-plans"
    """The name of a file that says that the plans of the network are not of its nodes."""

    def prepare(self) -> None:
        """Save networks at both precisions, some of them of several devices; open what a file may name."""
        open_drivers()
        self.files: list[Path] = []
        for number, model in enumerate(staged()):
            for precision in ("high", "low"):
                path = self.scratch / f"{number}-{precision}.weft"
                several = self.device != "cpu" and precision == "low"
                hints = {model.graph.output[0].name: "cpu"} if several else {}
                devices = [self.device] if self.device == "cpu" else [self.device, "cpu"]
                weft.optimize(model, devices, hints=hints, precision=precision).save(path)
                self.files.append(path)

    def make(self, draw: random.Random, folder: Path) -> None:
        """Write the file."""
        with zipfile.ZipFile(draw.choice(self.files)) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
        manifest = json.loads(members[MANIFEST])
        planned = _plans(manifest, members)
        for _ in range(draw.choice((1, 1, 1, 2, 3))):
            # An earlier change may have left another form than a later one expects.
            with suppress(TypeError, KeyError, IndexError, AttributeError, ValueError):
                _change(manifest, members, draw)
        members[MANIFEST] = json.dumps(manifest).encode("ascii", "surrogatepass")
        if draw.random() < SEALED_AGAIN:
            reseal(members)
            if not planned.issuperset(_plans(manifest, members)):
                (folder / self.mark).touch()
        write_archive(folder / self.file, members.items())

    def check(self, folder: Path) -> str:
        """Return whether the file was refused, or computed what it describes."""
        try:
            network = OptimizedNetwork.load(folder / self.file)
            if _large(network):
                return "skipped: too large to run"
            feeds = _feeds(network.interface)
            with weft.load(network) as session:
                if _long(network):
                    return "loaded, and not run: its loop may be long"
                mine = session.run(feeds)
                again = session.run(feeds)
                planned = session.optimized
        except WeftError as e:
            return f"refused: {type(e).__name__}" if e.what else "refused without a word"
        first = _flat(mine)
        for name, results in (("two runs", again), ("a run of what was saved again", self._saved(planned, feeds))):
            if [a.tobytes() for a in _flat(results)] != [a.tobytes() for a in first]:
                raise Finding(f"{name}: other numbers", str(network))
        if (folder / self.mark).exists():
            return "computed by other plans"
        low = network.config.precision is Precision.LOW
        try:
            right, nearby = (_flat(_expected(network, each)) for each in (feeds, _nudged(feeds, low)))
        except IndexError:  # docs/guides/trouble.md: GPUs clamp an index that is out of range
            return "skipped: it gathers out of range"
        except WeftError as e:
            raise Finding("it computes what the interpreter refuses", str(e)) from e
        if low:
            first, right, nearby = _halves(first), _halves(right), _halves(nearby)
        return compare(first, right, nearby)


    def _saved(self, network: OptimizedNetwork, feeds: Mapping[str, Any]) -> list[Any]:
        """Return the outputs of a network that is saved and loaded."""
        path = self.scratch / "again.weft"
        try:
            network.save(path)
            with weft.load(path) as session:
                return session.run(feeds)
        except WeftError as e:
            raise Finding("what it planned is no network", str(e)) from e


# -- what a file says, computed on the host --------------------------------------------------------------------


def _feeds(graph: Graph) -> dict[str, Any]:
    """Return a value for each input, the same for each graph with the same inputs."""
    feeds: dict[str, Any] = {}
    for name in graph.inputs:
        spec = graph.specs[name]
        rng = np.random.default_rng(zlib.crc32(f"{name} {spec}".encode()))

        def drawn(shape: tuple[int, ...], spec: Any = spec, rng: Any = rng) -> Array:
            small = rng.uniform(-1, 1, shape) if spec.dtype.is_float else rng.integers(1, 4, shape)
            return np.asarray(small).astype(spec.dtype.numpy)

        if isinstance(spec, SequenceSpec):
            feeds[name] = [drawn((2, 3)), drawn((2, 3))]
        else:
            feeds[name] = drawn(spec.dims)
        if name == "shape" and not spec.dtype.is_float:
            feeds[name] = np.resize(np.array([2, 2, 1]), spec.dims).astype(spec.dtype.numpy)
    return feeds


def _nudged(feeds: Mapping[str, Any], low: bool) -> dict[str, Any]:
    """Return the floats changed by a rounding error, of fp16 at precision LOW."""
    if not low:
        tensors = nudged({name: v for name, v in feeds.items() if isinstance(v, np.ndarray)})
        return {**feeds, **tensors}
    factor = np.float32(1 + 2e-3)
    return {n: v * factor if isinstance(v, np.ndarray) and v.dtype == np.float32 else v for n, v in feeds.items()}


def _expected(network: OptimizedNetwork, feeds: Mapping[str, Any]) -> list[Value]:
    """Return what the first stage, its corners and the nodes that wait make of the inputs."""
    assert network.tail is not None
    read = {i: feeds[i] for i in network.graph.inputs}
    made = values(network.graph, read)
    tail, known = network.tail, dict[str, Value](feeds)
    known |= {o: made[o] for o in network.graph.outputs}
    known |= {name: corner.of(made) for name, corner in tail.corners.items()}
    known |= tail.rest.constants
    for node in alive(tail.rest):
        known.update((o, v) for o, v in zip(node.outputs, step(node, known), strict=False) if o)
    return [known[o] for o in tail.outputs]


def _flat(results: Any) -> list[Array]:
    """Return all tensors of a list of results, and for each sequence or missing one a tensor that says so."""
    flat = list[Array]()
    for each in results:
        if isinstance(each, list):
            flat += [np.array(len(each)), *map(np.asarray, each)]
        else:
            flat.append(np.array("nothing") if each is None else np.asarray(each))
    return flat


def _halves(results: list[Array]) -> list[Array]:
    with np.errstate(all="ignore"):
        return [a.astype(np.float16) if a.dtype == np.float32 else a for a in results]


def _graphs(network: OptimizedNetwork) -> Iterator[Graph]:
    """Yield the graphs of models that a network holds: what waits, and what its ops hold."""
    waiting = [] if network.tail is None else [network.tail.rest]
    while waiting:
        graph = waiting.pop()
        yield graph
        for node in graph.nodes:
            waiting += [v for v in node.op.attributes().values() if isinstance(v, Graph)]


def _large(network: OptimizedNetwork) -> bool:
    inputs = {} if network.tail is None else network.tail.inputs
    if any(spec.is_static and spec.size > MOST_DIMS for spec in inputs.values()):
        return True
    return any(large_shapes(stage.graph) for stage in network.stages)


def _long(network: OptimizedNetwork) -> bool:
    """Tell whether a loop of a network may run for long, or has no number of iterations at all."""
    graphs = list(_graphs(network))
    loops = [node for g in graphs for node in g.nodes if node.op.type == "Loop"]
    integers = (a for g in graphs for a in g.constants.values() if a.dtype.kind in "iu" and a.size)
    endless = any(not node.inputs or not node.inputs[0] for node in loops)
    return endless or (bool(loops) and any(int(a.max()) > LONG for a in integers))


def _plans(manifest: Any, members: Mapping[str, bytes]) -> set[str]:
    """Return what the plan of each stage is, and of which graph."""
    found = set[str]()
    stages = manifest["tail"].get("stages")
    for stage in stages if isinstance(stages, list) else ():
        with suppress(TypeError, KeyError, IndexError, AttributeError, ValueError):
            graphs = [stage["graph"], *(p["graph"] for p in stage["parts"])]
            nodes = [[manifest["nodes"][k] for k in graph["nodes"]] for graph in graphs]
            arrays = [k for graph in graphs for k in graph["constants"].values()]
            arrays += [holder[key] for holder, key in json_places(nodes) if key == "array"]
            held = [zlib.crc32(members[f"arrays/{k}.npy"]) for k in arrays]
            found.add(json.dumps([stage["key"], [{**g, "constants": [*g["constants"]]} for g in graphs], nodes, held]))
    return found


# -- changes ---------------------------------------------------------------------------------------------------


def _change(manifest: dict[str, Any], members: dict[str, bytes], draw: random.Random) -> None:
    """Change one thing of what comes after the first stage, or where it joins it."""
    tail: dict[str, Any] = manifest["tail"]
    changes = (
        (_change_corner, 3), (_change_stage_list, 3), (_change_stage, 4), (_change_rest, 5), (_change_ends, 2),
        (_change_constant, 2), (_change_options, 1), (_change_first, 2), (_change_anything, 2),
    )
    (change,) = draw.choices([c for c, _ in changes], [w for _, w in changes])
    change(manifest, tail, members, draw)


def _values(manifest: dict[str, Any], tail: dict[str, Any]) -> list[str]:
    """Return names that something has: values of the first stage, corners, what waits."""
    names = {*manifest["graph"]["specs"], *tail["corners"], *tail["rest"]["constants"]}
    names.update(name for name, _ in tail["inputs"])
    names.update(o for node in tail["rest"]["nodes"] for o in node[3])
    return sorted(names)


def _change_corner(manifest: Any, tail: Any, members: Any, draw: random.Random) -> None:
    """Let a corner be of another room, sizes, place, rank or axis, or two swap."""
    corners: dict[str, list[Any]] = tail["corners"]
    name = draw.choice(sorted(corners))
    at = draw.randrange(5)
    action = draw.randrange(6)
    if action == 0 and len(corners) > 1:
        other = draw.choice(sorted(corners))
        corners[name], corners[other] = corners[other], corners[name]
    elif action == 1:
        corners[draw.choice(_values(manifest, tail))] = corners.pop(name) if draw.random() < 0.5 else corners[name][:]
    elif action == 2:
        del corners[name]
    elif at < 2:
        corners[name][at] = draw.choice(_values(manifest, tail))
    else:
        corners[name][at] = draw.choice((0, 1, 2, -1, 3, None))


def _change_stage_list(manifest: Any, tail: Any, members: Any, draw: random.Random) -> None:
    """Drop, repeat, order or mix up stages."""
    stages: list[dict[str, Any]] = tail["stages"]
    one, other = draw.randrange(len(stages)), draw.randrange(len(stages))
    action = draw.randrange(6)
    if action == 0:
        del stages[one]
    elif action == 1:
        stages.insert(other, copied(stages[one]))
    elif action == 2:
        stages[one]["key"] = stages[other]["key"]
    elif action == 3:
        stages[one]["key"], stages[other]["key"] = stages[other]["key"], stages[one]["key"]
    elif action == 4:
        key = draw.choice(sorted(stages[one]))
        stages[one][key] = copied(stages[other][key])
    else:
        stages[one]["key"] = draw.choice(("", "0" * 32, "stage 0", stages[one]["key"][:-1]))


def _change_stage(manifest: Any, tail: Any, members: Any, draw: random.Random) -> None:
    """Change the network of a stage: its nodes, specs, parts; or swap two names or specs in all of its graphs."""
    stage = draw.choice(tail["stages"])
    graphs = [stage["graph"], *(p["graph"] for p in stage["parts"])]
    action = draw.randrange(5)
    if action < 2:
        change_network({"nodes": manifest["nodes"], "graph": stage["graph"], "parts": stage["parts"]}, draw)
    elif action == 2:
        for graph in graphs:
            for side in ("inputs", "outputs"):
                random.Random(len(graph[side])).shuffle(graph[side])
    elif action == 3:
        one, other = draw.sample(sorted(stage["graph"]["specs"]), 2)
        for graph in graphs:
            specs = graph["specs"]
            if one in specs and other in specs:
                specs[one], specs[other] = specs[other], specs[one]
    else:
        one, other = draw.sample(stage["graph"]["outputs"] + stage["graph"]["inputs"], 2)
        _swap_names(manifest, stage, one, other)


def _swap_names(manifest: Any, stage: Any, one: str, other: str) -> None:
    """Swap the names of two values in a stage, with nodes of its own."""
    names = {one: other, other: one}

    def renamed(value: Any) -> Any:
        if isinstance(value, str):
            return names.get(value, value)
        if isinstance(value, list):
            return [renamed(v) for v in value]
        return {names.get(k, k): renamed(v) for k, v in value.items()} if isinstance(value, dict) else value

    numbers = dict[int, int]()
    for graph in (stage["graph"], *(p["graph"] for p in stage["parts"])):
        for k in graph["nodes"]:
            if k not in numbers:
                node = manifest["nodes"][k]
                numbers[k] = len(manifest["nodes"])
                manifest["nodes"].append({**node, **{side: renamed(node[side]) for side in ("inputs", "outputs")}})
        made = renamed({**graph, "nodes": []})
        graph.update(made, nodes=[numbers[k] for k in graph["nodes"]])


def _change_rest(manifest: Any, tail: Any, members: Any, draw: random.Random) -> None:
    """Change a graph of the model: what waits, or what one of its ops holds."""
    graphs = [tail["rest"], *(holder[key] for holder, key in json_places(tail["rest"]) if key == "graph")]
    graph = draw.choice(graphs)
    nodes: list[list[Any]] = graph["nodes"]
    known = sorted({*graph["inputs"], *graph["constants"], *(o for n in nodes for o in n[3]), *_values(manifest, tail)})
    action = draw.randrange(9)
    if action < 2:  # what a node reads or makes
        names = draw.choice(nodes)[draw.choice((2, 2, 3))]
        _change_names(names, ["", *known], draw)
    elif action == 2:
        _change_names(graph[draw.choice(("inputs", "outputs"))], known, draw)
    elif action == 3:
        node = draw.choice(nodes)
        kind = draw.randrange(4)
        if kind == 0:
            node[1] = copied(draw.choice(nodes)[1])
        elif kind == 1:
            node[0] = draw.choice(nodes)[0]
        else:
            fields = node[1]["fields"]
            key = draw.choice(sorted(fields))
            fields[key] = draw.choice((0, 1, -1, 2, 3, 7, None, fields[key], [], [0], [1, 0], True))
    elif action == 4:
        draw.choice((nodes.pop, lambda k: nodes.insert(k, copied(draw.choice(nodes)))))(draw.randrange(len(nodes)))
    elif action == 5:
        change_spec(graph["specs"][draw.choice(sorted(graph["specs"]))], draw)
    elif action == 6:
        shape = draw.choice(([], [3], [2, 3]))
        graph["specs"][draw.choice(known)] = {"kind": "spec", "dtype": "FLOAT32", "shape": shape}
    elif action == 7:
        constants = graph["constants"]
        one, other = draw.choice(sorted(constants)), draw.choice(sorted(constants))
        constants[one], constants[other] = constants[other], constants[one]
    else:
        part = draw.choice(("declared", "wide", "constants", "specs"))
        change_json(graph[part], draw)


def _change_names(names: list[str], known: list[str], draw: random.Random) -> None:
    kind = draw.randrange(5)
    if kind == 0:
        del names[draw.randrange(len(names))]
    elif kind == 1:
        names.insert(draw.randrange(len(names) + 1), draw.choice(known))
    elif kind == 2:
        draw.shuffle(names)
    else:
        names[draw.randrange(len(names))] = draw.choice(known)


def _change_ends(manifest: Any, tail: Any, members: Any, draw: random.Random) -> None:
    """Change the inputs and outputs of the whole network."""
    action = draw.randrange(4)
    if action == 0:
        _change_names(draw.choice((tail["outputs"], tail["rest"]["outputs"])), _values(manifest, tail), draw)
    elif action == 1:
        seed = draw.random()
        for names in (tail["outputs"], tail["rest"]["outputs"]):
            _change_names(names, _values(manifest, tail), random.Random(seed))
    elif action == 2:
        _, spec = draw.choice(tail["inputs"])
        if draw.random() < 0.3:
            spec["kind"] = draw.choice(("spec", "sequence"))
        elif draw.random() < 0.2:
            spec["shape"] = draw.choice((["n"], [2**62], [2**31, 2**31], [0]))
        else:
            change_spec(spec, draw)
    else:
        inputs: list[list[Any]] = tail["inputs"]
        _, spec = draw.choice(inputs)
        kind = draw.randrange(3)
        if kind == 0:
            draw.shuffle(inputs)
        elif kind == 1:
            inputs.append([draw.choice(_values(manifest, tail)), copied(spec)])
        else:
            inputs.pop(draw.randrange(len(inputs)))


def _change_constant(manifest: Any, tail: Any, members: Any, draw: random.Random) -> None:
    """Give a small integer or bool constant another value."""
    small = [
        k
        for k, a in enumerate(manifest["arrays"])
        if a["dtype"] in ("INT64", "BOOL", "INT32") and int(np.prod(a["shape"])) in range(1, 9)
    ]
    k = draw.choice(small)
    name, spec = f"arrays/{k}.npy", manifest["arrays"][k]
    kind = {"INT64": np.int64, "BOOL": np.uint8, "INT32": np.int32}[spec["dtype"]]
    count = int(np.prod(spec["shape"]))
    data = np.frombuffer(members[name][-count * np.dtype(kind).itemsize :], kind).copy()
    at = draw.randrange(count)
    number = draw.choice(INTEGERS)
    data[at] = data[at] ^ 1 if kind is np.uint8 else np.array(number).astype(kind)
    members[name] = members[name][: -data.nbytes] + data.tobytes()


def _change_options(manifest: Any, tail: Any, members: Any, draw: random.Random) -> None:
    """Change hints, limits, the fallback, or what is told."""
    part = draw.choice(("hints", "limits", "unforeseen", "fallback"))
    if part == "hints":
        pattern = draw.choice(("*", "", "y", "[", "*" * 60))
        tail["hints"][pattern] = draw.choice((*manifest["devices"], "cpu:0", "nonsense"))
    elif part == "limits":
        tail["limits"][draw.choice(sorted(tail["limits"]))] = draw.choice((0, 1, -1, 2**70, 1e300, 0.5, None, "1"))
    elif part == "fallback":
        tail["fallback"] = draw.choice(("cpu", "error", "", None))
    else:
        tail["unforeseen"] = draw.choice(([], ["x"] * 3, None, [1]))


def _change_first(manifest: Any, tail: Any, members: Any, draw: random.Random) -> None:
    """Change the first stage."""
    graphs = [manifest["graph"], *(p["graph"] for p in manifest["parts"])]
    if draw.random() < 0.5:
        change_network(manifest, draw)
    else:
        seed = draw.random()
        for graph in graphs:
            _change_names(graph["outputs"], sorted(manifest["graph"]["specs"]), random.Random(seed))


def _change_anything(manifest: Any, tail: Any, members: Any, draw: random.Random) -> None:
    """Change any one place behind the first stage."""
    change_json(tail, draw)
