"""`weft.Predictor` in workers of Ray on this machine, one of which is killed; it skips where Ray is not installed.

Ray takes half a minute to start on a busy machine, so these tests are long ones.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

import weft
from tests.helpers.onnx_models import make_model, node

ray = pytest.importorskip("ray", reason="pip install 'ray[data,serve]'")
serve = pytest.importorskip("ray.serve", reason="pip install 'ray[serve]'")
pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    ray.init(num_cpus=8, include_dashboard=False, object_store_memory=100_000_000, resources={"weft": 2})
    yield
    ray.shutdown()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    file = tmp_path / "neg.onnx"
    proto = make_model([node("Neg", "x", "y")], {"x": (TensorProto.FLOAT, ("n", 3))})
    file.write_bytes(proto.SerializeToString())
    return file


def mortal(folder: Path) -> type[weft.Predictor]:
    """Return a class of predictors: they wait for each other, then one ends its process in the middle of a batch."""

    class Mortal(weft.Predictor):
        def __call__(self, *inputs: Any) -> Any:
            (folder / f"{os.getpid()}.worker").touch()
            last = monotonic() + 60
            while len([*folder.glob("*.worker")]) < 2 and monotonic() < last:
                sleep(0.05)
            made = super().__call__(*inputs)
            if 20 in inputs[0]["x"] and not (folder / "killed").exists():
                (folder / "killed").touch()
                os._exit(1)
            rows = len(made["y"])
            return made | {"pid": np.full(rows, os.getpid()), "device": [self.session.report.devices[0]] * rows}

    return Mortal


def test_ray_data_loses_no_row_when_a_worker_is_killed(cluster: None, model: Path, tmp_path: Path) -> None:
    count = 64
    rows = [{"id": k, "x": np.full(3, k, np.float32)} for k in range(count)]
    found = ray.data.from_items(rows, override_num_blocks=8).map_batches(
        mortal(tmp_path), fn_constructor_args=(str(model), partial(weft.own_device, ["cpu", "opencl:0"])), batch_size=4,
        compute=ray.data.ActorPoolStrategy(size=2), num_cpus=0, resources={"weft": 1},
    ).take_all()
    assert (tmp_path / "killed").exists() and sorted(row["id"] for row in found) == list(range(count))
    assert all((row["y"] == -row["id"]).all() for row in found)
    workers = {(row["pid"], row["device"]) for row in found}
    assert {device for _, device in workers} == {"cpu:0", "opencl:0"}  # each worker has one of its own


def test_ray_serve_answers_every_request_when_a_replica_is_killed(cluster: None, model: Path, tmp_path: Path) -> None:
    deployment = serve.deployment(mortal(tmp_path), num_replicas=2, ray_actor_options={"num_cpus": 0})
    handle = serve.run(deployment.bind(str(model), "cpu"))

    def ask(k: int) -> tuple[int, int]:
        for _ in range(20):  # Serve leaves it to callers to repeat what a replica had when it died
            try:
                made = handle.remote({"x": np.full((1, 3), k, np.float32)}).result()
            except ray.exceptions.RayError:
                continue
            return int(made["y"][0, 0]), int(made["pid"][0])
        raise AssertionError("no replica answers")

    with ThreadPoolExecutor(4) as threads:
        answers = [*threads.map(ask, range(40))]
    assert (tmp_path / "killed").exists() and [y for y, _ in answers] == [-k for k in range(40)]
    assert len({pid for _, pid in answers}) >= 2
    serve.shutdown()
