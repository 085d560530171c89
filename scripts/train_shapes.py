"""Train the shapes network on drawn scenes and write weft/models/shapes.onnx.

The network marks every second pixel of a 128x128 picture with the probabilities of five classes.  It
is built of most of what convolutional networks are made of (strided, depthwise and dilated Conv,
BatchNormalization, Relu, Add, Concat, MaxPool, Softmax) and is small enough to ship in the package.

Every layer below can both run in torch and write itself as ONNX nodes, so the two cannot drift apart,
and no exporter is needed.  Needs torch, onnx and onnxruntime; takes some minutes on two cores.

    python -m scripts.train_shapes [--scenes 4000] [--steps 1200] [--output weft/models/shapes.onnx]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn
from torch.nn import functional

from scripts import scenes
from weft.models import SHAPES_CLASSES

OPSET = 17
CLASSES = len(SHAPES_CLASSES)
CHANNELS = 24
PEAK_RATE = 8e-3
FRESH = 1_000_000
"""The first scene used for measuring; training scenes count from zero and never reach it."""


class Writer:
    """Collects ONNX nodes and weights."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def node(self, op: str, inputs: Sequence[str], name: str, **attributes: Any) -> str:
        """Add a node and return the name of its output."""
        output = f"{name}/{op.lower()}"
        self.nodes.append(helper.make_node(op, list(inputs), [output], name=output, **attributes))
        return output

    def weight(self, name: str, tensor: Tensor | None) -> str:
        """Add a weight and return its name."""
        assert tensor is not None
        self.weights.append(numpy_helper.from_array(tensor.detach().contiguous().numpy(), name))
        return name


class Conv(nn.Conv2d):
    """A convolution that keeps the size at stride one."""

    def __init__(
        self, inner: int, outer: int, kernel: int = 3, *,
        stride: int = 1, dilation: int = 1, groups: int = 1, bias: bool = False,
    ) -> None:
        super().__init__(
            inner, outer, kernel, stride, kernel // 2 * dilation, dilation, groups=groups, bias=bias
        )

    def write(self, to: Writer, x: str, name: str) -> str:
        """Write the ONNX node."""
        inputs = [x, to.weight(f"{name}.weight", self.weight)]
        if self.bias is not None:
            inputs.append(to.weight(f"{name}.bias", self.bias))
        pad = int(self.padding[0])
        return to.node(
            "Conv", inputs, name,
            kernel_shape=self.kernel_size, strides=self.stride, dilations=self.dilation,
            pads=[pad] * 4, group=self.groups,
        )


class Norm(nn.BatchNorm2d):
    """Normalises each channel."""

    def write(self, to: Writer, x: str, name: str) -> str:
        """Write the ONNX node, separate from the convolution before it."""
        tensors = {
            "scale": self.weight,
            "bias": self.bias,
            "mean": self.running_mean,
            "var": self.running_var,
        }
        weights = [to.weight(f"{name}.{key}", tensor) for key, tensor in tensors.items()]
        return to.node("BatchNormalization", [x, *weights], name, epsilon=float(self.eps))


class Cell(nn.Module):
    """Convolves and normalises; clips negative values if `relu` is set."""

    def __init__(self, conv: Conv, relu: bool = True) -> None:
        super().__init__()
        self.conv, self.norm, self.relu = conv, Norm(conv.out_channels), relu

    def forward(self, x: Tensor) -> Tensor:
        """Run in torch."""
        x = self.norm(self.conv(x))
        return functional.relu(x) if self.relu else x

    def write(self, to: Writer, x: str, name: str) -> str:
        """Write the ONNX nodes."""
        x = self.norm.write(to, self.conv.write(to, x, f"{name}.conv"), f"{name}.norm")
        return to.node("Relu", [x], name) if self.relu else x


class Residual(nn.Module):
    """Adds the result of a row of cells to their input."""

    def __init__(self, *cells: Cell) -> None:
        super().__init__()
        self.cells = nn.ModuleList(cells)

    def forward(self, x: Tensor) -> Tensor:
        """Run in torch."""
        y = x
        for cell in self.cells:
            y = cell(y)
        return functional.relu(x + y)

    def write(self, to: Writer, x: str, name: str) -> str:
        """Write the ONNX nodes."""
        y = x
        for index, cell in enumerate(self.cells):
            assert isinstance(cell, Cell)
            y = cell.write(to, y, f"{name}.{index}")
        return to.node("Relu", [to.node("Add", [x, y], name)], name)


def separable(dilation: int) -> Residual:
    """Make a block of a depthwise and a pointwise convolution: a wide window for few products."""
    depthwise = Cell(Conv(CHANNELS, CHANNELS, dilation=dilation, groups=CHANNELS))
    return Residual(depthwise, Cell(Conv(CHANNELS, CHANNELS, 1), relu=False))


def dense(dilation: int) -> Residual:
    """Make a block of one full convolution."""
    return Residual(Cell(Conv(CHANNELS, CHANNELS, dilation=dilation), relu=False))


