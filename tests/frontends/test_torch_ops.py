"""Each rule of the table of ATen's ops against PyTorch, on the CPU: what an op is made of runs in other tests."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from weft.errors import UnsupportedOps
from weft.frontends.torch.rules import table

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")


def r(*shape: int) -> Any:
    """Return random numbers; each call other ones, and the same in each run."""
    return torch.randn(*shape, generator=_random)


def i(*shape: int, below: int = 3) -> Any:
    """Return random indices."""
    return torch.randint(0, below, shape, generator=_random)


_random = torch.Generator().manual_seed(0)
BOOL = torch.tensor([True, False, True])
LSTM = [r(20, 3), r(20, 5), r(20), r(20), r(20, 3), r(20, 5), r(20), r(20)]
GRU = [r(15, 3), r(15, 5), r(15), r(15)]
LAYER = [r(12, 4), r(12), r(4, 4), r(4), r(4), r(4), r(4), r(4), r(5, 4), r(5), r(4, 5), r(4)]
HIDDEN = torch.tensor([[False, False, True], [False, True, True]])
BOXES = torch.tensor([[0.0, 0, 10, 10], [1, 1, 10, 10], [20, 20, 30, 30]])
UNARY = """relu sigmoid tanh exp sin cos atan sinh cosh asinh erf sign silu mish hardswish hardsigmoid log_sigmoid
relu6 selu gelu elu celu leaky_relu softplus hardshrink softshrink expm1 exp2 square trunc frac isnan isinf isfinite
ceil floor round abs neg logical_not clone ones_like zeros_like hardtanh""".split()
POSITIVE = "log sqrt rsqrt log2 log10 log1p reciprocal".split()
ROWS: list[tuple[Any, ...]] = [
    *((f"{name}.default", r(2, 3)) for name in UNARY), *((f"{name}.default", r(2, 3).abs()) for name in POSITIVE),
    ("log1p.default", torch.tensor([-0.9, -1e-6, 0, 1e-7, 3, 1e10])),
    ("expm1.default", torch.tensor([-50, 1e-6, 0, 2])), ("add.Tensor", r(2, 3), r(3), {"alpha": 2}),
    ("add.Tensor", i(3), 1.5), ("add.Tensor", BOOL, BOOL), ("sub.Tensor", r(2), i(2)), ("rsub.Scalar", r(3), 2),
    ("mul.Tensor", BOOL, BOOL), ("div.Tensor", i(3), 2), ("true_divide.Tensor", r(2), r(2)),
    ("div.Tensor_mode", torch.tensor([-7, 7, -6]), 2, {"rounding_mode": "floor"}),
    ("div.Tensor_mode", r(9) * 9, 2, {"rounding_mode": "trunc"}),
    ("floor_divide.default", torch.tensor([-7, 7]), torch.tensor([2, -2])), ("remainder.Scalar", r(5) * 9, 2),
    ("remainder.Tensor", torch.tensor([-7, 7]), torch.tensor([3, -3])), ("fmod.Scalar", r(5) * 9, 2),
    ("pow.Tensor_Scalar", r(3).abs(), 1.5), ("pow.Scalar", 2, r(3)), ("maximum.default", r(3), r(3)),
    ("maximum.default", BOOL, ~BOOL), ("minimum.default", r(3), i(3)), ("atan2.default", r(9), r(9)),
    ("eq.Tensor", i(9), i(9)), ("ne.Scalar", i(9), 1), ("lt.Scalar", i(9), 1.5), ("gt.Tensor", BOOL, ~BOOL),
    ("le.Tensor", r(9), r(1)), ("ge.Scalar", r(9), 0), ("logical_and.default", i(5), i(5)),
    ("bitwise_or.Tensor", i(5), i(5)), ("bitwise_xor.Tensor", BOOL, ~BOOL), ("bitwise_not.default", i(3)),
    ("where.self", BOOL, r(3), r(3)), ("where.ScalarOther", BOOL, i(3), 1.5),
    ("masked_fill.Scalar", r(2, 3), BOOL, 7), ("clamp.default", r(9), -0.5, 0.5), ("clamp.default", i(9), None, 1),
    ("clamp.Tensor", r(3), r(3), None), ("clamp_min.default", r(5), 0), ("softplus.default", r(9), 3, 0.2),
    ("threshold.default", r(5), 0.1, 20), ("prelu.default", r(2, 3, 4), r(3)), ("glu.default", r(2, 6), 1),
    ("to.dtype", r(3) * 9, torch.int32), ("_to_copy.default", i(3)), ("copy.default", r(2, 3), i(3)),
    ("fill.Scalar", r(2), 3), ("full.default", [2, 3], 1.5), ("full_like.default", i(2), 4),
    ("arange.start_step", 1, 9, 2), ("arange.default", 2.5), ("linspace.default", 0, 1, 5), ("eye.m", 2, 3),
    ("tril.default", r(3, 3), 1), ("triu.default", torch.ones(3, 3, dtype=torch.bool), -1),
    ("new_zeros.default", i(2), [3]),
    # products
    ("linear.default", r(2, 3), r(4, 3), r(4)), ("linear.default", r(2, 2, 3), r(4, 3)),
    ("mm.default", r(2, 3), r(3, 2)), ("matmul.default", r(3), r(2, 3, 4)),
    ("addmm.default", r(4), r(2, 3), r(3, 4)), ("mv.default", r(2, 3), r(3)),
    ("baddbmm.default", r(2, 2, 2), r(2, 2, 3), r(2, 3, 2)), ("conv1d.default", r(3, 9), r(4, 3, 3), r(4)),
    ("conv2d.default", r(2, 4, 6, 6), r(4, 2, 3, 3), None, [2, 2], [1, 1], [1, 1], 2),
    ("conv2d.padding", r(1, 2, 5, 5), r(3, 2, 2, 2), None, [1, 1], "same"),
    ("conv_transpose2d.input", r(1, 4, 3, 3), r(4, 2, 3, 3), r(2), [2, 2], [1, 1], [1, 1]),
    ("convolution.default", r(1, 2, 4, 4, 4), r(3, 2, 2, 2, 2), None, [1] * 3, [0] * 3, [1] * 3, False, [0] * 3, 1),
    # norms
    ("batch_norm.default", r(2, 3, 4), None, r(3), r(3), r(3).abs(), False, 0.1, 1e-5, False),
    ("group_norm.default", r(2, 4, 3), 2, r(4), r(4)), ("group_norm.default", r(2, 4), 2),
    ("instance_norm.default", r(2, 3, 4), None, None, None, None, True, 0.1, 1e-5, False),
    ("layer_norm.default", r(2, 3, 4), [3, 4], None, None), ("layer_norm.default", r(2, 4), [4], r(4), r(4)),
    ("rms_norm.default", r(2, 4), [4], r(4)), ("rms_norm.default", r(2, 4), [4]), ("softmax.int", r(2, 3), 0),
    ("softmax.int", r(2), 0, torch.float64), ("log_softmax.int", r(2, 3), -1),
    # pools
    ("max_pool2d.default", r(3, 7, 7), [3, 3], [2, 2], [1, 1], [1, 1], True),
    ("max_pool1d.default", r(1, 2, 6), [2]), ("max_pool2d_with_indices.default", r(2, 3, 6, 6), [2, 2]),
    ("avg_pool2d.default", r(1, 2, 6, 6), [3], [2], [1]),
    ("avg_pool2d.default", r(1, 2, 6, 6), [2, 2], [2, 2], [0, 0], False, True, 3),
    ("adaptive_avg_pool2d.default", r(2, 3, 7, 6), [3, 4]), ("adaptive_avg_pool2d.default", r(3, 6, 6), [2, 3]),
    ("adaptive_avg_pool1d.default", r(2, 3, 5), [1]), ("adaptive_max_pool2d.default", r(1, 2, 6, 6), [3, 2]),
    # reductions
    ("sum.default", i(3, 3)), ("sum.dim_IntList", r(2, 3), [0], True), ("mean.dim", r(2, 3, 4), [-1, 0]),
    ("mean.default", r(2, 3)), ("amax.default", r(2, 3), [1]), ("max.dim", r(2, 3), 1),
    ("min.dim", i(2, 3), 0, True), ("argmax.default", r(2, 3)), ("argmax.default", r(2, 3), None, True),
    ("argmin.default", r(2, 3), 1), ("any.dim", BOOL, 0), ("all.default", BOOL), ("prod.dim_int", r(2, 3), 1),
    ("logsumexp.default", r(2, 3), [1]), ("var.correction", r(2, 3), [1]), ("std.correction", r(2, 3), None),
    ("var_mean.correction", r(2, 3), [0]), ("linalg_vector_norm.default", r(2, 3), 2, [1]),
    ("linalg_vector_norm.default", r(2, 3), 3), ("linalg_vector_norm.default", r(2, 3), float("inf")),
    ("cumsum.default", i(3), 0), ("cumprod.default", r(2, 3), 1), ("topk.default", r(2, 5), 2),
    ("sort.default", r(2, 5), 0, True), ("sort.stable", r(5), {"stable": True}), ("argsort.default", r(5)),
    # shapes
    ("view.default", r(2, 3, 4), [-1, 4]), ("flatten.using_ints", r(2, 3, 4), 1),
    ("unflatten.int", r(6, 2), 0, [2, -1]), ("squeeze.default", r(1, 2, 1)), ("squeeze.dims", r(1, 2, 1), [0, 1]),
    ("permute.default", r(2, 3, 4), [2, 0, 1]), ("transpose.int", r(2, 3), 0, -1), ("t.default", r(2, 3)),
    ("expand.default", r(3, 1), [2, -1, 4]), ("repeat.default", r(2, 3), [2, 1, 2]),
    ("repeat_interleave.self_int", r(2, 3), 2, 1), ("cat.default", [r(2, 3), i(2, 1)], 1),
    ("stack.default", [r(2), r(2)], 1), ("split.Tensor", r(5, 2), 2), ("split_with_sizes.default", r(5), [2, 3]),
    ("chunk.default", r(5, 2), 2), ("unbind.int", r(2, 3), 1), ("slice.Tensor", r(5), 0, 1, 9, 2),
    ("slice.Tensor", r(5), 0, -2), ("select.int", r(2, 3), 1, -1), ("narrow.default", r(5), 0, 1, 2),
    ("slice_scatter.default", r(5, 2), r(2, 2), 0, 1, 3), ("slice_scatter.default", r(5), r(3), 0, 0, 5, 2),
    ("select_scatter.default", r(2, 3), r(2), 1, 1), ("flip.default", r(2, 3), [0, 1]),
    ("roll.default", r(2, 3), [1, -1], [0, 1]), ("roll.default", r(2, 3), [2]),
    ("unfold.default", r(2, 7), 1, 3, 2), ("diagonal.default", r(2, 3, 3), 1, 1, 2),
    ("constant_pad_nd.default", r(2, 3), [1, -1], 2.5), ("pad.default", r(1, 2, 5), [2, 1], "reflect"),
    ("pad.default", r(1, 2, 5), [2, 1], "circular"), ("replication_pad2d.default", r(1, 2, 3, 3), [1, 1, 0, 2]),
    # indices
    ("embedding.default", r(5, 3), i(2, 2)), ("index_select.default", r(3, 4), 1, i(2)),
    ("gather.default", r(3, 4), 1, i(3, 2)), ("scatter.src", r(3, 4), 1, i(2, 1), r(3, 4)),
    ("scatter.value", r(3, 4), 0, i(1, 4), 9), ("scatter_add.default", r(3), 0, i(5), r(5)),
    ("scatter_reduce.two", r(3), 0, i(5), r(5), "amax"), ("nonzero.default", BOOL),
    ("index.Tensor", r(3, 4), [None, i(2)]), ("index.Tensor", r(3, 3, 4), [i(2, 1), i(5)]),
    ("index.Tensor", r(2, 3, 3, 4), [None, i(2), i(2)]), ("index.Tensor", r(3, 4, 3), [i(2), None, i(2)]),
    ("index.Tensor", r(3, 4), [BOOL]), ("index_put.default", r(3, 4), [torch.tensor([2, 0])], r(2, 4)),
    ("index_put.default", r(2, 3, 4), [None, torch.tensor([2, 0])], r(2, 4)),
    ("index_put.default", r(3, 4), [i(5)], r(1), True), ("index_put.default", r(3, 4), [BOOL], r(4)),
    ("index_put.default", r(3), [BOOL], torch.tensor(5.0)),
    ("index_add.default", r(3), 0, i(5), r(5), {"alpha": 2}),
    # pictures, attention, layers
    ("upsample_nearest2d.vec", r(1, 2, 3, 4), [5, 7], None),
    ("_upsample_nearest_exact2d.vec", r(1, 2, 3, 4), [5, 7], None),
    ("upsample_bilinear2d.vec", r(1, 2, 3, 4), None, False, [1.7, 2.0]),
    ("upsample_bilinear2d.vec", r(1, 2, 3, 4), [5, 7], True, None),
    ("upsample_bicubic2d.vec", r(1, 2, 5, 5), [8, 3], False, None),
    ("_upsample_bilinear2d_aa.vec", r(1, 1, 9, 8), [3, 3], False, None),
    ("_upsample_bicubic2d_aa.vec", r(1, 1, 9, 8), [3, 12], False, None),
    ("pixel_shuffle.default", r(1, 8, 2, 3), 2), ("pixel_shuffle.default", r(4, 2, 3), 2),
    ("grid_sampler.default", r(1, 2, 4, 4), r(1, 3, 3, 2), 0, 1, False),
    ("affine_grid_generator.default", r(1, 2, 3), [1, 2, 3, 4], False),
    ("scaled_dot_product_attention.default", r(1, 2, 3, 4), r(1, 2, 5, 4), r(1, 2, 5, 4)),
    ("scaled_dot_product_attention.default", r(2, 3, 4), r(2, 3, 4), r(2, 3, 4), None, 0.0, True),
    ("scaled_dot_product_attention.default", r(1, 2, 3, 4), r(1, 2, 3, 4), r(1, 2, 3, 4), BOOL.reshape(1, 3)),
    ("scaled_dot_product_attention.default", r(1, 4, 3, 4), r(1, 2, 3, 4), r(1, 2, 3, 4), r(3, 3),
     {"enable_gqa": True}),
    ("_transformer_encoder_layer_fwd.default", r(2, 3, 4), 4, 2, *LAYER[:4], True, False, 1e-5, *LAYER[4:]),
    ("_transformer_encoder_layer_fwd.default", r(2, 3, 4), 4, 2, *LAYER[:4], False, True, 1e-5, *LAYER[4:], HIDDEN, 1),
    ("lstm.input", r(2, 4, 3), [r(2, 2, 5), r(2, 2, 5)], LSTM, True, 1, 0.0, False, True, True),
    ("lstm.input", r(4, 2, 3), [r(1, 2, 5), r(1, 2, 5)], LSTM[:2], False, 1, 0.0, False, False, False),
    ("gru.input", r(4, 2, 3), r(1, 2, 5), GRU, True, 1, 0.0, False, False, False),
    ("rnn_tanh.input", r(4, 2, 3), r(1, 2, 5), [w[:5] for w in GRU], True, 1, 0.0, False, False, False),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=[f"{k}-{row[0]}" for k, row in enumerate(ROWS)])
def test_a_rule_computes_what_pytorch_does(row: tuple[Any, ...]) -> None:
    from tests.helpers.torch_ops import computed

    name, *args = row
    packet, _, overload = name.partition(".")
    op = getattr(getattr(torch.ops.aten, packet), overload)
    more: dict[str, Any] = args.pop() if isinstance(args[-1], dict) else {}
    with torch.no_grad():
        wanted = op(*args, **more)
    found = computed("cpu", op, *args, **more)
    for mine, its in zip(found, wanted if isinstance(wanted, (list, tuple)) else [wanted], strict=False):
        assert mine.dtype == its.numpy().dtype and mine.shape == its.shape
        np.testing.assert_allclose(mine, its.numpy(), rtol=1e-4, atol=1e-5)


def test_every_name_of_the_table_is_one_of_pytorch() -> None:
    for name in table():
        domain, packet, overload = name.split(".")
        if domain == "aten":
            assert hasattr(getattr(torch.ops.aten, packet), overload), name


@pytest.mark.parametrize(
    ("name", "args", "why"),
    [
        ("dropout.default", (r(3), 0.5, True), "in training"), ("i0.default", (r(3),), "has no form"),
        ("batch_norm.default", (r(2, 3), None, None, None, None, True, 0.1, 1e-5, False), "model.eval"),
        ("conv1d.default", (i(1, 3, 9), i(4, 3, 3)), "Conv of Weft does not take this: the inputs are int64"),
    ],
)
def test_a_refusal_says_why(name: str, args: tuple[Any, ...], why: str) -> None:
    from tests.helpers.torch_ops import computed

    packet, _, overload = name.partition(".")
    with pytest.raises(UnsupportedOps, match=why):
        computed("cpu", getattr(getattr(torch.ops.aten, packet), overload), *args)
