"""ONNX Runtime's WebGPU side: the plugin `onnxruntime-ep-webgpu`, with graph capture, through IO binding.

Host to host: numpy arrays are copied into the fixed values of the binding, a captured graph is replayed, and the
outputs are copied to numpy arrays. As its documentation asks, memory patterns are off and all values are WebGPU's. What
a captured graph cannot have (nodes on the CPU) is an error, which becomes the reason why the row is absent.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import onnx

from benchmarks.measure import Array, Counts, Row, Workload

WHO = "onnxruntime webgpu"
PRECISIONS = ("fp32", "fp16")
CAPTURE = {"enableGraphCapture": "1"}


def facts() -> str:
    """Return the versions and the device; an error if there is none."""
    from importlib.metadata import version

    found = _device()
    return f"{version('onnxruntime-ep-webgpu')} of ONNX Runtime {version('onnxruntime')}, {found.ep_vendor}"


@cache
def _device() -> Any:
    import onnxruntime as ort
    import onnxruntime_ep_webgpu as plugin

    ort.register_execution_provider_library("webgpu", plugin.get_library_path())
    found = [d for d in ort.get_ep_devices() if d.ep_name == plugin.get_ep_name()]
    if not found:
        raise RuntimeError("ONNX Runtime lists no device for WebGPU")
    return found[0]


def prepared(case: Workload, precision: str, counts: Counts) -> Callable[[], Row]:
    """Load a network; return what checks and times it. Both raise what ONNX Runtime raises."""
    found = Row(case.network, case.batch, WHO, precision)
    run = _Binding(case, case.model if precision == "fp32" else _halved(case.model))

    def take() -> Row:
        found.compare(run(), case)
        found.compare(found.time(run, counts), case)
        return found

    return take


def _halved(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model that computes in fp16, with the same types at its edges."""
    from onnxruntime.transformers.float16 import convert_float_to_float16

    made: onnx.ModelProto = convert_float_to_float16(model, keep_io_types=True)
    return made


class _Binding:
    """A session with all values bound to the device; call it for a run."""

    def __init__(self, case: Workload, model: onnx.ModelProto) -> None:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.enable_mem_pattern = False
        options.add_provider_for_devices([_device()], CAPTURE)
        self._session = ort.InferenceSession(model.SerializeToString(), sess_options=options)
        self._binding = self._session.io_binding()
        self._inputs: list[tuple[Any, Array]] = []
        for name, array in case.inputs.items():
            value = ort.OrtValue.ortvalue_from_shape_and_type(array.shape, array.dtype, "webgpu", 0)
            self._binding.bind_ortvalue_input(name, value)
            self._inputs.append((value, np.ascontiguousarray(array)))
        for info, output in zip(self._session.get_outputs(), case.outputs, strict=True):
            value = ort.OrtValue.ortvalue_from_shape_and_type(output.shape, output.dtype, "webgpu", 0)
            self._binding.bind_ortvalue_output(info.name, value)

    def __call__(self) -> list[Array]:
        """Return the outputs for the arrays of the case."""
        for value, array in self._inputs:
            value.update_inplace(array)
        self._session.run_with_iobinding(self._binding)
        outputs: list[Array] = self._binding.copy_outputs_to_cpu()
        return outputs
