"""Build language models as exporters write them for generation, with random weights of the real sizes.

`genai` is the graph of onnxruntime-genai's builder: com.microsoft::GroupQueryAttention with rotary tables, skip norms,
lengths computed from the mask; its weights are fp16, or 4 bits in blocks of 32 (com.microsoft::MatMulNBits). `optimum`
is the graph of PyTorch's exporter: caches joined by Concat, keys repeated by Expand, rotary angles computed from
positions, MatMul and Softmax.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

CONTRIB = "com.microsoft"
BLOCK = 32
"""Rows of a weight of 4 bits that share a scale."""
Array = Any


@dataclass(frozen=True)
class Decoder:
    """The sizes of a language model."""

    layers: int
    hidden: int
    heads: int
    groups: int
    inner: int
    vocabulary: int
    depth: int = 64
    positions: int = 4096
    base: float = 1e6
    biased: bool = False
    """Whether queries, keys and values have biases."""


QWEN = Decoder(24, 896, 14, 2, 4864, 151_936, biased=True)
"""Qwen2.5-0.5B."""
LLAMA = Decoder(16, 2048, 32, 8, 8192, 128_256, base=5e5)
"""Llama-3.2-1B."""
TINY = Decoder(2, 64, 4, 2, 128, 200, depth=16, positions=512)
"""For tests."""
DECODERS = {"qwen": QWEN, "llama": LLAMA, "tiny": TINY}
FORMS = ("genai", "genai4", "optimum")


def _ints(values: Sequence[int]) -> Array:
    return np.array(values, np.int64)


class _Builder:
    def __init__(self, sizes: Decoder, form: str, seed: int) -> None:
        self.sizes, self.form = sizes, form
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self._rng = np.random.default_rng(seed)
        self._noise = self._rng.standard_normal(1 << 20, dtype=np.float32).astype(np.float16)

    def add(self, op: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        domain = attributes.pop("domain", "")
        self.nodes.append(helper.make_node(op, list(inputs), [output], name=output, domain=domain, **attributes))
        return output

    def const(self, name: str, value: Array) -> str:
        if all(w.name != name for w in self.weights):
            self.weights.append(numpy_helper.from_array(value, name))
        return name

    def random(self, *shape: int, deviation: float) -> Array:
        """Return random fp16 weights: noise that begins elsewhere for each, since to draw a billion takes long."""
        count = int(np.prod(shape))
        begin = int(self._rng.integers(len(self._noise)))
        repeated = np.resize(np.roll(self._noise, -begin), count)
        return (repeated * np.float16(deviation)).reshape(shape)

    def product(self, x: str, inner: int, outer: int, name: str) -> str:
        """Add a product with weights."""
        deviation = inner**-0.5
        if self.form != "genai4":
            weight = self.const(f"{name}.weight", self.random(inner, outer, deviation=deviation))
            return self.add("MatMul", [x, weight], f"{name}/MatMul")
        packed = self._rng.integers(0, 256, (outer, inner // BLOCK, BLOCK // 2), np.uint8)
        scales = np.abs(self.random(outer, inner // BLOCK, deviation=deviation / 4)) + np.float16(deviation / 8)
        inputs = [self.const(f"{name}.q", packed), self.const(f"{name}.scales", scales.reshape(-1))]
        return self.add(
            "MatMulNBits", [x, *inputs], f"{name}/MatMul", domain=CONTRIB, K=inner, N=outer, bits=4, block_size=BLOCK
        )

    def norm(self, x: str, name: str) -> str:
        weight = self.const(f"{name}.weight", np.ones(self.sizes.hidden, np.float16))
        if self.form != "optimum":
            return self.add(
                "SimplifiedLayerNormalization", [x, weight], f"{name}/norm", axis=-1, epsilon=1e-6, stash_type=1
            )
        wide = self.add("Cast", [x], f"{name}/wide", to=TensorProto.FLOAT)
        square = self.add("Pow", [wide, self.const("two", np.float32(2))], f"{name}/square")
        mean = self.add("ReduceMean", [square, self.const("last", _ints([-1]))], f"{name}/mean", keepdims=1)
        moved = self.add("Add", [mean, self.const("eps", np.float32(1e-6))], f"{name}/eps")
        inverse = self.add("Reciprocal", [self.add("Sqrt", [moved], f"{name}/root")], f"{name}/inv")
        scaled = self.add("Mul", [wide, inverse], f"{name}/scaled")
        half = self.add("Cast", [scaled], f"{name}/half", to=TensorProto.FLOAT16)
        return self.add("Mul", [weight, half], f"{name}/norm")

    def projections(self, x: str, scope: str) -> list[str]:
        s, out = self.sizes, []
        for kind, heads in (("q", s.heads), ("k", s.groups), ("v", s.groups)):
            y = self.product(x, s.hidden, heads * s.depth, f"{scope}.{kind}_proj")
            if s.biased:
                bias = self.const(f"{scope}.{kind}_proj.bias", self.random(heads * s.depth, deviation=0.1))
                y = self.add("Add", [y, bias], f"{scope}.{kind}_proj/Add")
            out.append(y)
        return out

    def attention(self, x: str, layer: int) -> str:
        s, scope = self.sizes, f"model.layers.{layer}.attn"
        q, k, v = self.projections(x, scope)
        past = [f"past_key_values.{layer}.{kind}" for kind in ("key", "value")]
        present = [f"present.{layer}.{kind}" for kind in ("key", "value")]
        if self.form != "optimum":
            self.nodes.append(
                helper.make_node(
                    "GroupQueryAttention", [q, k, v, *past, "seqlens_k", "total", "cos_cache", "sin_cache"],
                    [f"{scope}/out", *present], name=f"{scope}/GQA", domain=CONTRIB, num_heads=s.heads,
                    kv_num_heads=s.groups, do_rotary=1, scale=s.depth**-0.5,
                )
            )
            return self.product(f"{scope}/out", s.heads * s.depth, s.hidden, f"{scope}.o_proj")
        heads = []
        for value, count, kind in ((q, s.heads, "q"), (k, s.groups, "k"), (v, s.groups, "v")):
            shape = self.const(f"heads{count}", _ints([0, 0, count, s.depth]))
            apart = self.add("Reshape", [value, shape], f"{scope}/{kind}/heads")
            turned = self.add("Transpose", [apart], f"{scope}/{kind}/turned", perm=[0, 2, 1, 3])
            heads.append(self.rotated(turned, f"{scope}/{kind}") if kind != "v" else turned)
        query, *new = heads
        whole = []
        for old, each, now in zip(past, new, present, strict=True):
            self.nodes.append(helper.make_node("Concat", [old, each], [now], name=f"{now}/Concat", axis=-2))
            whole.append(self.repeated(now, f"{now}/repeat"))
        turned = self.add("Transpose", [whole[0]], f"{scope}/kt", perm=[0, 1, 3, 2])
        scores = self.add("MatMul", [query, turned], f"{scope}/scores")
        scores = self.add("Mul", [scores, self.const("scale", np.float16(s.depth**-0.5))], f"{scope}/scaled")
        scores = self.add("Add", [scores, "causal"], f"{scope}/masked")
        wide = self.add("Cast", [scores], f"{scope}/wide", to=TensorProto.FLOAT)
        shares = self.add("Softmax", [wide], f"{scope}/softmax", axis=-1)
        half = self.add("Cast", [shares], f"{scope}/half", to=TensorProto.FLOAT16)
        mixed = self.add("MatMul", [half, whole[1]], f"{scope}/mixed")
        mixed = self.add("Transpose", [mixed], f"{scope}/rows", perm=[0, 2, 1, 3])
        joined = self.const("joined", _ints([0, 0, s.heads * s.depth]))
        mixed = self.add("Reshape", [mixed, joined], f"{scope}/out")
        return self.product(mixed, s.heads * s.depth, s.hidden, f"{scope}.o_proj")

    def rotated(self, x: str, scope: str) -> str:
        """Turn pairs of elements by the angles of their positions."""
        half, far = self.sizes.depth // 2, np.iinfo(np.int64).max
        axis = self.const("axis3", _ints([3]))
        ends = [self.const(f"at{n}", _ints([n])) for n in (0, half, far)]
        first = self.add("Slice", [x, ends[0], ends[1], axis], f"{scope}/first")
        second = self.add("Slice", [x, ends[1], ends[2], axis], f"{scope}/second")
        turned = self.add("Concat", [self.add("Neg", [second], f"{scope}/neg"), first], f"{scope}/half", axis=-1)
        pair = [self.add("Mul", [x, "cos"], f"{scope}/cos"), self.add("Mul", [turned, "sin"], f"{scope}/sin")]
        return self.add("Add", pair, f"{scope}/rotated")

    def repeated(self, x: str, scope: str) -> str:
        """Repeat keys or values for all heads that share them, as transformers' repeat_kv does."""
        s = self.sizes
        each = s.heads // s.groups
        apart = self.add("Unsqueeze", [x, self.const("axis2", _ints([2]))], f"{scope}/apart")
        shape = self.add("Shape", [x], f"{scope}/shape")
        at = [self.const(f"at{k}", _ints([k])) for k in range(4)]
        dims = [self.add("Slice", [shape, at[k], at[k + 1]], f"{scope}/dim{k}") for k in (0, 2)]
        fixed = [self.const(f"n{n}", _ints([n])) for n in (s.groups, each, s.depth, s.heads)]
        wide = self.add("Concat", [dims[0], fixed[0], fixed[1], dims[1], fixed[2]], f"{scope}/wide", axis=0)
        joined = self.add("Concat", [dims[0], fixed[3], dims[1], fixed[2]], f"{scope}/joined", axis=0)
        return self.add("Reshape", [self.add("Expand", [apart, wide], f"{scope}/expand"), joined], f"{scope}/all")

    def lengths(self) -> None:
        """Add what all layers share: lengths and rotary tables, or angles and the causal mask."""
        s = self.sizes
        turns = s.base ** (-np.arange(0, s.depth, 2) / s.depth)
        if self.form != "optimum":
            ones = self.add("ReduceSum", ["attention_mask", self.const("axis1", _ints([1]))], "ones", keepdims=0)
            less = self.add("Sub", [ones, self.const("one", _ints([1]))], "less")
            self.add("Cast", [less], "seqlens_k", to=TensorProto.INT32)
            shape = self.add("Shape", ["attention_mask"], "mask_shape")
            length = self.add("Gather", [shape, self.const("first", np.int64(1))], "length", axis=0)
            self.add("Cast", [length], "total", to=TensorProto.INT32)
            table = np.arange(s.positions)[:, None] * turns
            self.const("cos_cache", np.cos(table).astype(np.float16))
            self.const("sin_cache", np.sin(table).astype(np.float16))
            return
        places = self.add("Unsqueeze", ["position_ids", self.const("last", _ints([-1]))], "places")
        wide = self.add("Cast", [places], "places/wide", to=TensorProto.FLOAT)
        angles = self.add("Mul", [wide, self.const("turns", turns.astype(np.float32)[None, None])], "angles")
        pairs = self.add("Concat", [angles, angles], "both", axis=-1)
        for kind in ("Cos", "Sin"):
            made = self.add("Cast", [self.add(kind, [pairs], f"{kind}/wide")], f"{kind}/half", to=TensorProto.FLOAT16)
            self.add("Unsqueeze", [made, self.const("axis1", _ints([1]))], kind.lower())
        # 0 where a key is not later than the query and the mask shows it, else the lowest number.
        first = self.const("first", np.int64(1))
        keys = self.add("Gather", [self.add("Shape", ["attention_mask"], "mask_shape"), first], "keys", axis=0)
        rows = self.add("Gather", [self.add("Shape", ["input_ids"], "ids_shape"), first], "rows", axis=0)
        start = self.add("Sub", [keys, rows], "start")
        zero, one = self.const("zero", np.int64(0)), self.const("unit", np.int64(1))
        at = self.add("Range", [zero, keys, one], "at")
        own = self.add("Range", [start, keys, one], "own")
        column = self.add("Unsqueeze", [own, self.const("axis1", _ints([1]))], "column")
        seen = self.add("LessOrEqual", [at, column], "seen")
        shown = self.add("Cast", ["attention_mask"], "shown", to=TensorProto.BOOL)
        spread = self.add("Unsqueeze", [shown, self.const("axes12", _ints([1, 2]))], "spread")
        both = self.add("And", [seen, spread], "visible")
        lowest = self.const("lowest", np.float16(np.finfo(np.float16).min))
        self.add("Where", [both, self.const("nothing", np.float16(0)), lowest], "causal")

    def model(self) -> onnx.ModelProto:
        s = self.sizes
        self.lengths()
        table = self.const("model.embed_tokens.weight", self.random(s.vocabulary, s.hidden, deviation=0.5))
        x = self.add("Gather", [table, "input_ids"], "embed")
        for layer in range(s.layers):
            scope = f"model.layers.{layer}"
            x = self.add("Add", [x, self.attention(self.norm(x, f"{scope}.input_norm"), layer)], f"{scope}/attended")
            y = self.norm(x, f"{scope}.post_norm")
            gate, up = (self.product(y, s.hidden, s.inner, f"{scope}.mlp.{k}_proj") for k in ("gate", "up"))
            silu = self.add("Mul", [gate, self.add("Sigmoid", [gate], f"{scope}/sigmoid")], f"{scope}/silu")
            gated = self.add("Mul", [silu, up], f"{scope}/gated")
            down = self.product(gated, s.inner, s.hidden, f"{scope}.mlp.down_proj")
            x = self.add("Add", [x, down], f"{scope}/out")
        x = self.norm(x, "model.norm")
        if self.form == "genai4":
            logits = self.product(x, s.hidden, s.vocabulary, "lm_head")
        else:
            turned = self.add("Transpose", [table], "lm_head.weight", perm=[1, 0])
            logits = self.add("MatMul", [x, turned], "lm_head/MatMul")
        self.add("Cast", [logits], "logits", to=TensorProto.FLOAT)
        return self._made()

    def _made(self) -> onnx.ModelProto:
        s, info, ints = self.sizes, helper.make_tensor_value_info, TensorProto.INT64
        total = "total_sequence_length"
        new = ("batch_size", "sequence_length")
        inputs = [info("input_ids", ints, new), info("attention_mask", ints, ("batch_size", total))]
        if self.form == "optimum":
            inputs.append(info("position_ids", ints, new))
        outputs = [info("logits", TensorProto.FLOAT, ("batch_size", "sequence_length", s.vocabulary))]
        for layer in range(s.layers):
            for kind in ("key", "value"):
                shape = ("batch_size", s.groups, "past_sequence_length", s.depth)
                inputs.append(info(f"past_key_values.{layer}.{kind}", TensorProto.FLOAT16, shape))
                longer = ("batch_size", s.groups, total, s.depth)
                outputs.append(info(f"present.{layer}.{kind}", TensorProto.FLOAT16, longer))
        graph = helper.make_graph(self.nodes, "decoder", inputs, outputs, initializer=self.weights)
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid(CONTRIB, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10, producer_name="weft")


