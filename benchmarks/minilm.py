"""Build the encoder of all-MiniLM-L6-v2 as PyTorch's exporter writes it, with random weights.

Six layers of hidden size 384, twelve heads, 1536 features between, 30522 words, 512 positions, two types of
tokens; about 2.87 GFLOP for 128 tokens. Shapes are computed in the graph (Shape, Gather, Concat), the mask by
Cast, Sub and Mul, GELU by Div, Erf, Add and two Mul. Before opset 17 a layer norm is ReduceMean, Sub, Pow,
ReduceMean, Add, Sqrt, Div, Mul, Add, as the exporter has it there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
EPSILON = 1e-12
LOWEST = float(np.finfo(np.float32).min)
FIRST_OPSET = 13
"""The first in which the axes of Unsqueeze are an input."""


@dataclass(frozen=True)
class Sizes:
    """The extents of an encoder."""

    layers: int = 6
    hidden: int = 384
    heads: int = 12
    inner: int = 1536
    vocabulary: int = 30522
    positions: int = 512
    types: int = 2


SMALL = Sizes(layers=2, hidden=64, heads=4, inner=128, vocabulary=200, positions=64)
"""An encoder for tests."""


class Encoder:
    """Collect the nodes and weights of an encoder."""

    def __init__(self, sizes: Sizes, opset: int, seed: int) -> None:
        if opset < FIRST_OPSET:
            raise ValueError(f"opset {opset}: the encoder needs {FIRST_OPSET} or later")
        self.sizes, self.opset = sizes, opset
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self._rng = np.random.default_rng(seed)
        self._taken: dict[str, int] = {}

    def node(self, op: str, inputs: Sequence[str], scope: str, **attributes: Any) -> str:
        """Add a node and return its output, named as the exporter names it: /scope/Op_1_output_0."""
        base = f"{scope}/{op}"
        count = self._taken[base] = self._taken.get(base, -1) + 1
        name = f"{base}_{count}" if count else base
        self.nodes.append(helper.make_node(op, list(inputs), [f"{name}_output_0"], name=name, **attributes))
        return f"{name}_output_0"

    def constant(self, value: Any, scope: str) -> str:
        """Add a Constant node: the exporter writes scalars and axes so."""
        array = np.asarray(value, np.float32 if isinstance(value, float) else np.int64)
        return self.node("Constant", [], scope, value=numpy_helper.from_array(array))

    def weight(self, name: str, array: NDArray[np.float32]) -> str:
        """Add an initializer."""
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def normal(self, *shape: int, deviation: float = 1.0) -> NDArray[np.float32]:
        """Return random weights."""
        return self._rng.standard_normal(shape, dtype=np.float32) * np.float32(deviation)

    def size(self, x: str, axis: int, scope: str) -> str:
        """Return an extent of `x` as a vector of one element."""
        taken = self.node("Gather", [self.node("Shape", [x], scope), self.constant(axis, scope)], scope, axis=0)
        return self.node("Unsqueeze", [taken, self.constant([0], scope)], scope)

    def reshape(self, x: str, last: Sequence[int], scope: str) -> str:
        """Reshape to (batch, sequence, *last)."""
        extents = [self.size(x, axis, scope) for axis in (0, 1)]
        extents += [self.constant([size], scope) for size in last]
        return self.node("Reshape", [x, self.node("Concat", extents, scope, axis=0)], scope)

    def dense(self, x: str, inner: int, outer: int, scope: str) -> str:
        """Add a product with weights and the addition of a bias."""
        name = scope.strip("/").replace("/", ".")
        weight = self.weight(f"{name}.weight", self.normal(inner, outer, deviation=inner**-0.5))
        product = self.node("MatMul", [x, weight], scope)
        bias = self.weight(f"{name}.bias", self.normal(outer, deviation=0.1))
        return self.node("Add", [bias, product], scope)

    def layer_norm(self, x: str, scope: str) -> str:
        """Add a layer norm over the last axis, in parts before opset 17."""
        name = scope.strip("/").replace("/", ".")
        scale = self._rng.uniform(0.8, 1.2, self.sizes.hidden).astype(np.float32)
        pair = [self.weight(f"{name}.weight", scale)]
        pair.append(self.weight(f"{name}.bias", self.normal(self.sizes.hidden, deviation=0.1)))
        if self.opset >= 17:
            return self.node("LayerNormalization", [x, *pair], scope, axis=-1, epsilon=EPSILON)
        centred = self.node("Sub", [x, self.node("ReduceMean", [x], scope, axes=[-1])], scope)
        square = self.node("Pow", [centred, self.constant(2.0, scope)], scope)
        variance = self.node("ReduceMean", [square], scope, axes=[-1])
        deviation = self.node("Sqrt", [self.node("Add", [variance, self.constant(EPSILON, scope)], scope)], scope)
        scaled = self.node("Mul", [self.node("Div", [centred, deviation], scope), pair[0]], scope)
        return self.node("Add", [scaled, pair[1]], scope)

    def gelu(self, x: str, scope: str) -> str:
        """Add x * (1 + erf(x / sqrt(2))) * 0.5."""
        inner = self.node("Erf", [self.node("Div", [x, self.constant(math.sqrt(2.0), scope)], scope)], scope)
        scaled = self.node("Mul", [x, self.node("Add", [inner, self.constant(1.0, scope)], scope)], scope)
        return self.node("Mul", [scaled, self.constant(0.5, scope)], scope)

    def mask(self) -> str:
        """Add (1 - mask) * lowest, of shape (batch, 1, 1, sequence)."""
        scope = ""
        wide = self.node("Unsqueeze", ["attention_mask", self.constant([1], scope)], scope)
        wide = self.node("Unsqueeze", [wide, self.constant([2], scope)], scope)
        kept = self.node("Cast", [wide], scope, to=TensorProto.FLOAT)
        gone = self.node("Sub", [self.constant(1.0, scope), kept], scope)
        return self.node("Mul", [gone, self.constant(LOWEST, scope)], scope)

    def embeddings(self) -> str:
        """Add the sum of the embeddings of words, token types and positions, normalized."""
        scope, s = "/embeddings", self.sizes
        words = self.weight("embeddings.words", self.normal(s.vocabulary, s.hidden))
        kinds = self.weight("embeddings.types", self.normal(s.types, s.hidden, deviation=0.3))
        places = self.weight("embeddings.positions", self.normal(s.positions, s.hidden, deviation=0.5))
        numbers = np.arange(s.positions, dtype=np.int64)[None]
        self.weights.append(numpy_helper.from_array(numbers, "embeddings.position_ids"))
        bounds = [self.constant([0], scope), self.size("input_ids", 1, scope), self.constant([1], scope)]
        taken = self.node("Slice", ["embeddings.position_ids", *bounds, self.constant([1], scope)], scope)
        word = self.node("Gather", [words, "input_ids"], scope, axis=0)
        kind = self.node("Gather", [kinds, "token_type_ids"], scope, axis=0)
        place = self.node("Gather", [places, taken], scope, axis=0)
        total = self.node("Add", [self.node("Add", [word, kind], scope), place], scope)
        return self.layer_norm(total, f"{scope}/LayerNorm")

    def attention(self, x: str, mask: str, scope: str) -> str:
        """Add the attention of every head, and the product that joins them."""
        s = self.sizes
        head = s.hidden // s.heads
        parts = []
        for part, order in (("query", (0, 2, 1, 3)), ("key", (0, 2, 3, 1)), ("value", (0, 2, 1, 3))):
            made = self.reshape(self.dense(x, s.hidden, s.hidden, f"{scope}/{part}"), (s.heads, head), scope)
            parts.append(self.node("Transpose", [made], scope, perm=order))
        query, key, value = parts
        scores = self.node("Div", [self.node("MatMul", [query, key], scope), self.constant(head**0.5, scope)], scope)
        shares = self.node("Softmax", [self.node("Add", [scores, mask], scope)], scope, axis=-1)
        mixed = self.node("Transpose", [self.node("MatMul", [shares, value], scope)], scope, perm=(0, 2, 1, 3))
        return self.dense(self.reshape(mixed, (s.hidden,), scope), s.hidden, s.hidden, f"{scope}/output")

    def layer(self, x: str, mask: str, scope: str) -> str:
        """Add one layer."""
        s = self.sizes
        total = self.node("Add", [self.attention(x, mask, f"{scope}/attention"), x], scope)
        x = self.layer_norm(total, f"{scope}/attention/LayerNorm")
        inner = self.gelu(self.dense(x, s.hidden, s.inner, f"{scope}/intermediate"), f"{scope}/intermediate")
        total = self.node("Add", [self.dense(inner, s.inner, s.hidden, f"{scope}/output"), x], scope)
        return self.layer_norm(total, f"{scope}/output/LayerNorm")


def minilm_l6(
    batch: int | str = 1,
    opset: int = 17,
    seed: int = 0,
    *,
    sequence: int | str = 128,
    sizes: Sizes | None = None,
) -> onnx.ModelProto:
    """Build the encoder: three int64 inputs of shape (batch, sequence), output (batch, sequence, hidden)."""
    sizes = sizes or Sizes()
    net = Encoder(sizes, opset, seed)
    x, mask = net.embeddings(), net.mask()
    for number in range(sizes.layers):
        x = net.layer(x, mask, f"/encoder/layer.{number}")
    net.nodes[-1].output[0] = "last_hidden_state"
    shape = (batch, sequence)
    graph = helper.make_graph(
        net.nodes,
        "minilm_l6",
        [helper.make_tensor_value_info(name, TensorProto.INT64, shape) for name in INPUTS],
        [helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, (*shape, sizes.hidden))],
        initializer=net.weights,
    )
    opsets = [helper.make_opsetid("", opset)]
    version = helper.find_min_ir_version_for(opsets)
    model = helper.make_model(graph, opset_imports=opsets, ir_version=version, producer_name="weft")
    onnx.checker.check_model(model)
    return model
