"""Time Weft and its peers side by side on one GPU, check every output, and print how they compare.

    python -m benchmarks.gpu --ncnn FOLDER --json results.json

The networks are those of `benchmarks/models.py` and, where torchvision is installed, of
`benchmarks/table_networks.py`, with random weights; any of a library goes by its name (`library_networks.py`). Each
runs at batch 1 and 16, those of `models.py` at 32 too, on Weft's Vulkan and OpenCL (high = fp32, normal = fp32 accuracy
by faster means, low = fp16), in PyTorch (eager, CUDA graph, torch.compile in a CUDA graph, both layouts of pictures,
TF32 on and off, fp16), ncnn (its own networks, in FOLDER), ONNX Runtime on WebGPU and on the CPU, and in tinygrad in
child processes. Matrix products of fp16 against cuBLAS come last. A network or peer that is missing or fails is listed
with the reason. The docstring of each side's module says what a time covers: own.py, peers_*.py, gemm.py.

With `--jobs N` each network and batch size has a process of its own: N at a time export, load and compile, and when all
are ready they are timed one after the other, while the rest waits. That takes a third of the time on a machine with
many cores. All of them hold memory of the GPU meanwhile: with `--gpus 2` batch 1 is on the first GPU and batch 16 on
the second.

Every row is printed, and written to the JSON file, as it is taken. The last thing printed is the table of the bars
(bars.py): each ratio is the peer's time over Weft's. `--page FILE` writes all ratios as a page (page.py).
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import os
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import date
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import weft
from benchmarks import (
    cores,
    gemm,
    library_networks,
    models,
    own,
    page,
    peers_ncnn,
    peers_onnxruntime,
    peers_tinygrad,
    peers_torch,
    peers_webgpu,
    table_networks,
)
from benchmarks.bars import APIS, bars, complaint, table, wrong_rows
from benchmarks.facts import command, tuning, variables
from benchmarks.jobs import begin, side_by_side
from benchmarks.measure import PRODUCTS, Counts, PlannedRow, Record, Row, Workload, build
from benchmarks.minilm import Sizes, minilm_l6
from benchmarks.options import existing_folder, number, numbers, output, words

MOST = 32
"""The batch of the bars, which only the networks of `benchmarks.models` have; others run at it if it is asked for."""
TRIAL = Sizes(layers=2, hidden=192, inner=384, vocabulary=400, positions=64)
"""The sizes of the encoder in a trial: small, with as many heads as PyTorch's side needs."""
PEER_PRECISIONS = {"high": ("fp32",), "normal": ("fp32", "tf32"), "low": ("fp16",)}
"""The precisions in which PyTorch and WebGPU are measured beside each of Weft's."""
PEERS: dict[str, Callable[[], str]] = {
    "torch": peers_torch.facts,
    "ncnn": peers_ncnn.facts,
    "webgpu": peers_webgpu.facts,
    "onnxruntime": lambda: version("onnxruntime"),
    "tinygrad": peers_tinygrad.facts,
}
"""Every peer, and a function that returns its version and device or raises why it is missing."""


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    networks = [*models.MODELS, *table_networks.NETWORKS]
    known = words(networks, library_networks.LIBRARIES)
    parser.add_argument("--networks", type=known, default=networks, help="by name, or LIBRARY/NAME@SIZE:OPTION=VALUE")
    parser.add_argument("--batch", type=numbers, help="sizes of batches; by default 1,16 and 32, in a trial 1,2")
    parser.add_argument("--devices", type=words((*APIS, own.GLSL)), default=list(APIS), help="Weft's, in order")
    precisions, peers = list(own.PRECISIONS), list(PEERS)
    parser.add_argument("--precision", type=words(precisions), default=precisions, help="and of the peers")
    parser.add_argument("--peers", type=words(peers), default=peers, help=f"some of {','.join(peers)}; '' for none")
    parser.add_argument("--ncnn", type=Path, metavar="FOLDER", help="of ncnn's benchmark networks")
    parser.add_argument("--iterations", type=number, default=Counts().iterations, help="at batch 1; half of it above")
    parser.add_argument("--seconds", type=float, default=Counts().seconds, help="after which a row's runs end")
    parser.add_argument("--warm", type=float, default=Counts().warm, help="seconds of runs that are not counted")
    parser.add_argument("--budget", type=float, default=1e9, help="seconds after which nothing new is begun")
    ways = list(peers_torch.WAYS)
    parser.add_argument("--torch", type=words(ways), default=ways, help=f"some of {','.join(ways)}")
    tables = ("on", "off", "both")
    parser.add_argument("--tables", choices=tables, default="on", help="Weft's tables of tuned choices")
    parser.add_argument("--jobs", type=number, help="networks that are prepared at a time, in processes of their own")
    parser.add_argument("--prepare", type=float, default=1e9, help="seconds that a process of --jobs prepares rows")
    parser.add_argument("--device-times", action=argparse.BooleanOptionalAction, default=True, help="of Weft's rows")
    parser.add_argument("--gpus", type=number, default=1, help="GPUs that --jobs deals networks out to")
    parser.add_argument("--gpu", type=int, default=0, help="index of the GPU, in the order of CUDA and of Vulkan")
    parser.add_argument("--waits", action="store_true", help=argparse.SUPPRESS)  # a process that `--jobs` began
    parser.add_argument("--gemm", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--sizes", type=numbers, help="of the products")
    parser.add_argument("--quick", action="store_true", help="a trial: all is small and runs twice, no results")
    parser.add_argument("--json", type=output, metavar="FILE", help="write everything to this file")
    parser.add_argument("--launches", type=existing_folder, metavar="FOLDER", help="for what each launch took")
    parser.add_argument("--page", type=output, metavar="FILE", help="write a page with every ratio to this file")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="go on with a run whose time was too short")
    options = parser.parse_args(arguments)
    for name in (n for n in options.networks if n not in networks):
        try:
            library_networks.Asked.by(name)
        except ValueError as e:
            parser.error(f"--networks: {e}")
    options.image = 64 if options.quick else 224
    options.few = options.batch is None and not options.quick
    options.batch = options.batch or ([1, 2] if options.quick else [1, 16, MOST])
    options.sizes = options.sizes or ([128] if options.quick else list(gemm.SIZES))
    return options


