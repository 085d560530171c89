"""ONNX Runtime and ONNX's own evaluator in a child process, so that their crashes do not look like Weft's."""

from __future__ import annotations

import os
import pickle
import resource
import selectors
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from weft.core.graph.layout import Array

SECONDS = 20.0
MEMORY = 6 << 30
NAMES = {"run": "ONNX Runtime", "evaluate": "ONNX's evaluator"}
ROOT = Path(__file__).parents[2]


class Oracle:
    """A process that runs models; started on demand, and again after it has died."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, model: Path, *feeds: Mapping[str, Array]) -> list[list[Array]] | str:
        """Return ONNX Runtime's outputs for each of the feeds, or why there are none."""
        return self._ask("run", model, feeds)

    def evaluate(self, model: Path, *feeds: Mapping[str, Array]) -> list[list[Array]] | str:
        """Return the outputs of ONNX's own evaluator, or why there are none.

        All feeds but the first are given to the model with its float constants a rounding error smaller.
        """
        return self._ask("evaluate", model, feeds)

    def _ask(self, how: str, model: Path, feeds: Sequence[Mapping[str, Array]]) -> list[list[Array]] | str:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "scripts.fuzz.oracle"],
                cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            )
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            _send(process.stdin, (how, str(model), [dict(f) for f in feeds]))
            with selectors.DefaultSelector() as selector:
                selector.register(process.stdout, selectors.EVENT_READ)
                if not selector.select(SECONDS):
                    raise EOFError
            answer: list[list[Array]] | str = _receive(process.stdout)
        except (OSError, EOFError):
            self.close()
            return f"{NAMES[how]} crashed or hung"
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


def _run(path: str, every: list[dict[str, Array]]) -> list[list[Array]]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    # No graph rewrites: the oracle is the plain kernel.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return [[np.asarray(value) for value in session.run(None, feeds)] for feeds in every]


def _evaluate(path: str, every: list[dict[str, Array]]) -> list[list[Array]]:
    import onnx
    import onnx.inliner
    from onnx import numpy_helper
    from onnx.reference import ReferenceEvaluator

    model = onnx.load(path)
    for place in (model, *model.functions):  # the evaluator knows ONNX's own domain by its short name alone
        for each in (*place.opset_import, *(place.graph if place is model else place).node):
            each.domain = "" if each.domain == "ai.onnx" else each.domain
    model = onnx.inliner.inline_local_functions(model)  # it loses attributes of functions in branches
    results = []
    for feeds in every:
        results.append([np.asarray(value) for value in ReferenceEvaluator(model).run(None, feeds)])
        for tensor in model.graph.initializer:
            if tensor.data_type == onnx.TensorProto.FLOAT:
                smaller = numpy_helper.to_array(tensor) * np.float32(1 - 1e-6)
                tensor.CopyFrom(numpy_helper.from_array(smaller, tensor.name))
    return results


def _answer(how: str, path: str, every: list[dict[str, Array]]) -> list[list[Array]] | str:
    try:
        return (_run if how == "run" else _evaluate)(path, every)
    except Exception as e:
        return f"{NAMES[how]} refuses it: {str(e)[:200]}"


def main() -> None:
    """Answer until the pipe is closed."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # keep its own prints out of the answers
    while True:
        try:
            how, path, every = _receive(sys.stdin.buffer)
        except EOFError:
            return
        _send(answers, _answer(how, path, every))


if __name__ == "__main__":
    main()
