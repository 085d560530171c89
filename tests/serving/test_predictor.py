"""`weft.Predictor` and `weft.own_device`: what workers in other processes get."""

from __future__ import annotations

import os
import pickle
import sys
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import weft
from tests.helpers.fakes import Creator, registered
from tests.helpers.nets import Net
from tests.helpers.warm_python import WarmPython
from weft.backends.cpu.backend import CpuBackend
from weft.core.graph.graph import Graph
from weft.errors import ConfigError, DeviceLost, InputError, NoDevice
from weft.models import path

X = np.array([[1, 2, 3]], np.float32)


def network() -> Graph:
    net = Net()
    return net.finish(net.add("Neg", net.input("x", "n", 3), name="y"))


def test_arrays_give_arrays_and_columns_give_columns() -> None:
    predict = weft.Predictor(network(), "cpu")
    (y,) = predict(X)
    np.testing.assert_array_equal(y, -X)
    (y,) = predict({"x": X}).values()
    columns = predict({"id": np.array([7]), "x": X})
    assert list(columns) == ["id", "y"] and columns["id"] == [7]
    np.testing.assert_array_equal(columns["y"], -X)
    with pytest.raises(InputError, match="'x' is missing"):
        predict({"id": np.array([7])})
    predict.close()


def test_a_pickle_holds_no_session_and_copies_in_one_process_share_one() -> None:
    predict = weft.Predictor(network(), "cpu")
    first = predict.session
    copies = [pickle.loads(pickle.dumps(predict)) for _ in range(2)]
    assert all(copy.session is first for copy in copies)
    other = weft.Predictor(network(), "cpu")
    assert other.session is not first
    predict.close()
    assert first.is_closed and not copies[0].session.is_closed and copies[0].session is copies[1].session


def test_a_session_outlives_its_predictor_for_the_next_task() -> None:
    pickled = pickle.dumps(weft.Predictor(network(), "cpu"))
    first = id(pickle.loads(pickled).session)
    assert id(pickle.loads(pickled).session) == first


def test_another_process_loads_the_model_at_its_first_call(
    tmp_path: Path, warm_python: WarmPython, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(path("shapes").parent)
    file = tmp_path / "predictor"
    file.write_bytes(pickle.dumps(weft.Predictor("shapes.onnx", "cpu", shapes={"image": (1, 3, 8, 8)})))
    code = f"import pickle; p = pickle.load(open({str(file)!r}, 'rb')); print(p._model, p._session)"
    done = warm_python.run("-c", code, cwd=tmp_path, env={**os.environ}, timeout=60)
    assert done.stdout.split() == [str(path("shapes")), "None"], done.stderr


def test_a_device_that_fails_is_opened_again_once() -> None:
    runs = count()

    class Weak(CpuBackend):
        def onExecuteBegin(self) -> None:
            if next(runs) in (1, 3, 4):
                raise DeviceLost("gone")
            super().onExecuteBegin()

    with registered(Creator(Weak), "weak"):
        predict = weft.Predictor(network(), "weak")
        for _ in range(2):
            np.testing.assert_array_equal(predict(X)[0], -X)
        with pytest.raises(DeviceLost):
            predict(X)
        np.testing.assert_array_equal(predict(X)[0], -X)
        predict.close()


def test_wrong_options_are_told_where_the_predictor_is_made() -> None:
    with pytest.raises(ConfigError, match=r"weft\.Predictor has no option 'precison'(.|\n)*'precision'"):
        weft.Predictor("model.onnx", "cpu", precison="low")  # type: ignore[call-arg]


# -- a device of one's own -------------------------------------------------------------------------------------


def test_processes_get_devices_of_their_own(tmp_path: Path, warm_python: WarmPython) -> None:
    """Each keeps it to its end, gets the same one again, and says when none is left."""
    code = """
import weft
first = weft.own_device(["cpu"])
assert weft.own_device(["other", "cpu"]) == "other" and weft.own_device(["cpu"]) == first
print(first, flush=True)
"""
    environment = {**os.environ, "WEFT_CACHE_DIR": str(tmp_path)}
    done = warm_python.run("-c", code, cwd=tmp_path, env=environment, timeout=60)
    assert done.stdout.split() == ["cpu"], done.stderr
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WEFT_CACHE_DIR", str(tmp_path))
        assert weft.own_device(["cpu", "other"]) == "cpu"  # which is free again
        taken = warm_python.run(
            "-c", "import weft\ntry: weft.own_device(['cpu'])\nexcept weft.WeftError as e: print(e)",
            cwd=tmp_path, env=environment, timeout=60,
        )
    assert "no device left" in taken.stdout and "other processes have cpu" in taken.stdout, taken.stderr


class Cards(Creator):
    def devices(self) -> list[weft.DeviceInfo]:
        return [weft.DeviceInfo(self.id, k, uuid, uuid=f"GPU-{uuid * 4}-{k}") for k, uuid in enumerate(("aa", "bb"))]


@pytest.mark.parametrize(
    ("ids", "own"), [(["GPU-bbbbbbbb-1"], "acme:GPU-bbbbbbbb-1"), (["4", "6"], "acme:GPU-aaaaaaaa-0"), (["1"], None)]
)
def test_a_worker_of_ray_gets_the_gpu_that_ray_gave_it(
    ids: list[str], own: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its UUID; or it is one of those that Ray leaves visible, if these are as many as Ray gave."""
    context: Any = SimpleNamespace(worker=SimpleNamespace(mode=1), get_accelerator_ids=lambda: {"GPU": ids, "TPU": []})
    ray: Any = SimpleNamespace(is_initialized=lambda: True, WORKER_MODE=1, get_runtime_context=lambda: context)
    monkeypatch.setitem(sys.modules, "ray", ray)
    with registered(Cards(id="acme", auto_rank=0), "acme"):
        if own is None:
            with pytest.raises(NoDevice, match=r"Ray gave 1, and the process sees acme:GPU-aa"):
                weft.own_device()
        else:
            assert weft.own_device() == own
            with weft.load(network(), own, shapes={"x": (1, 3)}) as session:
                assert session.report.devices[0] == f"acme:{own[-1]}"