def main() -> None:
    """Run what the command line asks for."""
    options = parse(sys.argv[1:])
    if options.gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = str(options.gpu)  # Weft heeds it on both APIs
    counts = Counts(5, options.iterations, options.seconds, options.warm)
    if options.quick:
        counts = Counts(1, 2, options.seconds, 0.0)
        models.MODELS["minilm_l6"] = partial(minilm_l6, sequence=TRIAL.positions, sizes=TRIAL)
    facts = _facts()
    if options.tables == "off":
        facts["tuning"] = "none: --tables off"
    if options.quick:
        facts["trial"] = "small pictures and few runs: these times mean nothing"
    record = Record(facts, options.json, options.budget)
    if options.resume:
        _resume(record, options.resume)
    if options.waits:  # tinygrad has processes of its own, and the parent begins them
        options.peers = [peer for peer in options.peers if peer != "tinygrad"]
    peers = _present(options.peers, record)
    if not options.quick and ("torch" in peers or peers_torch.is_there()):
        counts = replace(counts, wake=peers_torch.wake)
    devices = _weft_devices(options.devices, record)
    most = models.MODELS if options.few else options.networks
    cases = [(n, b) for b in options.batch for n in options.networks if b != MOST or n in most]
    if options.jobs:
        side_by_side("benchmarks.gpu", sys.argv[1:], cases, options.jobs, record, options.gpus)
    for network, batch in [] if options.jobs else cases:
        record.part(
            f"{network} x{batch}",
            lambda n=network, b=batch: _network(n, b, options, devices, peers, counts, record),  # type: ignore[misc]
        )
    if options.gemm:
        products = partial(_products, options.sizes, devices, "torch" in peers, counts, record)
        record.part(PRODUCTS, products)
    if "tinygrad" in peers:  # last: it takes longest to compile
        _tinygrad(options, counts, record)
    if options.waits:
        record.write()
        return
    _conclude(record, options.quick)
    if options.page:
        options.page.write_text(page.page(record.found()))


