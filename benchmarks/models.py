"""Build the networks that the benchmarks time, as ONNX models with random weights.

The graphs are those of ResNet-50, MobileNetV2 and SqueezeNet 1.1, layer for layer, and of the encoder of
MiniLM-L6 (`benchmarks/minilm.py`), before any graph optimisation: a Conv without bias is followed by its
own BatchNormalization, so that what a runtime folds and fuses counts towards its time.  The weights are
random, but chosen so that the values stay of order one through the whole depth: a network whose
activations die out or blow up would hide wrong arithmetic from the comparison of outputs.

    python -m benchmarks.models OUTDIR        writes resnet50.onnx, mobilenet_v2.onnx and so on
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from benchmarks.minilm import minilm_l6

RESNET50_STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))
"""ResNet-50: inner channels, blocks and first stride of each stage; a stage puts out four times as many."""

MOBILENET_V2_STAGES = (
    (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
)
"""MobileNetV2: expansion, output channels, blocks and first stride of each stage."""

SQUEEZENET1_1_FIRES = (
    (16, 64), (16, 64), (), (32, 128), (32, 128), (), (48, 192), (48, 192), (64, 256), (64, 256),
)
"""SqueezeNet 1.1: squeezed and expanded channels of each fire module; an empty entry is a max pool."""

EPSILON = 1e-5
FIRE_GAIN = 1.2


@dataclass(frozen=True)
class Value:
    """Hold a tensor of the graph, with the mean square that its elements are expected to have."""

    name: str
    channels: int
    moment: float


class Net:
    """Collect the nodes and weights of a feed-forward ONNX graph with one input and one output."""

    def __init__(self, name: str, batch: int | str, image: int, opset: int, seed: int) -> None:
        if opset < 12:
            raise ValueError(f"opset {opset}: the models need 12 or later")
        self.name, self.batch, self.image, self.opset = name, batch, image, opset
        self._rng = np.random.default_rng(seed)
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []
        self._known: set[str] = set()
        self.x = Value("x", 3, 1.0)

    def _node(self, op: str, inputs: Sequence[str], name: str, **attributes: Any) -> str:
        output = f"{name}:{op.lower()}"
        self._nodes.append(helper.make_node(op, list(inputs), [output], name=f"{name}/{op}", **attributes))
        return output

    def _constant(self, name: str, array: NDArray[np.float32]) -> str:
        if name not in self._known:
            self._known.add(name)
            self._weights.append(numpy_helper.from_array(array, name))
        return name

    def _normal(self, shape: Sequence[int], deviation: float) -> NDArray[np.float32]:
        return self._rng.standard_normal(shape, dtype=np.float32) * np.float32(deviation)

    def _uniform(self, low: float, high: float, count: int) -> NDArray[np.float32]:
        return self._rng.uniform(low, high, count).astype(np.float32)

    def conv(
        self, x: Value, channels: int, kernel: int, name: str, *,
        stride: int = 1, pad: int = 0, groups: int = 1, bias: bool = False, gain: float = 1.0,
    ) -> Value:
        """Add a square Conv with He-scaled weights, `gain` times larger."""
        inner = x.channels // groups
        fan_in = inner * kernel * kernel
        weight = self._normal((channels, inner, kernel, kernel), gain * math.sqrt(2.0 / fan_in))
        if inner > 1:
            # After a Relu every mean is positive.  Filters that sum to zero keep that shared offset from
            # drowning, layer by layer, the part of the signal that depends on the picture.
            weight -= weight.mean(axis=(1, 2, 3), keepdims=True)
        inputs = [x.name, self._constant(f"{name}.weight", weight)]
        if bias:
            inputs.append(self._constant(f"{name}.bias", self._normal((channels,), 0.1)))
        output = self._node(
            "Conv", inputs, name,
            kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[pad] * 4, dilations=[1, 1], group=groups,
        )
        return Value(output, channels, 2.0 * gain * gain * x.moment)

    def batch_norm(self, x: Value, name: str, scale: float = 1.0) -> Value:
        """Add a BatchNormalization with running statistics scattered around those expected of `x`."""
        count, spread = x.channels, math.sqrt(x.moment)
        arrays = {
            "weight": self._uniform(0.8 * scale, 1.2 * scale, count),
            "bias": self._normal((count,), 0.1 * scale),
            "running_mean": self._normal((count,), 0.1 * spread),
            "running_var": self._uniform(0.7 * x.moment, 1.4 * x.moment, count),
        }
        weights = [self._constant(f"{name}.{key}", array) for key, array in arrays.items()]
        output = self._node("BatchNormalization", [x.name, *weights], name, epsilon=EPSILON, momentum=0.9)
        return Value(output, count, scale * scale)

    def relu(self, x: Value, name: str) -> Value:
        """Add a Relu."""
        return Value(self._node("Relu", [x.name], name), x.channels, 0.5 * x.moment)

    def relu6(self, x: Value, name: str) -> Value:
        """Add a Clip to 0..6, its bounds as constant inputs."""
        low = self._constant("clip.min", np.array(0.0, np.float32))
        high = self._constant("clip.max", np.array(6.0, np.float32))
        return Value(self._node("Clip", [x.name, low, high], name), x.channels, 0.5 * x.moment)

    def add(self, a: Value, b: Value, name: str) -> Value:
        """Add the elementwise sum of two values."""
        return Value(self._node("Add", [a.name, b.name], name), a.channels, a.moment + b.moment)

    def concat(self, a: Value, b: Value, name: str) -> Value:
        """Add a Concat over the channels."""
        moment = (a.moment * a.channels + b.moment * b.channels) / (a.channels + b.channels)
        return Value(self._node("Concat", [a.name, b.name], name, axis=1), a.channels + b.channels, moment)

    def max_pool(self, x: Value, name: str, *, pad: int = 0, ceil: bool = False) -> Value:
        """Add a 3x3 MaxPool of stride 2."""
        window = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [pad] * 4, "ceil_mode": int(ceil)}
        output = self._node("MaxPool", [x.name], name, **window)
        # The largest of nine half-normal values: its mean square is about four times that of one.
        return Value(output, x.channels, 4.0 * x.moment)

    def dropout(self, x: Value, ratio: float, name: str) -> Value:
        """Add a Dropout, which does nothing in inference."""
        limit = self._constant(f"{name}.ratio", np.array(ratio, np.float32))
        return Value(self._node("Dropout", [x.name, limit], name), x.channels, x.moment)

    def average(self, x: Value, name: str) -> Value:
        """Add a GlobalAveragePool and the Flatten that makes rows of it."""
        pooled = self._node("GlobalAveragePool", [x.name], name)
        return Value(self._node("Flatten", [pooled], name, axis=1), x.channels, 0.6 * x.moment)

    def dense(self, x: Value, units: int, name: str) -> Value:
        """Add a Gemm whose results have a deviation of about three, as the logits of a trained network."""
        weight = self._normal((units, x.channels), 3.0 / math.sqrt(x.channels * x.moment))
        inputs = [x.name, self._constant(f"{name}.weight", weight)]
        inputs.append(self._constant(f"{name}.bias", self._normal((units,), 0.3)))
        return Value(self._node("Gemm", inputs, name, alpha=1.0, beta=1.0, transB=1), units, 9.0)

    def finish(self, y: Value) -> onnx.ModelProto:
        """Return the whole model, checked, with `y` as its output."""
        self._nodes[-1].output[0] = "y"
        shape = (self.batch, 3, self.image, self.image)
        graph = helper.make_graph(
            self._nodes,
            self.name,
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, (self.batch, y.channels))],
            initializer=self._weights,
        )
        opsets = [helper.make_opsetid("", self.opset)]
        version = helper.find_min_ir_version_for(opsets)
        model = helper.make_model(graph, opset_imports=opsets, ir_version=version, producer_name="weft")
        onnx.checker.check_model(model)
        return model


def scaled(channels: int, width: float) -> int:
    """Return a channel count times `width`, as a multiple of eight."""
    return max(8, 8 * round(channels * width / 8))


def _bottleneck(net: Net, x: Value, inner: int, stride: int, name: str) -> Value:
    y = net.conv(x, inner, 1, f"{name}.conv1")
    y = net.relu(net.batch_norm(y, f"{name}.bn1"), f"{name}.relu1")
    y = net.conv(y, inner, 3, f"{name}.conv2", stride=stride, pad=1)
    y = net.relu(net.batch_norm(y, f"{name}.bn2"), f"{name}.relu2")
    y = net.conv(y, 4 * inner, 1, f"{name}.conv3")
    # A branch smaller than the trunk keeps the sums of a long stage from growing.
    y = net.batch_norm(y, f"{name}.bn3", scale=0.5)
    if x.channels != y.channels or stride != 1:
        x = net.conv(x, 4 * inner, 1, f"{name}.downsample.0", stride=stride)
        x = net.batch_norm(x, f"{name}.downsample.1")
    return net.relu(net.add(y, x, f"{name}.sum"), f"{name}.relu3")


def resnet50(
    batch: int | str = 1,
    opset: int = 17,
    seed: int = 0,
    *,
    image: int = 224,
    width: float = 1.0,
    classes: int = 1000,
) -> onnx.ModelProto:
    """Build ResNet-50 with the stride on the 3x3 convolution; `width` below one makes it thinner."""
    net = Net("resnet50", batch, image, opset, seed)
    y = net.conv(net.x, scaled(64, width), 7, "conv1", stride=2, pad=3)
    y = net.relu(net.batch_norm(y, "bn1"), "relu")
    y = net.max_pool(y, "maxpool", pad=1)
    for stage, (inner, blocks, first) in enumerate(RESNET50_STAGES, start=1):
        for block in range(blocks):
            stride = first if block == 0 else 1
            y = _bottleneck(net, y, scaled(inner, width), stride, f"layer{stage}.{block}")
    return net.finish(net.dense(net.average(y, "avgpool"), classes, "fc"))


def _inverted_residual(net: Net, x: Value, expand: int, channels: int, stride: int, name: str) -> Value:
    inner, y, at = x.channels * expand, x, 0
    if expand != 1:
        y = net.conv(y, inner, 1, f"{name}.0.0")
        y = net.relu6(net.batch_norm(y, f"{name}.0.1"), f"{name}.0.2")
        at = 1
    y = net.conv(y, inner, 3, f"{name}.{at}.0", stride=stride, pad=1, groups=inner)
    y = net.relu6(net.batch_norm(y, f"{name}.{at}.1"), f"{name}.{at}.2")
    y = net.conv(y, channels, 1, f"{name}.{at + 1}")
    y = net.batch_norm(y, f"{name}.{at + 2}")
    same = stride == 1 and x.channels == channels
    return net.add(x, y, f"{name}.sum") if same else y


def mobilenet_v2(
    batch: int | str = 1,
    opset: int = 17,
    seed: int = 0,
    *,
    image: int = 224,
    width: float = 1.0,
    classes: int = 1000,
) -> onnx.ModelProto:
    """Build MobileNetV2; `width` scales every layer, the last one too."""
    net = Net("mobilenet_v2", batch, image, opset, seed)
    y = net.conv(net.x, scaled(32, width), 3, "features.0.0", stride=2, pad=1)
    y = net.relu6(net.batch_norm(y, "features.0.1"), "features.0.2")
    index = 1
    for expand, channels, blocks, first in MOBILENET_V2_STAGES:
        for block in range(blocks):
            stride = first if block == 0 else 1
            y = _inverted_residual(net, y, expand, scaled(channels, width), stride, f"features.{index}.conv")
            index += 1
    y = net.conv(y, scaled(1280, width), 1, f"features.{index}.0")
    y = net.relu6(net.batch_norm(y, f"features.{index}.1"), f"features.{index}.2")
    y = net.dropout(net.average(y, "avgpool"), 0.2, "classifier.0")
    return net.finish(net.dense(y, classes, "classifier.1"))


def _fire(net: Net, x: Value, squeeze: int, expand: int, name: str) -> Value:
    # Without BatchNormalization, nothing but the gain makes up for what the zero-sum filters take away.
    x = net.conv(x, squeeze, 1, f"{name}.squeeze", bias=True, gain=FIRE_GAIN)
    x = net.relu(x, f"{name}.squeeze_activation")
    one = net.conv(x, expand, 1, f"{name}.expand1x1", bias=True, gain=FIRE_GAIN)
    one = net.relu(one, f"{name}.expand1x1_activation")
    three = net.conv(x, expand, 3, f"{name}.expand3x3", pad=1, bias=True, gain=FIRE_GAIN)
    three = net.relu(three, f"{name}.expand3x3_activation")
    return net.concat(one, three, f"{name}.cat")


def squeezenet1_1(
    batch: int | str = 1,
    opset: int = 17,
    seed: int = 0,
    *,
    image: int = 224,
    width: float = 1.0,
    classes: int = 1000,
) -> onnx.ModelProto:
    """Build SqueezeNet 1.1: no BatchNormalization, two-way Concat, max pools that round up."""
    net = Net("squeezenet1_1", batch, image, opset, seed)
    y = net.conv(net.x, scaled(64, width), 3, "features.0", stride=2, bias=True)
    y = net.max_pool(net.relu(y, "features.1"), "features.2", ceil=True)
    for index, fire in enumerate(SQUEEZENET1_1_FIRES, start=3):
        if fire:
            y = _fire(net, y, scaled(fire[0], width), scaled(fire[1], width), f"features.{index}")
        else:
            y = net.max_pool(y, f"features.{index}", ceil=True)
    y = net.dropout(y, 0.5, "classifier.0")
    y = net.relu(net.conv(y, classes, 1, "classifier.1", bias=True, gain=3.0), "classifier.2")
    return net.finish(net.average(y, "classifier.3"))


MODELS: dict[str, Callable[..., onnx.ModelProto]] = {
    "resnet50": resnet50,
    "mobilenet_v2": mobilenet_v2,
    "squeezenet1_1": squeezenet1_1,
    "minilm_l6": minilm_l6,
}
"""Every network by name; all of them take a batch, an opset and a seed."""


def feeds(model: onnx.ModelProto, seed: int = 0) -> dict[str, NDArray[Any]]:
    """Return inputs for a model of fixed shapes: pictures of noise, or sentences of which every other is short."""
    rng = np.random.default_rng(seed)
    out: dict[str, NDArray[Any]] = {}
    for value in model.graph.input:
        shape = tuple(d.dim_value for d in value.type.tensor_type.shape.dim)
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            out[value.name] = rng.standard_normal(shape, np.float32)
        elif value.name == "attention_mask":
            out[value.name] = np.ones(shape, np.int64)
            out[value.name][1::2, shape[1] * 3 // 4 :] = 0
        else:
            words = next(w.dims[0] for w in model.graph.initializer if w.name == "embeddings.words")
            most = words if value.name == "input_ids" else 2
            out[value.name] = rng.integers(0, most, shape, np.int64)
    return out


def _shapes(model: onnx.ModelProto, unknown: int | None) -> dict[str, tuple[int, ...]]:
    """Return the shapes of values: with `unknown` for extents that are not known, or only the known ones."""
    graph = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True).graph
    shapes = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    for info in (*graph.input, *graph.value_info, *graph.output):
        dims = info.type.tensor_type.shape.dim
        extents = [dim.dim_value if dim.HasField("dim_value") else unknown for dim in dims]
        known = tuple(extent for extent in extents if extent is not None)
        if len(known) == len(extents):
            shapes[info.name] = known
    return shapes


def _terms(node: onnx.NodeProto, shapes: dict[str, tuple[int, ...]]) -> int:
    """Return how many products are summed up for one element of the node's output."""
    if node.op_type == "Conv":
        return math.prod(shapes[node.input[1]][1:])
    rows = shapes[node.input[0]]
    transposed = node.op_type == "Gemm" and any(a.name == "transA" and a.i for a in node.attribute)
    return rows[0] if transposed else rows[-1]


