"""The picture networks in PyTorch: the same layers with the same weights, read off the ONNX graph.

Each node becomes the call that the layer of torchvision makes, in place where torchvision's is in place and nothing
else reads the value. Batch norms stay layers of their own, as they are in torchvision's networks in eval mode, unless
`folded` put them into the convolutions before them.
"""

from __future__ import annotations

import copy
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import torch
import torch.nn.functional as F  # noqa: N812 - as PyTorch's own documents call it
from onnx import helper, numpy_helper
from torch.fx.experimental.optimization import fuse

Attributes = Mapping[str, Any]
Step = Callable[[dict[str, Any]], Any]
"""Computes one value from those so far and the weights."""


class TorchNetwork:
    """A picture network of `benchmarks.models` as PyTorch runs it; call it with the inputs in order."""

    variants = ("channels-last", "nchw")

    def __init__(self, model: onnx.ModelProto) -> None:
        graph = model.graph
        self._names = [i.name for i in graph.input]
        self._outputs = [o.name for o in graph.output]
        self._type, self._order, self._edges = torch.float32, torch.contiguous_format, torch.float32
        self._weights = {t.name: torch.from_numpy(numpy_helper.to_array(t).copy()) for t in graph.initializer}
        uses = Counter(name for node in graph.node for name in node.input)
        free = {node.output[0] for node in graph.node if uses[node.output[0]] == 1}
        steps = enumerate(graph.node)
        self._steps = [(n.output[0], _step(n, free, self._weights), _last(i, graph)) for i, n in steps]

    def to(self, device: str, dtype: Any, variant: str, edges: Any = torch.float32) -> TorchNetwork:
        """Move the weights to a device and a type; for the variant "channels-last" to that layout too.

        `edges` is the type of the outputs.
        """
        order = torch.channels_last if variant == "channels-last" else torch.contiguous_format
        for name, weight in self._weights.items():
            moved = weight.to(device, dtype)
            self._weights[name] = moved.contiguous(memory_format=order) if moved.dim() == 4 else moved
        self._type, self._order, self._edges = dtype, order, edges
        return self

    def __call__(self, *inputs: Any) -> list[Any]:
        """Return the outputs in order; the inputs are pictures in NCHW, of any type of float."""
        taken = [x.to(self._type, memory_format=self._order) for x in inputs]
        values = {**self._weights, **dict(zip(self._names, taken, strict=True))}
        for name, step, done in self._steps:
            values[name] = step(values)
            for old in done:
                del values[old]
        return [values[name].to(self._edges) for name in self._outputs]


class TorchModule(torch.nn.Module):
    """A module of PyTorch as the measurement runs it: pictures or sound of any float, or token ids in, tensors out."""

    def __init__(self, module: Any, fold: bool = False, pictures: bool = True) -> None:
        super().__init__()
        self.variants = ("channels-last", "nchw") if pictures else ("plain",)
        self._inner = copy.deepcopy(module).eval()
        if fold:
            try:
                self._inner = fuse(self._inner)
            except Exception as e:  # what cannot be traced keeps its batch norms
                warnings.warn(f"batch norms are not folded: {e}", stacklevel=2)
        self._type = self._edges = torch.float32
        self._orders: dict[int, Any] = {}

    def to(self, device: str, dtype: Any, variant: str, edges: Any = torch.float32) -> TorchModule:
        """Move the weights to a device and a type; for the variant "channels-last" to that layout too.

        `edges` is the type of the outputs.
        """
        self._type, self._edges, last = dtype, edges, variant == "channels-last"
        self._orders = {4: torch.channels_last, 5: torch.channels_last_3d} if last else {}
        self._inner = self._inner.to(device, dtype)
        for tensor in (*self._inner.parameters(), *self._inner.buffers()):
            if tensor.dim() in self._orders:
                tensor.data = tensor.data.contiguous(memory_format=self._orders[tensor.dim()])
        return self

    def forward(self, *inputs: Any) -> list[Any]:
        """Return the outputs in order."""
        answer = self._inner(*map(self._taken, inputs))
        return [y.to(self._edges) for y in (answer if isinstance(answer, tuple) else (answer,))]

    def _taken(self, x: Any) -> Any:
        if not x.is_floating_point():
            return x
        return x.to(self._type, memory_format=self._orders.get(x.dim(), torch.preserve_format))


