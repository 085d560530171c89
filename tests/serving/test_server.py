"""The ASGI application of `weft serve`: the Open Inference Protocol, what is malformed, reload, metrics."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto

import weft
from tests.helpers.asgi import ask, asked
from tests.helpers.onnx_models import make_model, node
from tests.helpers.waits import soon
from weft.errors import ConfigError
from weft.serving.pool import Pool
from weft.serving.protocol import HEADER_LENGTH
from weft.serving.repository import Repository, named_sources
from weft.serving.server import Server, ServerOptions

X = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
INFER = "/v2/models/neg/infer"


def write(path: Path, op: str = "Neg", dtype: int = TensorProto.FLOAT) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    model = make_model([node(op, "x", "y")], {"x": (dtype, ("n", 3))})
    path.write_bytes(model.SerializeToString())
    return path


def opened(path: Path, **more: Any) -> Pool:
    return weft.Pool(path, "cpu", batch=4, batch_wait=0.001, **more)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("models")
    kinds = {"neg": TensorProto.FLOAT, "half": TensorProto.FLOAT16, "bytes": TensorProto.INT8}
    types = kinds | {"ints": TensorProto.INT64}
    sources = {name: write(folder / f"{name}.onnx", "Neg", dtype) for name, dtype in types.items()}
    sources |= {"flags": write(folder / "flags.onnx", "Not", TensorProto.BOOL), "many": folder / "many"}
    write(folder / "many" / "1" / "model.onnx")
    write(folder / "many" / "12" / "model.onnx", "Abs")
    write(folder / "many" / "2" / "model.onnx", "Exp")
    repository = Repository(sources, opened)
    repository.load()
    yield Server(repository, ServerOptions("0", most_bytes=1 << 16))
    repository.close()


def tensor(array: np.ndarray, name: str = "x", **more: Any) -> dict[str, Any]:
    return {"name": name, "shape": list(array.shape), "datatype": "FP32", "data": array.tolist(), **more}


def binary(*arrays: np.ndarray, datatype: str = "FP32", **head: Any) -> tuple[bytes, dict[str, str]]:
    inputs = [
        {"name": "x", "shape": a.shape, "datatype": datatype, "parameters": {"binary_data_size": a.nbytes}}
        for a in arrays
    ]
    text = json.dumps({"inputs": inputs, **head}).encode()
    return b"".join([text, *(a.tobytes() for a in arrays)]), {HEADER_LENGTH: str(len(text))}


# -- what it answers ---------------------------------------------------------------------------------------------


def test_health_and_metadata(server: Server) -> None:
    assert asked(server, "GET", "/v2/health/live").status == asked(server, "GET", "/v2/health/ready").status == 200
    assert asked(server, "GET", "/v2").json == {"name": "weft", "version": "0", "extensions": ["binary_tensor_data"]}
    told = asked(server, "GET", "/v2/models/many").json
    assert told["versions"] == ["1", "2", "12"] and told["name"] == "many"
    assert told["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}]
    assert told["outputs"][0]["name"] == "y"
    assert asked(server, "GET", "/v2/models/many/versions/2/ready").status == 200
    assert asked(server, "GET", "/v2/models/many/versions/2").json == told
    assert {row["state"] for row in asked(server, "POST", "/v2/repository/index").json} == {"READY"}


def test_json_and_binary_tensors_go_in_and_come_out(server: Server) -> None:
    answer = asked(server, "POST", INFER, {"id": "7", "inputs": [tensor(X)]}).json
    assert answer == {
        "model_name": "neg", "model_version": "1", "id": "7",
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [2, 3], "data": [-1, -2, -3, -4, -5, -6]}],
    }
    body, headers = binary(X, outputs=[{"name": "y", "parameters": {"binary_data": True}}])
    response = asked(server, "POST", INFER, body, headers, chunk=7)
    length = int(response.headers[HEADER_LENGTH])
    assert json.loads(response.body[:length])["outputs"][0]["parameters"] == {"binary_data_size": 24}
    np.testing.assert_array_equal(np.frombuffer(response.body[length:], np.float32).reshape(2, 3), -X)
    packed = asked(server, "POST", INFER, gzip.compress(body), {"content-encoding": "gzip", **headers})
    assert packed.body == response.body
    body, headers = binary(X, parameters={"binary_data_output": True})
    assert asked(server, "POST", INFER, body, headers).body[-24:] == (-X).tobytes()


def test_versions_and_element_types(server: Server) -> None:
    for version, y in (("/versions/1", -X), ("", np.abs(X)), ("/versions/2", np.exp(X))):
        told = asked(server, "POST", f"/v2/models/many{version}/infer", {"inputs": [tensor(X)]}).json
        np.testing.assert_allclose(told["outputs"][0]["data"], y.ravel(), rtol=1e-6)
    half, headers = binary(X.astype(np.float16), datatype="FP16", parameters={"binary_data_output": True})
    answer = asked(server, "POST", "/v2/models/half/infer", half, headers)
    assert answer.body[-12:] == (-X).astype(np.float16).tobytes()
    flags = tensor(np.array([[True, False, True]]), datatype="BOOL")
    assert asked(server, "POST", "/v2/models/flags/infer", {"inputs": [flags]}).json["outputs"][0]["data"] == [
        False, True, False,
    ]
    whole = tensor(np.array([[2**62, -5, 0]]), datatype="INT64")
    assert asked(server, "POST", "/v2/models/ints/infer", {"inputs": [whole]}).json["outputs"][0]["data"] == [
        -(2**62), 5, 0,
    ]


WRONG: dict[str, tuple[str, Any, int, str]] = {
    "no JSON": ("neg", b"{", 400, "no JSON"),
    "deep JSON": ("neg", b"[" * 60_000, 400, "no JSON"),
    "no object": ("neg", b"[]", 400, "no JSON object"),
    "no inputs": ("neg", {"inputs": 3}, 400, "'inputs' is no list"),
    "inputs that are no objects": ("neg", {"inputs": [3]}, 400, "no JSON object"),
    "a missing input": ("neg", {"inputs": []}, 400, "0 input|is missing"),
    "an unknown input": ("neg", {"inputs": [tensor(X, "z")]}, 400, "there is no input 'z'"),
    "an input twice": ("neg", {"inputs": [tensor(X), tensor(X)]}, 400, "given twice"),
    "a name that is no text": ("neg", {"inputs": [tensor(X, 3)]}, 400, "name"),  # type: ignore[arg-type]
    "a wrong shape": ("neg", {"inputs": [tensor(X, shape=[2, 4])]}, 400, "6 numbers; its shape"),
    "a shape of another rank": ("neg", {"inputs": [tensor(X, shape=[6])]}, 400, "rank 1 instead of 2"),
    "a negative size": ("neg", {"inputs": [tensor(X, shape=[-2, -3])]}, 400, "no list of sizes"),
    "a size that is true": ("neg", {"inputs": [tensor(X, shape=[True, 6])]}, 400, "no list of sizes"),
    "a huge shape": ("neg", {"inputs": [tensor(X, shape=[10**12, 10**12])]}, 400, "6 numbers"),
    "ragged data": ("neg", {"inputs": [tensor(X, data=[[1], [2, 3]])]}, 400, "equal rows"),
    "text for numbers": ("neg", {"inputs": [tensor(X, data=["1"] * 6)]}, 400, "no numbers"),
    "an unknown type": ("neg", {"inputs": [tensor(X, datatype="BYTES")]}, 400, "known are"),
    "fractions for integers": ("bytes", {"inputs": [tensor(X + 0.5, datatype="INT8")]}, 400, "no numbers of INT8"),
    "out of range": ("bytes", {"inputs": [tensor(np.full((2, 3), 300), datatype="INT8")]}, 400, "out of the range"),
    "fp16 in JSON": ("half", {"inputs": [tensor(X, datatype="FP16")]}, 400, "binary tensor"),
    "data twice": ("neg", {"inputs": [tensor(X, parameters={"binary_data_size": 24})]}, 400, "either data"),
    "no data": ("neg", {"inputs": [{"name": "x", "shape": [1, 3], "datatype": "FP32"}]}, 400, "either data"),
    "an unknown output": ("neg", {"inputs": [tensor(X)], "outputs": [{"name": "q"}]}, 400, "no output 'q'"),
    "shared memory": ("neg", {"inputs": [tensor(X, parameters={"shared_memory_region": "r"})]}, 501, "support"),
    "an infinite output": ("neg", {"inputs": [tensor(X, data=[[1e999] * 3] * 2)]}, 400, "ask for binary_data"),
    "an unknown model": ("none", {"inputs": []}, 404, "there is no model 'none'"),
    "an unknown version": ("many/versions/7", {"inputs": []}, 404, "no version '7'"),
    "too large": ("neg", b" " * (1 << 17), 413, "larger than 65536"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_malformed_request_is_refused_and_says_why(server: Server, what: str) -> None:
    model, body, status, why = WRONG[what]
    response = asked(server, "POST", f"/v2/models/{model}/infer", body)
    assert response.status == status, response.body
    assert any(each in response.json["error"] for each in why.split("|")), response.json


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({HEADER_LENGTH: "x"}, 400), ({HEADER_LENGTH: "-1"}, 400), ({HEADER_LENGTH: "99999"}, 400),
        ({HEADER_LENGTH: "5"}, 400), ({"content-encoding": "br"}, 415), ({"content-encoding": "gzip"}, 400),
        ({"content-length": "1000000"}, 413),
    ],
)
def test_malformed_headers_are_refused(server: Server, headers: dict[str, str], status: int) -> None:
    assert asked(server, "POST", INFER, {"inputs": [tensor(X)]}, headers).status == status


def test_what_is_compressed_is_no_larger_than_allowed(server: Server) -> None:
    bomb = gzip.compress(bytes(1 << 24))
    assert len(bomb) < 1 << 16
    assert asked(server, "POST", INFER, bomb, {"content-encoding": "gzip"}).status == 413
    cut = gzip.compress(json.dumps({"inputs": [tensor(X)]}).encode())[:-9]
    assert asked(server, "POST", INFER, cut, {"content-encoding": "gzip"}).status == 400


def test_binary_tensors_of_wrong_lengths_are_refused(server: Server) -> None:
    body, headers = binary(X)
    for wrong in (body[:-1], body + b"x"):
        assert asked(server, "POST", INFER, wrong, headers).status == 400
    huge = json.dumps({"inputs": [{
        "name": "x", "shape": [1 << 40, 3], "datatype": "FP32", "parameters": {"binary_data_size": 12 << 40}
    }]}).encode()
    assert asked(server, "POST", INFER, huge, {HEADER_LENGTH: str(len(huge))}).status == 400


@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["inputs", "outputs", "name", "x", "shape", "datatype", "FP32", "data", "id",
                                       "parameters", "binary_data_size"]), inner, max_size=5),
    max_leaves=12,
))
@settings(max_examples=40, deadline=None)
def test_no_json_makes_the_server_fail(server: Server, body: Any) -> None:
    async def ask_all() -> None:
        for whole in (body, {"inputs": [body]}, {"inputs": [tensor(X) | (body if isinstance(body, dict) else {})]}):
            assert (await ask(server, "POST", INFER, json.dumps(whole).encode())).status in (200, 400, 501)

    asyncio.run(ask_all())


def test_other_methods_and_paths_are_refused(server: Server) -> None:
    assert asked(server, "GET", INFER).status == asked(server, "POST", "/v2").status == 405
    assert asked(server, "GET", "/").status == asked(server, "GET", "/v2/models/neg/../x").status == 404
    assert asked(server, "POST", "/v2/repository/models/neg/unload").status == 403
    head = asked(server, "HEAD", "/v2")
    assert head.status == 200 and not head.body


# -- many requests -----------------------------------------------------------------------------------------------


def test_a_thousand_requests_at_once_are_all_answered(server: Server) -> None:
    async def all_at_once() -> list[int]:
        bodies = [json.dumps({"inputs": [tensor(X + k)]}).encode() for k in range(1000)]
        answers = await asyncio.gather(*(ask(server, "POST", INFER, body) for body in bodies))
        assert {answer.status for answer in answers} == {200}
        return [int(answer.json["outputs"][0]["data"][0]) for answer in answers]

    assert asyncio.run(all_at_once()) == [-1 - k for k in range(1000)]
    page = asked(server, "GET", "/metrics").body.decode()
    lines = dict(line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#"))
    assert float(lines['weft_requests_total{model="neg",version="1",outcome="ok"}']) >= 1000
    assert float(lines['weft_request_seconds_bucket{model="neg",version="1",le="+Inf"}']) >= 1000
    assert float(lines['weft_rows_total{model="neg",version="1",device="cpu",replica="0"}']) >= 2000


def test_a_full_queue_and_a_slow_run_are_told_apart(tmp_path: Path) -> None:
    reached, go_on = threading.Event(), threading.Event()

    def sink(_: weft.DebugRecord) -> None:
        reached.set()
        soon(go_on)

    repository = Repository({"neg": write(tmp_path / "neg.onnx")}, lambda p: weft.Pool(p, "cpu", queue=1, debug=sink))
    repository.load()
    app = Server(repository, ServerOptions(timeout=0.1))

    async def four() -> list[int]:
        body = {"inputs": [tensor(X)]}
        first = asyncio.create_task(ask(app, "POST", INFER, body))
        await asyncio.to_thread(soon, reached)
        second = asyncio.create_task(ask(app, "POST", INFER, body))
        await asyncio.sleep(0)
        third = await ask(app, "POST", INFER, body)
        assert third.headers["retry-after"] == "1"
        return [(await first).status, (await second).status, third.status]

    assert asyncio.run(four()) == [504, 504, 503]
    go_on.set()
    repository.close()


def test_the_request_of_a_client_that_leaves_is_not_run(tmp_path: Path) -> None:
    reached, go_on = threading.Event(), threading.Event()

    def sink(_: weft.DebugRecord) -> None:
        reached.set()
        soon(go_on)

    repository = Repository({"neg": write(tmp_path / "neg.onnx")}, lambda p: weft.Pool(p, "cpu", debug=sink))
    repository.load()
    pool = repository.pools["neg", "1"]
    first = pool.submit(X)
    soon(reached)
    assert asked(Server(repository, ServerOptions()), "POST", INFER, {"inputs": [tensor(X)]}).status == 400
    go_on.set()
    first.result()
    repository.close()
    assert (pool.report.done, pool.report.cancelled) == (1, 1)


# -- models that change ------------------------------------------------------------------------------------------


def touch(path: Path, seconds: int) -> None:
    os.utime(path, (seconds, seconds))


def answers(app: Server, path: str = INFER) -> float:
    first: float = asked(app, "POST", path, {"inputs": [tensor(X)]}).json["outputs"][0]["data"][1]
    return first


def test_a_changed_file_takes_its_place_and_a_broken_one_does_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = write(tmp_path / "neg.onnx")
    repository = Repository(named_sources([str(file)]), opened)
    repository.load()
    app = Server(repository, ServerOptions(control=True))
    old = repository.pools["neg", "1"]
    assert answers(app) == -2
    write(file, "Exp")
    touch(file, 1)
    repository.refresh()
    assert answers(app) == pytest.approx(np.exp(2.0)) and old.is_closed
    file.write_bytes(b"broken")
    touch(file, 2)
    repository.refresh()
    repository.refresh()
    assert answers(app) == pytest.approx(np.exp(2.0)) and caplog.text.count("cannot be loaded") == 1
    assert repository.index[0]["state"] == "READY" and repository.index[0]["reason"]
    assert asked(app, "POST", "/v2/repository/models/neg/load").status == 400
    write(file, "Abs")
    touch(file, 3)
    assert asked(app, "POST", "/v2/repository/models/neg/load").status == 200
    assert answers(app) == 2
    assert asked(app, "POST", "/v2/repository/models/neg/load", {"parameters": {"config": "{}"}}).status == 501
    assert asked(app, "POST", "/v2/repository/models/other/load").status == 404
    unload = {"parameters": {"unload_dependents": False}}  # as Triton's client sends it
    assert asked(app, "POST", "/v2/repository/models/neg/unload", unload).status == 200
    repository.refresh()
    assert asked(app, "POST", INFER, {"inputs": [tensor(X)]}).status == 503
    assert repository.is_ready and repository.index == [{"name": "neg", "state": "UNAVAILABLE", "reason": "unloaded"}]
    assert asked(app, "POST", "/v2/repository/models/neg/load").status == 200 and answers(app) == 2
    repository.close()


def test_versions_come_and_go(tmp_path: Path) -> None:
    write(tmp_path / "m" / "1" / "model.onnx")
    repository = Repository({"m": tmp_path / "m"}, opened)
    repository.load()
    app, path = Server(repository, ServerOptions()), "/v2/models/m/infer"
    assert answers(app, path) == -2
    second = write(tmp_path / "m" / "2" / "model.onnx", "Abs")
    repository.refresh()
    assert answers(app, path) == 2 and answers(app, "/v2/models/m/versions/1/infer") == -2
    second.unlink()
    second.parent.rmdir()
    repository.refresh()
    assert answers(app, path) == -2
    repository.close()


def test_the_lifespan_polls_and_closes(tmp_path: Path) -> None:
    file = write(tmp_path / "neg.onnx")
    repository = Repository({"neg": file}, opened)
    repository.load()
    pool = repository.pools["neg", "1"]
    app = Server(repository, ServerOptions(poll=0.01))

    async def live() -> None:
        told: asyncio.Queue[Any] = asyncio.Queue()
        said: asyncio.Queue[Any] = asyncio.Queue()
        task = asyncio.create_task(app({"type": "lifespan"}, told.get, said.put))
        await told.put({"type": "lifespan.startup"})
        assert (await said.get())["type"] == "lifespan.startup.complete"
        write(file, "Abs")
        touch(file, 1)
        while not pool.is_closed:
            await asyncio.sleep(0.01)
        await told.put({"type": "lifespan.shutdown"})
        await task
        assert (await said.get())["type"] == "lifespan.shutdown.complete"

    asyncio.run(asyncio.wait_for(live(), 60))
    assert not repository.pools


def test_models_that_are_not_there_are_errors_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "empty" / "1").mkdir(parents=True)
    for source in (tmp_path / "none.onnx", tmp_path, tmp_path / "empty"):
        with pytest.raises(ConfigError):
            Repository({"m": source}, opened).load()
    with pytest.raises(ConfigError, match="two models are 'a'"):
        named_sources(["a.onnx", "b/a.onnx"])
    assert named_sources(["a.onnx", "c=b/a.onnx"]) == {"a": Path("a.onnx"), "c": Path("b/a.onnx")}
