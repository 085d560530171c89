"""Time `weft serve` beside FastAPI with ONNX Runtime, on the same cores, in turn.

    python -m benchmarks.serve [--devices cpu,ort] [--connections 16,256] [--rounds 3]

Needs `pip install "weft[serve]" fastapi onnxruntime`. Both run under uvicorn, in one process each; FastAPI's endpoint
runs ONNX Runtime in a thread. The client is a third process on the same cores. It keeps so many connections busy, each
with one request at a time, and counts answers that are not right. Bodies are raw fp32 for FastAPI, and binary tensors
for Weft. Networks: `product`, a product of 256 x 256, nearly all of whose time is the server's, and `shapes`, the
convolutional network that comes with Weft, a picture of 196 kB in and 82 kB out.

A figure is the median of the rounds, in which the sides take turns. The CPU time of an answer is that of the server's
process, from /proc: on a machine that others use, it says more than the rate.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import weft
from benchmarks.measure import Array
from benchmarks.options import number, numbers, output, words
from weft.models import path

PEER = '''
import numpy as np, onnxruntime, uvicorn, sys
from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool

app, session = FastAPI(), onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
name, shape = session.get_inputs()[0].name, [1, *session.get_inputs()[0].shape[1:]]

def run(body):
    return session.run(None, {name: np.frombuffer(body, np.float32).reshape(shape)})[0].tobytes()

@app.post("/infer")
async def infer(request: Request):
    return Response(await run_in_threadpool(run, await request.body()), media_type="application/octet-stream")

uvicorn.run(app, port=int(sys.argv[2]), log_level="error", access_log=False)
'''
TOLERANCE = 1e-3
PORT = 18431
NETWORKS = ("product", "shapes")


@dataclass(frozen=True)
class Row:
    """The figures of one side with one network and so many connections."""

    network: str
    side: str
    connections: int
    answers_per_second: float
    p50_ms: float
    p99_ms: float
    cpu_ms: float
    """The CPU time of the server for each answer."""
    wrong: int
    """Answers that were errors or wrong numbers, over all rounds."""


@dataclass(frozen=True)
class _Round:
    times: list[float]
    wrong: int
    took: float
    cpu: float


def product(file: Path) -> Path:
    """Write a network of one product."""
    weight = np.random.default_rng(0).standard_normal((256, 256)).astype(np.float32) / 16
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 256]) for name in ("x", "y")]
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    graph = helper.make_graph(nodes, "product", ends[:1], ends[1:], [numpy_helper.from_array(weight, "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), file)
    return file


@contextmanager
def server(command: Sequence[object]) -> Iterator[int]:
    """Run a server in a process while the block runs, which begins when the port is open; give its id."""
    started = subprocess.Popen([sys.executable, *map(str, command)], stdout=subprocess.DEVNULL)
    try:
        asyncio.run(_until_open(started))
        yield started.pid
    finally:
        started.send_signal(signal.SIGTERM)
        started.wait(30)


async def _until_open(process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None:
        with suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", PORT)
            writer.close()
            return
        await asyncio.sleep(0.1)
    raise RuntimeError(f"the server ended with {process.returncode}")


async def _load(request: bytes, expected: Array, connections: int, seconds: float) -> tuple[list[float], int]:
    """Return the seconds of each answer within a time, and how many were wrong."""
    times, wrong, last = list[float](), 0, time.perf_counter() + seconds
    limit = TOLERANCE * float(np.abs(expected).max())

    async def one() -> None:
        nonlocal wrong
        reader, writer = await asyncio.open_connection("127.0.0.1", PORT)
        while (begun := time.perf_counter()) < last:
            writer.write(request)
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
            body = await reader.readexactly(length)
            times.append(time.perf_counter() - begun)
            is_right = b" 200 " in head[:16] and len(body) >= expected.nbytes
            if is_right and len(times) % 64 == 1:
                got = np.frombuffer(body[-expected.nbytes :], np.float32)
                is_right = bool(np.abs(got - expected.ravel()).max() <= limit)
            wrong += not is_right
        writer.close()

    await asyncio.gather(*(one() for _ in range(connections)))
    return times, wrong


def _cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process used so far."""
    ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