def folded(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a network with its batch norms folded into the convolutions before them, as users do for speed.

    `torch.nn.utils.fuse_conv_bn_eval` does the same. These networks have no other batch norms, and such convolutions
    have no bias.
    """
    out = onnx.ModelProto()
    out.CopyFrom(model)
    weights = {t.name: numpy_helper.to_array(t).astype(np.float64) for t in out.graph.initializer}
    convs = {node.output[0]: node for node in out.graph.node if node.op_type == "Conv"}
    norms = [node for node in out.graph.node if node.op_type == "BatchNormalization"]
    for norm in norms:
        x, *names = norm.input
        conv, (scale, bias, mean, variance) = convs[x], (weights[name] for name in names)
        (epsilon,) = (a.f for a in norm.attribute if a.name == "epsilon")
        factor = scale / np.sqrt(variance + epsilon)
        made = {f"{x}.weight": weights[conv.input[1]] * factor[:, None, None, None], f"{x}.bias": bias - mean * factor}
        conv.input[1:] = list(made)
        conv.output[0] = norm.output[0]
        out.graph.initializer.extend(numpy_helper.from_array(v.astype(np.float32), n) for n, v in made.items())
        out.graph.node.remove(norm)
    return out


def _last(index: int, graph: onnx.GraphProto) -> list[str]:
    """Return the values that no node after this one reads, whose memory can be reused."""
    later = {name for other in graph.node[index + 1 :] for name in other.input}
    kept = later | {o.name for o in graph.output} | {t.name for t in graph.initializer}
    return [name for name in dict.fromkeys(graph.node[index].input) if name and name not in kept]


def _step(node: onnx.NodeProto, free: set[str], weights: Mapping[str, Any]) -> Step:
    if node.op_type not in STEPS:
        raise NotImplementedError(f"{node.op_type} (node {node.name!r}) has no PyTorch counterpart here")
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    return STEPS[node.op_type](list(node.input), attributes, set(node.input) & free, weights)


def _even(pads: Sequence[int]) -> list[int]:
    half = len(pads) // 2
    if list(pads[:half]) != list(pads[half:]):
        raise NotImplementedError(f"pads {list(pads)} differ between the two ends")
    return list(pads[:half])


def _conv(inputs: list[str], a: Attributes, free: set[str], weights: Mapping[str, Any]) -> Step:
    x, w, *bias = inputs
    pads, stride, groups = _even(a["pads"]), list(a["strides"]), a["group"]
    return lambda v: F.conv2d(v[x], v[w], v[bias[0]] if bias else None, stride, pads, 1, groups)


def _batch_norm(inputs: list[str], a: Attributes, free: set[str], weights: Mapping[str, Any]) -> Step:
    x, scale, bias, mean, variance = inputs
    return lambda v: F.batch_norm(v[x], v[mean], v[variance], v[scale], v[bias], False, 0.0, a["epsilon"])


def _relu(inputs: list[str], a: Attributes, free: set[str], weights: Mapping[str, Any]) -> Step:
    (x,) = inputs
    return lambda v: F.relu(v[x], inplace=x in free)


def _clip(inputs: list[str], a: Attributes, free: set[str], weights: Mapping[str, Any]) -> Step:
    x, low, high = inputs
    bounds = float(weights[low]), float(weights[high])
    return lambda v: F.hardtanh(v[x], *bounds, inplace=x in free)


def _add(inputs: list[str], a: Attributes, free: set[str], weights: Mapping[str, Any]) -> Step:
    x, y = inputs
    return (lambda v: v[x].add_(v[y])) if x in free else (lambda v: v[x] + v[y])


def _max_pool(inputs: list[str], a: Attributes, free: set[str], weights: Mapping[str, Any]) -> Step:
    (x,) = inputs
    window, stride, pads = list(a["kernel_shape"]), list(a["strides"]), _even(a["pads"])
    return lambda v: F.max_pool2d(v[x], window, stride, pads, ceil_mode=bool(a.get("ceil_mode", 0)))


def _gemm(inputs: list[str], a: Attributes, free: set[str], weights: Mapping[str, Any]) -> Step:
    x, w, bias = inputs
    return lambda v: F.linear(v[x], v[w], v[bias])


STEPS: dict[str, Callable[[list[str], Attributes, set[str], Mapping[str, Any]], Step]] = {
    "Conv": _conv,
    "BatchNormalization": _batch_norm,
    "Relu": _relu,
    "Clip": _clip,
    "Add": _add,
    "Concat": lambda inputs, a, free, weights: lambda v: torch.cat([v[i] for i in inputs], a["axis"]),
    "MaxPool": _max_pool,
    "Dropout": lambda inputs, a, free, weights: lambda v: v[inputs[0]],
    "GlobalAveragePool": lambda inputs, a, free, weights: lambda v: F.adaptive_avg_pool2d(v[inputs[0]], 1),
    "Flatten": lambda inputs, a, free, weights: lambda v: torch.flatten(v[inputs[0]], 1),
    "Gemm": _gemm,
}
"""How each op of the picture networks is called; all of them are asked for their node once."""
