"""Build GPT-2 with a cache as PyTorch's exporter writes it, with random weights.

Inputs are the new words, a mask over all words and, for each layer, the keys and values of the words before; outputs
are the logits and the longer keys and values. As in the exporter's graph, shapes are computed (Shape, Gather, Concat),
the places of the new words by Range, and the causal mask is a corner of a constant triangle, taken by Slice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.minilm import LOWEST, Encoder, Sizes

TWO_LAYERS = Sizes(layers=2, hidden=128, heads=4, inner=512, vocabulary=1000, positions=1024)
"""A small one, of which a token costs little arithmetic: its time is what surrounds the kernels."""
WIDE = Sizes(layers=2, hidden=900, heads=12, inner=3600, vocabulary=150_000, positions=1024)
"""A small one with the vocabulary of a large one, 270 MB in fp16, of which a new length must touch nothing."""
GPT2 = Sizes(layers=12, hidden=768, heads=12, inner=3072, vocabulary=50257, positions=1024)


class _Decoder(Encoder):
    """Collect the nodes and weights of a decoder."""

    def number(self, x: str, axis: int, scope: str) -> str:
        """Return an extent of `x` as a scalar."""
        return self.node("Gather", [self.node("Shape", [x], scope), self.constant(axis, scope)], scope, axis=0)

    def vector(self, scalar: str, scope: str) -> str:
        """Return a scalar as a vector of one element."""
        return self.node("Unsqueeze", [scalar, self.constant([0], scope)], scope)

    def projection(self, x: str, inner: int, outer: int, scope: str) -> str:
        """Add a product with weights and a bias on rows: GPT-2's Conv1D, which the exporter writes as a Gemm."""
        name = scope.strip("/").replace("/", ".")
        weights = [
            self.weight(f"{name}.weight", self.normal(inner, outer, deviation=inner**-0.5)),
            self.weight(f"{name}.bias", self.normal(outer, deviation=0.1)),
        ]
        rows = self.node("Reshape", [x, self.constant([-1, inner], scope)], scope)
        made = self.node("Gemm", [rows, *weights], scope)
        return self.node("Reshape", [made, self.extents(x, [outer], scope)], scope)

    def extents(self, x: str, last: Sequence[int], scope: str) -> str:
        """Return (batch, sequence, *last) as a vector."""
        parts = [self.size(x, axis, scope) for axis in (0, 1)]
        return self.node("Concat", [*parts, *(self.constant([n], scope) for n in last)], scope, axis=0)

    def gelu_tanh(self, x: str, scope: str) -> str:
        """Add x * 0.5 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))."""
        cube = self.node("Pow", [x, self.constant(3.0, scope)], scope)
        total = self.node("Add", [x, self.node("Mul", [cube, self.constant(0.044715, scope)], scope)], scope)
        inner = self.node("Mul", [total, self.constant(math.sqrt(2 / math.pi), scope)], scope)
        grown = self.node("Add", [self.node("Tanh", [inner], scope), self.constant(1.0, scope)], scope)
        return self.node("Mul", [self.node("Mul", [x, self.constant(0.5, scope)], scope), grown], scope)

    def words(self) -> str:
        """Add the embeddings of words and places."""
        scope, s = "/transformer", self.sizes
        word = self.weight("transformer.wte.weight", self.normal(s.vocabulary, s.hidden, deviation=0.5))
        place = self.weight("transformer.wpe.weight", self.normal(s.positions, s.hidden, deviation=0.3))
        past = self.number("past.0.key", 2, scope)
        total = self.node("Add", [past, self.number("input_ids", 1, scope)], scope)
        places = self.node("Range", [past, total, self.constant(1, scope)], scope)
        places = self.node("Unsqueeze", [places, self.constant([0], scope)], scope)
        words = self.node("Gather", [word, "input_ids"], f"{scope}/wte", axis=0)
        return self.node("Add", [words, self.node("Gather", [place, places], f"{scope}/wpe", axis=0)], scope)

    def causal(self, scores: str, key: str, query: str, scope: str) -> str:
        """Hide what comes later: a corner of the constant triangle."""
        total, fresh = self.number(key, 2, scope), self.number(query, 2, scope)
        begin = self.vector(self.node("Sub", [total, fresh], scope), scope)
        end = self.vector(total, scope)
        rows = self.node("Slice", ["triangle", begin, end, self.constant([2], scope), self.constant([1], scope)], scope)
        zero = self.constant([0], scope)
        seen = self.node("Slice", [rows, zero, end, self.constant([3], scope), self.constant([1], scope)], scope)
        return self.node("Where", [seen, scores, self.constant(LOWEST, scope)], scope)

    def cached_attention(self, x: str, mask: str, layer: int, scope: str) -> str:
        """Add the attention over cached and new words; `present.LAYER.key` and `.value` are the longer cache."""
        s = self.sizes
        head = s.hidden // s.heads
        joined = self.projection(x, s.hidden, 3 * s.hidden, f"{scope}/c_attn")
        cut = f"{scope}/Split"
        sizes = self.constant([s.hidden] * 3, scope)
        parts = [f"{cut}_{k}" for k in range(3)]
        self.nodes.append(helper.make_node("Split", [joined, sizes], parts, name=cut, axis=2))
        query, key, value = (
            self.node(
                "Transpose",
                [self.node("Reshape", [part, self.extents(part, [s.heads, head], scope)], scope)],
                scope,
                perm=(0, 2, 1, 3),
            )
            for part in parts
        )
        for kind, new in (("key", key), ("value", value)):
            pair, longer = [f"past.{layer}.{kind}", new], [f"present.{layer}.{kind}"]
            self.nodes.append(helper.make_node("Concat", pair, longer, name=f"{scope}/{kind}", axis=-2))
        key, value = f"present.{layer}.key", f"present.{layer}.value"
        turned = self.node("Transpose", [key], scope, perm=(0, 1, 3, 2))
        scores = self.node("MatMul", [query, turned], scope)
        scores = self.node("Div", [scores, self.constant(math.sqrt(head), scope)], scope)
        scores = self.node("Add", [self.causal(scores, key, query, scope), mask], scope)
        mixed = self.node("MatMul", [self.node("Softmax", [scores], scope, axis=-1), value], scope)
        mixed = self.node("Transpose", [mixed], scope, perm=(0, 2, 1, 3))
        rows = self.node("Reshape", [mixed, self.extents(x, [s.hidden], scope)], scope)
        return self.projection(rows, s.hidden, s.hidden, f"{scope}/c_proj")

    def block(self, x: str, mask: str, layer: int) -> str:
        """Add one layer."""
        s, scope = self.sizes, f"/transformer/h.{layer}"
        normed = self.layer_norm(x, f"{scope}/ln_1")
        x = self.node("Add", [self.cached_attention(normed, mask, layer, f"{scope}/attn"), x], scope)
        inner = self.projection(self.layer_norm(x, f"{scope}/ln_2"), s.hidden, s.inner, f"{scope}/mlp/c_fc")
        inner = self.gelu_tanh(inner, f"{scope}/mlp/act")
        return self.node("Add", [x, self.projection(inner, s.inner, s.hidden, f"{scope}/mlp/c_proj")], scope)


