"""Tensors that a network changes, in the memory of its device: they are sent there once, not with each run.

A tensor has one buffer, which all compiled functions use. PyTorch's version counter tells whether the program has
changed the tensor since.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.weak import WeakTensorKeyDictionary

from weft.core.buffers.buffer import Buffer
from weft.core.session.session import Session
from weft.errors import InputError


@dataclass
class _Held:
    buffer: Buffer
    where: object
    version: int
    """That of the tensor when both had the same value, or when the buffer got a newer one."""
    is_newer: bool = False


_held: Any = WeakTensorKeyDictionary()
_lock = threading.RLock()


def buffer_of(tensor: torch.Tensor, session: Session, name: str, where: object, ahead: int = 0) -> Buffer | None:
    """Return a buffer with the value of a tensor, on the device where a session reads the input of that name.

    `where` stands for the devices of the session: with others the tensor gets another buffer. `ahead` says how often
    the version was counted up for this run, which has not written yet. None where the device computes in the host's
    memory, where it has another type, and before sizes are bound.
    """
    with _lock:
        held = _held.get(tensor)
        if held is not None and held.where == where:
            if held.version != tensor._version - ahead:
                held.buffer.write(tensor.numpy())
                held.is_newer = False
            held.version = tensor._version
            found: Buffer = held.buffer
            return found
        write_back(tensor)
        try:
            buffer = session.buffer(name)
        except InputError:
            return None
        if buffer.host is not None or buffer.dtype != tensor.numpy().dtype:
            buffer.close()
            return None
        buffer.write(tensor.numpy())
        _held[tensor] = _Held(buffer, where, tensor._version)
        return buffer


def changed(tensor: torch.Tensor) -> None:
    """Note that a run has written the buffer of a tensor."""
    with _lock:
        held = _held[tensor]
        held.version, held.is_newer = tensor._version, True


def write_back(tensor: torch.Tensor) -> None:
    """Let a tensor have the value of its buffer, unless the program has changed the tensor since."""
    with _lock:
        held = _held.get(tensor)
        if held is not None and held.is_newer and held.version == tensor._version:
            np.copyto(tensor.detach().numpy(), held.buffer.numpy())
            torch.autograd.graph.increment_version(tensor)
            held.version, held.is_newer = tensor._version, False


def write_back_all(model: torch.nn.Module) -> None:
    """Let buffers of a model that stayed on a device (`buffers="device"`) have the values that they have there."""
    for tensor in (*model.buffers(), *model.parameters()):
        write_back(tensor)
