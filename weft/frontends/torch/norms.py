"""Norms, and the softmax."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.core.graph.dtypes import DType
from weft.frontends.torch.builder import Builder, Size, Value, static
from weft.frontends.torch.rules import Unsupported, aten


def _parameter(g: Builder, value: Value | None, shape: Sequence[int], fill: float, dtype: DType) -> Value:
    return g.constant(np.full(tuple(shape), fill, dtype.numpy)) if value is None else value


def _channels(x: Value) -> int:
    channels = x.shape[1]
    if channels is None:
        raise Unsupported("needs a fixed number of channels")
    return channels


@aten("batch_norm")
def batch_norm(
    g: Builder, x: Value, weight: Value | None, bias: Value | None, mean: Value | None, var: Value | None,
    training: bool, momentum: float, eps: float, *_: object,
) -> Value:
    if training or mean is None or var is None:
        raise Unsupported("takes its statistics from the batch, as in training: call model.eval() first")
    size = [_channels(x)]
    scale = _parameter(g, weight, size, 1, mean.dtype)
    shift = _parameter(g, bias, size, 0, mean.dtype)
    return g.op("BatchNormalization", x, scale, shift, mean, var, epsilon=eps)


@aten("_native_batch_norm_legit_no_training _batch_norm_no_update")
def batch_norm_inference(
    g: Builder, x: Value, weight: Value | None, bias: Value | None, mean: Value, var: Value, momentum: float,
    eps: float,
) -> list[Value]:
    return [batch_norm(g, x, weight, bias, mean, var, False, momentum, eps)]


@aten("native_batch_norm cudnn_batch_norm")
def native_batch_norm(
    g: Builder, x: Value, weight: Value | None, bias: Value | None, mean: Value | None, var: Value | None,
    training: bool, momentum: float, eps: float,
) -> list[Value]:
    return [batch_norm(g, x, weight, bias, mean, var, training, momentum, eps)]


@aten("instance_norm")
def instance_norm(
    g: Builder, x: Value, weight: Value | None, bias: Value | None, mean: Value | None, var: Value | None,
    use_input_stats: bool, momentum: float, eps: float, *_: object,
) -> Value:
    if not use_input_stats:
        return batch_norm(g, x, weight, bias, mean, var, False, momentum, eps)
    if mean is not None:
        raise Unsupported("updates its statistics, as in training: call model.eval() first")
    size = [_channels(x)]
    scale, shift = _parameter(g, weight, size, 1, x.dtype), _parameter(g, bias, size, 0, x.dtype)
    return g.op("InstanceNormalization", x, scale, shift, epsilon=eps)


@aten("group_norm")
def group_norm(
    g: Builder, x: Value, groups: int, weight: Value | None, bias: Value | None, eps: float, *_: object
) -> Value:
    size = [_channels(x)]
    scale, shift = _parameter(g, weight, size, 1, x.dtype), _parameter(g, bias, size, 0, x.dtype)
    if x.rank > 2:
        return g.op("GroupNormalization", x, scale, shift, num_groups=groups, epsilon=eps)
    x = g.unsqueeze(x, [2])
    return g.squeeze(g.op("GroupNormalization", x, scale, shift, num_groups=groups, epsilon=eps, shape=x.shape), [2])


@aten("native_group_norm")
def native_group_norm(
    g: Builder, x: Value, weight: Value | None, bias: Value | None, batch: Size, channels: Size, places: Size,
    groups: int, eps: float,
) -> list[Value]:
    return [group_norm(g, x, groups, weight, bias, eps)]


@aten("layer_norm")
def layer_norm(
    g: Builder, x: Value, shape: Sequence[Size], weight: Value | None, bias: Value | None, eps: float, *_: object
) -> Value:
    if weight is None:
        sizes = static(Value("", x.dtype, x.shape[x.rank - len(shape):]), "normalized axes")
        weight = _parameter(g, None, sizes, 1, x.dtype)
    return g.op("LayerNormalization", x, weight, bias, axis=-len(shape), epsilon=eps)


@aten("native_layer_norm")
def native_layer_norm(
    g: Builder, x: Value, shape: Sequence[Size], weight: Value | None, bias: Value | None, eps: float
) -> list[Value]:
    return [layer_norm(g, x, shape, weight, bias, eps)]


@aten("rms_norm")
def rms_norm(g: Builder, x: Value, shape: Sequence[Size], weight: Value | None, eps: float | None) -> Value:
    if weight is None:
        sizes = static(Value("", x.dtype, x.shape[x.rank - len(shape):]), "normalized axes")
        weight = _parameter(g, None, sizes, 1, x.dtype)
    least = float(np.finfo(np.float32).eps if eps is None else eps)
    return g.op("RMSNormalization", x, weight, axis=-len(shape), epsilon=least)


@aten("_fused_rms_norm")
def fused_rms_norm(g: Builder, x: Value, shape: Sequence[Size], weight: Value | None, eps: float | None) -> list[Value]:
    return [rms_norm(g, x, shape, weight, eps)]


@aten("softmax.int _softmax _safe_softmax")
def softmax(g: Builder, x: Value, dim: int, *_: object) -> Value:
    return _softmax(g, "Softmax", x, dim)


@aten("log_softmax.int _log_softmax")
def log_softmax(g: Builder, x: Value, dim: int, *_: object) -> Value:
    return _softmax(g, "LogSoftmax", x, dim)


def _softmax(g: Builder, kind: str, x: Value, dim: int) -> Value:
    x = g.cast(x, g.out.dtype)
    if x.rank == 0:
        return g.squeeze(g.op(kind, g.unsqueeze(x, [0]), axis=0, shape=(1,)), [0])
    return g.op(kind, x, axis=dim)
