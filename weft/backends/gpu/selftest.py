"""Are kernels for special hardware right on this device? Asked by value when a device is first used.

Each has a portable twin. Where a result is not what the op's numpy reference says, the twin is used, and
reports say so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from weft.core.backend import BackendConfig, BackendInfo, Precision
from weft.core.dtypes import DType
from weft.core.graph import Graph, Node, infer_shapes
from weft.core.layout import Array, Shape
from weft.core.op import Op
from weft.core.optimized import Part
from weft.core.pipeline import Pipeline
from weft.core.tensor import TensorSpec
from weft.errors import WeftError
from weft.ops.conv import Conv
from weft.ops.softmax import Softmax

if TYPE_CHECKING:
    from weft.backends.gpu.runtime import GpuRuntime

CASES: tuple[tuple[Shape, Shape], ...] = (
    ((2, 13, 9, 7), (20, 13, 1, 1)),
    ((1, 24, 10, 6), (40, 24, 3, 3)),
    ((1, 260, 4, 5), (36, 260, 3, 3)),
)
"""Shapes of images and weights: uneven ones, with and without taps, with few and with many steps of K."""
TOLERANCE = 4e-3
"""Of the largest result: fp16 rounds it by 5e-4."""


def verify_matrix_units(runtime: GpuRuntime) -> str | None:
    """Return why the device's matrix units are not to be used, or None; convolutions in fp16 are run on them."""
    for image, weight in CASES:
        try:
            worst = _convolved(runtime, image, weight)
        except WeftError as e:
            return f"a convolution of {image} with {weight} failed: {e.what}"
        if not worst <= TOLERANCE:
            return f"a convolution of {image} with {weight} was wrong by {worst:.1e} of its largest value"
    return None


def verify_shuffles(runtime: GpuRuntime) -> str | None:
    """Return why work-items are not to exchange values, or None; lines of a softmax are divided among them."""
    for shape in ((5, 1000), (37, 20)):
        x = np.random.default_rng(0).standard_normal(shape).astype(np.float16)
        try:
            worst = _difference(runtime, Softmax(axis=-1), {"x": x})
        except WeftError as e:
            return f"a softmax of {shape} failed: {e.what}"
        if not worst <= TOLERANCE:
            return f"a softmax of {shape} was wrong by {worst:.1e} of its largest value"
    return None


def _convolved(runtime: GpuRuntime, image: Shape, weight: Shape) -> float:
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype(np.float16) for shape in (image, weight))
    bias = rng.standard_normal(weight[0]).astype(np.float16)
    op = Conv(kernel_shape=weight[2:], pads=tuple(k // 2 for k in weight[2:]) * 2)
    return _difference(runtime, op, {"x": x, "w": w, "b": bias})


def _difference(runtime: GpuRuntime, op: Op, inputs: dict[str, Array]) -> float:
    """Return the largest difference from the reference, as a part of the largest value; inputs but x are constants."""
    # Late: backends have runtimes, and these are verified by backends that are made here.
    from weft.backends.gpu.backend import GpuBackend

    graph = Graph("selftest", ["x"], ["y"], [Node("op", op, tuple(inputs), ("y",))])
    graph.constants = {name: value for name, value in inputs.items() if name != "x"}
    graph.specs = {name: TensorSpec(value.shape, DType.FLOAT16) for name, value in inputs.items()}
    graph = infer_shapes(graph)
    info = BackendInfo(runtime.device.info.id, runtime.device.info.index, BackendConfig(precision=Precision.LOW))
    backend = GpuBackend(info, runtime)
    part = Part(info.device, graph)
    pipeline = Pipeline(part, backend)
    try:
        pipeline.resize(part, {}, {"y"}, first=True)
        pipeline.port("x").memory[...] = inputs["x"]
        pipeline.execute()
        pipeline.wait()
        actual = pipeline.port("y").numpy().astype(np.float32)
    finally:
        pipeline.close()
    expected = np.asarray(op.reference(*inputs.values()), np.float32)
    with np.errstate(all="ignore"):
        return float(np.abs(actual - expected).max() / np.abs(expected).max())