def gpt2(
    sizes: Sizes = TWO_LAYERS, *, opset: int = 17, seed: int = 0, tied: bool = False, half: bool = False
) -> onnx.ModelProto:
    """Build the decoder with open numbers of batch, new words and cached words.

    If it is `tied`, the logits are products with the embeddings of the words. If `half`, all floats are fp16.
    """
    net = _Decoder(sizes, opset, seed)
    triangle = np.tril(np.ones((1, 1, sizes.positions, sizes.positions), np.bool_))
    net.weights.append(numpy_helper.from_array(triangle, "triangle"))
    x, mask = net.words(), net.mask()
    for layer in range(sizes.layers):
        x = net.block(x, mask, layer)
    x = net.layer_norm(x, "/transformer/ln_f")
    if tied:
        head = net.node("Transpose", ["transformer.wte.weight"], "/lm_head", perm=(1, 0))
    else:
        head = net.weight("lm_head.weight", net.normal(sizes.hidden, sizes.vocabulary, deviation=sizes.hidden**-0.5))
    net.nodes.append(helper.make_node("MatMul", [x, head], ["logits"], name="/lm_head/MatMul"))
    width = sizes.hidden // sizes.heads
    caches = [f"{layer}.{kind}" for layer in range(sizes.layers) for kind in ("key", "value")]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        net.nodes,
        "gpt2",
        [
            value("input_ids", TensorProto.INT64, ("batch", "words")),
            value("attention_mask", TensorProto.INT64, ("batch", "past + words")),
            *(value(f"past.{c}", TensorProto.FLOAT, ("batch", sizes.heads, "past", width)) for c in caches),
        ],
        [
            value("logits", TensorProto.FLOAT, ("batch", "words", sizes.vocabulary)),
            *(value(f"present.{c}", TensorProto.FLOAT, ("batch", sizes.heads, "past + words", width)) for c in caches),
        ],
        initializer=net.weights,
    )
    opsets = [helper.make_opsetid("", opset)]
    version = helper.find_min_ir_version_for(opsets)
    if half:
        _store_as_half(graph)
    model = helper.make_model(graph, opset_imports=opsets, ir_version=version, producer_name="weft")
    onnx.checker.check_model(model)
    return model


def _store_as_half(graph: onnx.GraphProto) -> None:
    """Make all floats of a graph fp16."""
    attributes = [a for node in graph.node for a in node.attribute]
    for tensor in (*graph.initializer, *(a.t for a in attributes if a.type == onnx.AttributeProto.TENSOR)):
        if tensor.data_type == TensorProto.FLOAT:
            most = np.finfo(np.float16).max
            values = np.clip(numpy_helper.to_array(tensor), -most, most).astype(np.float16)
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    for attribute in attributes:
        if attribute.name == "to" and attribute.i == TensorProto.FLOAT:
            attribute.i = TensorProto.FLOAT16
    for value in (*graph.input, *graph.output):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
