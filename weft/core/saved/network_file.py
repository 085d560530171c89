"""Optimised networks as files, so that a second start need not optimise again (F8).

The usual extension is .weft. A file is a zip of `network.json`, the constants as .npy files, and the bytes that
backends compiled; `network.json` has their checksums. Each later stage has a seal: a digest of its plan, of the key of
the graph that this computes, and of all nodes, constants and bytes. So a plan that was changed, or put in another's
place, is refused. It is no signature: whoever writes a file decides what it computes.

A file says nothing of launches, which a load plans for its device. It holds no Python objects, paths or dates, so equal
networks give equal files. It serves only the versions of the backends that it was made for.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import numpy as np

from weft.core.contract.backend import BackendConfig, MemoryMode, Power, Precision
from weft.core.contract.backend_options import Options, Value
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph, Node
from weft.core.graph.layout import Array, Layout
from weft.core.graph.limits import Limits
from weft.core.passes import PassRecord
from weft.core.passes.journal import Change, Journal, PassNote
from weft.core.placement.check_network import OPTIMIZE_AGAIN, check_network
from weft.core.placement.optimized_network import LaterStage, OptimizedNetwork, Part, Tail
from weft.core.placement.optimizer import OptimizerOptions
from weft.core.placement.stage_split import Corner
from weft.core.registry.backend_registry import BackendRegistry, registry
from weft.core.registry.entries import version_of
from weft.core.saved.archive import (
    MANIFEST,
    SAVE_AGAIN,
    Archive,
    array_name,
    blob_name,
    open_archive,
    write_archive,
)
from weft.core.saved.codec import (
    Damaged,
    Decoder,
    Encoder,
    Json,
    UnknownOp,
    Unsavable,
    expect,
    npy_header,
    parse_input_spec,
    parse_npy,
    parse_spec,
    record,
    spec_json,
    texts,
)
from weft.errors import (
    BackendError,
    ModelError,
    NoDevice,
    Problem,
    Refusal,
    UnsupportedOps,
    WeftError,
    listing,
)

T = TypeVar("T")
FORMAT = 7
"""It rises with every change after which an older Weft could not read a file, or would misread it."""


def save(network: OptimizedNetwork, path: str | os.PathLike[str]) -> None:
    """Write a network to a file, replacing an existing one.

    ModelError names every node with an attribute that no file can hold, and the reason. If a backend's `PreCompiled`
    payloads are not bytes, they need a method `to_bytes`, and the backend's creator needs `load_payload`.
    """
    target, encoder = _path(path), Encoder()
    nodes = _NodeTable(encoder)
    content = {**_network_json(network, nodes), "tail": network.tail and _tail_json(network.tail, nodes)}
    if nodes.problems:
        raise ModelError(
            f"network {network.graph.name!r} cannot be saved",
            where=str(target),
            why="\n    ".join(["", *nodes.problems]),
            fix="attributes can be numbers, text, element types, arrays and tuples of them; "
            "a network with debug nodes must be optimised without them",
        )
    _check(network, target)
    tables = {
        "nodes": nodes.encoded,
        "arrays": [
            {"dtype": DType.of(a.dtype).name, "shape": list(a.shape), "crc": _array_crc(a)} for a in encoder.arrays
        ],
        "bytes": [[len(b), zlib.crc32(b)] for b in encoder.blobs],
    }
    if content["tail"]:
        stages, seals = content["tail"]["stages"], Seals(tables)
        content["tail"]["stages"] = [{**stage, "seal": seals.of(stage)} for stage in stages]
    manifest = {
        "format": FORMAT,
        "weft": weft_version(),
        "versions": dict(network.versions),
        "options": {id_: dict(options) for id_, options in network.backend_options.items()},
        "devices": list(network.devices),
        "named": dict(network.named),
        "config": {
            **{k: getattr(network.config, k).name for k in ("memory", "precision", "power")},
            **{k: getattr(network.config, k) for k in ("fusing", "winograd")},
        },
        **content,
        **tables,
    }
    write_archive(target, _members(manifest, encoder))


def to_bytes(network: OptimizedNetwork) -> bytes:
    """Return what `save` writes to a file."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "network.weft")
        save(network, path)
        return path.read_bytes()


