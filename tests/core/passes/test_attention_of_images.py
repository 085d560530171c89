"""Attention over the pixels of images, with a row for each element of a head, becomes one op."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from onnx import TensorProto

import weft
from tests.helpers.attention_of_images import BIASES, PRODUCTS, SCALES, SOURCES, Form, forms
from tests.helpers.nets import Net, kinds
from tests.helpers.onnx_models import make_model, node, run_onnxruntime
from tests.helpers.random_nets import SLOW
from tests.helpers.rewrites import assert_same
from tests.helpers.run_length import examples
from weft.core.graph.graph import Graph
from weft.core.passes import run_passes
from weft.core.passes.patterns import fuse_attention


def network(form: Form) -> Graph:
    net = Net()
    return net.finish(form.add(net, net.input("x", form.batch, form.channels, *form.image)))


@given(form=forms())
@example(
    Form(
        batch=1, heads=1, depth=1, width=2, image=(2, 1), scale="q and k", bias="computed of queries",
        product="of turned shares", source="slices of channels", einsum=True,
    )
)  # the attention leaves a reshape with one reader
@settings(max_examples=examples(150), deadline=None, suppress_health_check=SLOW)
def test_what_becomes_one_op_stays_the_same(form: Form) -> None:
    graph = network(form)
    fused, after = fuse_attention(graph), run_passes(graph)
    assert_same(graph, fused)
    assert_same(graph, after)
    assert form.einsum or "Einsum" in form.product or len(fused.nodes) <= len(graph.nodes)
    assert str(run_passes(after)) == str(after)


VARIED = [
    *({"scale": each} for each in SCALES),
    *({"bias": each} for each in BIASES),
    *({"product": each} for each in PRODUCTS),
    *({"source": each} for each in SOURCES),
    *({"einsum": True, "product": each} for each in PRODUCTS),
    {"scale": "q and k", "bias": "a constant", "product": "turned behind"},  # CoAtNet
    {"scale": "behind", "width": 16},  # YOLO's PSA
    {"scale": "behind, divided", "bias": "computed of queries"},  # BoTNet
]


@pytest.mark.parametrize("varied", VARIED, ids=lambda varied: ", ".join(map(str, varied.values())))
def test_each_form_is_found(varied: dict[str, object]) -> None:
    graph = network(replace(Form(), **varied))  # type: ignore[arg-type]
    after = run_passes(graph)
    assert kinds(after).count("weft::Attention") == 1
    assert {"Softmax", "Einsum", "Div"}.isdisjoint(kinds(after))
    assert "Mul" not in kinds(after)
    assert_same(graph, after)


def test_one_head_of_keys_and_values_is_for_all() -> None:
    """As in the multi-query attention of MobileNetV4."""
    net = Net()
    x = net.input("x", 2, 12, 3, 4)
    q = net.add("Reshape", net.conv(x, 24), np.array([2, 3, 8, 12]))
    k, v = (net.add("Reshape", net.conv(x, size), np.array([2, 1, size, 12])) for size in (8, 10))
    scores = net.add("MatMul", net.add("Transpose", q, perm=(0, 1, 3, 2)), k)
    shares = net.add("Softmax", net.add("Mul", scores, np.full((), 0.25, np.float32)), axis=-1)
    mixed = net.add("MatMul", shares, net.add("Transpose", v, perm=(0, 1, 3, 2)))
    graph = net.finish(mixed)
    after = run_passes(graph)
    assert kinds(after).count("weft::Attention") == 1 and "Softmax" not in kinds(after)
    assert_same(graph, after)


@pytest.mark.parametrize("k, v", [((2, 1), (2, 3)), ((2, 3), (2, 1)), ((1, 1), (1, 1)), ((1, 3), (1, 3))])
def test_keys_and_values_that_are_shared_in_another_way_stay(k: tuple[int, int], v: tuple[int, int]) -> None:
    net = Net()
    q, keys, values = net.input("q", 2, 3, 5, 4), net.input("k", *k, 4, 7), net.input("v", *v, 7, 6)
    shares = net.add("Softmax", net.add("MatMul", q, keys), axis=-1)
    graph = net.finish(net.add("MatMul", shares, values))
    assert fuse_attention(graph).nodes == graph.nodes


@pytest.mark.parametrize("also", ["shares", "scores", "turned shares"])
def test_what_others_read_stays(also: str) -> None:
    net = Net()
    q, k, v = (net.input(name, 2, 3, 4, 6) for name in "qkv")
    scores = net.add("MatMul", net.add("Transpose", q, perm=(0, 1, 3, 2)), k)
    shares = net.add("Softmax", scores, axis=-1)
    turned = net.add("Transpose", shares, perm=(0, 1, 3, 2))
    read = {"shares": shares, "scores": scores, "turned shares": turned}[also]
    graph = net.finish(net.add("MatMul", v, turned), net.add("Relu", read))
    assert fuse_attention(graph).nodes == graph.nodes


def test_a_product_with_shares_that_are_not_turned_stays() -> None:
    """It weighs queries in place of keys."""
    net = Net()
    q, k, v = (net.input(name, 2, 3, 5, 5) for name in "qkv")
    shares = net.add("Softmax", net.add("MatMul", q, k), axis=-1)
    graph = net.finish(net.add("MatMul", v, shares))
    assert fuse_attention(graph).nodes == graph.nodes


def test_a_result_that_is_turned_back_needs_no_move() -> None:
    net = Net()
    q, k, v = net.input("q", 2, 5, 4), net.input("k", 2, 7, 4), net.input("v", 2, 6, 7)
    scores = net.add("MatMul", q, net.add("Transpose", k, perm=(0, 2, 1)))
    turned = net.add("Transpose", net.add("Softmax", scores, axis=-1), perm=(0, 2, 1))
    mixed = net.add("Transpose", net.add("MatMul", v, turned), perm=(0, 2, 1))
    graph = net.finish(mixed)
    after = fuse_attention(graph)
    assert kinds(after) == ["Transpose", "weft::Attention"]  # of the values
    assert_same(graph, after)


@pytest.mark.parametrize("device", ["cpu", "opencl"])
def test_onnxruntime_computes_the_same(device: str) -> None:
    """As YOLO's PSA block is exported: one convolution makes Q, K and V, values are larger, and are convolved, too."""
    generator = np.random.default_rng(0)
    constants = {
        "w": generator.standard_normal((64, 12, 1, 1)).astype(np.float32) / 4,
        "p": generator.standard_normal((32, 1, 3, 3)).astype(np.float32) / 3,
        "apart": np.array([1, 2, 32, 20]), "image": np.array([1, 32, 4, 5]), "sizes": np.array([8, 8, 16]),
        "scale": np.full((), 8**-0.5, np.float32),
    }
    model = make_model(
        [
            node("Conv", "x w", "qkv"),
            node("Reshape", "qkv apart", "heads"),
            node("Split", "heads sizes", "q k v", axis=2),
            node("Transpose", "q", "rows", perm=(0, 1, 3, 2)),
            node("MatMul", "rows k", "scores"),
            node("Mul", "scores scale", "scaled"),
            node("Softmax", "scaled", "shares", axis=-1),
            node("Transpose", "shares", "turned", perm=(0, 1, 3, 2)),
            node("MatMul", "v turned", "mixed"),
            node("Reshape", "mixed image", "attended"),
            node("Reshape", "v image", "values"),
            node("Conv", "values p", "places", pads=(1, 1, 1, 1), group=32),
            node("Add", "attended places", "y"),
        ],
        {"x": (TensorProto.FLOAT, (1, 12, 4, 5))},
        constants=constants,
    )
    fed = {"x": generator.standard_normal((1, 12, 4, 5)).astype(np.float32)}
    (want,) = run_onnxruntime(model, fed)
    with weft.load(model.SerializeToString(), device, precision="high", fallback="error") as session:
        np.testing.assert_allclose(session.run(fed)[0], want, rtol=1e-4, atol=1e-5)