def decoder(name: str, form: str, *, seed: int = 0) -> onnx.ModelProto:
    """Build a language model of these sizes in that form."""
    return _Builder(DECODERS[name], form, seed).model()


def save(name: str, form: str, folder: Path) -> Path:
    """Build a language model and save it with its weights beside the graph; return the path."""
    path = folder / f"{name}-{form}.onnx"
    if not path.exists():
        model = decoder(name, form)
        onnx.save_model(model, str(path), save_as_external_data=True, location=f"{path.name}.data", size_threshold=1024)
    return path


def feeds(sizes: Decoder, form: str, words: Array, past: int) -> dict[str, Array]:
    """Return the inputs of a run of new words behind a past, without the caches."""
    batch, rows = words.shape
    found = {"input_ids": words, "attention_mask": np.ones((batch, past + rows), np.int64)}
    if form == "optimum":
        found["position_ids"] = np.tile(np.arange(past, past + rows, dtype=np.int64), (batch, 1))
    return found


def empty_caches(sizes: Decoder, batch: int = 1) -> dict[str, Array]:
    """Return caches without rows, by input."""
    shape = (batch, sizes.groups, 0, sizes.depth)
    kinds = ("key", "value")
    return {f"past_key_values.{n}.{k}": np.zeros(shape, np.float16) for n in range(sizes.layers) for k in kinds}