def flops(model: onnx.ModelProto, unknown: int | None = 1) -> int:
    """Count two operations per multiply-add of Conv, Gemm and MatMul; an extent that is not known counts as `unknown`.

    With None, a product with such an extent is a KeyError.
    """
    shapes = _shapes(model, unknown)
    products = (node for node in model.graph.node if node.op_type in ("Conv", "Gemm", "MatMul"))
    return sum(2 * math.prod(shapes[node.output[0]]) * _terms(node, shapes) for node in products)


def parameters(model: onnx.ModelProto) -> int:
    """Count the trainable numbers: every weight but running statistics and scalar settings."""
    fixed = (".running_mean", ".running_var")
    weights = (tensor for tensor in model.graph.initializer if tensor.dims)
    return sum(math.prod(tensor.dims) for tensor in weights if not tensor.name.endswith(fixed))


def main() -> None:
    """Write every model to the folder named on the command line."""
    parser = argparse.ArgumentParser(description="Write the benchmark models as ONNX files.")
    parser.add_argument("outdir", type=Path)
    parser.add_argument("--batch", default="1", help="a number, or a name for a symbolic extent")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    batch = int(options.batch) if options.batch.isdigit() else options.batch
    options.outdir.mkdir(parents=True, exist_ok=True)
    for name, build in MODELS.items():
        model = build(batch, seed=options.seed)
        onnx.save(model, options.outdir / f"{name}.onnx")
        print(f"{name:15s} {flops(model) / 1e9:6.3f} GFLOP {parameters(model) / 1e6:7.3f} M parameters")


if __name__ == "__main__":
    main()