def _resume(record: Record, path: Path) -> None:
    try:
        record.resume(path)
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise SystemExit(f"--resume {path}: it cannot be gone on with: {e}") from None


def _network(
    network: str,
    batch: int,
    options: argparse.Namespace,
    devices: Sequence[str],
    peers: Sequence[str],
    counts: Counts,
    record: Record,
) -> None:
    """Take all rows of one network at one batch size; a process of `--jobs` prepares all before it takes the first."""
    case = _case(network, batch, options, record)
    parts = _parts(case, options, devices, peers, counts.for_batch(batch), record)
    if not options.waits:
        for part in parts:
            record.attempt(part.what, lambda p=part: record.add(p.prepare()()))  # type: ignore[misc]
            gc.collect()
        return
    ready: list[tuple[str, Callable[[], Row]]] = []
    for part in parts:
        if record.seconds > options.prepare:
            record.miss(part.what, f"not prepared: {options.prepare:.0f} s were given")
            continue
        record.attempt(part.what, lambda p=part: ready.append((p.what, p.prepare())))  # type: ignore[misc]
    begin()
    while ready:
        what, take = ready.pop(0)
        record.attempt(what, lambda t=take: record.add(t()))  # type: ignore[misc]
        del take
        gc.collect()


def _parts(
    case: Workload,
    options: argparse.Namespace,
    devices: Sequence[str],
    peers: Sequence[str],
    counts: Counts,
    record: Record,
) -> Iterator[PlannedRow]:
    name = f"{case.network} x{case.batch}"
    beside_weft = {precision for asked in options.precision for precision in PEER_PRECISIONS[asked]}
    for device in devices:
        for precision in options.precision:
            for tables in (True, False) if options.tables == "both" else (options.tables == "on",):
                beside = options.tables == "both" and not tables
                more = {"tables": tables, "beside": beside, "launches": options.launches}
                more["device_times"] = options.device_times
                make = partial(own.prepared, case, device, precision, counts, **more)
                yield PlannedRow(f"{name} weft {device} {precision}{' untuned' if beside else ''}", make)
    if "webgpu" in peers:
        for precision in (p for p in peers_webgpu.PRECISIONS if p in beside_weft):
            make = partial(peers_webgpu.prepared, case, precision, counts)
            yield PlannedRow(f"{name} {peers_webgpu.WHO} {precision}", make)
    if "torch" in peers:
        yield from peers_torch.rows(case, options.torch, beside_weft, counts)
    if "ncnn" in peers:
        yield from _ncnn(case, options.ncnn, counts, record)
    if "onnxruntime" in peers:
        few = Counts(1, counts.iterations, min(counts.seconds, 1.5))
        yield PlannedRow(f"{name} onnxruntime", lambda: partial(peers_onnxruntime.row, case, few))


def _products(sizes: Sequence[int], devices: Sequence[str], cublas: bool, counts: Counts, record: Record) -> None:
    for size in sizes:
        record.attempt(f"gemm {size}", lambda n=size: gemm.measure(n, devices, cublas, counts, record))  # type: ignore[misc]
        gc.collect()


def _case(network: str, batch: int, options: argparse.Namespace, record: Record) -> Workload:
    case = build(network, batch, options.image, trial=options.quick)
    shapes = ", ".join(f"{name} {'x'.join(map(str, a.shape))}" for name, a in case.inputs.items())
    print(f"[{record.seconds:4.0f} s] {network}: {shapes}, {case.flops / 1e9:.3f} GFLOP a run", flush=True)
    return case


def _ncnn(case: Workload, folder: Path | None, counts: Counts, record: Record) -> Iterator[PlannedRow]:
    network, batch = case.network, case.batch
    if network not in peers_ncnn.NETWORKS or folder is None:
        why = "ncnn has no such benchmark network" if folder else "--ncnn names no folder of its networks"
        record.miss(f"{network} x{batch} ncnn", why)
        return
    for precision in peers_ncnn.PRECISIONS:
        take = partial(peers_ncnn.row, network, batch, precision, folder, counts)
        yield PlannedRow(f"{network} x{batch} ncnn {precision}", lambda t=take: t)  # type: ignore[misc]


