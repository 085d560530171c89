"""Run a network in workers of Ray: over a table with Ray Data, or behind Ray Serve.

    pip install "ray[data,serve]"
    python ray_workers.py model.onnx data --rows 1000 --workers 2 --devices cpu,opencl
    python ray_workers.py model.onnx serve --requests 100 --workers 2 --devices cpu,opencl

On NVIDIA's GPUs leave --devices out: each worker asks Ray for one GPU, and `weft.own_device` finds it by its UUID. Ray
gives no names of other GPUs, such as Intel's and AMD's, that Weft knows. Name them, "vulkan:0,vulkan:1": the machine
then has a resource "weft" of as many, each worker asks for one, and takes a device that no other worker has.

A worker that dies is replaced by Ray, which tries its rows again. The network gets random numbers.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

import numpy as np
import ray
from ray import serve

import weft
from weft.extend import Array


def inputs_of(model: str, rows: int) -> dict[str, Array]:
    """Return random numbers for the network's inputs, with so many rows."""
    with weft.load(model, "cpu") as session:
        shapes = {n: [rows, *(d if isinstance(d, int) else 1 for d in s[1:])] for n, s in session.inputs.items()}
    rng = np.random.default_rng(0)
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def run_data(model: str, options: argparse.Namespace, resources: dict[str, Any], device: Any) -> None:
    """Run the network on each row of a table."""
    table = inputs_of(model, options.rows)
    rows = [{"row": k, **{name: values[k] for name, values in table.items()}} for k in range(options.rows)]
    dataset = ray.data.from_items(rows, override_num_blocks=4 * options.workers)
    found = dataset.map_batches(
        weft.Predictor, fn_constructor_args=(model, device), batch_size=options.batch,
        compute=ray.data.ActorPoolStrategy(size=options.workers), **resources,
    )
    seen = sorted(row["row"] for row in found.iter_rows())
    print(f"{len(seen)} rows, all there: {seen == list(range(options.rows))}")


def run_serve(model: str, options: argparse.Namespace, resources: dict[str, Any], device: Any) -> None:
    """Ask replicas of the network, which share the requests."""
    deployment = serve.deployment(weft.Predictor, num_replicas=options.workers, ray_actor_options=resources)
    handle = serve.run(deployment.bind(model, device))
    request = inputs_of(model, 1)
    answers = [handle.remote(request) for _ in range(options.requests)]
    print(f"{sum(1 for answer in answers if answer.result())} answers")
    serve.shutdown()


def main() -> None:
    """Start Ray on this machine, and do what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("what", choices=["data", "serve"])
    parser.add_argument("--devices", default="", help="names with commas between them; without them NVIDIA's GPUs")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--requests", type=int, default=100)
    options = parser.parse_args()
    names = [name for name in options.devices.split(",") if name]
    ray.init(resources={"weft": len(names)})
    if names:
        each: dict[str, Any] = {"num_cpus": 0, "resources": {"weft": 1}}
        device: Any = partial(weft.own_device, names)
    else:
        each, device = {"num_cpus": 0, "num_gpus": 1}, weft.own_device
    {"data": run_data, "serve": run_serve}[options.what](options.model, options, each, device)


if __name__ == "__main__":
    main()
