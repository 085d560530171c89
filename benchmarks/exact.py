"""Time what exact arithmetic costs Vulkan's kernels: each network with it beside the same one without.

    python -m benchmarks.exact [MODEL.onnx ...] [--rounds 3] [--runs 50] [--steps 16] [--size 512]

Without, a kernel's SPIR-V is what the GLSL compiler makes of it: drivers may contract, cancel and reorder float
arithmetic, and assume that there are no infinities and NaN. Both kinds are timed in turns, each in a process of its own
with a cache of its own. A figure is the median of the runs of the best round, in ms: host to host, and on the device.

Beside the models given, which have fixed shapes, there are a chain of `--steps` element-wise nodes on `--size` rows of
`--size` numbers, a softmax, a layer norm and a GELU on as many, and a product with fused steps behind it. Kernels are
those in GLSL on Hopper, too (`vulkan.ptx=no`).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np

import weft
from benchmarks.options import number
from weft.backends.vulkan import glslang, pipeline_builder

CHILDREN = {"exact": "--exact", "loose": "--loose"}
"""Kinds of children, which time all networks: with SPIR-V as it is, and as the GLSL compiler leaves it."""
WARM_UP = 5


def networks(models: Sequence[str], steps: int, size: int) -> Iterator[tuple[str, weft.Network | str]]:
    """Yield the networks, by name."""
    for model in models:
        yield Path(model).stem, model
    for name in ("chain", "softmax", "layer norm", "gelu", "product"):
        net = weft.Network(name)
        value: Any = net.add_input("x", (size, size))
        rows, rng = np.ones(size, np.float32), np.random.default_rng(0)
        if name == "chain":
            for k in range(steps):
                value = net.add_layer("Add" if k % 2 else "Mul", value, np.array([1 + 1 / (k + 2)], np.float32))
        elif name == "softmax":
            value = net.add_layer("Softmax", value)
        elif name == "layer norm":
            value = net.add_layer("LayerNormalization", value, rows, rows)
        elif name == "gelu":
            value = net.add_layer("Gelu", value)
        else:
            value = net.add_layer("MatMul", value, rng.standard_normal((size, size)).astype(np.float32) / size)
            value = net.add_layer("Sigmoid", net.add_layer("Mul", value, np.array([1.7], np.float32)))
        net.add_output("y", value)
        yield name, net


def times(found: weft.Network | str, runs: int) -> dict[str, float]:
    """Return the medians of a network in ms: "host" of whole runs, "device" of the span of their launches."""
    options = {"vulkan": {"ptx": False}}
    with weft.load(found, "vulkan", fallback="error", profile="span", backend_options=options) as session:
        rng = np.random.default_rng(1)
        shapes = {name: tuple(map(int, shape)) for name, shape in session.inputs.items()}
        inputs = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
        host, device = [], []
        for _ in range(runs + WARM_UP):
            begun = perf_counter()
            session.run(inputs)
            host.append(1e3 * (perf_counter() - begun))
            device.append(1e3 * sum(v for (_, name), v in session.profile.counters.items() if name == "span"))
    return {"host": median(host[WARM_UP:]), "device": median(device[WARM_UP:])}


def child(arguments: argparse.Namespace) -> None:
    """Print the times of all networks as JSON, one a line."""
    if arguments.loose:
        glslang.with_exact_arithmetic = lambda spirv: spirv  # type: ignore[attr-defined]
        pipeline_builder.with_special_values = lambda spirv, widths: spirv  # type: ignore[attr-defined]
    for name, found in networks(arguments.models, arguments.steps, arguments.size):
        print(json.dumps({"network": name} | times(found, arguments.runs)), flush=True)


def measured(given: Sequence[str], kind: str, cache: str) -> dict[str, dict[str, float]]:
    """Return the times of all networks in one child, by name."""
    command = [sys.executable, "-m", "benchmarks.exact", *given, CHILDREN[kind]]
    environment = {**os.environ, "WEFT_CACHE_DIR": f"{cache}/{kind}"}
    out = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
    rows = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    return {row.pop("network"): row for row in rows}


def main(given: Sequence[str] | None = None) -> None:
    """Time both kinds in turns, and print a table."""
    given = sys.argv[1:] if given is None else given
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="files of ONNX")
    parser.add_argument("--rounds", type=number, default=3, help="children of each kind")
    parser.add_argument("--runs", type=number, default=50, help="timed runs of a network in a child")
    parser.add_argument("--steps", type=number, default=16, help="nodes of the chain")
    parser.add_argument("--size", type=number, default=512, help="rows and columns")
    for flag in CHILDREN.values():
        parser.add_argument(flag, action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args(given)
    if arguments.exact or arguments.loose:
        child(arguments)
        return
    found: dict[str, list[dict[str, dict[str, float]]]] = {kind: [] for kind in CHILDREN}
    with TemporaryDirectory() as cache:
        for _ in range(arguments.rounds):
            for kind, rounds in found.items():
                rounds.append(measured(given, kind, cache))
    print(f"{'ms':16s}" + "".join(f"{f'{where}, {kind}':>16s}" for where in ("host", "device") for kind in CHILDREN))
    for network in found["exact"][0]:
        best = [min(each[network][w] for each in found[kind]) for w in ("host", "device") for kind in CHILDREN]
        print(f"{network:16s}" + "".join(f"{value:16.3f}" for value in best))


if __name__ == "__main__":
    main()
