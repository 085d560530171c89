"""Compare the CPU, which is numpy, with ONNX Runtime on the same cores: forty ops, and eight networks.

    python -m benchmarks.cpu ops        forty ops alone, of sizes that networks have
    python -m benchmarks.cpu networks   eight networks of random weights, batch 1
    taskset -c 0,1 python -m benchmarks.cpu networks --threads 2 --wall

Both compute in this process, in turns, with `--threads` threads each. A time is that of the CPU, all threads together,
so that other programs on the machine matter little; with `--wall` it is that of the clock, for a machine that is idle.
The least of several runs counts. Weft runs as a user has it: a session that is given arrays and returns arrays. The
last line is the geometric mean of the ratios.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from time import perf_counter, process_time
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

Array = np.ndarray[Any, Any]
Made = Callable[[], tuple[onnx.ModelProto, Mapping[str, Array]]]
"""Returns a model and its inputs."""
Clock = Callable[[], float]
ENOUGH = 0.25
"""Seconds that the runs of one library take at least, unless they are more than MOST."""
MOST = 200


class Graph:
    """An ONNX model as it is written down: each call adds a node and returns its output."""

    def __init__(self, **inputs: Array) -> None:
        self.inputs = inputs
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []
        self._rng = np.random.default_rng(0)

    def __call__(self, op: str, *inputs: str | Array | None, outputs: int = 1, **attributes: Any) -> Any:
        """Add a node; arrays are constants, and None leaves an input out. Return its output, or a list of them."""
        names = [self._named(each) for each in inputs]
        made = [f"v{len(self._nodes)}_{k}" for k in range(outputs)]
        self._nodes.append(helper.make_node(op, names, made, **attributes))
        return made[0] if outputs == 1 else made

    def _named(self, value: str | Array | None) -> str:
        if value is None or isinstance(value, str):
            return value or ""
        self._weights.append(numpy_helper.from_array(value, f"c{len(self._weights)}"))
        return self._weights[-1].name

    def random(self, *shape: int, deviation: float = 1.0) -> Array:
        """Return normal numbers."""
        return self._rng.standard_normal(shape, np.float32) * np.float32(deviation)

    def conv(self, x: str, inner: int, outer: int, kernel: int, stride: int = 1, *, group: int = 1, dilation: int = 1,
             act: str = "Relu") -> str:
        """Add a convolution that keeps the size, a batch norm, and an activation."""
        weights = self.random(outer, inner // group, kernel, kernel, deviation=(2 * group / inner) ** 0.5 / kernel)
        pad = (kernel - 1) // 2 * dilation
        y = self("Conv", x, weights, strides=[stride] * 2, pads=[pad] * 4, group=group, dilations=[dilation] * 2)
        one, zero = np.ones(outer, np.float32), np.zeros(outer, np.float32)
        y = self("BatchNormalization", y, one, zero, zero, one)
        if act == "Swish":
            return str(self("Mul", y, self("Sigmoid", y)))
        return str(self(act, y)) if act else str(y)

    def squeezed(self, x: str, channels: int, inner: int, first: str, last: str) -> str:
        """Scale the channels by what two layers make of their means."""
        y = self("GlobalAveragePool", x)
        y = self("Conv", y, self.random(inner, channels, 1, 1, deviation=channels**-0.5), np.zeros(inner, np.float32))
        y = self("Mul", y, self("Sigmoid", y)) if first == "Swish" else self(first, y)
        y = self("Conv", y, self.random(channels, inner, 1, 1, deviation=inner**-0.5), np.zeros(channels, np.float32))
        return str(self("Mul", x, self(last, y)))

    def model(self, *outputs: str) -> tuple[onnx.ModelProto, Mapping[str, Array]]:
        """Return the model and its inputs."""
        kinds = {n: helper.np_dtype_to_tensor_dtype(a.dtype) for n, a in self.inputs.items()}
        given = [helper.make_tensor_value_info(n, kinds[n], a.shape) for n, a in self.inputs.items()]
        shown = [onnx.ValueInfoProto(name=name) for name in outputs]
        graph = helper.make_graph(self._nodes, "made", given, shown, self._weights)
        opsets = [helper.make_opsetid("", 20)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
        return onnx.shape_inference.infer_shapes(model), self.inputs


def picture(side: int = 224) -> Array:
    """Return random pixels."""
    return np.random.default_rng(1).standard_normal((1, 3, side, side), np.float32)


# -- networks --------------------------------------------------------------------------------------------------


def mobilenet_v2() -> tuple[onnx.ModelProto, Mapping[str, Array]]:
    """Return the network of `benchmarks.models`."""
    from benchmarks import models

    return models.mobilenet_v2(), {"x": picture()}


def resnet50() -> tuple[onnx.ModelProto, Mapping[str, Array]]:
    """Return the network of `benchmarks.models`."""
    from benchmarks import models

    return models.resnet50(), {"x": picture()}


V3_SMALL = (
    (3, 16, 16, True, "Relu", 2), (3, 72, 24, False, "Relu", 2), (3, 88, 24, False, "Relu", 1),
    (5, 96, 40, True, "HardSwish", 2), (5, 240, 40, True, "HardSwish", 1), (5, 240, 40, True, "HardSwish", 1),
    (5, 120, 48, True, "HardSwish", 1), (5, 144, 48, True, "HardSwish", 1), (5, 288, 96, True, "HardSwish", 2),
    (5, 576, 96, True, "HardSwish", 1), (5, 576, 96, True, "HardSwish", 1),
)
"""MobileNetV3-small: kernel, inner and outer channels, whether channels are scaled, activation, stride."""


def mobilenet_v3_small() -> tuple[onnx.ModelProto, Mapping[str, Array]]:
    """Return MobileNetV3-small."""
    net = Graph(x=picture())
    y, channels = net.conv("x", 3, 16, 3, 2, act="HardSwish"), 16
    for kernel, inner, outer, scaled, act, stride in V3_SMALL:
        z = net.conv(y, channels, inner, 1, act=act) if inner != channels else y
        z = net.conv(z, inner, inner, kernel, stride, group=inner, act=act)
        z = net.squeezed(z, inner, max(8, inner // 4 // 8 * 8), "Relu", "HardSigmoid") if scaled else z
        z = net.conv(z, inner, outer, 1, act="")
        y, channels = (net("Add", y, z) if stride == 1 and outer == channels else z), outer
    y = net("Flatten", net("GlobalAveragePool", net.conv(y, 96, 576, 1, act="HardSwish")))
    y = net("HardSwish", net("Gemm", y, net.random(1024, 576, deviation=0.04), transB=1))
    return net.model(net("Gemm", y, net.random(1000, 1024, deviation=0.03), transB=1))


B0 = (
    (3, 1, 16, 1, 1), (3, 6, 24, 2, 2), (5, 6, 40, 2, 2), (3, 6, 80, 3, 2), (5, 6, 112, 3, 1), (5, 6, 192, 4, 2),
    (3, 6, 320, 1, 1),
)
"""EfficientNet-B0: kernel, expansion, channels, blocks and first stride of each stage."""


def efficientnet_b0() -> tuple[onnx.ModelProto, Mapping[str, Array]]:
    """Return EfficientNet-B0."""
    net = Graph(x=picture())
    y, channels = net.conv("x", 3, 32, 3, 2, act="Swish"), 32
    for kernel, expand, outer, blocks, first in B0:
        for block in range(blocks):
            inner, stride = channels * expand, first if block == 0 else 1
            z = net.conv(y, channels, inner, 1, act="Swish") if expand > 1 else y
            z = net.conv(z, inner, inner, kernel, stride, group=inner, act="Swish")
            z = net.squeezed(z, inner, max(1, channels // 4), "Swish", "Sigmoid")
            z = net.conv(z, inner, outer, 1, act="")
            y, channels = (net("Add", y, z) if stride == 1 and outer == channels else z), outer
    y = net("Flatten", net("GlobalAveragePool", net.conv(y, 320, 1280, 1, act="Swish")))
    return net.model(net("Gemm", y, net.random(1000, 1280, deviation=0.03), transB=1))


def unet() -> tuple[onnx.ModelProto, Mapping[str, Array]]:
    """Return the U-Net of `benchmarks.unet`, for pictures of 192 x 192."""
    net, sizes, passed = Graph(x=picture(192)), (32, 64, 128, 256), []
    y = net.conv(net.conv("x", 3, 32, 3), 32, 32, 3)
    for inner, outer in pairwise(sizes):
        passed.append(y)
        y = net("MaxPool", y, kernel_shape=[2, 2], strides=[2, 2])
        y = net.conv(net.conv(y, inner, outer, 3), outer, outer, 3)
    for inner, outer in reversed(list(pairwise(sizes))):
        up = net("ConvTranspose", y, net.random(outer, inner, 2, 2, deviation=outer**-0.5), strides=[2, 2])
        y = net.conv(net.conv(net("Concat", passed.pop(), up, axis=1), outer, inner, 3), inner, inner, 3)
    return net.model(net("Conv", y, net.random(2, 32, 1, 1)))


def deeplab_v3() -> tuple[onnx.ModelProto, Mapping[str, Array]]:
    """Return DeepLabV3 with a ResNet-50 that is dilated from stride 8 on, for pictures of 192 x 192."""
    net = Graph(x=picture(192))
    y, channels = net("MaxPool", net.conv("x", 3, 64, 7, 2), kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4), 64
    for inner, blocks, first, dilation in ((64, 3, 1, 1), (128, 4, 2, 1), (256, 6, 1, 2), (512, 3, 1, 4)):
        for block in range(blocks):
            stride = first if block == 0 else 1
            z = net.conv(y, channels, inner, 1)
            z = net.conv(z, inner, inner, 3, stride, dilation=dilation)
            z = net.conv(z, inner, 4 * inner, 1, act="")
            y = y if block else net.conv(y, channels, 4 * inner, 1, stride, act="")
            y, channels = net("Relu", net("Add", y, z)), 4 * inner
    parts = [net.conv(y, 2048, 256, 1)] + [net.conv(y, 2048, 256, 3, dilation=d) for d in (12, 24, 36)]
    whole = net.conv(net("GlobalAveragePool", y), 2048, 256, 1)
    size = np.array([1, 256, 24, 24])
    parts.append(net("Resize", whole, None, None, size, mode="linear"))
    y = net.conv(net.conv(net("Concat", *parts, axis=1), 1280, 256, 1), 256, 256, 3)
    y = net("Conv", y, net.random(21, 256, 1, 1, deviation=0.06))
    return net.model(net("Resize", y, None, None, np.array([1, 21, 192, 192]), mode="linear"))


def bert() -> tuple[onnx.ModelProto, Mapping[str, Array]]:
    """Return four layers of a BERT of 512 features and 8 heads, for 128 words."""
    words = np.random.default_rng(1).integers(0, 30522, (1, 128))
    net, hidden, heads = Graph(words=words), 512, 8

    def dense(x: str, inner: int, outer: int) -> str:
        product = net("MatMul", x, net.random(inner, outer, deviation=inner**-0.5))
        return str(net("Add", product, net.random(outer, deviation=0.1)))

    def norm(x: str) -> str:
        return str(net("LayerNormalization", x, np.ones(hidden, np.float32), np.zeros(hidden, np.float32)))

    x = norm(net("Add", net("Gather", net.random(30522, hidden), "words"), net.random(1, 128, hidden)))
    for _ in range(4):
        q, k, v = (net("Reshape", dense(x, hidden, hidden), np.array([1, 128, heads, -1])) for _ in range(3))
        q, v = (net("Transpose", each, perm=[0, 2, 1, 3]) for each in (q, v))
        scores = net("MatMul", q, net("Transpose", k, perm=[0, 2, 3, 1]))
        share = net("Softmax", net("Div", scores, np.array((hidden / heads) ** 0.5, np.float32)), axis=-1)
        seen = net("Transpose", net("MatMul", share, v), perm=[0, 2, 1, 3])
        x = norm(net("Add", x, dense(net("Reshape", seen, np.array([1, 128, hidden])), hidden, hidden)))
        inner = dense(x, hidden, 4 * hidden)
        gate = net("Add", net("Erf", net("Div", inner, np.array(2**0.5, np.float32))), np.array(1, np.float32))
        gelu = net("Mul", net("Mul", inner, gate), np.array(0.5, np.float32))
        x = norm(net("Add", x, dense(gelu, 4 * hidden, hidden)))
    return net.model(x)


def lstm() -> tuple[onnx.ModelProto, Mapping[str, Array]]:
    """Return two layers of LSTM of 256 features, for 64 steps."""
    net = Graph(x=np.random.default_rng(1).standard_normal((64, 1, 256), np.float32))
    y = "x"
    for _ in range(2):
        weights = [net.random(1, 1024, 256, deviation=0.06) for _ in range(2)]
        y = net("Squeeze", net("LSTM", y, *weights, net.random(1, 2048, deviation=0.1), hidden_size=256), np.array([1]))
    return net.model(net("MatMul", y, net.random(256, 1000, deviation=0.06)))


NETWORKS: dict[str, Made] = {
    "MobileNetV2": mobilenet_v2, "MobileNetV3-small": mobilenet_v3_small, "EfficientNet-B0": efficientnet_b0,
    "ResNet-50": resnet50, "U-Net": unet, "DeepLabV3": deeplab_v3, "BERT, 4 layers": bert, "LSTM, 2 layers": lstm,
}


# -- ops -------------------------------------------------------------------------------------------------------


def one(op: str, *inputs: Array | tuple[int, ...] | None, outputs: int = 1, **attributes: Any) -> Made:
    """Return a model of one node: shapes are inputs of random numbers, and arrays constants."""

    def made() -> tuple[onnx.ModelProto, Mapping[str, Array]]:
        rng = np.random.default_rng(1)
        fed = {f"x{k}": rng.standard_normal(s, np.float32) for k, s in enumerate(inputs) if isinstance(s, tuple)}
        net = Graph(**fed)
        operands = [f"x{k}" if isinstance(each, tuple) else each for k, each in enumerate(inputs)]
        results = net(op, *operands, outputs=outputs, **attributes)
        return net.model(*([results] if outputs == 1 else results))

    return made


def random(*shape: int, scale: float = 0.05) -> Array:
    """Return a constant of normal numbers."""
    return np.random.default_rng(2).standard_normal(shape, np.float32) * np.float32(scale)


_IMAGE = (1, 64, 56, 56)
_ROWS = (1, 8, 128, 128)
_MIDDLE = np.array([0, 1, 1])
OPS: dict[str, Made] = {
    "Conv 1x1": one("Conv", (1, 64, 56, 56), random(256, 64, 1, 1)),
    "Conv 3x3": one("Conv", (1, 64, 56, 56), random(64, 64, 3, 3), pads=[1] * 4),
    "Conv 3x3, stride 2": one("Conv", (1, 64, 56, 56), random(128, 64, 3, 3), pads=[1] * 4, strides=[2, 2]),
    "Conv 7x7, 3 channels": one("Conv", (1, 3, 224, 224), random(64, 3, 7, 7), pads=[3] * 4, strides=[2, 2]),
    "Conv 3x3, depthwise": one("Conv", (1, 96, 56, 56), random(96, 1, 3, 3), pads=[1] * 4, group=96),
    "Conv 5x5, depthwise": one("Conv", (1, 240, 14, 14), random(240, 1, 5, 5), pads=[2] * 4, group=240),
    "Conv 3x3, 8 groups": one("Conv", (1, 64, 28, 28), random(64, 8, 3, 3), pads=[1] * 4, group=8),
    "ConvTranspose": one("ConvTranspose", (1, 64, 28, 28), random(64, 32, 2, 2), strides=[2, 2]),
    "MatMul": one("MatMul", (128, 512), random(512, 512)),
    "MatMul, many": one("MatMul", (8, 128, 64), (8, 64, 128)),
    "Gemm": one("Gemm", (1, 1024), random(1000, 1024), random(1000), transB=1),
    "MaxPool": one("MaxPool", (1, 64, 112, 112), kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4),
    "AveragePool": one("AveragePool", _IMAGE, kernel_shape=[3, 3], pads=[1] * 4),
    "GlobalAveragePool": one("GlobalAveragePool", (1, 256, 28, 28)),
    "BatchNormalization": one("BatchNormalization", _IMAGE, *(abs(random(64)) + 1 for _ in range(4))),
    "InstanceNormalization": one("InstanceNormalization", _IMAGE, random(64), random(64)),
    "LayerNormalization": one("LayerNormalization", (1, 128, 512), random(512), random(512)),
    "Softmax": one("Softmax", _ROWS, axis=-1),
    "Softmax, first axis": one("Softmax", (64, 4096), axis=0),
    "ReduceSum, last axes": one("ReduceSum", _IMAGE, np.array([2, 3])),
    "ReduceSum, first axes": one("ReduceSum", (128, 64, 56), np.array([0])),
    "ReduceMean, middle": one("ReduceMean", _IMAGE, np.array([1])),
    "ReduceMax": one("ReduceMax", _IMAGE, np.array([2, 3])),
    "ArgMax": one("ArgMax", (1, 21, 128, 128), axis=1),
    "TopK": one("TopK", (16, 4096), np.array([5]), outputs=2),
    "Gather, large table": one("Gather", random(30000, 512), np.arange(0, 25600, 200), axis=0),
    "Relu": one("Relu", _IMAGE), "Clip": one("Clip", _IMAGE, np.zeros((), np.float32), np.ones((), np.float32)),
    "Sigmoid": one("Sigmoid", _IMAGE), "Tanh": one("Tanh", _IMAGE), "Erf": one("Erf", _IMAGE),
    "Gelu": one("Gelu", _IMAGE), "HardSwish": one("HardSwish", _IMAGE), "Exp": one("Exp", _IMAGE),
    "Add": one("Add", _IMAGE, _IMAGE), "Mul, by channel": one("Mul", _IMAGE, random(1, 64, 1, 1)),
    "Pow": one("Pow", _IMAGE, np.full((), 2, np.float32)),
    "Concat": one("Concat", _IMAGE, _IMAGE, axis=1), "Slice": one("Slice", _IMAGE, _MIDDLE, np.array([1, 50, 50])),
    "Transpose": one("Transpose", _IMAGE, perm=[0, 2, 3, 1]),
    "Resize, linear": one("Resize", (1, 32, 28, 28), None, np.array([1, 1, 2, 2], np.float32), mode="linear"),
    "Resize, nearest": one("Resize", (1, 32, 28, 28), None, np.array([1, 1, 2, 2], np.float32), mode="nearest"),
    "Pad": one("Pad", _IMAGE, np.array([0, 0, 1, 1, 0, 0, 1, 1])),
    "LSTM": one("LSTM", (32, 1, 256), random(1, 1024, 256), random(1, 1024, 256), hidden_size=256),
    "GRU": one("GRU", (32, 1, 256), random(1, 768, 256), random(1, 768, 256), hidden_size=256),
}


# -- timing ----------------------------------------------------------------------------------------------------


def compared(made: Made, threads: int, clock: Clock) -> Iterator[float]:
    """Give the seconds of a run by ONNX Runtime, and by Weft; check that both compute the same."""
    import onnxruntime

    import weft

    model, fed = made()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    # Threads that spin would count as work of the CPU.
    spin = "1" if clock is perf_counter else "0"
    options.add_session_config_entry("session.intra_op.allow_spinning", spin)
    options.add_session_config_entry("session.force_spinning_stop", "1")
    theirs = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    with weft.load(model, "cpu", backend_options={"cpu": {"threads": threads}}) as ours:
        calls: Sequence[Callable[[], Sequence[Array]]] = (
            lambda: theirs.run(None, dict(fed)), lambda: ours.run(dict(fed))
        )
        for a, b in zip(*(call() for call in calls), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-2, atol=1e-3 * max(1.0, float(abs(np.asarray(a)).max())))
        best = [math.inf, math.inf]
        counts = [max(1, min(MOST, round(ENOUGH / 5 / _seconds(call, 1, clock)))) for call in calls]
        for _ in range(5):
            for k, call in enumerate(calls):
                best[k] = min(best[k], _seconds(call, counts[k], clock))
        yield from best


def _seconds(call: Callable[[], object], count: int, clock: Clock) -> float:
    begun = clock()
    for _ in range(count):
        call()
    return max((clock() - begun) / count, 1e-7)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=["ops", "networks"])
    parser.add_argument("--only", default="", help="rows with this in their names")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--wall", action="store_true", help="take the time of the clock")
    asked = parser.parse_args()
    wanted = {name: str(asked.threads) for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    if any(os.environ.get(name) != value for name, value in wanted.items()):  # numpy's library reads them as it loads
        arguments = [sys.executable, "-m", "benchmarks.cpu", *sys.argv[1:]]
        os.execve(sys.executable, arguments, {**os.environ, **wanted})
    table, ratios = NETWORKS if asked.table == "networks" else OPS, []
    begun = perf_counter()
    unit = f"ms{'' if asked.wall else ' of the CPU'}, {asked.threads} thread(s)"
    print(f"{'':24}{'ONNX Runtime':>14}{'Weft':>12}{'ratio':>8}   {unit}")
    for name, made in table.items():
        if asked.only in name:
            theirs, ours = compared(made, asked.threads, perf_counter if asked.wall else process_time)
            ratios.append(ours / theirs)
            print(f"{name:24}{1e3 * theirs:14.3f}{1e3 * ours:12.3f}{ratios[-1]:8.2f}", flush=True)
    if ratios:
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        print(f"geometric mean of {len(ratios)}: {mean:.2f}, worst {max(ratios):.2f}; {perf_counter() - begun:.0f} s")


if __name__ == "__main__":
    main()