def _requests(model: str, name: str, x: Array) -> dict[str, bytes]:
    """Return the bytes of a request of each kind of server."""
    head = json.dumps({
        "inputs": [{
            "name": name, "shape": x.shape, "datatype": "FP32", "parameters": {"binary_data_size": x.nbytes},
        }],
        "parameters": {"binary_data_output": True},
    }).encode()
    lines = f"host: localhost\r\ninference-header-content-length: {len(head)}\r\n"
    return {
        "weft": _post(f"/v2/models/{model}/infer", lines, head + x.tobytes()),
        "peer": _post("/infer", "host: localhost\r\n", x.tobytes()),
    }


def _post(where: str, lines: str, body: bytes) -> bytes:
    return f"POST {where} HTTP/1.1\r\n{lines}content-length: {len(body)}\r\n\r\n".encode() + body


def measure(network: str, file: Path, x: Array, options: argparse.Namespace) -> list[Row]:
    """Return the rows of a network."""
    with weft.load(file, "cpu") as session:
        (name,), (expected,) = [*session.inputs], session.run(x)
    requests = _requests(network, name, x)
    weft_serve = ["-m", "weft", "serve", f"{network}={file}", "--port", PORT, "--batch", options.batch]
    sides: dict[str, list[object]] = {f"weft, {d}": [*weft_serve, "--device", d] for d in options.devices.split(",")}
    sides["FastAPI, ONNX Runtime"] = ["-c", PEER, file, PORT]
    found: dict[tuple[str, int], list[_Round]] = {}
    for _ in range(options.rounds):
        for side, command in sides.items():
            request = requests["weft" if side.startswith("weft") else "peer"]
            with server(command) as pid:
                asyncio.run(_load(request, expected, 4, 0.5))
                for connections in options.connections:
                    begun, cpu = time.perf_counter(), _cpu_seconds(pid)
                    times, wrong = asyncio.run(_load(request, expected, connections, options.seconds))
                    took, cpu = time.perf_counter() - begun, _cpu_seconds(pid) - cpu
                    found.setdefault((side, connections), []).append(_Round(times, wrong, took, cpu))
    return [
        Row(
            network, side, connections, median(len(r.times) / r.took for r in rounds),
            median(float(np.percentile(r.times, 50)) for r in rounds) * 1e3,
            median(float(np.percentile(r.times, 99)) for r in rounds) * 1e3,
            median(r.cpu / len(r.times) for r in rounds) * 1e3,
            sum(r.wrong for r in rounds),
        )
        for (side, connections), rounds in found.items()
    ]


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", default="cpu", help="of Weft, with commas between them")
    parser.add_argument("--networks", type=words(NETWORKS), default=NETWORKS)
    parser.add_argument("--connections", type=numbers, default=[16, 256])
    parser.add_argument("--batch", type=number, default=8, help="of Weft's pool")
    parser.add_argument("--rounds", type=number, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    parser.add_argument("--json", type=output)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    given, rng = parse(arguments), np.random.default_rng(0)
    rows = list[Row]()
    with tempfile.TemporaryDirectory() as folder:
        files = {"product": product(Path(folder) / "product.onnx"), "shapes": Path(path("shapes"))}
        shapes = {"product": (1, 256), "shapes": (1, 3, 128, 128)}
        for network in given.networks:
            x = rng.standard_normal(shapes[network]).astype(np.float32)
            rows += measure(network, files[network], x, given)
    for row in rows:
        print(
            f"{row.network:<8} {row.side:<24} {row.connections:4} connections {row.answers_per_second:8.1f}/s  "
            f"p50 {row.p50_ms:7.1f} ms  p99 {row.p99_ms:7.1f} ms  CPU {row.cpu_ms:6.2f} ms  wrong {row.wrong}"
        )
    if given.json is not None:
        Path(given.json).write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