def _tinygrad(options: argparse.Namespace, counts: Counts, record: Record) -> None:
    for batch in options.batch:
        for network in (n for n in options.networks if n in models.MODELS):

            def run(network: str = network, batch: int = batch) -> None:
                record.add(peers_tinygrad.row(build(network, batch, options.image), counts.for_batch(batch)))

            record.part(f"{network} x{batch} tinygrad", run)


def _present(names: Sequence[str], record: Record) -> list[str]:
    """Return the peers that can run; the others are listed with the reason."""
    found = []
    for name in names:
        try:
            record.facts["versions"][name] = PEERS[name]()
            found.append(name)
        except Exception as e:  # a missing peer may raise anything
            record.miss(name, f"{type(e).__name__}: {e}")
    return found


def _weft_devices(wanted: Sequence[str], record: Record) -> list[str]:
    """Return the devices of Weft that are there, each as id and index."""
    known = {d.id: d for d in reversed(weft.devices())}
    for name in wanted:
        if own.device_of(name) not in known:
            record.miss(f"weft {name}", "weft.devices() does not list it; `weft doctor` says why")
    return [name for name in wanted if own.device_of(name) in known]


def _facts() -> dict[str, Any]:
    devices = [f"{d.id}:{d.index} {d.name}, {d.driver}" for d in weft.devices()]
    versions = {"weft": weft.__version__, "python": platform.python_version()}
    versions |= {name: version(name) for name in ("numpy", "onnx")}
    return {
        "date": str(date.today()),
        "command": command("benchmarks.gpu"),
        "devices": devices,
        "python": f"{platform.python_version()}, {platform.node()}",
        "source": _source(),
        "tuning": tuning(),
        "environment": variables(),
        "cores": cores.spread(),
        "versions": versions,
    }


def _source() -> str:
    """Return a hash of Weft and of what measures it."""
    hashed = hashlib.blake2b(digest_size=8)
    for folder in (Path(weft.__file__).parent, Path(__file__).parent):
        for path in sorted(p for p in folder.rglob("*") if p.suffix in (".py", ".mako", ".json")):
            hashed.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return hashed.hexdigest()


def _conclude(record: Record, trial: bool) -> None:
    found = [] if trial else bars(record.rows, record.gemm)
    record.bars = [b.found() for b in found]
    record.write()
    print("\n".join(_summary(record)))
    if trial:
        print("a trial with small pictures, encoders and products: its times mean nothing, so there are no bars")
        return
    print("\n".join([*_wrong_outputs(record), table(found)]))
    print("Where taking a device's times makes runs slower than they are without, a whole run's time stands for it.")
    reached = [b.met for b in found]
    print(f"{reached.count(True)} bars reached, {reached.count(False)} not, {reached.count(None)} not measured")


def _summary(record: Record) -> Iterator[str]:
    """Say what ran where, FLOPs of each side included, and what did not."""
    yield f"{record.facts['date']}  {record.facts['command']}"
    yield from record.facts["devices"]
    yield f"choices of kernels: {record.facts['tuning']}"
    yield f"the host's cores at the beginning: {record.facts['cores']}"
    yield "variables: " + (", ".join(f"{n}={v}" for n, v in record.facts["environment"].items()) or "none of Weft's")
    yield ", ".join(f"{name} {value}" for name, value in record.facts["versions"].items())
    for network in dict.fromkeys(row.network for row in record.rows):
        rows = [r for r in record.rows if r.network == network and "gflop" in r.more]
        sides = {r.who.split()[0]: r.more["gflop"] / r.batch for r in rows}
        yield f"GFLOP of {network} at batch 1: " + ", ".join(f"{who} {value:.3f}" for who, value in sides.items())
    yield from (f"absent: {what}: {why}" for what, why in record.absent.items())


def _wrong_outputs(record: Record) -> Iterator[str]:
    for row, why in wrong_rows(record.rows):
        yield f"no time counts of {row.network} x{row.batch} {row.who} {row.precision}: {why}"
    for e in record.gemm:
        why = complaint(e["who"], e["precision"], e["error"])
        if why:
            yield f"no time counts of product {e['size']} {e['who']} {e['precision']}: {why}"


if __name__ == "__main__":
    main()