class ShapesNet(nn.Module):
    """Classifies the pixels of a picture, at half of its resolution.

    Dilated convolutions see 77 pixels far to each side without a further loss of resolution,
    so nothing has to be scaled up again.  The first layer's output is joined to the last block's, for
    sharp edges.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stem = Cell(Conv(3, CHANNELS - 3, stride=2))
        blocks = (separable(1), dense(2), dense(4), dense(8), separable(16), dense(4), dense(2), separable(1))
        self.blocks = nn.ModuleList(blocks)
        self.join = Cell(Conv(2 * CHANNELS, CHANNELS, 1))
        self.last = Conv(CHANNELS, CLASSES, 1, bias=True)

    def forward(self, image: Tensor) -> Tensor:
        """Run in torch, up to the logits."""
        early = torch.cat([self.stem(image), functional.max_pool2d(image, 2)], 1)
        x = early
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.last(self.join(torch.cat([early, x], 1)))
        return logits

    def write(self, to: Writer, image: str) -> str:
        """Write the ONNX nodes, up to the probabilities."""
        pooled = to.node("MaxPool", [image], "side", kernel_shape=[2, 2], strides=[2, 2])
        early = to.node("Concat", [self.stem.write(to, image, "stem"), pooled], "early", axis=1)
        x = early
        for index, block in enumerate(self.blocks):
            assert isinstance(block, Residual)
            x = block.write(to, x, f"block{index}")
        x = self.join.write(to, to.node("Concat", [early, x], "both", axis=1), "join")
        return to.node("Softmax", [self.last.write(to, x, "last")], "classes", axis=1)


def to_onnx(net: ShapesNet) -> onnx.ModelProto:
    """Return the trained network as a checked ONNX model."""
    writer = Writer()
    net.write(writer, "image")
    writer.nodes[-1].output[0] = "probabilities"
    half = scenes.SIZE // scenes.STRIDE
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, ("n", 3, scenes.SIZE, scenes.SIZE))
    marks = helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ("n", CLASSES, half, half))
    graph = helper.make_graph(writer.nodes, "shapes", [image], [marks], initializer=writer.weights)
    opsets = [helper.make_opsetid("", OPSET)]
    version = helper.find_min_ir_version_for(opsets)
    model = helper.make_model(graph, opset_imports=opsets, ir_version=version, producer_name="weft")
    helper.set_model_props(model, {"classes": ",".join(SHAPES_CLASSES)})
    onnx.checker.check_model(model, full_check=True)
    return model


def varied(images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Turn, mirror and recolour a batch at random: more scenes at no cost."""
    turns = int(torch.randint(4, ()))
    images, labels = images.rot90(turns, (2, 3)), labels.rot90(turns, (1, 2))
    if torch.rand(()) < 0.5:
        images, labels = images.flip(3), labels.flip(2)
    return images[:, torch.randperm(3)].contiguous(memory_format=torch.channels_last), labels


def train(net: ShapesNet, count: int, steps: int, size: int = 16) -> None:
    """Fit the network to the first `count` scenes."""
    pictures, labels = scenes.batch(0, count)
    images, classes = torch.from_numpy(pictures), torch.from_numpy(labels).long()
    # Most of every picture is background; shapes count double so that they are not lost to it.
    weights = torch.tensor([1.0] + [2.0] * (CLASSES - 1))
    optimiser = torch.optim.AdamW(net.parameters(), lr=PEAK_RATE, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, PEAK_RATE, steps, pct_start=0.2)
    # The memory format in which torch's convolutions are fastest on a CPU.
    net.to(memory_format=torch.channels_last).train()  # type: ignore[call-overload]
    begin, total = time.perf_counter(), 0.0
    for step in range(1, steps + 1):
        chosen = torch.randint(count, (size,))
        image, wide = varied(images[chosen], classes[chosen])
        # Subsample after the turn: before it, the classes would be off by a pixel.
        target = wide[:, :: scenes.STRIDE, :: scenes.STRIDE]
        loss = functional.cross_entropy(net(image), target, weights)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        schedule.step()
        total += float(loss.detach())
        if step % 50 == 0:
            print(f"step {step:5d}  loss {total / 50:.4f}  {time.perf_counter() - begin:5.0f} s", flush=True)
            total = 0.0


def measure(model: onnx.ModelProto, count: int) -> tuple[float, NDArray[np.float64]]:
    """Return the share of correct pixels, and each class's intersection over union, on new scenes."""
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    table = np.zeros((CLASSES, CLASSES), np.int64)
    for first in range(0, count, 20):
        images, labels = scenes.batch(FRESH + first, min(20, count - first))
        found = np.asarray(session.run(None, {"image": images})[0]).argmax(1)
        true = scenes.targets(labels).astype(np.int64)
        table += np.bincount((true * CLASSES + found).ravel(), minlength=CLASSES**2).reshape(table.shape)
    right = np.diag(table)
    return float(right.sum() / table.sum()), right / (table.sum(0) + table.sum(1) - right)


def deviation(net: ShapesNet, model: onnx.ModelProto) -> float:
    """Return the largest difference between ONNX Runtime's and torch's probabilities."""
    images, _ = scenes.batch(FRESH, 8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    net.eval()
    with torch.no_grad():
        expected = net(torch.from_numpy(images)).softmax(1).numpy()
    return float(np.abs(np.asarray(session.run(None, {"image": images})[0]) - expected).max())


def main() -> None:
    """Train, check, measure and write the network."""
    parser = argparse.ArgumentParser(description="Train the shapes network.")
    parser.add_argument("--scenes", type=int, default=4000, help="how many scenes to train on")
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--fresh", type=int, default=1000, help="how many scenes to measure with")
    parser.add_argument("--output", type=Path, default=Path(__file__).parents[1] / "weft/models/shapes.onnx")
    options = parser.parse_args()
    torch.manual_seed(0)
    net = ShapesNet()
    train(net, options.scenes, options.steps)
    model = to_onnx(net.eval())
    difference = deviation(net, model)
    print(f"ONNX Runtime against torch: {difference:.2e} at most")
    if difference > 1e-4:
        raise SystemExit("the written model does not compute what the trained one does")
    accuracy, overlap = measure(model, options.fresh)
    each = "  ".join(f"{name} {share:.3f}" for name, share in zip(SHAPES_CLASSES, overlap, strict=True))
    print(f"pixel accuracy {accuracy:.2%}, intersection over union: {each}")
    onnx.save(model, options.output)
    print(f"{options.output}: {options.output.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
