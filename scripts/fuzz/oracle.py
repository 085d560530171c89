"""ONNX Runtime in a child process, so that its crashes do not look like Weft's."""

from __future__ import annotations

import os
import pickle
import resource
import selectors
import struct
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from weft.core.graph.layout import Array

SECONDS = 20.0
MEMORY = 6 << 30
ROOT = Path(__file__).parents[2]


class Oracle:
    """A process that runs models; started on demand, and again after it has died."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, model: Path, *feeds: Mapping[str, Array]) -> list[list[Array]] | str:
        """Return the outputs for each of the feeds, or why there are none."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "scripts.fuzz.oracle"],
                cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            )
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            _send(process.stdin, (str(model), [dict(f) for f in feeds]))
            with selectors.DefaultSelector() as selector:
                selector.register(process.stdout, selectors.EVENT_READ)
                if not selector.select(SECONDS):
                    raise EOFError
            answer: list[list[Array]] | str = _receive(process.stdout)
        except (OSError, EOFError):
            self.close()
            return "ONNX Runtime crashed or hung"
        return answer

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def _send(stream: IO[bytes], value: object) -> None:
    content = pickle.dumps(value)
    stream.write(struct.pack("<q", len(content)) + content)
    stream.flush()


def _receive(stream: IO[bytes]) -> Any:
    head = stream.read(8)
    if len(head) < 8:
        raise EOFError
    (length,) = struct.unpack("<q", head)
    return pickle.loads(stream.read(length))  # the stream comes from our own child process


def _answer(path: str, every: list[dict[str, Array]]) -> list[list[Array]] | str:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    # No graph rewrites: the oracle is the plain kernel.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        return [[np.asarray(value) for value in session.run(None, feeds)] for feeds in every]
    except Exception as e:
        return f"ONNX Runtime refuses it: {str(e)[:200]}"


def main() -> None:
    """Answer until the pipe is closed."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # keep its own prints out of the answers
    while True:
        try:
            path, every = _receive(sys.stdin.buffer)
        except EOFError:
            return
        _send(answers, _answer(path, every))


if __name__ == "__main__":
    main()