def from_bytes(content: bytes) -> OptimizedNetwork:
    """Return the network of which `to_bytes` made these bytes."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "network.weft")
        path.write_bytes(content)
        return load_saved(path)


def _network_json(network: OptimizedNetwork, nodes: _NodeTable) -> dict[str, Json]:
    """Return what a file holds of each stage."""
    return {
        "graph": _graph_json(network.graph, nodes),
        "parts": [{"device": p.device, "graph": _graph_json(p.graph, nodes)} for p in network.parts],
        "refusals": list(map(astuple, network.refusals)),
        "notes": list(network.notes),
        "passes": list(map(astuple, network.passes)),
        "journal": [[s.by, s.purpose, s.lowering, list(map(astuple, s.changes))] for s in network.journal.notes],
    }


def _tail_json(tail: Tail, nodes: _NodeTable) -> Json:
    """Return what a file holds of what comes after a first stage."""
    if tail.options.passes:
        names = ", ".join(repr(each.name) for each in tail.options.passes)
        nodes.problems.append(f"a run plans later stages with the passes {names} of your own, which no file holds")
    if tail.options.debug is not None:
        nodes.problems.append("a run plans later stages with debug nodes, which no file holds")
    try:
        rest = nodes.encoder.graph(tail.rest)
    except Unsavable as e:
        nodes.problems.append(f"what comes after the first stage: {e}")
        rest = None
    return {
        "inputs": [[name, spec_json(spec)] for name, spec in tail.inputs.items()],  # in order, which a dict would lose
        "outputs": list(tail.outputs),
        "corners": {value: astuple(corner) for value, corner in tail.corners.items()},
        "rest": rest,
        "hints": dict(tail.options.hints),
        "fallback": tail.options.fallback,
        "limits": asdict(tail.options.limits),
        "stages": [{"about": s.about, "key": stage_key(s), **_network_json(s.network, nodes)} for s in tail.stages],
        "unforeseen": list(tail.unforeseen),
    }


def _check(network: OptimizedNetwork, target: Path) -> None:
    """Raise ModelError if the network could not be loaded again; a session's network may have no constants."""
    try:
        check_network(network)
    except ModelError as e:
        what = f"network {network.graph.name!r} is incomplete and cannot be saved"
        raise ModelError(what, where=str(target), why=e.why, fix="save what weft.optimize returns") from e


def _members(manifest: Json, encoder: Encoder) -> Iterator[tuple[str, bytes]]:
    yield MANIFEST, _canonical(manifest)
    for k, array in enumerate(encoder.arrays):
        yield array_name(k), npy_header(DType.of(array.dtype), array.shape) + array.tobytes()
    for k, blob in enumerate(encoder.blobs):
        yield blob_name(k), blob


def _array_crc(array: Array) -> int:
    """Return the checksum of the member that holds an array, as a zip has it."""
    header = npy_header(DType.of(array.dtype), array.shape)
    return zlib.crc32(array.reshape(-1).view(np.uint8).data, zlib.crc32(header))


class Seals:
    """What the later stages of a file are sealed with: a digest of their plans and of what these name by numbers."""

    def __init__(self, manifest: Mapping[str, Json]) -> None:
        self._tables = hashlib.blake2b(_canonical([manifest[key] for key in ("nodes", "arrays", "bytes")]))

    def of(self, stage: Mapping[str, Json]) -> str:
        """Return the seal of a stage, which may have one already."""
        digest = self._tables.copy()
        digest.update(_canonical({key: value for key, value in stage.items() if key != "seal"}))
        return digest.hexdigest()[:32]


def _canonical(value: Json) -> bytes:
    return json.dumps(value, sort_keys=True, allow_nan=False, separators=(",", ":")).encode("ascii")


