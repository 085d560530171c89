"""Ops that stand for many are taken apart for a device that knows their parts alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pytest

import weft
from tests.helpers.nets import Net, feeds, kinds
from tests.helpers.rewrites import assert_same
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph
from weft.core.graph.interpreter import outputs
from weft.core.graph.op import Op
from weft.core.graph.tensor import Tensor
from weft.core.placement.assign import Backends
from weft.core.placement.decompose import decompose_refused
from weft.errors import UnsupportedOps
from weft.ops.onnx_attention import OnnxAttention


class Knows:
    """A backend that refuses some types of ops."""

    def __init__(self, *refused: str) -> None:
        self.refused = refused

    def why_not(self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], op: Op) -> str | None:
        return f"no {op.type} here" if op.type in self.refused else None


def backends(**each: Knows) -> Backends:
    return cast(Backends, each)


def gelu(form: str) -> Graph:
    net = Net()
    return net.finish(net.add("Gelu", net.input("x", 3, 5), approximate=form, name="y"))


def norm(shift: bool) -> Graph:
    net = Net()
    x, parameters = net.input("x", 2, 3, 5), [net.random(3, 5) for _ in range(1 + shift)]
    return net.finish(net.add("LayerNormalization", x, *parameters, axis=1, epsilon=0.01, name="y"))


def norm_of_one_axis(kind: str, **attributes: Any) -> Graph:
    net = Net()
    scale = [net.random(5)] if kind == "RMSNormalization" else []
    return net.finish(net.add(kind, net.input("x", 2, 3, 5), *scale, **attributes, name="y"))


def attention(heads: int, packed: int, mask: bool, **more: Any) -> Graph:
    net = Net()
    if packed:
        inputs = [net.input("qkv", 2, 5, 24)]
    elif heads:
        inputs = [net.input("q", 2, 5, 8), net.input("k", 2, 7, 8), net.input("v", 2, 7, 6)]
    else:
        inputs = [net.input("q", 3, 5, 8), net.input("k", 3, 7, 8), net.input("v", 3, 7, 6)]
    added = [net.input("mask", 5, 5 if packed else 7)] * mask
    attributes: dict[str, Any] = {"scale": 0.3, "heads": heads, "packed": packed, **more}
    return net.finish(net.add("weft::Attention", *inputs, *added, name="y", **attributes))


def replaced(dtype: DType) -> Graph:
    """Return an attention whose mask takes the place of an infinite score."""
    net = Net()
    keys, mask = np.abs(net.random(3, 7, 8)), np.zeros((5, 7), np.float32)
    keys[:, 2:4], mask[:, 2], mask[:, 3] = np.inf, -65504 if dtype is DType.FLOAT16 else -1e30, -np.inf
    q = net.add("Exp", net.input("q", 3, 5, 8, dtype=dtype))
    inputs = q, keys.astype(dtype.numpy), net.input("v", 3, 7, 6, dtype=dtype), mask.astype(dtype.numpy)
    return net.finish(net.add("weft::Attention", *inputs, scale=0.3, low_replaces=1, name="y"))


def deviation(groups: int) -> Graph:
    net = Net()
    return net.finish(net.add("weft::GroupDeviation", net.input("x", 2, 6, 5, 3), num_groups=groups, name="y"))


def recurrence(axis: int) -> Graph:
    net, dims = Net(), [2, 3, 4]
    inputs = [net.input("a", *dims), net.input("b", *dims)]
    del dims[axis]
    return net.finish(net.add("weft::LinearRecurrence", *inputs, net.input("s", *dims), axis=axis, name="y"))


def choice() -> Graph:
    net = Net()
    inputs = [net.input("a", 3, 5), net.input("b", 5), net.input("x", 2, 3, 1), net.input("y", 1)]
    return net.finish(net.add("weft::CompareSelect", *inputs, comparison="LessOrEqual", name="out"))


GRAPHS = {
    "Gelu": [gelu("none"), gelu("tanh")],
    "LayerNormalization": [norm(True), norm(False)],
    "RMSNormalization": [norm_of_one_axis("RMSNormalization", epsilon=0.01)],
    "weft::L2Normalization": [norm_of_one_axis("weft::L2Normalization", axis=k, least=0.9) for k in (1, -1)],
    "weft::SumNormalization": [
        norm_of_one_axis("weft::SumNormalization", axis=k, mean=1 + k, epsilon=9.0) for k in (-1, 0)
    ],
    "weft::GroupDeviation": [deviation(groups) for groups in (1, 2, 6)],
    "weft::LinearRecurrence": [recurrence(axis) for axis in (0, 1, -1)],
    "weft::CompareSelect": [choice()],
    "weft::Attention": [
        attention(0, 0, False), attention(2, 0, True), attention(2, 1, True), attention(2, 1, False),
        attention(2, 0, True, zero_nan=1), attention(0, 0, True, softcap=0.5),
    ],
}
EACH = [pytest.param(kind, graph, id=f"{kind}{k}") for kind, graphs in GRAPHS.items() for k, graph in enumerate(graphs)]


@pytest.mark.parametrize(("kind", "graph"), EACH)
def test_the_parts_do_the_work_of_the_whole(kind: str, graph: Graph) -> None:
    before = str(graph)
    after, (note,) = decompose_refused(graph, backends(a=Knows(kind)))
    assert kind not in kinds(after)
    assert f"({kind}) runs in {len(after.nodes)} parts: a: no {kind} here" in note
    assert_same(graph, after)
    assert str(graph) == before


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT16])
def test_the_parts_of_an_attention_replace_scores(dtype: DType) -> None:
    graph = replaced(dtype)
    after, _ = decompose_refused(graph, backends(a=Knows("weft::Attention")))
    assert "weft::Attention" not in kinds(after) and np.isfinite(outputs(graph, feeds(graph))[0]).all()
    assert_same(graph, after, 1e-5 if dtype is DType.FLOAT32 else 5e-3)


@pytest.mark.parametrize(("kind", "graph"), EACH)
def test_what_the_device_takes_or_takes_no_part_of_stays_whole(kind: str, graph: Graph) -> None:
    for knows in (Knows(), Knows(kind, "MatMul", "Mul", "Where", "Div")):
        after, notes = decompose_refused(graph, backends(a=knows, b=Knows()))
        assert (after.nodes, notes) == (graph.nodes, [])
        assert after.constants.keys() == graph.constants.keys()


def test_the_device_of_a_hint_is_asked() -> None:
    graph = gelu("none")
    asked = backends(a=Knows("Gelu"), b=Knows())
    assert kinds(decompose_refused(graph, asked, {"n_*": "b"})[0]) == ["Gelu"]
    assert "Erf" in kinds(decompose_refused(graph, asked)[0])


@pytest.mark.parametrize("device", ["opencl", "vulkan"])
def test_heads_too_large_for_the_kernel_run_in_parts_on_the_same_device(device: str) -> None:
    net = Net()
    q, k, v = (net.input(n, 1, 5, 160) for n in "qkv")
    scores = net.add("MatMul", q, net.add("Transpose", k, perm=(0, 2, 1)))
    graph = net.finish(net.add("MatMul", net.add("Softmax", scores), v))
    fed = feeds(graph)
    with weft.load(graph, device, fallback="error") as session:
        assert any("heads have 160 elements" in note for note in session.report.notes)
        np.testing.assert_allclose(session.run(fed)[0], outputs(graph, fed)[0], rtol=1e-4, atol=1e-5)


def attention_of_onnx(*more: str) -> Graph:
    net = Net()
    q, k, v = (net.input(name, 1, 2, 5, 8) for name in "qkv")
    past = [net.input(name, 1, 2, 3, 8) for name in ("past_k", "past_v")]
    net.add(OnnxAttention(is_causal=1, outputs=3), q, k, v, "", *past, name="y", outputs=3)
    return net.finish("y", *more)


def test_an_op_that_others_define_is_taken_apart_until_the_device_takes_the_parts() -> None:
    graph = attention_of_onnx("y.1")
    after, (note,) = decompose_refused(graph, backends(a=Knows("Attention", "weft::Attention")))
    assert {"Softmax", "Concat"} < {*kinds(after)} and "weft::Attention" not in kinds(after)
    assert f"runs in {len(after.nodes)} parts" in note
    assert_same(graph, after)


@pytest.mark.parametrize("shape", [(1, 5, 16), (1, 2, 5, 8)])
def test_the_cap_of_an_attention_of_others_is_left_to_ours(shape: tuple[int, ...]) -> None:
    net = Net()
    op = OnnxAttention(q_num_heads=2, kv_num_heads=2, softcap=2.0, scale=3.0)
    net.add(op, *(net.input(name, *shape) for name in "qkv"), name="y")
    graph = net.finish("y")
    after, _ = decompose_refused(graph, backends(a=Knows("Attention")))
    assert "Tanh" not in kinds(after)
    assert [n.op.attributes()["softcap"] for n in after.nodes if n.op.type == "weft::Attention"] == [2.0]
    assert_same(graph, after)


def test_parts_for_what_nothing_reads_are_left_out() -> None:
    """Keys apart are outputs that nothing reads: attention reads them where they lie."""
    net = Net()
    op = OnnxAttention(q_num_heads=2, kv_num_heads=2, outputs=3)
    net.add(op, *(net.input(name, 1, 5, 16) for name in "qkv"), name="y", outputs=3)
    graph = net.finish("y")
    assert kinds(decompose_refused(graph, backends(a=Knows("Attention")))[0]) == ["weft::Attention"]
    graph.outputs.append("y.1")
    assert kinds(decompose_refused(graph, backends(a=Knows("Attention")))[0]).count("Transpose") == 1


def test_an_op_stays_whole_where_the_device_refuses_a_part_of_it() -> None:
    net = Net()
    x = net.input("x", 1, 2, 3, 8)
    graph = net.finish(net.add("RotaryEmbedding", x, net.random(1, 3, 4), net.random(1, 3, 4), name="y"))
    after, notes = decompose_refused(graph, backends(a=Knows("RotaryEmbedding", "Split")))
    assert (after.nodes, notes, after.specs.keys()) == (graph.nodes, [], graph.specs.keys())


def too_large(kind: str) -> Graph:
    net = Net()
    if kind == "DFT":
        made = net.add("DFT", net.input("x", 1, 4096, 1), "", np.array(1))
    elif kind == "STFT":
        made = net.add("STFT", net.input("x", 1, 9000, 1), np.array(10), "", np.array(4097))
    else:
        grams = tuple(range(5000))
        made = net.add(
            "TfIdfVectorizer", net.input("x", 2, 3000, dtype=DType.INT64), mode="TF", min_gram_length=1,
            max_gram_length=1, max_skip_count=0, ngram_counts=(0,), ngram_indexes=grams, pool_int64s=grams,
        )
    return net.finish(made)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("DFT", "constant matrix, which would have 33554432 elements for length 4096; the most is 16777216"),
        ("STFT", "constant matrix, which would have 16789506 elements for length 4097; the most is 16777216"),
        ("TfIdfVectorizer", "it would compare 30000000 pairs of tokens and n-grams at a time; the most is 16777216"),
    ],
)
def test_what_is_too_large_to_be_taken_apart_is_refused_for_that(kind: str, why: str) -> None:
    with pytest.raises(UnsupportedOps, match=f"opencl:0: .*{why}"):
        weft.load(too_large(kind), "opencl", fallback="error")
