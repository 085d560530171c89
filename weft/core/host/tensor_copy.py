"""Copies between tensors anywhere: host, CPU backend, any device (contract M10)."""

from __future__ import annotations

from dataclasses import replace

from weft.core.contract.check_answers import done
from weft.core.contract.error_context import callback_of
from weft.core.graph.layout import convert
from weft.core.graph.tensor import MemoryOwner, Tensor
from weft.core.host.parallel_copy import copy_into
from weft.errors import InputError


def is_host(tensor: Tensor) -> bool:
    """Tell whether the tensor's memory is a numpy array."""
    return tensor.backend is None or tensor.backend.host_memory


def copy_host(src: Tensor, dst: Tensor) -> None:
    """Copy between two tensors whose memory is numpy arrays, converting layout and element type."""
    stored = convert(src.memory, src.shape, src.layout, dst.layout, dst.dtype.numpy)
    copy_into(dst.memory, stored.reshape(dst.storage_shape))


def _copied(backend: MemoryOwner, src: Tensor, dst: Tensor) -> None:
    answer: object = backend.onCopyBuffer(src, dst)  # type: ignore[func-returns-value]
    if answer is not None:
        done(answer, callback_of(backend, "onCopyBuffer"), f"{src.name!r} could not be copied")


def copy_tensor(src: Tensor, dst: Tensor) -> None:
    """Copy between any two tensors of one shape; a copy between two devices goes through the host."""
    if src.shape != dst.shape:
        what = f"cannot copy {src.name!r} {src.shape} to {dst.name!r} {dst.shape}"
        raise InputError(what, why="the shapes differ", fix="copy to a tensor of the same shape")
    if is_host(src) and is_host(dst):
        copy_host(src, dst)
    elif src.backend is not None and (src.backend is dst.backend or is_host(dst)):
        _copied(src.backend, src, dst if src.backend is dst.backend else replace(dst, backend=None))
    elif is_host(src) and dst.backend is not None:
        _copied(dst.backend, replace(src, backend=None), dst)
    else:
        middle = Tensor.empty(src.shape, src.dtype, src.layout, src.name)
        copy_tensor(src, middle)
        copy_tensor(middle, dst)
