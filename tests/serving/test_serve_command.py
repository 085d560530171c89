"""`weft serve` as a process, driven by Triton's own client; what needs uvicorn or the client skips without them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from tests.helpers.cli import Cli
from tests.helpers.onnx_models import make_model, node

ROOT = Path(__file__).parents[2]
X = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    file = tmp_path / "neg.onnx"
    file.write_bytes(make_model([node("Neg", "x", "y")], {"x": (TensorProto.FLOAT, ("n", 3))}).SerializeToString())
    return file


@pytest.fixture
def process(model: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Give a server and its address; end it if the test did not."""
    pytest.importorskip("uvicorn", reason='pip install "weft[serve]"')
    command = [sys.executable, "-m", "weft", "serve", str(model), "--device", "cpu", "--port", "0", "--batch", "8"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    served = subprocess.Popen([*command, "--control"], stdout=subprocess.PIPE, text=True, env=environment)
    assert served.stdout is not None
    try:
        assert served.stdout.readline() == "neg: version 1\n"
        yield served, served.stdout.readline().strip().removeprefix("http://").removesuffix("/v2")
    finally:
        served.kill()
        served.wait()
        served.stdout.close()


def test_tritons_client_gets_what_it_asks_for(process: tuple[Any, str]) -> None:
    http = pytest.importorskip("tritonclient.http", reason='pip install "tritonclient[http]"')
    with http.InferenceServerClient(process[1], concurrency=4) as client:
        assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("neg")
        assert client.get_server_metadata()["name"] == "weft"
        assert client.get_model_metadata("neg")["inputs"][0]["shape"] == [-1, 3]
        for is_binary in (True, False):
            given = http.InferInput("x", [2, 3], "FP32")
            given.set_data_from_numpy(X, binary_data=is_binary)
            wanted = [http.InferRequestedOutput("y", binary_data=is_binary)]
            for compressed in (None, "gzip", "deflate"):
                result = client.infer("neg", [given], outputs=wanted, request_compression_algorithm=compressed)
                np.testing.assert_array_equal(result.as_numpy("y"), -X)
        waiting = [client.async_infer("neg", [given]) for _ in range(20)]
        assert all((each.get_result().as_numpy("y") == -X).all() for each in waiting)
        with pytest.raises(http.InferenceServerException, match="rank 1"):
            wrong = http.InferInput("x", [3], "FP32")
            wrong.set_data_from_numpy(X[0])
            client.infer("neg", [wrong])
        client.unload_model("neg")
        assert not client.is_model_ready("neg")
        client.load_model("neg")
        assert client.is_model_ready("neg") and client.get_model_repository_index()[0]["state"] == "READY"


def test_a_thousand_connections_lose_nothing_and_sigterm_lets_a_request_end(
    process: tuple[subprocess.Popen[str], str]
) -> None:
    served, address = process
    head = b'{"inputs":[{"name":"x","shape":[2,3],"datatype":"FP32","parameters":{"binary_data_size":24}}],'
    head += b'"parameters":{"binary_data_output":true}}'
    path, headers = "/v2/models/neg/infer", {"Inference-Header-Content-Length": str(len(head))}
    connections = [HTTPConnection(address, timeout=60) for _ in range(1000)]
    try:
        for k, each in enumerate(connections):
            each.request("POST", path, head + (X + k).tobytes(), headers)
        for k, each in enumerate(connections):
            answer = each.getresponse()
            assert answer.status == 200
            np.testing.assert_array_equal(np.frombuffer(answer.read()[-24:], np.float32).reshape(2, 3), -X - k)
        last = connections[0]
        last.putrequest("POST", path)
        for name, value in (*headers.items(), ("Content-Length", str(len(head) + 24)), ("Expect", "100-continue")):
            last.putheader(name, value)
        last.endheaders(head)
        assert last.sock.recv(100).startswith(b"HTTP/1.1 100")  # the server has begun with it
        served.send_signal(signal.SIGTERM)
        last.send(X.tobytes())
        assert last.getresponse().read()[-24:] == (-X).tobytes()
    finally:
        for each in connections:
            each.close()
    assert served.wait(60) == 0


def test_what_cannot_be_served_is_an_error_of_the_command(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert "weft[serve]" in Cli(capsys)("serve", model, status=2).err