class _NodeTable:
    """The distinct nodes of all graphs, and why some cannot be saved."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder
        self.encoded: list[Json] = []
        self.problems: list[str] = []
        self._by_id: dict[int, int] = {}
        self._by_text: dict[str, int] = {}

    def add(self, node: Node) -> int:
        """Return the number of a node."""
        if id(node) not in self._by_id:
            self._by_id[id(node)] = self._add(node)
        return self._by_id[id(node)]

    def _add(self, node: Node) -> int:
        try:
            op = self.encoder.op(node.op)
        except Unsavable as e:
            self.problems.append(f"node {node.name!r} ({node.op.type}): {e}")
            return -1
        made = {"name": node.name, "op": op, "inputs": list(node.inputs), "outputs": list(node.outputs)}
        index = self._by_text.setdefault(json.dumps(made, sort_keys=True), len(self.encoded))
        if index == len(self.encoded):
            self.encoded.append(made)
        return index


def _graph_json(graph: Graph, nodes: _NodeTable) -> Json:
    constants = {}
    for name in sorted(graph.constants):
        try:
            constants[name] = nodes.encoder.array(graph.constants[name])
        except Unsavable as e:
            nodes.problems.append(f"constant {name!r}: {e}")
    return {
        "name": graph.name,
        "inputs": graph.inputs,
        "outputs": graph.outputs,
        "nodes": [nodes.add(n) for n in graph.nodes],
        "specs": {name: spec_json(spec) for name, spec in graph.specs.items()},
        "constants": constants,
        "layouts": {name: layout.name for name, layout in graph.layouts.items()},
        **({"aliases": graph.aliases} if graph.aliases else {}),
    }


def key_of_graph(graph: Graph) -> str:
    """Return a text that only graphs of the same nodes, specs and constants share; "" if an attribute has no JSON."""
    encoder = Encoder()
    nodes = _NodeTable(encoder)
    made = {"graph": _graph_json(graph, nodes), "nodes": nodes.encoded, "wide": sorted(graph.wide)}
    if nodes.problems:
        return ""
    digest = hashlib.blake2b(json.dumps(made, sort_keys=True).encode(), digest_size=16)
    for array in encoder.arrays:
        digest.update(array.dtype.str.encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    for blob in encoder.blobs:
        digest.update(blob)
    return digest.hexdigest()


def stage_key(stage: LaterStage) -> str:
    """Return the key of the graph of a stage."""
    return stage.key if stage.given is None else key_of_graph(stage.given)


def load_saved(path: str | os.PathLike[str], *, backends: BackendRegistry | None = None) -> OptimizedNetwork:
    """Return the network that was saved to a file; its constants are read-only.

    ModelError says what is wrong with the file, UnsupportedOps which op types are not registered, and BackendError
    which backends are missing in `backends` (default: the registry of the process) or have another version than the
    network was made for.
    """
    importlib.import_module("weft.ops")  # registers the ops; late, as in `weft.load`
    place = _path(path)
    try:
        with open_archive(place) as archive:
            return _Reader(archive, backends or registry).network()
    except WeftError as e:
        e.placed(str(place))
        raise
    except Exception as e:  # JSON of the wrong form may raise anything
        why = str(e) if isinstance(e, Damaged) else f"{type(e).__name__}: {e}"
        why = f"{MANIFEST} is not what Weft writes: {why}"
        raise ModelError("the saved network is damaged", where=str(place), why=why, fix=SAVE_AGAIN) from e


def check_backends(
    what: str, versions: Mapping[str, str], devices: Iterable[str], backends: BackendRegistry, weft: str = ""
) -> None:
    """Raise BackendError with every backend that is missing, or has another version than the network was made for.

    `versions` are those of the backends that optimised the network, `weft` that of Weft then (default: this one).
    """
    problems = []
    for id_ in dict.fromkeys([*versions, *(d.partition(":")[0] for d in devices)]):
        try:
            here = _known_version(version_of(backends.find(id_)), weft_version())
        except NoDevice as e:
            problems.append(f"backend {id_!r} is not registered ({e.why})")
            continue
        there = _known_version(versions.get(id_, ""), weft or weft_version())
        if there != here:
            problems.append(f"backend {id_!r} is version {here} here, and the network was made with {there}")
    if problems:
        raise BackendError(f"{what} does not fit this installation", why="; ".join(problems), fix=OPTIMIZE_AGAIN)


class _Reader:
    """Reads a network from an archive, and checks its format, members, backends, ops and graphs in this order."""

    def __init__(self, archive: Archive, backends: BackendRegistry) -> None:
        self.archive, self.backends = archive, backends
        self.manifest = self._manifest()
        self._arrays: dict[int, Array] = {}

    def network(self) -> OptimizedNetwork:
        """Return the network."""
        m = self.manifest
        self._check_members()
        parts = expect(m["parts"], list)
        devices = texts(m["devices"])
        named = {_device(d): expect(each, str) for d, each in expect(m["named"], dict).items()}
        strange = next((d for d, each in named.items() if each.partition(":")[0] != d.partition(":")[0]), None)
        if strange is not None:
            raise Damaged(f"{strange!r:.40} is called {named[strange]!r:.80}, a device of another backend")
        versions = {k: expect(v, str) for k, v in expect(m["versions"], dict).items()}
        ids = [_device(d) for d in (*devices, *(expect(p["device"], str) for p in parts))]
        check_backends("the saved network", versions, ids, self.backends, str(self.manifest["weft"]))
        nodes = self._nodes(expect(m["nodes"], list))
        config = BackendConfig(
            MemoryMode[m["config"]["memory"]],
            Precision[m["config"]["precision"]],
            Power[m["config"]["power"]],
            expect(m["config"]["fusing"], bool),
            expect(m["config"]["winograd"], bool),
        )
        options = {k: Options({n: _value(v) for n, v in expect(o, dict).items()}) for k, o in m["options"].items()}
        later = [] if m["tail"] is None else expect(m["tail"]["stages"], list)
        self._check_seals(later)
        stages = [m, *later]
        first, *others = (
            OptimizedNetwork(
                graph=self._graph(stage["graph"], nodes),
                parts=tuple(
                    Part(_device(p["device"]), self._graph(p["graph"], nodes)) for p in expect(stage["parts"], list)
                ),
                devices=devices,
                config=config,
                refusals=tuple(record(Refusal, r) for r in expect(stage["refusals"], list)),
                notes=texts(stage["notes"]),
                passes=tuple(record(PassRecord, p) for p in expect(stage["passes"], list)),
                versions=versions,
                backend_options=options,
                named=named,
                journal=Journal(_step(s) for s in expect(stage["journal"], list)),
            )
            for stage in stages
        )
        tail = None if m["tail"] is None else self._tail(m["tail"], config, first, others)
        network = replace(first, tail=tail)
        check_network(network)
        return network

    def _tail(
        self, value: Json, config: BackendConfig, first: OptimizedNetwork, others: Sequence[OptimizedNetwork]
    ) -> Tail:
        """Return what comes after the first stage; the networks of later stages are read already."""
        given = [(expect(name, str), parse_input_spec(spec)) for name, spec in expect(value["inputs"], list)]
        inputs = dict(given)
        if len(inputs) < len(given):
            raise Damaged(f"of {len(given)} inputs, some have one name")
        corners = {name: record(Corner, each) for name, each in expect(value["corners"], dict).items()}
        made = [*inputs, *first.graph.outputs, *corners]
        hints = {name: expect(device, str) for name, device in expect(value["hints"], dict).items()}
        unknown = set(hints.values()).difference(first.devices)
        if unknown:
            raise Damaged(f"the hints name {min(unknown)!r:.40}, which is none of the network's devices")
        # The limits protect the loader from the file, so the file may lower them only.
        limits = Limits.of(expect(value["limits"], dict)).within(Limits())
        fallback = expect(value["fallback"], str)
        if fallback not in ("cpu", "error"):
            raise Damaged(f"{fallback!r:.40} is no fallback")
        return Tail(
            inputs,
            texts(value["outputs"]),
            corners,
            Decoder(self._array, self._blob, self.backends.find).graph(value["rest"], made),
            OptimizerOptions(config, hints, fallback, limits=limits),
            tuple(
                LaterStage(expect(stage["about"], str), network, key=expect(stage["key"], str))
                for stage, network in zip(value["stages"], others, strict=True)
            ),
            texts(value["unforeseen"]),
        )

    def _manifest(self) -> Json:
        content = self.archive.read(MANIFEST)
        manifest = expect(json.loads(content, parse_constant=_no_number), dict)
        found = manifest["format"]
        if type(found) is not int or found != FORMAT:
            raise ModelError(
                "the saved network is of a format that this Weft does not read",
                why=f"the file has format {found!r}, saved by Weft {manifest.get('weft', '')}; "
                f"this is Weft {weft_version()}, which reads format {FORMAT}",
                fix=OPTIMIZE_AGAIN,
            )
        return manifest

    def _check_members(self) -> None:
        arrays, blobs = (len(expect(self.manifest[key], list)) for key in ("arrays", "bytes"))
        wanted = {MANIFEST, *map(array_name, range(arrays)), *map(blob_name, range(blobs))}
        problems = [f"member {n!r} is missing" for n in sorted(wanted - self.archive.names)]
        problems += [f"member {n!r} belongs to no network" for n in sorted(self.archive.names - wanted)]
        if problems:
            raise ModelError("the saved network is not complete", why=listing(problems), fix=SAVE_AGAIN)
        told = {array_name(k): expect(each["crc"], int) for k, each in enumerate(self.manifest["arrays"])}
        told |= {blob_name(k): expect(crc, int) for k, (_, crc) in enumerate(self.manifest["bytes"])}
        others = [name for name, crc in told.items() if self.archive.crc(name) != crc]
        if others:
            why = listing([f"member {name!r} is not the one that was saved" for name in others])
            raise ModelError("the saved network is damaged", why=why, fix=SAVE_AGAIN)

    def _check_seals(self, stages: Sequence[Json]) -> None:
        """Raise ModelError with the later stages that are not as they were saved."""
        seals = Seals(self.manifest) if stages else None
        broken = [k for k, stage in enumerate(stages) if seals is not None and seals.of(stage) != stage["seal"]]
        if broken:
            raise ModelError(
                f"{len(broken)} later stage(s) of the saved network are not as they were saved",
                why=listing([f"stage {k}, {expect(stages[k]['about'], str)!r:.200}" for k in broken])
                + ": its plan, its key, or what it holds was changed",
                fix=SAVE_AGAIN,
            )

    def _nodes(self, encoded: Sequence[Json]) -> list[Node]:
        """Return the nodes; UnsupportedOps names all whose op is not registered or has other attributes."""
        decoder = Decoder(self._array, self._blob, self.backends.find)
        nodes, problems = [], []
        for each in encoded:
            name = expect(each["name"], str)
            try:
                nodes.append(Node(name, decoder.op(each["op"]), texts(each["inputs"]), texts(each["outputs"])))
            except UnknownOp as e:
                problems.append(Problem(name, f": op type {str(e)!r} is not registered"))
            except Damaged as e:
                problems.append(Problem(name, f" ({each['op']['type']}): {e}"))
        if problems:
            raise UnsupportedOps(
                f"{len(problems)} node(s) of the saved network cannot be made",
                problems,
                fix=f"import what registers the ops; the file is of Weft {self.manifest['weft']}, "
                f"this is Weft {weft_version()}",
            )
        return nodes

    def _array(self, index: int) -> Array:
        """Return an array; the same object each time."""
        if index not in self._arrays:
            spec = parse_spec(_at(self.manifest["arrays"], index))
            try:
                self._arrays[index] = parse_npy(self.archive.read(array_name(index)), spec)
            except Damaged as e:
                raise ModelError(
                    "the saved network is damaged", why=f"{array_name(index)}: {e}", fix=SAVE_AGAIN
                ) from e
        return self._arrays[index]

    def _blob(self, index: int) -> bytes:
        content = self.archive.read(blob_name(index))
        if len(content) != _at(self.manifest["bytes"], index)[0]:
            raise Damaged(f"{blob_name(index)} has {len(content):,} bytes")
        return content

    def _graph(self, encoded: Json, nodes: Sequence[Node]) -> Graph:
        return Graph(
            expect(encoded["name"], str),
            list(texts(encoded["inputs"])),
            list(texts(encoded["outputs"])),
            [_at(nodes, k) for k in encoded["nodes"]],
            {name: parse_spec(spec) for name, spec in encoded["specs"].items()},
            {name: self._array(expect(k, int)) for name, k in encoded["constants"].items()},
            {name: Layout[layout] for name, layout in encoded["layouts"].items()},
            aliases={expect(o, str): expect(i, str) for o, i in encoded.get("aliases", {}).items()},
        )


def _device(name: str) -> str:
    """Return the name of a device; Damaged unless it is an id and a number, as networks write it."""
    if not re.fullmatch(r"[^:,]+:(0|[1-9]\d{0,8})", name):
        raise Damaged(f"{name[:40]!r} is not the name of a device")
    return name


def _at(values: Sequence[T], index: Json) -> T:
    if not 0 <= expect(index, int) < len(values):
        raise Damaged(f"there is no number {index} of {len(values)}")
    return values[index]


def _step(value: Json) -> PassNote:
    by, purpose, lowering, changes = value
    made = [record(Change, each) for each in expect(changes, list)]
    return PassNote.of_changes(expect(by, str), expect(purpose, str), made, expect(lowering, bool))


def _value(value: Json) -> Value:
    if not isinstance(value, (bool, int, float, str)):
        raise Damaged(f"{value!r} is no value of an option")
    return value


def _no_number(text: str) -> float:
    raise Damaged(f"{text} is not a number of JSON")


def _path(path: str | os.PathLike[str]) -> Path:
    text = os.fspath(path)
    if not isinstance(text, str) or "\0" in text or not Path(text).name:
        raise ModelError(f"{text!r} is not the path of a file", fix='name one, such as "model.weft"')
    return Path(text)


def _known_version(version: str, weft: str) -> str:
    """Return a backend's version; a backend without one changes with Weft."""
    return version or f"Weft {weft}"


def weft_version() -> str:
    """Return the version of Weft, which this layer cannot import by name."""
    return str(importlib.import_module("weft").__version__)
